from dataclasses import replace

import pytest
from odf_testing.builders import (
    AChain,
    a_chain,
    a_checkpoint,
    a_dataset,
    a_derivative,
    a_push_source,
    a_schema,
    a_seed,
    a_slice,
    a_time,
    a_transform,
)

from odf_common.chain.state import ChainState, progress_after
from odf_common.chain.transform_steps import (
    InputMismatch,
    InputSlices,
    InputSource,
    RequestFiles,
    build_request,
    changes_nothing,
    empty_step,
    has_work,
    input_of,
    input_until_change,
    is_no_op,
    next_event,
    plan_inputs,
)
from odf_common.chain.walk import blocks_between
from odf_common.errors import ChainRuleViolated, InvalidInput
from odf_common.hashing.multihash import Multihash
from odf_common.metadata.data_schema import DataTypeOption, DataTypeString
from odf_common.metadata.engine_messages import TransformRequest, TransformResponseSuccess, Watermark
from odf_common.metadata.events import (
    AddData,
    DatasetKind,
    DatasetVocabulary,
    DataSlice,
    ExecuteTransform,
    ExecuteTransformInput,
    KnownEvent,
    OffsetInterval,
    SetDataSchema,
    SetInfo,
    SetVocab,
)

A = a_dataset("a")


def an_input() -> AChain:
    return a_chain(a_seed(dataset=A), a_push_source(), a_schema())


def read(chain: AChain, step: ExecuteTransformInput) -> InputSlices:
    """What the coordinator does with a planned step, and the verifier with a stored one."""
    end = progress_after(step).last_block
    assert end is not None
    blocks = blocks_between(chain.read, end, step.prev_block_hash)
    return input_of(step, (decoded.block for _, decoded, _ in blocks))


def planned(output: AChain, source: AChain) -> ExecuteTransformInput:
    steps = plan_inputs(output.state, {A: source.state})
    assert steps is not None
    return steps[0]


def execute(output: AChain, source: AChain, records: int | None = 10) -> AChain:
    """Run a transform that makes this number of records."""
    start = output.state.next_offset
    made = None if records is None else a_slice(start, start + records - 1)
    response = TransformResponseSuccess(new_offset_interval=made.offset_interval if made else None)
    step = planned(output, source)
    return output.add(
        next_event(output.state, [step], response, new_data=made, new_checkpoint=a_checkpoint(start))
    )


def test_the_first_transform_sees_all_of_the_input() -> None:
    source = an_input().add_data(3)
    step = planned(a_derivative(A), source)
    assert step == ExecuteTransformInput(dataset_id=A, new_block_hash=source.state.head, new_offset=29)
    assert read(source, step).offset_interval == OffsetInterval(start=0, end=29)


def test_the_next_transform_sees_what_is_new() -> None:
    source, output = an_input().add_data(2), a_derivative(A)
    execute(output, source)
    before = source.state.head
    source.add_data(2)
    step = planned(output, source)
    assert (step.prev_block_hash, step.new_block_hash) == (before, source.state.head)
    found = read(source, step)
    assert [one.offset_interval.start for one in found.slices] == [20, 30]
    assert found.offset_interval == OffsetInterval(start=20, end=39)


def until_change(chain: AChain, step: ExecuteTransformInput) -> InputSlices:
    """What the coordinator does with a planned step."""
    end = progress_after(step).last_block
    assert end is not None
    blocks = blocks_between(chain.read, end, step.prev_block_hash)
    return input_until_change(step, ((name, decoded.block) for name, decoded, _ in blocks))


def wider() -> SetDataSchema:
    """The schema of an input with one more column."""
    return a_schema(**{name: DataTypeOption(inner=DataTypeString()) for name in ("city", "country")})


@pytest.mark.parametrize("change", [wider(), SetVocab(event_time_column="at")])
def test_a_step_ends_before_its_input_changes(change: KnownEvent) -> None:
    source, output = an_input().add_data(2), a_derivative(A)
    before = source.state.head
    source.add(change).add_data(1)

    found = until_change(source, planned(output, source))

    assert (found.step.new_block_hash, found.step.new_offset) == (before, 19)
    assert found.offset_interval == OffsetInterval(start=0, end=19)
    assert read(source, found.step) == found, "each replay sees the same"


def test_the_next_step_begins_with_the_change_and_continues_to_the_head() -> None:
    source, output = an_input().add_data(), a_derivative(A)
    execute(output, source)
    source.add(wider()).add_data()

    found = until_change(source, planned(output, source))

    assert found.step == planned(output, source)
    assert found.offset_interval == OffsetInterval(start=10, end=19)


def test_a_watermark_before_a_change_has_its_own_step() -> None:
    source, output = an_input().add_data(), a_derivative(A)
    execute(output, source)
    source.add(AddData(prev_offset=9, new_watermark=a_time(7)))
    before = source.state.head
    source.add(wider())

    found = until_change(source, planned(output, source))

    assert (found.step.new_block_hash, found.step.new_offset) == (before, None)
    assert len(found.watermarks) == 1


def test_the_first_schema_of_an_input_is_no_change() -> None:
    source = a_chain(
        a_seed(dataset=A), a_push_source(), AddData(new_watermark=a_time(1)), a_schema()
    ).add_data()

    step = planned(a_derivative(A), source)

    assert until_change(source, step).step == step


def test_nothing_is_planned_when_the_inputs_are_unchanged() -> None:
    source, output = an_input().add_data(), a_derivative(A)
    execute(output, source)
    assert plan_inputs(output.state, {A: source.state}) is None


def test_nothing_is_planned_while_an_input_has_no_schema() -> None:
    source = a_chain(a_seed(dataset=A), a_push_source())
    assert plan_inputs(a_derivative(A).state, {A: source.state}) is None
    assert plan_inputs(a_derivative(A).state, {}) is None
    two = a_derivative(a_dataset("b"), A).state
    assert plan_inputs(two, {A: an_input().add_data().state}) is None, "it would leave one out"


def test_nothing_is_planned_without_a_transform() -> None:
    assert plan_inputs(a_chain(a_seed(DatasetKind.Derivative)).state, {}) is None


def test_an_unchanged_input_keeps_its_position_next_to_one_that_advanced() -> None:
    other = a_dataset("b")
    first, second = (
        an_input().add_data(),
        a_chain(a_seed(dataset=other), a_push_source(), a_schema()).add_data(),
    )
    output = a_derivative(A, other)
    heads = {A: first.state, other: second.state}
    steps = plan_inputs(output.state, heads)
    assert steps is not None
    event = next_event(
        output.state,
        steps,
        TransformResponseSuccess(new_offset_interval=OffsetInterval(start=0, end=9)),
        new_data=a_slice(),
        new_checkpoint=None,
    )
    output.add(event)
    second.add_data()
    steps = plan_inputs(output.state, {A: first.state, other: second.state})
    assert steps is not None
    assert steps[0] == ExecuteTransformInput(dataset_id=A, prev_block_hash=first.state.head, prev_offset=9)
    assert (steps[1].prev_offset, steps[1].new_offset) == (9, 19)
    assert read(first, steps[0]) == InputSlices(step=steps[0], slices=(), offset_interval=None, watermarks=())


def test_definitions_alone_are_no_work_once_there_is_a_schema() -> None:
    source, output = an_input().add_data(), a_derivative(A)
    execute(output, source)
    source.add(SetInfo(description="x"))
    found = read(source, planned(output, source))
    assert not has_work(output.state, [found])
    assert has_work(a_chain(a_seed(DatasetKind.Derivative), a_transform(A)).state, [found])


def test_a_schema_alone_is_work_so_that_derivatives_get_its_columns() -> None:
    source, output = an_input().add_data(), a_derivative(A)
    execute(output, source)
    source.add(wider())
    found = until_change(source, planned(output, source))
    assert has_work(output.state, [found])
    assert (found.step.new_block_hash, found.step.new_offset) == (source.state.head, None)


def test_a_watermark_alone_is_work() -> None:
    source, output = an_input().add_data(), a_derivative(A)
    execute(output, source)
    source.add(AddData(prev_offset=9, new_watermark=a_time(7)))
    found = read(source, planned(output, source))
    assert has_work(output.state, [found])
    assert has_work(output.state, [replace(found, watermarks=()), found]), "for one input of several"
    assert found.offset_interval is None
    assert [one.event_time for one in found.watermarks] == [a_time(7)]


def test_watermarks_are_listed_one_per_event_oldest_first_with_the_time_of_their_block() -> None:
    source = an_input().add_data().add(AddData(prev_offset=9, new_watermark=a_time(3))).add_data()
    found = read(source, planned(a_derivative(A), source))
    times = [one.block.system_time for one in source.blocks[-2:]]
    assert found.watermarks == tuple(Watermark(system_time=one, event_time=a_time(3)) for one in times)


def test_replaying_a_stored_event_gives_the_same_request() -> None:
    source, output = an_input().add_data(2), a_derivative(A)
    requests = []
    for _ in range(3):
        before, step = output.state, planned(output, source)
        requests.append((before, request(before, read(source, step))))
        execute(output, source)
        source.add_data(2)
    stored = [one.block.event for one in output.blocks if isinstance(one.block.event, ExecuteTransform)]
    for (before, expected), event in zip(requests, stored, strict=True):
        assert request(before, *(read(source, one) for one in event.query_inputs)) == expected


def request(state: ChainState, *inputs: InputSlices) -> TransformRequest:
    def path_of(name: Multihash) -> str:
        return f"/data/{name}"

    source = InputSource(alias="a", vocab=DatasetVocabulary(), schema_file="/schema", path_of=path_of)
    files = RequestFiles(prev_checkpoint="/last", new_checkpoint="/out/checkpoint", new_data="/out/data")
    return build_request(state, inputs, {A: source}, alias="derivative", system_time=a_time(100), files=files)


def test_a_request_names_slices_in_order_and_the_offset_to_continue_from() -> None:
    source, output = an_input().add_data(2), a_derivative(A)
    execute(output, source, records=4)
    source.add_data(2)
    found = read(source, planned(output, source))
    made = request(output.state, found)
    paths = tuple(f"/data/{one.physical_hash}" for one in found.slices)
    assert made.next_offset == 4
    assert made.query_inputs[0].data_paths == paths
    assert made.query_inputs[0].query_alias == "input_0"


def test_a_request_has_the_names_of_the_outputs_columns_and_where_to_write() -> None:
    source, output = an_input().add_data(), a_derivative(A).add(SetVocab(event_time_column="at"))
    made = request(output.state, read(source, planned(output, source)))
    assert (made.dataset_alias, made.system_time) == ("derivative", a_time(100))
    assert made.vocab == DatasetVocabulary(event_time_column="at")
    assert made.prev_checkpoint_path == "/last"
    assert (made.new_checkpoint_path, made.new_data_path) == ("/out/checkpoint", "/out/data")


def test_a_dataset_without_transform_makes_no_request() -> None:
    with pytest.raises(InvalidInput, match="has no transform"):
        request(a_chain().state)


@pytest.mark.parametrize("new_offset", [None, 8, 10])
def test_an_event_that_claims_other_records_than_the_input_has_is_detected(new_offset: int | None) -> None:
    source = an_input().add_data()
    step = replace(planned(a_derivative(A), source), new_offset=new_offset)
    with pytest.raises(InputMismatch, match="the blocks have 0–9"):
        read(source, step)


def test_records_that_do_not_begin_where_the_step_begins_are_detected() -> None:
    source = an_input().add_data(2)
    step = planned(a_derivative(A), source)
    newest = source.blocks[-1].block
    with pytest.raises(InputMismatch, match="read offsets 0–19, but the blocks have 10–19"):
        input_of(step, [newest])


def test_a_step_without_blocks_ends_where_it_began() -> None:
    source, output = an_input().add_data(), a_derivative(A)
    execute(output, source)
    step = replace(planned(output, source.add_data()), new_offset=None)

    assert input_until_change(step, ()).step == replace(step, new_block_hash=None)


def test_an_engine_that_lowers_the_watermark_does_not_lower_it() -> None:
    output = a_derivative(A)
    steps = plan_inputs(output.state, {A: an_input().add_data().state}) or ()
    output.add(ExecuteTransform(query_inputs=steps, new_watermark=a_time(9)))
    for answer, expected in ((None, 9), (a_time(4), 9), (a_time(12), 12)):
        response = TransformResponseSuccess(new_watermark=answer)
        event = next_event(output.state, (), response, new_data=None, new_checkpoint=None)
        assert event.new_watermark == a_time(expected)


@pytest.mark.parametrize(
    ("reported", "written"),
    [(OffsetInterval(start=0, end=5), a_slice()), (OffsetInterval(start=0, end=9), None), (None, a_slice())],
    ids=["other offsets", "no records", "records that it does not report"],
)
def test_an_engine_that_answers_other_offsets_than_it_wrote_is_refused(
    reported: OffsetInterval | None, written: DataSlice | None
) -> None:
    response = TransformResponseSuccess(new_offset_interval=reported)
    with pytest.raises(InvalidInput, match="the engine reported offsets"):
        next_event(a_derivative(A).state, (), response, new_data=written, new_checkpoint=None)


@pytest.mark.parametrize(
    "event",
    [
        ExecuteTransform(query_inputs=(), new_data=a_slice()),
        ExecuteTransform(query_inputs=(), new_checkpoint=a_checkpoint()),
        ExecuteTransform(query_inputs=(), new_watermark=a_time(1)),
    ],
    ids=["records", "checkpoint", "watermark"],
)
def test_each_result_alone_is_worth_a_block(event: ExecuteTransform) -> None:
    assert not is_no_op(a_derivative(A).state, event)


@pytest.mark.parametrize(
    ("result", "is_same"),
    [
        ({}, True),
        ({"new_data": a_slice()}, False),
        ({"new_checkpoint": a_checkpoint("other")}, False),
        ({"new_checkpoint": None}, False),
        ({"new_watermark": a_time(6)}, False),
    ],
    ids=["nothing new", "records", "another checkpoint", "no checkpoint", "another watermark"],
)
def test_a_migration_changes_nothing_if_records_checkpoint_and_watermark_stay(
    result: dict[str, object], is_same: bool
) -> None:
    kept = ExecuteTransform(query_inputs=(), new_checkpoint=a_checkpoint(), new_watermark=a_time(5))
    past = a_derivative(A).add(replace(kept, query_inputs=empty_step(a_derivative(A).state))).state
    assert changes_nothing(past, replace(kept, **result)) == is_same  # type: ignore[arg-type]


def test_an_event_with_input_blocks_only_is_a_no_op_and_would_be_refused() -> None:
    source, output = an_input().add_data(), a_derivative(A)
    step = planned(output, source)
    event = next_event(output.state, [step], TransformResponseSuccess(), new_data=None, new_checkpoint=None)
    assert is_no_op(output.state, event)
    with pytest.raises(ChainRuleViolated):
        output.add(event)


def test_a_step_that_only_repeats_the_watermark_still_records_how_far_its_inputs_were_read() -> None:
    source, output = an_input().add_data(), a_derivative(A)
    execute(output, source)
    done = output.state.progress_of(A)
    marked = TransformResponseSuccess(new_watermark=a_time(7))
    output.add(next_event(output.state, empty_step(output.state), marked, new_data=None, new_checkpoint=None))
    assert output.state.progress_of(A) == done
    source.add(AddData(prev_offset=9, new_watermark=a_time(7)))

    step = planned(output, source)
    event = next_event(output.state, [step], TransformResponseSuccess(), new_data=None, new_checkpoint=None)

    assert not is_no_op(output.state, event)
    assert output.add(event).state.progress_of(A) == replace(done, last_block=source.state.head)


def test_checkpoints_are_linked_from_event_to_event() -> None:
    source, output = an_input().add_data(), a_derivative(A)
    execute(output, source)
    source.add_data()
    execute(output, source)
    event = output.blocks[-1].block.event
    assert isinstance(event, ExecuteTransform)
    assert event.prev_checkpoint == a_checkpoint(0).physical_hash
