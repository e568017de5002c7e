"""What blocks from elsewhere may bring, where the result depends on the head or on the block before."""

from dataclasses import replace

import pytest
from odf_testing.builders import (
    a_block,
    a_chain,
    a_derivative,
    a_hash,
    a_polling_source,
    a_push_source,
    a_query,
    a_schema,
    a_seed,
    a_slice,
    a_source_state,
    a_time,
    a_transform,
    some_data,
    some_result,
)
from odf_testing.rule_cases import (
    DERIVATIVE,
    DERIVED,
    FULL,
    INFO,
    ROOT,
    STEPS,
    A,
    B,
    Case,
    admitted,
    case,
    checkpointed,
    disabled,
    executing,
    optional,
    polled,
    watermarked,
)

from odf_common.chain import rules
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
from odf_common.chain.rules import FIRST_RULES, RULES
from odf_common.chain.state import ChainState
from odf_common.errors import ChainRuleViolated, Refused
from odf_common.metadata.data_schema import DataTypeInt64, DataTypeString
from odf_common.metadata.events import (
    AddData,
    DatasetKind,
    DisablePushSource,
    ExecuteTransform,
    KnownEvent,
    SetDataSchema,
    SetInfo,
    SetVocab,
    SqlQueryStep,
    UnknownEvent,
)
from odf_common.metadata.fetching import FetchStepEthereumLogs
from odf_common.metadata.scalars import Timestamp

# Per rule: a block that is accepted, and one that breaks just this rule.
CASES: dict[str, tuple[Case, Case]] = {
    "chain_begins_with_a_seed": (case(None, a_seed()), case(None, INFO)),
    "chain_begins_at_zero": (case(None, a_seed()), case(None, a_seed(), sequence_number=1)),
    "seed_comes_first": (case(ROOT, INFO), case(ROOT, a_seed())),
    "sequence_is_dense": (case(ROOT, INFO), case(ROOT, INFO, sequence_number=7)),
    "previous_block_is_the_head": (case(ROOT, INFO), case(ROOT, INFO, prev_block_hash=a_hash("other"))),
    "system_time_never_decreases": (
        case(ROOT, INFO, system_time=ROOT.system_time),
        case(ROOT, INFO, system_time=Timestamp(ROOT.system_time.ns - 1)),
    ),
    "event_is_readable_where_needed": (
        case(ROOT, UnknownEvent(discriminator=99, reason="from the future")),
        case(ROOT, UnknownEvent(discriminator=1, reason="a damaged AddData")),
    ),
    "event_fits_dataset_kind": (case(ROOT, some_data(ROOT)), case(ROOT, a_transform())),
    "event_with_data_is_not_empty": (case(ROOT, AddData(new_watermark=a_time())), case(ROOT, AddData())),
    "offset_interval_is_closed": (
        case(ROOT, AddData(new_data=a_slice(0, 0))),
        case(FULL, AddData(prev_offset=9, new_data=a_slice(10, 9))),
    ),
    "offsets_are_contiguous": (
        case(FULL, AddData(prev_offset=9, new_data=a_slice(10))),
        case(FULL, AddData(prev_offset=9, new_data=a_slice(11))),
    ),
    "previous_offset_is_carried": (
        case(FULL, AddData(prev_offset=9, new_watermark=a_time())),
        case(FULL, AddData(new_data=a_slice(0))),
    ),
    "data_has_a_schema": (
        case(ROOT, some_data(ROOT)),
        case(a_chain(a_seed()).state, AddData(new_data=a_slice())),
    ),
    "checkpoint_is_linked": (
        case(checkpointed(), some_data(checkpointed())),
        case(checkpointed(), replace(some_data(checkpointed()), prev_checkpoint=None)),
    ),
    "watermark_is_kept": (
        case(watermarked(5), AddData(new_data=a_slice(), new_watermark=a_time(5))),
        case(watermarked(5), AddData(new_data=a_slice())),
    ),
    "watermark_never_decreases": (
        case(watermarked(5), AddData(new_watermark=a_time(6))),
        case(watermarked(5), AddData(new_data=a_slice(), new_watermark=a_time(4))),
    ),
    "add_data_changes_something": (
        case(watermarked(5), AddData(new_watermark=a_time(5), new_source_state=a_source_state("1"))),
        case(watermarked(5), AddData(new_watermark=a_time(5))),
    ),
    "disabled_source_takes_no_data": (
        case(disabled(a_push_source("other")), AddData(new_data=a_slice())),
        case(disabled(), AddData(new_data=a_slice())),
    ),
    "transform_is_defined_first": (
        case(DERIVATIVE, some_result(DERIVATIVE, *STEPS)),
        case(
            a_chain(a_seed(DatasetKind.Derivative), a_schema()).state,
            ExecuteTransform(query_inputs=STEPS, new_watermark=a_time()),
        ),
    ),
    "inputs_are_those_of_the_transform": (
        case(DERIVATIVE, some_result(DERIVATIVE, *STEPS)),
        case(DERIVATIVE, some_result(DERIVATIVE, *reversed(STEPS))),
    ),
    "input_blocks_are_contiguous": (
        case(DERIVED, executing()),
        case(DERIVED, executing(prev_block_hash=a_hash("elsewhere"))),
    ),
    "input_offsets_are_contiguous": (
        case(DERIVED, executing(new_offset=None)),
        case(DERIVED, executing(prev_offset=8)),
    ),
    "transform_changes_something": (
        case(DERIVATIVE, ExecuteTransform(query_inputs=STEPS, new_watermark=a_time())),
        case(
            (a_derivative(A, B).add(ExecuteTransform(query_inputs=STEPS, new_watermark=a_time())).state),
            ExecuteTransform(
                query_inputs=tuple(
                    replace(
                        one,
                        prev_block_hash=one.new_block_hash,
                        new_block_hash=None,
                        prev_offset=one.new_offset,
                        new_offset=None,
                    )
                    for one in STEPS
                ),
                new_watermark=a_time(),
            ),
        ),
    ),
    "transform_inputs_are_resolved": (
        case(DERIVATIVE, a_transform(A)),
        case(DERIVATIVE, a_transform(A, A)),
    ),
    "transform_reads_other_datasets": (
        case(DERIVATIVE, a_transform(A)),
        case(DERIVATIVE, a_transform(A, DERIVATIVE.dataset_id)),
    ),
    "queries_are_normalized": (
        case(
            DERIVATIVE,
            replace(
                a_transform(A),
                transform=a_query(SqlQueryStep(alias="x", query="SELECT 1"), SqlQueryStep(query="SELECT 2")),
            ),
        ),
        case(
            DERIVATIVE, replace(a_transform(A), transform=a_query(SqlQueryStep(alias="x", query="SELECT 1")))
        ),
    ),
    "polling_source_stands_alone": (case(disabled(), a_polling_source()), case(ROOT, a_polling_source())),
    "push_source_meets_no_polling": (
        case(ROOT, a_push_source("second")),
        case(polled(), a_push_source()),
    ),
    "push_source_changes_something": (
        case(ROOT, a_push_source(date_format="yyyy")),
        case(ROOT, a_push_source()),
    ),
    "ethereum_source_is_placed": (
        case(polled(), replace(a_polling_source(), fetch=FetchStepEthereumLogs(chain_id=1))),
        case(polled(), replace(a_polling_source(), fetch=FetchStepEthereumLogs())),
    ),
    "read_step_has_one_schema": (
        case(ROOT, replace(a_push_source(), read=replace(a_push_source().read, ddl_schema=("a INT",)))),
        case(
            ROOT,
            replace(
                a_push_source(),
                read=replace(a_push_source().read, ddl_schema=("a INT",), schema=a_schema().schema),
            ),
        ),
    ),
    "disabled_source_exists": (
        case(ROOT, DisablePushSource(source_name="default")),
        case(ROOT, DisablePushSource(source_name="other")),
    ),
    "schema_is_given": (
        case(a_chain(a_seed()).state, SetDataSchema(raw_arrow_schema=b"anything")),
        case(a_chain(a_seed()).state, SetDataSchema()),
    ),
    "schema_changes_something": (
        case(ROOT, a_schema(**optional("city"), **optional("country"))),
        case(ROOT, a_schema()),
    ),
    "schema_stays_compatible": (
        case(ROOT, a_schema(**optional("added"), **optional("city"))),
        case(ROOT, a_schema(**optional("city", DataTypeInt64))),
    ),
}


def test_every_rule_has_an_accepting_and_a_refusing_case() -> None:
    names = [rule.__name__ for rule in (*FIRST_RULES, *RULES)]
    assert sorted(names) == sorted(CASES)


def test_every_rule_has_its_sentence_and_source() -> None:
    for rule in (*FIRST_RULES, *RULES):
        assert (rule.__doc__ or "").rstrip().endswith(")."), rule.__name__


def test_every_rule_is_applied_to_some_event() -> None:
    applied = {*rules._RULES_OF_OTHERS}.union(*rules._RULES_OF.values())
    assert applied == set(RULES)


@pytest.mark.parametrize("rule", CASES)
def test_rule_accepts(rule: str) -> None:
    past, event, changes = CASES[rule][0]
    state = admitted(past, event, changes)
    assert state.head == a_hash("block")
    assert state.sequence_number == (0 if past is None else past.sequence_number + 1)


@pytest.mark.parametrize("rule", CASES)
def test_rule_refuses(rule: str) -> None:
    past, event, changes = CASES[rule][1]
    with pytest.raises(ChainRuleViolated) as refused:
        admitted(past, event, changes)
    assert refused.value.rule == rule
    assert refused.value.sequence_number is not None


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
