from collections.abc import Callable
from dataclasses import replace

import pytest
from odf_testing.builders import (
    a_block,
    a_chain,
    a_checkpoint,
    a_derivative,
    a_hash,
    a_polling_source,
    a_push_source,
    a_query,
    a_schema,
    a_seed,
    a_slice,
    a_source_state,
    a_step,
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
)

from odf_common.chain.rules import admit
from odf_common.chain.rules.structure import event_fits_dataset_kind
from odf_common.chain.state import ChainState
from odf_common.chain.transform_steps import empty_step, is_migration
from odf_common.data.schema_evolution import schema_of_event, schema_to_event
from odf_common.errors import ChainRuleViolated
from odf_common.metadata.data_schema import DataSchema, DataTypeInt64, DataTypeString
from odf_common.metadata.events import (
    AddData,
    DisablePollingSource,
    DisablePushSource,
    ExecuteTransform,
    KnownEvent,
    SetDataSchema,
    SetTransform,
    SqlQueryStep,
    TransformInput,
    UnknownEvent,
)

CHECKPOINT = a_checkpoint().physical_hash


def with_a_result_of_a_checkpoint() -> ChainState:
    only = ExecuteTransform(query_inputs=empty_step(DERIVATIVE), new_checkpoint=a_checkpoint())
    return a_derivative(A, B).add(only).state


def twice(name: str) -> SetDataSchema:
    known = a_schema().schema
    assert known is not None
    repeated = [field for field in known.fields if field.name == name]
    return SetDataSchema(schema=DataSchema(fields=(*known.fields, *repeated)))


REFUSED: dict[str, tuple[str, Callable[[], Case]]] = {
    "a first block with a previous one": (
        "chain_begins_with_a_seed",
        lambda: case(None, a_seed(), prev_block_hash=a_hash("before")),
    ),
    "a block without previous that is not a seed": (
        "previous_block_is_the_head",
        lambda: case(ROOT, INFO, prev_block_hash=None),
    ),
    "a first slice that does not start at zero": (
        "offsets_are_contiguous",
        lambda: case(ROOT, AddData(new_data=a_slice(5))),
    ),
    "a first event that claims earlier records": (
        "previous_offset_is_carried",
        lambda: case(ROOT, AddData(prev_offset=4, new_data=a_slice(5))),
    ),
    "data in a derivative": ("event_fits_dataset_kind", lambda: case(DERIVATIVE, some_data(DERIVATIVE))),
    "a source in a derivative": ("event_fits_dataset_kind", lambda: case(DERIVATIVE, a_push_source())),
    "an unreadable source in a derivative": (
        "event_fits_dataset_kind",
        lambda: case(DERIVATIVE, UnknownEvent(discriminator=4, reason="new fetch step")),
    ),
    "an unreadable transform": (
        "event_is_readable_where_needed",
        lambda: case(DERIVATIVE, UnknownEvent(discriminator=5, reason="new transform")),
    ),
    "an event without a kind": (
        "event_is_readable_where_needed",
        lambda: case(ROOT, UnknownEvent(discriminator=0, reason="none")),
    ),
    "an input that goes back": (
        "input_offsets_are_contiguous",
        lambda: case(DERIVED, executing(new_offset=3)),
    ),
    "an input whose records were all read before": (
        "input_offsets_are_contiguous",
        lambda: case(DERIVED, executing(new_offset=9)),
    ),
    "a second input that goes back, after one with new blocks only": (
        "input_offsets_are_contiguous",
        lambda: case(
            DERIVED,
            some_result(
                DERIVED,
                replace(a_step(DERIVED, A, "a2", 19), new_offset=None),
                replace(a_step(DERIVED, B, "b2", 9), prev_offset=3),
            ),
        ),
    ),
    "a checkpoint that was there before": (
        "add_data_changes_something",
        lambda: case(
            checkpointed(),
            AddData(prev_checkpoint=a_checkpoint().physical_hash, new_checkpoint=a_checkpoint()),
        ),
    ),
    "a result with the checkpoint of the one before": (
        "transform_changes_something",
        lambda: case(
            with_a_result_of_a_checkpoint(),
            ExecuteTransform(
                query_inputs=empty_step(DERIVATIVE),
                prev_checkpoint=a_checkpoint().physical_hash,
                new_checkpoint=a_checkpoint(),
            ),
        ),
    ),
    "records without a block": (
        "input_offsets_are_contiguous",
        lambda: case(DERIVED, executing(new_block_hash=None)),
    ),
    "an input block seen before": (
        "input_blocks_are_contiguous",
        lambda: case(DERIVED, executing(new_block_hash=a_hash("a1"))),
    ),
    "a transform without inputs": (
        "transform_inputs_are_resolved",
        lambda: case(DERIVATIVE, replace(a_transform(), inputs=())),
    ),
    "an input by name": (
        "transform_inputs_are_resolved",
        lambda: case(
            DERIVATIVE,
            SetTransform(inputs=(TransformInput(dataset_ref="x", alias="x"),), transform=a_query()),
        ),
    ),
    "an input without alias": (
        "transform_inputs_are_resolved",
        lambda: case(
            DERIVATIVE, SetTransform(inputs=(TransformInput(dataset_ref=str(A)),), transform=a_query())
        ),
    ),
    "one query instead of a list": (
        "queries_are_normalized",
        lambda: case(ROOT, replace(a_push_source("x"), preprocess=replace(a_query(), query="SELECT 1"))),
    ),
    "no queries": (
        "queries_are_normalized",
        lambda: case(ROOT, replace(a_push_source("x"), preprocess=replace(a_query(), queries=()))),
    ),
    "an unnamed query before the last": (
        "queries_are_normalized",
        lambda: case(
            ROOT,
            replace(
                a_push_source("x"),
                preprocess=a_query(SqlQueryStep(query="SELECT 1"), SqlQueryStep(query="SELECT 2")),
            ),
        ),
    ),
    "disabling a polling source that is not there": (
        "disabled_source_exists",
        lambda: case(ROOT, DisablePollingSource()),
    ),
    "a removed column": (
        "schema_stays_compatible",
        lambda: case(ROOT, a_schema(**optional("country"))),
    ),
    "an added column that is required": (
        "schema_stays_compatible",
        lambda: case(ROOT, a_schema(**optional("city"), size=DataTypeInt64())),
    ),
    "a column that becomes required": (
        "schema_stays_compatible",
        lambda: case(ROOT, a_schema(city=DataTypeString())),
    ),
    "a column that occurs twice": (
        "schema_stays_compatible",
        lambda: case(ROOT, twice("city")),
    ),
    "a schema that cannot be read after one that can": (
        "schema_stays_compatible",
        lambda: case(ROOT, SetDataSchema(raw_arrow_schema=b"nonsense")),
    ),
    "a state from a disabled source": (
        "disabled_source_takes_no_data",
        lambda: case(
            disabled(a_push_source("other")),
            AddData(new_data=a_slice(), new_source_state=a_source_state("1")),
        ),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    rule, make = REFUSED[name]
    with pytest.raises(ChainRuleViolated) as refused:
        admitted(*make())
    assert refused.value.rule == rule


def test_a_disabled_source_still_lets_the_watermark_be_set() -> None:
    assert admitted(disabled(), AddData(new_watermark=a_time()), {}).watermark == a_time()


def test_a_disabled_source_may_be_replaced_and_then_accepts_data() -> None:
    chain = a_chain().add(DisablePushSource(source_name="default"), a_push_source()).add_data()
    assert chain.state.last_offset == 9
    assert not chain.state.definitions.disabled_sources


def test_a_disabled_polling_source_may_be_replaced_by_pushes() -> None:
    chain = a_chain(
        a_seed(), a_polling_source(), a_schema(), DisablePollingSource(), a_push_source()
    ).add_data()
    assert chain.state.polling_source is None
    assert list(chain.state.push_sources) == ["default"]


def test_an_unreadable_source_takes_the_place_of_those_before_it() -> None:
    state = admitted(ROOT, UnknownEvent(discriminator=11, reason="new merge strategy"), {})
    assert not state.push_sources
    assert admitted(state, AddData(new_data=a_slice()), {}).last_offset == 9
    assert (
        admitted(polled(), UnknownEvent(discriminator=4, reason="new fetch step"), {}).polling_source is None
    )


def test_an_event_of_a_later_version_leaves_all_definitions_unchanged() -> None:
    state = admitted(FULL, UnknownEvent(discriminator=99, reason="from the future"), {})
    assert state.definitions == FULL.definitions
    assert admitted(state, some_data(state), {}).schema == FULL.schema


def test_a_chain_may_move_from_an_arrow_schema_to_the_odf_form() -> None:
    arrow = schema_of_event(a_schema())
    first = schema_to_event(arrow)
    state = a_chain(a_seed(), first).add(a_schema()).state
    assert state.schema == a_schema()


def test_only_a_chain_that_moves_to_the_odf_form_may_state_again_what_is_optional() -> None:
    required = a_schema(city=DataTypeString())
    arrow, arrow_required = (schema_to_event(schema_of_event(one)) for one in (a_schema(), required))
    old = a_chain(a_seed(), arrow).state

    assert admitted(old, required, {}).schema == required
    with pytest.raises(ChainRuleViolated, match="schema_stays_compatible"):
        admitted(old, arrow_required, {})
    with pytest.raises(ChainRuleViolated, match="schema_stays_compatible"):
        admitted(ROOT, arrow_required, {})


def test_an_unreadable_source_may_be_what_is_disabled() -> None:
    state = admitted(a_chain(a_seed()).state, UnknownEvent(discriminator=11, reason="new fetch step"), {})
    for event in (DisablePushSource(source_name="default"), DisablePollingSource()):
        assert admitted(state, event, {}).sequence_number == 2


def test_a_disabled_source_does_not_prevent_other_events() -> None:
    assert admitted(disabled(), INFO, {}).info == INFO


def test_a_dataset_that_never_had_a_source_accepts_data() -> None:
    state = a_chain(a_seed(), a_schema()).state
    assert admitted(state, AddData(new_data=a_slice()), {}).last_offset == 9


def test_a_transform_changes_something_by_one_new_input_a_watermark_or_a_checkpoint() -> None:
    empty, state = empty_step(DERIVATIVE), with_a_result_of_a_checkpoint()
    marked = a_derivative(A, B).add(ExecuteTransform(query_inputs=empty, new_watermark=a_time())).state
    again = ExecuteTransform(query_inputs=empty_step(state), prev_checkpoint=CHECKPOINT)
    for past, event in (
        (marked, ExecuteTransform(query_inputs=(STEPS[0], empty[1]), new_watermark=a_time())),
        (marked, ExecuteTransform(query_inputs=empty, new_watermark=a_time(1))),
        (state, replace(again, new_checkpoint=a_checkpoint("other"))),
    ):
        admitted(past, event, {})
    with pytest.raises(ChainRuleViolated, match="transform_changes_something"):
        admitted(state, replace(again, new_checkpoint=a_checkpoint()), {})


def test_a_block_in_another_version_is_accepted_and_the_chain_keeps_its_version() -> None:
    state = admit(ROOT, a_block(ROOT, INFO), block_hash=a_hash("x"), version=2)
    assert state.block_version == 3


@pytest.mark.parametrize(
    ("past", "event", "name"),
    [
        (DERIVATIVE, AddData(new_watermark=a_time()), "AddData"),
        (DERIVATIVE, DisablePollingSource(), "DisablePollingSource"),
        (ROOT, a_transform(), "SetTransform"),
    ],
)
def test_an_event_of_the_other_kind_of_dataset_is_named(
    past: ChainState, event: KnownEvent, name: str
) -> None:
    fault = event_fits_dataset_kind(past, a_block(past, event))
    assert fault is not None
    assert fault.startswith(f"{name} ")


@pytest.mark.parametrize(
    ("past", "event", "why"),
    [
        (ROOT, AddData(prev_offset=4, new_data=a_slice(5)), "prevOffset should be absent, is 4"),
        (FULL, AddData(new_data=a_slice()), "prevOffset should be 9, is absent"),
        (
            FULL,
            replace(some_data(FULL), prev_checkpoint=CHECKPOINT),
            f"prevCheckpoint should be absent, is {CHECKPOINT}",
        ),
        (
            checkpointed(),
            replace(some_data(checkpointed()), prev_checkpoint=None),
            f"prevCheckpoint should be {CHECKPOINT}, is absent",
        ),
    ],
    ids=["offset-too-many", "offset-missing", "checkpoint-too-many", "checkpoint-missing"],
)
def test_a_refusal_has_the_expected_and_the_actual_value(
    past: ChainState, event: KnownEvent, why: str
) -> None:
    with pytest.raises(ChainRuleViolated) as refused:
        admit(past, a_block(past, event), block_hash=a_hash("next"), version=3)
    assert why in str(refused.value)


def test_a_checkpoint_that_no_event_before_has_is_not_continued() -> None:
    event = replace(some_data(FULL), prev_checkpoint=a_checkpoint().physical_hash)
    with pytest.raises(ChainRuleViolated, match="checkpoint_is_linked"):
        admit(FULL, a_block(FULL, event), block_hash=a_hash("next"), version=3)


def test_a_source_that_was_disabled_and_defined_again_accepts_data() -> None:
    chain = a_chain(a_seed(), a_polling_source(), a_schema(), DisablePollingSource())
    data = replace(some_data(chain.state), new_source_state=a_source_state("1"))
    with pytest.raises(ChainRuleViolated, match="disabled_source_takes_no_data"):
        admit(chain.state, a_block(chain.state, data), block_hash=a_hash("next"), version=3)
    chain.add(a_polling_source())
    assert chain.add(data).state.last_offset == 9


def test_a_step_without_new_input_says_how_far_each_input_was_read() -> None:
    found = [(one.dataset_id, one.prev_block_hash, one.prev_offset) for one in empty_step(DERIVED)]
    assert found == [(A, a_hash("a1"), 9), (B, a_hash("b1"), None)]
    assert {(one.new_block_hash, one.new_offset) for one in empty_step(DERIVED)} == {(None, None)}


def test_a_transform_that_reads_anything_new_is_no_migration() -> None:
    step, other = empty_step(DERIVED)
    new = replace(step, new_block_hash=a_hash("a2"))
    for steps, is_one in (((step, other), True), ((new, other), False), ((step, new), False)):
        event = ExecuteTransform(query_inputs=steps)
        assert is_migration(event, a_transform(A, B)) == is_one
        assert not is_migration(event, None)
