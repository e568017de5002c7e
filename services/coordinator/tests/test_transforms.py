import threading

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from odf_testing.coordinator import Coordinator, stored

from odf_common.chain.walk import iterate
from odf_common.data.columns import TIMESTAMP, offset_type, operation_type
from odf_common.data.schema_evolution import schema_to_event
from odf_common.data.slices import slice_schema, write_slice
from odf_common.errors import HeadMoved, InvalidInput, InvalidQuery, Unavailable
from odf_common.metadata.engine_messages import TransformResponseSuccess
from odf_common.metadata.events import ExecuteTransform, OffsetInterval, SetInfo
from odf_common.ports.engine import FailingRecord, QueryFailed, QueryOutOfMemory
from odf_common.ports.store import ObjectKind
from odf_coordinator.transforms.engine_output import validate


@pytest.fixture
def chain(node: Coordinator, root: str, derivative: str, second: str) -> Coordinator:
    """A root, a derivative of it, and a derivative of that."""
    node.add(root, derivative, second)
    node.work()
    return node


def test_commits_that_wait_coalesce_into_one_transform(chain: Coordinator) -> None:
    for minute in range(3):
        chain.push("cities", f"city {minute}", minute=minute)

    chain.work()

    copies = [one for one in chain.engine.requests if one.dataset_alias == "cities.copy"]
    assert len(copies) == 1
    assert len(copies[0].query_inputs[0].data_paths) == 3
    assert chain.find("cities.copy").state.last_offset == 2


def test_derivatives_of_derivatives_follow(chain: Coordinator) -> None:
    chain.push("cities", "Oslo", "Rome")

    chain.work()

    state = chain.find("copy.copy").state
    assert state.last_offset == 1
    assert chain.record_reader.tail("copy.copy", 5)["city"].to_pylist() == ["Oslo", "Rome"]


def test_a_commit_of_another_instance_wakes_the_derivatives(chain: Coordinator) -> None:
    chain.push("cities", "Oslo")
    chain.work()
    cities = chain.find("cities")
    after = stored(chain, cities.state, *chain.ingest_events(cities, ["Rome"], 1))
    chain.refs.compare_and_set(cities.id, expected=cities.state.head, new=after.head)
    chain.work()
    assert chain.find("copy.copy").state.last_offset == 0

    chain.scheduler.on_announced(cities.id)
    chain.work()

    assert chain.find("cities").state == after
    assert chain.find("copy.copy").state.last_offset == 1


def test_nothing_new_commits_nothing(chain: Coordinator) -> None:
    chain.push("cities", "Oslo")
    chain.work()
    head, asked = chain.find("copy.copy").state.head, len(chain.engine.requests)

    chain.scheduler.on_announced(chain.find("cities").id)
    chain.propose(chain.find("cities"), [SetInfo(description="no data")])
    chain.work()

    assert chain.find("copy.copy").state.head == head
    assert len(chain.engine.requests) == asked
    assert chain.stall_text(chain.find("copy.copy").id) == ""


def test_schema_and_first_records_come_in_one_head_move(chain: Coordinator) -> None:
    before = chain.find("cities.copy").state
    heads = []
    chain.committer.listen(lambda state: heads.append((state.dataset_id, state.sequence_number)))

    chain.push("cities", "Oslo")
    chain.work()

    mine = [number for dataset, number in heads if dataset == before.dataset_id]
    assert mine == [before.sequence_number + 2]


def test_an_unreachable_engine_is_retried_later(chain: Coordinator) -> None:
    chain.engine.failures = [Unavailable(what="engine"), Unavailable(what="engine")]
    chain.push("cities", "Oslo")

    chain.work()
    assert chain.find("cities.copy").state.last_offset is None
    for _ in range(3):
        chain.now += 10
        chain.work()

    assert chain.find("cities.copy").state.last_offset == 0
    assert chain.stall_text(chain.find("cities.copy").id) == ""


def test_bad_sql_stops_a_derivative_until_something_changes_or_a_user_asks(chain: Coordinator) -> None:
    copy = chain.find("cities.copy")
    chain.engine.failures = [InvalidQuery(text="no such column: ctiy")]
    chain.push("cities", "Oslo")
    chain.work()
    assert chain.stall_text(copy.id) == "no such column: ctiy"

    chain.push("cities", "Rome", minute=1)
    chain.now += 100
    chain.work()
    assert chain.find("cities.copy").state.last_offset is None
    assert len(chain.engine.requests) == 1

    chain.scheduler.request(copy.id)
    chain.work()
    assert chain.find("cities.copy").state.last_offset == 1
    assert chain.stall_text(copy.id) == ""


def test_a_derivative_that_moved_meanwhile_is_planned_again(chain: Coordinator) -> None:
    chain.push("cities", "Oslo")
    known = chain.find("cities.copy")
    plan = chain.scheduler._transformer.plan(known)
    assert plan is not None
    chain.work()
    chain.push("cities", "Rome", minute=1)

    with pytest.raises(HeadMoved, match="has moved in the meantime"):
        chain.scheduler._transformer.perform(known, plan)
    chain.work()

    assert chain.record_reader.tail("cities.copy", 5)["city"].to_pylist() == ["Oslo", "Rome"]


def test_another_instance_without_the_key_leaves_a_derivative_alone(chain: Coordinator) -> None:
    chain.keys.remove(chain.find("cities.copy").id)

    chain.push("cities", "Oslo")
    chain.work()

    assert chain.find("cities.copy").state.last_offset is None


def test_pull_transforms_the_current_records_inputs_first(chain: Coordinator) -> None:
    stop = threading.Event()
    chain.push("cities", "Oslo")
    worker = threading.Thread(target=chain.scheduler.run, args=(stop,), daemon=True)
    worker.start()
    try:
        steps = [*chain.puller.pull(["copy.copy"], is_all=False, is_recursive=True, is_wanted=lambda: True)]
    finally:
        stop.set()
        worker.join()

    done = [(one.alias, one.state) for one in steps if one.state != "running"]
    assert [alias for alias, _ in done] == ["cities", "cities.copy", "copy.copy"]
    assert chain.ingest.drained == [chain.find("cities").id]
    assert chain.find("copy.copy").state.last_offset == 0


def failing_at(chain: Coordinator, first: int, last: int) -> QueryFailed:
    record = FailingRecord(dataset=chain.find("cities").id, first=first, last=last)
    return QueryFailed(text="division by zero", records=(record,))


def test_blocks_before_the_record_on_which_a_query_fails_are_derived(chain: Coordinator) -> None:
    for minute, cities in enumerate((["Oslo"], ["Rome", "Ely", "Bath"], ["York"])):
        chain.push("cities", *cities, minute=minute)
    chain.engine.failures = [failing_at(chain, 2, 2)]

    chain.work()

    copy = chain.find("cities.copy")
    assert chain.record_reader.tail("cities.copy", 9)["city"].to_pylist() == ["Oslo"]
    assert chain.find("copy.copy").state.last_offset == 0, "its readers continue, too"
    stall = chain.scheduler.stall_of(copy.id)
    assert stall is not None
    assert stall.reason == "division by zero"
    assert "with try_divide, try_cast" in stall.remedy
    assert "first `odf reset cities.copy 0 --force --yes`" in stall.remedy


@pytest.mark.parametrize("is_named", [True, False])
def test_what_the_engine_says_to_write_instead_is_the_remedy(chain: Coordinator, *, is_named: bool) -> None:
    chain.push("cities", "Oslo")
    failure = failing_at(chain, 0, 0) if is_named else QueryFailed(text="too early")
    failure.instead = "take event_time from the window"
    chain.engine.failures = [failure]

    chain.work()

    stall = chain.scheduler.stall_of(chain.find("cities.copy").id)
    assert stall is not None
    assert stall.remedy.startswith(
        "change the query: take event_time from the window, by `odf add --replace FILE` or `odf commit cities.copy FILE`"
    )
    assert "try_divide" not in stall.remedy
    assert ("nothing of that record's block" in stall.remedy) == is_named


def test_a_range_of_records_on_which_a_query_fails_holds_back_its_first_block(chain: Coordinator) -> None:
    for minute, city in enumerate(("Oslo", "Rome", "Ely")):
        chain.push("cities", city, minute=minute)
    chain.engine.failures = [failing_at(chain, 1, 2), failing_at(chain, 0, 0)]

    chain.work()

    asked = [len(one.query_inputs[0].data_paths) for one in chain.engine.requests]
    assert asked[:3] == [3, 1, 0], "each time only what is before the record"
    assert chain.find("cities.copy").state.last_offset is None
    assert chain.find("cities.copy").state.schema is not None


def test_a_failure_that_names_no_new_record_is_not_tried_again_over_fewer(chain: Coordinator) -> None:
    chain.push("cities", "Oslo")
    chain.engine.failures = [QueryFailed(text="division by zero")]
    chain.work()
    assert len(chain.engine.requests) == 1


def test_pull_reports_why_a_derivative_failed_and_continues_with_others(chain: Coordinator) -> None:
    stop = threading.Event()
    chain.engine.failures = [InvalidQuery(text="no such column")] * 2
    chain.push("cities", "Oslo")
    worker = threading.Thread(target=chain.scheduler.run, args=(stop,), daemon=True)
    worker.start()
    try:
        steps = [*chain.puller.pull([], is_all=True, is_recursive=False, is_wanted=lambda: True)]
    finally:
        stop.set()
        worker.join()

    last = {one.alias: one for one in steps}
    assert last["cities.copy"].error.startswith(
        "no such column; correct the query, with `odf add --replace FILE`"
    )
    assert {one.state for one in last.values()} <= {"failed", "up-to-date"}


def its_schema(*, signed: bool, city: pa.Field) -> pa.Schema:
    timestamp = pa.timestamp("ms", "UTC")
    names = {
        "offset": offset_type(signed=signed),
        "op": operation_type(signed=signed),
        "system_time": timestamp,
        "event_time": timestamp,
    }
    return pa.schema([*(pa.field(name, kind, nullable=False) for name, kind in names.items()), city])


def slices_of(node: Coordinator, alias: str) -> list[pa.Schema]:
    known = node.find(alias)
    events = [
        decoded.block.event for _, decoded, _ in iterate(node.datasets.reader(known.id), known.state.head)
    ]
    names = [
        one.new_data.physical_hash for one in events if isinstance(one, ExecuteTransform) and one.new_data
    ]
    return [slice_schema(node.blobs.local_path(known.id, ObjectKind.DATA, name)) for name in names]


def test_a_derivative_continues_with_the_types_it_began_with(chain: Coordinator) -> None:
    begun = its_schema(signed=True, city=pa.field("city", pa.string(), nullable=False))
    chain.propose(chain.find("cities.copy"), [schema_to_event(begun)])
    before = chain.find("cities.copy").state.schema

    chain.push("cities", "Oslo")
    chain.work()

    state = chain.find("cities.copy").state
    assert state.schema == before, "no other schema is announced"
    assert state.last_offset == 0
    assert slices_of(chain, "cities.copy") == [begun]
    assert slices_of(chain, "copy.copy") == [
        its_schema(signed=False, city=pa.field("city", pa.string(), nullable=False))
    ]


def test_a_step_without_records_keeps_a_required_column(chain: Coordinator) -> None:
    begun = its_schema(signed=True, city=pa.field("city", pa.string(), nullable=False))
    chain.propose(chain.find("cities.copy"), [schema_to_event(begun)])
    state = chain.find("cities.copy").state
    scratch = chain.blobs.scratch()
    found = its_schema(signed=False, city=pa.field("city", pa.string()))
    pq.write_table(found.empty_table(), scratch / "data", store_schema=False)

    written = validate(state, TransformResponseSuccess(), scratch)

    assert written.schema is None
    assert written.data is None


def test_a_null_where_a_derivative_requires_a_value_is_refused(chain: Coordinator) -> None:
    begun = its_schema(signed=False, city=pa.field("city", pa.string(), nullable=False))
    chain.propose(chain.find("cities.copy"), [schema_to_event(begun)])

    chain.push("cities", None)  # type: ignore[arg-type]  # what is pushed is a column of Arrow
    chain.work()

    assert chain.find("cities.copy").state.last_offset is None
    assert "column city: is required" in chain.stall_text(chain.find("cities.copy").id)


@pytest.mark.parametrize(
    ("offsets", "operations", "why"),
    [
        ([0, 1], [0, 2], "a -C without a"),
        ([0, 1], [3, 0], r"a \+C without a"),
        ([0, 1], [0, 9], "operations from 0 to 9"),
        ([0, 2], [0, 0], "record 2 has 2"),
        ([0], [0], "has 1 records"),
    ],
)
def test_records_of_an_engine_that_break_the_contract_are_refused(
    chain: Coordinator, offsets: list[int], operations: list[int], why: str
) -> None:
    scratch = chain.blobs.scratch()
    schema = its_schema(signed=False, city=pa.field("city", pa.string()))
    columns = {
        "offset": pa.array(offsets, pa.uint64()),
        "op": pa.array(operations, pa.uint8()),
        "system_time": pa.array([1] * len(offsets), TIMESTAMP),
        "event_time": pa.array([1] * len(offsets), TIMESTAMP),
        "city": pa.array(["Oslo"] * len(offsets)),
    }
    write_slice(pa.table(columns, schema=schema), scratch / "data")
    response = TransformResponseSuccess(new_offset_interval=OffsetInterval(start=0, end=1))

    with pytest.raises(InvalidInput, match=f"the engine wrote records that cannot be committed: .*{why}"):
        validate(chain.find("cities.copy").state, response, scratch)


def test_offsets_without_data_are_refused(chain: Coordinator) -> None:
    response = TransformResponseSuccess(new_offset_interval=OffsetInterval(start=0, end=1))

    with pytest.raises(InvalidInput, match="the engine reported offsets, but wrote no data"):
        validate(chain.find("cities.copy").state, response, chain.blobs.scratch())


def test_a_transform_that_keeps_failing_is_retried_forever(chain: Coordinator) -> None:
    chain.push("cities", "Oslo")
    chain.engine.failures = [Unavailable(what="the engine") for _ in range(1100)]

    while chain.engine.failures:
        chain.now += 60
        chain.work()
    chain.now += 60
    chain.work()

    assert chain.find("cities.copy").state.last_offset == 0


def test_a_transform_without_memory_is_a_problem_and_tried_again(chain: Coordinator) -> None:
    copy = chain.find("cities.copy").id
    chain.engine.failures = [QueryOutOfMemory(text="the query needs too much memory") for _ in range(2)]
    chain.push("cities", "Oslo")
    chain.work()
    stall = chain.scheduler.stall_of(copy)
    assert stall is not None
    assert ("too much memory" in stall.reason, "it is retried" in stall.remedy) == (True, True)

    chain.now += 1
    chain.work()
    assert len(chain.engine.requests) == 1, "not at once: it fills the memory of others"
    for _ in range(2):
        chain.now += 600
        chain.work()

    assert chain.find("cities.copy").state.last_offset == 0
    assert chain.scheduler.stall_of(copy) is None
