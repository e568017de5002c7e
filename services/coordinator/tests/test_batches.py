import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from odf_testing.coordinator import Coordinator, PassingEngine

from odf_common.chain.walk import iterate
from odf_common.data.schema_evolution import schema_of_event, schema_to_event
from odf_common.errors import InvalidInput
from odf_common.metadata.engine_messages import TransformRequest, TransformResponseSuccess
from odf_common.metadata.events import ExecuteTransform, SetDataSchema
from odf_common.ports.engine import OnProgress
from odf_coordinator.transforms.scheduler import Result

WIDE = pa.schema(
    [("event_time", pa.timestamp("ms", "UTC")), ("city", pa.string()), ("population", pa.int64())]
)


def push_wide(node: Coordinator, city: str, population: int | None, minute: int) -> None:
    columns = {"event_time": [minute * 60_000], "city": [city], "population": [population]}
    node.push_table("cities", pa.table(columns, schema=WIDE), minute)


def transforms(node: Coordinator, ref: str) -> list[ExecuteTransform]:
    known = node.find(ref)
    blocks = iterate(node.datasets.reader(known.id), known.state.head)
    events = [decoded.block.event for _, decoded, _ in blocks]
    return [event for event in events if isinstance(event, ExecuteTransform)][::-1]


@pytest.fixture
def widened(node: Coordinator, root: str, derivative: str) -> Coordinator:
    """An input that gained a column between records that no derivative has read yet."""
    node.add(root, derivative)
    node.push("cities", "Oslo")
    node.push("cities", "Rome", minute=1)
    push_wide(node, "Lima", 10, 2)
    push_wide(node, "Bonn", 3, 3)
    return node


def test_a_step_ends_before_its_input_changes_its_schema(widened: Coordinator) -> None:
    widened.work()

    first, second = widened.engine.requests
    assert [len(one.query_inputs[0].data_paths) for one in (first, second)] == [2, 2]
    steps = [event.query_inputs[0] for event in transforms(widened, "cities.copy")]
    assert [one.new_offset for one in steps] == [1, 3]
    assert steps[1].prev_block_hash == steps[0].new_block_hash
    assert steps[1].new_block_hash == widened.find("cities").state.head


def test_one_run_does_all_pending_steps(widened: Coordinator) -> None:
    copy = widened.find("cities.copy")
    ticket = widened.scheduler.request(copy.id)

    assert widened.scheduler.work()

    assert widened.scheduler.wait(copy.id, ticket, 0) == Result()
    before, after = copy.state, widened.find("cities.copy").state
    assert after.sequence_number - before.sequence_number == 4
    assert after.next_offset - before.next_offset == 4


def test_each_step_gets_the_schema_of_its_records(widened: Coordinator) -> None:
    schemas = []

    class Looking(PassingEngine):
        def execute_transform(
            self, request: TransformRequest, on_progress: OnProgress | None = None
        ) -> TransformResponseSuccess:
            schemas.append(pq.read_schema(request.query_inputs[0].schema_file).names[4:])
            return super().execute_transform(request, on_progress)

    object.__setattr__(widened.scheduler._transformer, "engine", Looking())

    widened.work()

    assert schemas == [["city"], ["city", "population"]]


def test_a_column_that_an_input_gains_is_added_to_a_select_star(widened: Coordinator) -> None:
    widened.work()

    table = widened.record_reader.tail("cities.copy", 9)
    assert table["population"].to_pylist() == [None, None, 10, 3]
    known = widened.find("cities.copy")
    schemas = [
        decoded.block.event
        for _, decoded, _ in iterate(widened.datasets.reader(known.id), known.state.head)
        if isinstance(decoded.block.event, SetDataSchema)
    ]
    assert len(schemas) == 2


def test_a_query_that_names_its_columns_is_unaffected(widened: Coordinator) -> None:
    class Naming(PassingEngine):
        columns = ("event_time", "city")

    object.__setattr__(widened.scheduler._transformer, "engine", Naming())

    widened.work()

    assert widened.record_reader.tail("cities.copy", 9).column_names[4:] == ["city"]
    assert widened.find("cities.copy").state.last_offset == 3


def test_a_schema_change_without_pending_records_ends_no_step(
    node: Coordinator, root: str, derivative: str
) -> None:
    node.add(root, derivative)
    node.push("cities", "Oslo")
    node.work()
    push_wide(node, "Lima", 10, 2)

    node.work()

    assert len(node.engine.requests) == 2
    assert transforms(node, "cities.copy")[-1].query_inputs[0].new_offset == 1


def test_a_schema_without_records_is_read_so_that_queries_may_name_its_columns(
    node: Coordinator, root: str, derivative: str
) -> None:
    node.add(root, derivative)
    node.push("cities", "Oslo")
    node.work()
    schema = node.find("cities").state.schema
    assert schema is not None
    wide = schema_of_event(schema).append(WIDE.field("population"))

    node.propose(node.find("cities"), [schema_to_event(wide)])
    node.work()

    step = transforms(node, "cities.copy")[-1].query_inputs[0]
    assert (step.new_block_hash, step.new_offset) == (node.find("cities").state.head, None)


def test_a_derivative_without_output_before_the_schema_change_cannot_continue(widened: Coordinator) -> None:
    class Silent(PassingEngine):
        def execute_transform(
            self, request: TransformRequest, on_progress: OnProgress | None = None
        ) -> TransformResponseSuccess:
            del request, on_progress
            return TransformResponseSuccess()

    object.__setattr__(widened.scheduler._transformer, "engine", Silent())
    known = widened.find("cities.copy")
    plan = widened.scheduler._transformer.plan(known)
    assert plan is not None

    with pytest.raises(InvalidInput, match="cannot record how far the input was read"):
        widened.scheduler._transformer.perform(known, plan)
