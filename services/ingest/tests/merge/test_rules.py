"""The rules that all merges share: which operations there are, and in which order records are numbered."""

from types import SimpleNamespace
from typing import cast

import pyarrow as pa
import pytest

from odf_common.data.columns import Operation
from odf_common.errors import InvalidInput
from odf_common.metadata.events import DatasetVocabulary
from odf_common.metadata.steps import MergeStrategyChangelogStream, MergeStrategySnapshot
from odf_ingest.errors import IncompleteCorrection
from odf_ingest.history.align_columns import align_columns
from odf_ingest.merge.difference import alike
from odf_ingest.merge.interface import History, by_event_time, by_key
from odf_ingest.merge.strategies import merge, operations

TIMESTAMPS = pa.timestamp("ms", "UTC")


@pytest.mark.parametrize("ops", [[0, None], [0, 4], [-1], ["x"]])
def test_an_invalid_operation_is_refused(ops: list[object]) -> None:
    with pytest.raises(InvalidInput, match="column op"):
        operations(pa.table({"op": pa.array(ops)}), "op")


def test_all_operations_are_taken_as_bytes() -> None:
    found = operations(pa.table({"op": pa.chunked_array([[0, 1], [2, 3]])}), "op")
    assert (found.type, found.to_pylist()) == (pa.uint8(), [*map(int, Operation)])


def test_records_of_one_key_are_ordered_by_operation_and_otherwise_stay_as_they_were() -> None:
    records = pa.table({"id": [2, 1, 1, 1], "v": ["a", "b", "c", "d"]})
    ordered, ops = by_key(records, pa.array([0, 3, 2, 3], pa.uint8()), ("id",))
    assert ordered["v"].to_pylist() == ["c", "b", "d", "a"]
    assert ops.to_pylist() == [2, 3, 3, 0]


def test_records_without_event_time_come_first() -> None:
    records = pa.table({"at": pa.array([2, None, 1, None], TIMESTAMPS), "v": [0, 1, 2, 3]})
    assert by_event_time(records, "at")["v"].to_pylist() == [1, 3, 2, 0]


def test_records_that_are_ordered_are_not_copied() -> None:
    for times in ([1, 2, 2], [7], []):
        records = pa.table({"at": pa.array(times, pa.timestamp("ms", "UTC"))})
        assert by_event_time(records, "at") is records


def test_a_missing_column_is_null_if_optional_and_an_error_if_required() -> None:
    known = pa.schema(
        [
            ("event_time", TIMESTAMPS),
            pa.field("id", pa.int64(), nullable=False),
            pa.field("v", pa.string()),
        ]
    )
    vocab = DatasetVocabulary()
    records = pa.table({"event_time": pa.array([1], TIMESTAMPS), "id": [7]})
    assert align_columns(records, known, vocab).column("v").to_pylist() == [None]
    with pytest.raises(InvalidInput, match="column id: is required in this dataset and is missing"):
        align_columns(records.drop_columns(["id"]), known, vocab)


A, FROM, TO = 0, 2, 3


@pytest.mark.parametrize(
    ("rows", "record", "whole", "may_come"),
    [
        ([(FROM, 1), (TO, 2)], "record 1: a -C without a +C after it", 0, False),
        ([(FROM, 1), (TO, 2), (TO, 1)], "record 2: a +C without a -C before it", 0, False),
        ([(TO, 1), (FROM, 1)], "record 1: a +C without", 0, False),
        ([(FROM, 1), (A, 9), (TO, 1), (TO, 1)], "record 4: a +C without", 3, False),
        ([(A, 9), (FROM, 1), (TO, 1), (FROM, 2), (A, 3)], "record 4: a -C without", 3, True),
        ([(FROM, 1), (FROM, 2), (TO, 1)], "record 2: a -C without", 0, True),
        ([(FROM, 2), (FROM, 1)], "record 1: a -C without", 0, True),
        ([(FROM, 1), (FROM, 1), (TO, 1)], "record 2: a -C without", 0, True),
    ],
)
def test_the_first_incomplete_correction_is_named_with_what_precedes_it(
    rows: list[tuple[int, int]], record: str, whole: int, may_come: bool
) -> None:
    ops, keys = zip(*rows, strict=True)
    new = pa.table({"op": pa.array(ops, pa.uint8()), "id": pa.array(keys)})
    strategy, unused = MergeStrategyChangelogStream(primary_key=("id",)), cast("History", None)
    with pytest.raises(IncompleteCorrection) as found:
        merge(strategy, new, unused, DatasetVocabulary())
    assert str(found.value).startswith(record)
    assert (found.value.whole, found.value.may_come) == (whole, may_come)


def test_known_records_get_the_columns_of_new_ones() -> None:
    schema = pa.schema([("v", pa.string()), ("id", pa.int64())])
    known = pa.table({"id": pa.array([1, 2], pa.int32())})
    found = alike(known, schema)
    assert found.schema.equals(schema)
    assert found.to_pylist() == [{"v": None, "id": 1}, {"v": None, "id": 2}]
    assert alike(pa.table({}), schema).equals(schema.empty_table())


def test_an_empty_snapshot_of_a_dataset_without_records_needs_no_columns() -> None:
    empty = cast("History", SimpleNamespace(current=lambda _: pa.table({})))
    new = pa.table({"event_time": pa.array([], TIMESTAMPS)})
    merged = merge(MergeStrategySnapshot(primary_key=("id",)), new, empty, DatasetVocabulary())
    assert (merged.records, merged.ops) == (new, None)
