"""A dataset's content for merging: kept slices, current rows, keys, and the schema before the first record."""

import random
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from odf_testing.builders import a_chain, a_hash
from odf_testing.ingest_node import IngestNode
from odf_testing.story import Manifest, root
from structlog.testing import capture_logs

from odf_common.chain.walk import iterate
from odf_common.data.slices import slice_schema, write_slice
from odf_common.errors import InvalidInput
from odf_common.hashing.multihash import Multihash
from odf_common.metadata.events import (
    AddData,
    MergeStrategy,
    MergeStrategyLedger,
    MergeStrategySnapshot,
    SetDataSchema,
)
from odf_common.ports.store import ObjectKind
from odf_coordinator.definitions.first_schemas import FirstSchemas
from odf_ingest.history.dataset_history import DatasetHistory
from odf_ingest.history.indexes import CurrentRows, KeyIndex, Slice, SliceRecords
from odf_ingest.history.keys import key_array, key_order, with_keys

RECORDS = pa.table({"id": [1, 2], "v": ["a", "b"]})
NAME, OTHER = a_hash("slice"), a_hash("other slice")


class Files:
    """The slice's file; counts how often it is read."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "slice"
        self.read: list[Multihash] = []
        write_slice(RECORDS, self.path)

    def __call__(self, name: Multihash) -> Path:
        self.read.append(name)
        return self.path


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def with_indexes(files: Files, *merges: MergeStrategy) -> DatasetHistory:
    chain = a_chain()
    history = DatasetHistory(chain.read, files)
    for merge in merges:
        history.catch_up(merge, lambda: chain.state)
    return history


def columns_read(
    history: DatasetHistory, *names: Multihash, columns: tuple[str, ...] | None
) -> Mapping[str, list[object]]:
    slices = [Slice(block=f"block {name}", name=name) for name in names]
    ((_, _, found),) = history.read(slices, columns)
    columns_found: Mapping[str, list[object]] = found.records.to_pydict()
    return columns_found


LEDGER, SNAPSHOT = MergeStrategyLedger(primary_key=("id",)), MergeStrategySnapshot(primary_key=("id",))


@pytest.mark.parametrize(
    ("merges", "columns", "is_kept"),
    [
        ((LEDGER,), ("id",), True),
        ((LEDGER,), ("v",), False),
        ((LEDGER,), None, False),
        ((SNAPSHOT,), None, True),
        ((LEDGER, SNAPSHOT), None, True),
        ((LEDGER, SNAPSHOT), ("id",), True),
        ((), ("id",), False),
        ((), None, False),
    ],
    ids=["key", "no-key", "all-of-key", "all", "all-of-both", "key-of-both", "none", "all-of-none"],
)
def test_what_the_indexes_need_of_a_written_slice_is_kept_and_no_more(
    files: Files, merges: tuple[MergeStrategy, ...], columns: tuple[str, ...] | None, *, is_kept: bool
) -> None:
    history = with_indexes(files, *merges)
    history.cache_slice(NAME, SliceRecords(records=RECORDS))
    found = columns_read(history, NAME, columns=columns)
    assert {name: found[name] for name in columns or RECORDS.column_names} == {
        name: RECORDS[name].to_pylist() for name in columns or RECORDS.column_names
    }
    assert files.read == ([] if is_kept else [NAME])


@pytest.mark.parametrize("names", [(OTHER,), (NAME, OTHER)], ids=["another", "more"])
def test_a_written_slice_is_not_used_for_another(files: Files, names: tuple[Multihash, ...]) -> None:
    history = with_indexes(files, SNAPSHOT)
    history.cache_slice(NAME, SliceRecords(records=RECORDS.slice(1)))
    assert columns_read(history, *names, columns=("id",)) == {"id": [1, 2] * len(names)}
    assert files.read == list(names)


APPEND, RETRACT, FROM, TO = range(4)
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("op", pa.uint8())])


def records(rows: Sequence[tuple[int | None, int, int]]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], SCHEMA)


def held(table: pa.Table) -> dict[int, int]:
    return {row["k"]: row["v"] for row in table.to_pylist()}


def test_runs_stay_few_so_that_a_record_is_copied_few_times() -> None:
    rows = CurrentRows(("k",))
    for number in range(2000):
        rows.add(records([(number, 0, APPEND)]), "op")
    assert len(rows.store.runs) <= 28


def test_records_without_a_key_are_left_out() -> None:
    rows = CurrentRows(("k",))
    rows.add(records([(None, 1, APPEND), (1, 2, APPEND)]), "op")
    rows.add(records([(7, 3, APPEND)]).drop_columns(["k"]), "op")
    assert held(rows.current()) == {1: 2}


def test_columns_that_were_added_later_are_null_before() -> None:
    rows = CurrentRows(("k",))
    rows.add(records([(1, 2, APPEND)]).drop_columns(["v"]), "op")
    rows.add(records([(2, 3, APPEND)]), "op")
    assert held(rows.current()) == {1: None, 2: 3}


def test_rows_of_runs_with_the_same_columns_are_taken_together() -> None:
    rows = CurrentRows(("k",))
    rows.add(records([(number, 0, APPEND) for number in range(100)]), "op")
    rows.add(records([(1000, 1, APPEND)]), "op")
    assert len(rows.store.runs) == 2
    (found,) = rows._some(key_array(pa.table({"k": [5, 1000]}), ["k"]))
    assert held(found) == {5: 0, 1000: 1}


TRICKY = ["", "\0", "a", "a\0", "a\0\0", "ab", "a" * 64, "a" * 65, "a" * 66, "ä", "\1", "a\1"]


@pytest.mark.parametrize(
    "column",
    [
        pa.array(TRICKY),
        pa.array([text.encode() for text in TRICKY], pa.binary()),
        pa.array([b"\xff", b"\xff\0", b"\xfe"], pa.large_binary()),
        pa.array([b"\xff\0", b"\xff\1"], pa.binary(2)),
    ],
)
def test_keys_are_equal_exactly_where_the_values_are(column: pa.Array) -> None:
    doubled = pa.table({"k": pa.concat_arrays([column, column]), "other": pa.nulls(2 * len(column))})
    keys = key_array(doubled, ["k"])
    assert len(np.unique(keys)) == len(column)
    assert (keys[: len(column)] == keys[len(column) :]).all()


@pytest.mark.parametrize("width", [0, 1, 7, 8, 9, 30, 70])
@pytest.mark.parametrize("count", [0, 1, 2, 500])
def test_keys_are_ordered_as_numpy_orders_them(width: int, count: int) -> None:
    source = random.Random(7)
    texts = [
        "same" + "".join(source.choice("ab\0") for _ in range(source.randint(0, width))) for _ in range(count)
    ]
    for column in (pa.array(texts, pa.string()), pa.array([len(text) - 9 for text in texts], pa.int64())):
        keys = key_array(pa.table({"k": column}), ["k"])
        assert key_order(keys).tolist() == np.argsort(keys, kind="stable").tolist()


def test_columns_of_a_key_do_not_run_into_each_other() -> None:
    table = pa.table({"a": ["x", "xy", "", "xyz"], "b": ["yz", "z", "xyz", ""], "c": [1, 1, 1, 1]})
    assert len(np.unique(key_array(table, ["a", "b", "c"]))) == 4


@pytest.mark.parametrize("columns", [["missing"], ["a"]])
def test_a_key_that_is_missing_or_null_is_refused(columns: list[str]) -> None:
    with pytest.raises(InvalidInput, match=columns[0]):
        key_array(pa.table({"a": [1, None]}), columns)


@pytest.mark.parametrize("columns", [["a"], ["b", "a"]])
def test_a_key_that_cannot_be_one_is_refused_by_its_name(columns: list[str]) -> None:
    with pytest.raises(InvalidInput, match=r"column a: list<.*> cannot be a primary key"):
        key_array(pa.table({"a": [[1]], "b": [1]}), columns)


@pytest.mark.parametrize("is_text", [False, True])
def test_the_index_knows_every_key_ever_added_and_no_other(is_text: bool) -> None:
    source = random.Random(7)
    index, known = KeyIndex(), set()
    for _ in range(60):
        numbers = [source.randrange(5000) for _ in range(source.choice([0, 1, 10, 300]))]
        column = (
            pa.array([f"k{n}" for n in numbers], pa.string()) if is_text else pa.array(numbers, pa.int64())
        )
        keys = key_array(pa.table({"k": column}), ["k"])
        places, fresh = index.fresh(keys)
        expected = [n for at, n in enumerate(numbers) if n not in known and n not in numbers[:at]]
        assert [numbers[place] for place in places] == expected
        index.add(fresh)
        known |= set(numbers)
    assert len(index) == len(known)


def test_runs_stay_few() -> None:
    index = KeyIndex()
    for number in range(5000):
        index.add(np.array([number]))
    assert len(index.store.runs) <= 35


def test_only_records_with_a_value_in_every_key_column_have_a_key() -> None:
    table = pa.table({"a": [1, None, 3], "b": ["x", "y", None]})
    assert with_keys(table, ["a", "b"]).to_pylist() == [{"a": 1, "b": "x"}]
    assert with_keys(table, ["a"]).num_rows == 2
    assert with_keys(table, ["a", "c"]).num_rows == with_keys(table, ["c"]).num_rows == 0


# DDL of a column, and a value of it.
TYPES: Final[Mapping[str, object]] = {
    "BOOLEAN": True,
    "INT": 7,
    "BIGINT": 7,
    "FLOAT": 1.5,
    "DOUBLE": 1.5,
    "DECIMAL(9,2)": "12.50",
    "DATE": "2026-03-01",
    "TIMESTAMP(3)": "2026-03-01T00:00:00Z",
    "TIMESTAMP": "2026-03-01T00:00:00Z",
    "STRING": "grey",
    "ARRAY<STRING>": ["x"],
    "STRUCT<a: TIMESTAMP, b: DECIMAL(4,1)>": {"a": "2026-03-01T00:00:00Z", "b": "1.5"},
}
MERGES: Final = ("Append", "Ledger", "Snapshot", "ChangelogStream", "UpsertStream")


class Node(IngestNode):
    """A node that declares the schemas of first slices."""

    def __init__(self, home: Path, pool: ThreadPoolExecutor, *, is_signed: bool) -> None:
        super().__init__(home, pool, is_signed=is_signed)
        self.schemas = FirstSchemas(
            datasets=self.datasets, committer=self.committer, engine=self.engine, is_signed=is_signed
        )

    def schemas_of(self, ref: str) -> list[object]:
        """Return the schemas that a chain declares, and those of its slices."""
        known = self.find(ref)
        found: list[object] = []
        for _, decoded, _ in iterate(self.datasets.reader(known.id), known.state.head):
            event = decoded.block.event
            if isinstance(event, SetDataSchema):
                found.append(event)
            if isinstance(event, AddData) and event.new_data is not None:
                slice_ = self.blobs.local_path(known.id, ObjectKind.DATA, event.new_data.physical_hash)
                found.append(slice_schema(slice_))
        return found


def manifests(merge: str, columns: list[str], vocabulary: str | None) -> list[Manifest]:
    strategy = {"kind": merge} | ({} if merge == "Append" else {"primaryKey": ["id"]})
    return [root(name, columns, merge=strategy, event_time=vocabulary) for name in ("early", "usual")]


@given(
    merge=st.sampled_from(MERGES),
    types=st.lists(st.tuples(st.sampled_from(sorted(TYPES)), st.booleans()), max_size=4),
    time=st.sampled_from((None, "DATE", "TIMESTAMP", "TIMESTAMP(3)")),
    is_renamed=st.booleans(),
    is_signed=st.booleans(),
)
def test_a_first_schema_is_that_of_the_first_slice(
    merge: str, types: list[tuple[str, bool]], time: str | None, *, is_renamed: bool, is_signed: bool
) -> None:
    columns: list[str] = ["id BIGINT"]
    row: dict[str, object] = {"id": 1}
    if merge in {"ChangelogStream", "UpsertStream"}:
        columns, row = [*columns, "op INT"], {**row, "op": 0}
    for number, (type_, is_required) in enumerate(types):
        columns.append(f"c{number} {type_}{' NOT NULL' if is_required else ''}")
        row[f"c{number}"] = TYPES[type_]
    vocabulary = "at" if is_renamed and time else None
    if time:
        columns.insert(1, f"{vocabulary or 'event_time'} {time}")
        row[vocabulary or "event_time"] = TYPES[time]
    with tempfile.TemporaryDirectory() as home, ThreadPoolExecutor(1) as pool, capture_logs():
        node = Node(Path(home), pool, is_signed=is_signed)
        node.add(*(yaml.safe_dump(one) for one in manifests(merge, columns, vocabulary)))
        node.schemas.commit([node.find("early")])
        assert len(node.schemas_of("early")) == 1

        for name in ("early", "usual"):
            node.ingest_row(name, row)

        assert node.schemas_of("early") == node.schemas_of("usual")
