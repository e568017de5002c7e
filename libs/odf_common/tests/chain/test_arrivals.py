"""What blocks from elsewhere may bring, where the result depends on the head or on the block before."""

from dataclasses import replace

import pytest
from odf_testing.builders import a_block, a_chain, a_push_source, a_schema, a_seed, a_source_state, a_time

from odf_common.chain.arrivals import (
    Arrival,
    ForeignDefinition,
    ForeignProgress,
    OwnWork,
    TimeInFuture,
    changes,
    require_admissible,
    require_same_work,
)
from odf_common.chain.build_blocks import add_data_event
from odf_common.chain.state import ChainState
from odf_common.errors import Refused
from odf_common.metadata.data_schema import DataTypeString
from odf_common.metadata.events import AddData, KnownEvent, SetInfo, SetVocab
from odf_common.metadata.scalars import Timestamp

NOW = a_time(3600)


def arrive(
    past: ChainState | None, event: KnownEvent, own: ChainState | None, *, now: Timestamp = NOW
) -> None:
    require_admissible(Arrival(latest=now, own=OwnWork.at_head(own)), past, a_block(past, event))


def at(value: str, past: ChainState) -> AddData:
    return add_data_event(past, new_data=None, watermark=None, source_state=a_source_state(value))


def test_a_position_is_known_if_it_is_that_of_the_head_or_of_the_block_before() -> None:
    base = a_chain().state
    chain = a_chain().add(at("1", base))
    before = chain.state
    head = chain.add(at("2", before)).state
    arrive(before, at("2", before), head)  # history is replaced, and reading continues where it was
    arrive(head, replace(at("2", head), new_watermark=a_time()), head)
    arrive(before, replace(at("1", before), new_watermark=a_time()), head)
    for value in ("1", "3"):
        with pytest.raises(
            ForeignProgress, match="only the owner may change the state of source default; to"
        ):
            arrive(head, at(value, head), head)
    with pytest.raises(ForeignProgress):
        arrive(base, at("1", base), None)


def test_a_watermark_is_raised_up_to_now_and_kept_where_it_is() -> None:
    past = a_chain().state

    def to(time: Timestamp, state: ChainState) -> AddData:
        return add_data_event(state, new_data=None, watermark=time, source_state=None)

    arrive(past, to(NOW, past), past)
    with pytest.raises(ForeignProgress, match="the watermark to 2026-01-01T01:00:00"):
        arrive(past, to(Timestamp(NOW.ns + 1), past), past)
    ahead = a_chain().add(to(a_time(7200), past)).state
    arrive(ahead, replace(to(a_time(7200), ahead), new_source_state=None), ahead)


def test_a_definition_is_known_if_it_is_that_of_the_head_or_of_the_block_before() -> None:
    head = a_chain(a_seed(), SetVocab(event_time_column="at"), a_push_source(), a_schema()).state
    seed = a_chain(a_seed()).state
    for event in (SetVocab(event_time_column="at"), a_push_source(), a_schema()):
        arrive(seed, event, head)
    for event in (
        SetVocab(event_time_column="on"),
        a_push_source(date_format="x"),
        a_schema(x=DataTypeString()),
    ):
        with pytest.raises(ForeignDefinition, match="only the owner may change the"):
            arrive(seed, event, head)
    with pytest.raises(
        ForeignDefinition, match="the push sources, the names of the system columns; to accept"
    ):
        require_same_work(OwnWork.at_head(head), seed.definitions)
    require_same_work(OwnWork.at_head(head), head.definitions)


@pytest.mark.parametrize("own", [None, OwnWork()], ids=["copy", "owned"])
def test_no_chain_takes_a_block_from_the_future(own: OwnWork | None) -> None:
    past = a_chain().state
    for state in (None, past):
        event = a_seed() if state is None else SetInfo(description="x")
        block = a_block(state, event)
        require_admissible(Arrival(latest=block.system_time, own=own), state, block)
        latest = Timestamp(block.system_time.ns - 1)
        with pytest.raises(TimeInFuture, match=f"block {block.sequence_number} is from the future: 2026-"):
            require_admissible(Arrival(latest=latest, own=own), state, block)


def test_errors_have_their_own_codes() -> None:
    for kind in (ForeignDefinition, ForeignProgress, TimeInFuture):
        error = kind(text="x")
        assert (error.reason, error.code, isinstance(error, Refused)) == (kind.__name__, kind.__name__, True)


def test_what_an_owner_takes_over_is_described() -> None:
    before = a_chain().state
    chain = a_chain().add(at("x" * 300, before), SetInfo(description="x"), SetVocab(offset_column="nr"))
    assert list(changes(before, chain.state)) == [
        "the names of the system columns",
        f"the state of source default: none → odf/kafka {'x' * 190}…",
    ]
    assert list(changes(before, before)) == []
