import pytest
from odf_testing.builders import (
    a_block,
    a_chain,
    a_checkpoint,
    a_hash,
    a_polling_source,
    a_push_source,
    a_schema,
    a_seed,
    a_slice,
    a_source_state,
    a_time,
    some_data,
)

from odf_common.chain.build_blocks import ClockBehind, add_data_event, build_blocks, next_system_time
from odf_common.chain.rules import admit
from odf_common.chain.state import DEFAULT_SOURCE, ChainState
from odf_common.dataset.state_cache import state_from_bytes, state_to_bytes
from odf_common.errors import InvalidInput
from odf_common.metadata.events import (
    AddData,
    DisablePollingSource,
    DisablePushSource,
    SetInfo,
    SetLicense,
    SetVocab,
)
from odf_common.metadata.scalars import Timestamp


def test_add_data_keeps_the_later_watermark_and_carries_offsets() -> None:
    state = a_chain().add(AddData(new_watermark=a_time(9))).add_data().state
    event = add_data_event(state, new_data=a_slice(10), watermark=a_time(3), source_state=None)
    assert (event.prev_offset, event.new_watermark) == (9, a_time(9))
    assert admitted(state, event).last_offset == 19


def test_the_next_block_is_later_than_the_last_as_long_as_the_clock_may_be_right() -> None:
    state = a_chain().state
    last, most = state.system_time, 1000
    assert next_system_time(state, Timestamp.from_ms(last.ms + 5), most) == Timestamp.from_ms(last.ms + 5)
    for behind in (0, 1, most - 1):
        now = Timestamp.from_ms(last.ms - behind)
        assert next_system_time(state, now, most) == Timestamp.from_ms(last.ms + 1)
    with pytest.raises(
        ClockBehind, match=f"the last block is from {last}, but the clock of this machine says"
    ):
        next_system_time(state, Timestamp.from_ms(last.ms - most), most)


def test_a_vocabulary_that_renames_columns_of_a_schema_is_remembered_with_the_block_before_it() -> None:
    chain = a_chain(a_seed(), SetVocab(event_time_column="at"), a_push_source())
    assert chain.state.renamed_after is None
    chain.add(a_schema(), SetInfo())
    assert chain.add(SetVocab(event_time_column="at")).state.renamed_after is None, "the same names"
    good = chain.state
    assert chain.add(SetVocab(offset_column="id")).state.renamed_after == good.head
    assert chain.add(SetVocab(event_time_column="at"), SetInfo()).state.renamed_after == good.head
    assert state_from_bytes(state_to_bytes(chain.state)) == chain.state


def test_no_events_make_no_blocks() -> None:
    for past in (None, a_chain().state):
        with pytest.raises(InvalidInput, match="no events"):
            build_blocks(past, [], system_time=a_time(), version=3)


def test_setting_the_watermark_keeps_all_source_states() -> None:
    chain = a_chain().add(a_push_source("b"))
    for value, source in (("1", "default"), ("2", "b")):
        event = add_data_event(
            chain.state, new_data=None, watermark=None, source_state=a_source_state(value, source)
        )
        chain.add(event)
    event = add_data_event(chain.state, new_data=None, watermark=a_time(1), source_state=None)
    assert event.new_source_state == a_source_state("2", "b")
    chain.add(event)
    assert {name: one.value for name, one in chain.state.source_states.items()} == {"default": "1", "b": "2"}


def test_an_event_without_source_state_keeps_the_known_ones() -> None:
    chain = a_chain().add(AddData(new_source_state=a_source_state("1"))).add_data()
    assert chain.state.source_states == {"default": a_source_state("1")}
    assert chain.state.last_source_state is None


def test_a_disabled_source_is_not_carried_over() -> None:
    chain = a_chain().add(
        AddData(new_source_state=a_source_state("1")), DisablePushSource(source_name="default")
    )
    event = add_data_event(chain.state, new_data=None, watermark=a_time(1), source_state=None)
    assert event == AddData(new_watermark=a_time(1))
    chain.add(event)


def test_sources_are_disabled_and_defined_again_one_by_one() -> None:
    disable = [DisablePushSource(source_name=name) for name in ("a", "b")]
    chain = a_chain(a_seed(), a_schema(), a_push_source("a"), a_push_source("b"))
    for event, disabled in (
        (disable[0], {"a"}),
        (disable[1], {"a", "b"}),
        (a_push_source("a"), {"b"}),
        (disable[0], {"a", "b"}),
        (a_polling_source(), {"a", "b"}),
        (DisablePollingSource(), {"a", "b", DEFAULT_SOURCE}),
        (a_polling_source(), {"a", "b"}),
    ):
        assert chain.add(event).state.definitions.disabled_sources == disabled


def test_a_checkpoint_is_dropped_by_an_event_that_does_not_restate_it() -> None:
    chain = a_chain().add(AddData(new_checkpoint=a_checkpoint())).add_data()
    assert chain.state.checkpoint is None
    assert some_data(chain.state).prev_checkpoint is None


def admitted(state: ChainState, event: AddData) -> ChainState:
    return admit(state, a_block(state, event), block_hash=a_hash("x"), version=3)


def test_an_event_replaces_the_one_of_its_kind_and_a_push_source_the_one_of_its_name() -> None:
    info, source = SetInfo(description="first"), a_push_source("a")
    definitions = a_chain().add(info, source).state.definitions
    assert definitions.replaced_by(SetInfo(description="second")) == info
    assert definitions.replaced_by(a_push_source("a", date_format="%Y")) == source
    assert definitions.replaced_by(a_push_source("b")) is None
    assert definitions.replaced_by(SetLicense(short_name="x", name="x", website_url="x")) is None
