"""Columns without a declared type or unit: their number is bounded, files may add some, finer times are cut or refused."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from odf_testing.builders import a_query
from odf_testing.ingest_batches import a_message_batch, commit_file, commit_messages

from odf_common.errors import InvalidInput
from odf_common.metadata.events import (
    DatasetVocabulary,
    MergeStrategy,
    MergeStrategyAppend,
    MergeStrategySnapshot,
    MergeStrategyUpsertStream,
    ReadStepCsv,
    ReadStepNdJson,
    ReadStepParquet,
    Transform,
)
from odf_common.metadata.scalars import Timestamp
from odf_common.ports.engine import IsWanted
from odf_ingest.history.align_columns import align_columns
from odf_ingest.prepare.preparer import Preparer
from odf_ingest.read.input_format import InputFormat
from odf_ingest.read.types import columns as columns_module
from odf_ingest.read.types.columns import extend_columns
from odf_ingest.source_settings import FinerTimes, SourceSettings

from .test_message_columns import messages

DDL = ("id BIGINT", "event_time TIMESTAMP(3)", "registered TIMESTAMP(0)", "at TIME(0)")
BIRTHS = """id,event_time,registered,at
1,1969-12-31T23:59:59.9999Z,1969-07-20T20:17:39.5Z,23:59:59.9
2,1955-03-01T11:59:59.9999999Z,1955-03-01T23:59:59.999Z,00:00:00.999
3,1970-01-01T00:00:00Z,1979-07-20T20:17:39Z,12:00
"""
ROW = '{"id":1,"event_time":"2020-01-01T00:00:00Z"}'


class Microseconds:
    """Port `Preprocessor` whose output has times in microseconds, one before 1970 or as given."""

    def __init__(self, us: int) -> None:
        self._us = us

    def run(self, transform: Transform, records: pa.Table, is_wanted: IsWanted) -> pa.Table:
        del transform, is_wanted
        times = pa.array([self._us] * len(records)).cast(pa.timestamp("us", "UTC"))
        return pa.table({"id": records["id"], "event_time": times})


def push(bench: Any, folder: Path, content: str) -> Any:
    return commit_file(bench, folder / "pushed", content, event_time=Timestamp(0))


def refuse_finer(bench: Any) -> None:
    bench.set(finer_times=FinerTimes.REFUSE)


def test_times_before_1970_are_cut_towards_the_past(make_bench: Any, tmp_path: Path) -> None:
    bench = make_bench(MergeStrategyAppend(), ReadStepCsv(header=True, ddl_schema=DDL))
    push(bench, tmp_path, BIRTHS)
    rows = {
        row["id"]: [str(row[name]) for name in ("event_time", "registered", "at")] for row in bench.rows()
    }
    assert rows == {
        1: ["1969-12-31 23:59:59.999000+00:00", "1969-07-20 20:17:39+00:00", "23:59:59"],
        2: ["1955-03-01 11:59:59.999000+00:00", "1955-03-01 23:59:59+00:00", "00:00:00"],
        3: ["1970-01-01 00:00:00+00:00", "1979-07-20 20:17:39+00:00", "12:00:00"],
    }


def test_a_source_may_refuse_rows_with_finer_times(make_bench: Any, tmp_path: Path) -> None:
    bench = make_bench(MergeStrategyAppend(), ReadStepCsv(header=True, ddl_schema=DDL))
    refuse_finer(bench)
    outcome = push(bench, tmp_path, BIRTHS)
    assert [row["id"] for row in bench.rows()] == [3]
    assert [row.reason.partition(", and")[0] for row in outcome.rejected] == [
        "line 2: column event_time: '1969-12-31 23:59:59.999900Z' has a finer fraction than its column",
        "line 3: column event_time: '1955-03-01T11:59:59.9999999Z' has a finer fraction than its column",
    ]


def test_a_source_may_refuse_messages_with_finer_times(make_bench: Any) -> None:
    bench = make_bench(read=ReadStepNdJson(ddl_schema=("id BIGINT", "event_time TIMESTAMP(3)")))
    columns = SourceSettings(finer_times=FinerTimes.REFUSE).message_columns
    values: list[bytes | None] = [
        b'{"id":%d,"event_time":"2020-01-01T00:00:00.%sZ"}' % row for row in ((1, b"1230"), (2, b"1234"))
    ]
    commit_messages(bench, messages(values, columns))
    assert [row["id"] for row in bench.rows()] == [1]
    ((offset, reason),) = bench.reasons
    assert offset == 1
    assert reason.startswith("column event_time: '2020-01-01 00:00:00.123400Z' has a finer fraction")


@pytest.mark.parametrize(("us", "ms"), [(-1, -1), (-1001, -2), (1999, 1)])
def test_times_of_preprocess_are_cut_towards_the_past(
    make_bench: Any, tmp_path: Path, us: int, ms: int
) -> None:
    bench = make_bench(MergeStrategyAppend())
    bench.propose(replace(bench.state.push_sources["default"], preprocess=a_query()))
    bench.preparer = Preparer(Microseconds(us))  # type: ignore[arg-type]
    push(bench, tmp_path, ROW)
    assert [Timestamp.from_datetime(row["event_time"]).ms for row in bench.rows()] == [ms]


def test_finer_times_of_preprocess_may_be_refused(make_bench: Any, tmp_path: Path) -> None:
    bench = make_bench(MergeStrategyAppend())
    bench.propose(replace(bench.state.push_sources["default"], preprocess=a_query()))
    bench.preparer = Preparer(Microseconds(1999))  # type: ignore[arg-type]
    refuse_finer(bench)
    with pytest.raises(InvalidInput, match=r"column event_time: .* has a finer fraction"):
        push(bench, tmp_path, ROW)


def test_a_year_that_preprocess_returns_is_refused_by_row_and_column(make_bench: Any, tmp_path: Path) -> None:
    bench = make_bench(MergeStrategyAppend())
    bench.propose(replace(bench.state.push_sources["default"], preprocess=a_query()))
    bench.preparer = Preparer(Microseconds(253_402_300_800_000_000))  # type: ignore[arg-type]
    with pytest.raises(
        InvalidInput, match=r"record 1 of the query's output: column event_time: \+10000-01-01"
    ):
        push(bench, tmp_path, ROW)


def test_records_are_cut_to_the_unit_of_their_dataset_towards_the_past() -> None:
    vocab = DatasetVocabulary()
    us, ms = pa.timestamp("us", "UTC"), pa.timestamp("ms", "UTC")
    records = pa.table({"at": pa.array([-1, 1999]).cast(us), "s": [{"at": -1001}, {"at": 0}]})
    records = records.set_column(1, "s", records["s"].cast(pa.struct([("at", us)])))
    dataset = pa.schema([("at", ms), ("s", pa.struct([("at", ms)]))])
    found = align_columns(records, dataset, vocab)
    assert found["at"].cast(pa.int64()).to_pylist() == [-1, 1]
    assert pa.compute.struct_field(found["s"], "at").cast(pa.int64()).to_pylist() == [-2, 0]


EVENT_TIME = Timestamp.parse("2020-06-01T00:00:00Z")
FORMATS = ["parquet", "arrow"]
APPEND, RETRACT, FROM, TO = range(4)


def push_table(bench: Any, folder: Path, format_: str, table: pa.Table) -> int:
    key = str(len(list(folder.iterdir())))
    file = folder / key
    if format_ == "parquet":
        pq.write_table(table, file)
    else:
        with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
    return commit_file(bench, file, None, key, format=InputFormat.parse(format_)).count


def records(bench: Any) -> list[dict[str, object]]:
    system = {"offset", "system_time", "event_time"}
    return [{name: value for name, value in row.items() if name not in system} for row in bench.rows()]


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize("strategy", [MergeStrategyAppend(), MergeStrategySnapshot(primary_key=("id",))])
def test_columns_of_a_later_file_are_added(
    make_bench: Any, tmp_path: Path, strategy: MergeStrategy, format_: str
) -> None:
    bench = make_bench(strategy, ReadStepParquet())
    assert push_table(bench, tmp_path, format_, pa.table({"id": [1], "s": [{"a": 1}]})) == 1
    more = pa.table({"id": [1, 2], "s": [{"a": 1}, {"a": 2, "b": "x"}], "n": [None, 3], "none": pa.nulls(2)})
    push_table(bench, tmp_path, format_, more)
    assert records(bench)[-1] == {"op": APPEND, "id": 2, "s": {"a": 2, "b": "x"}, "n": 3}
    assert push_table(bench, tmp_path, format_, pa.table({"id": [4], "n": [5]})) > 0
    assert {"op": APPEND, "id": 4, "s": None, "n": 5} in records(bench)


@pytest.mark.parametrize("format_", FORMATS)
def test_a_later_file_may_delete_keys(make_bench: Any, tmp_path: Path, format_: str) -> None:
    bench = make_bench(MergeStrategyUpsertStream(primary_key=("id",)), ReadStepParquet())
    assert push_table(bench, tmp_path, format_, pa.table({"id": [1, 2], "op": [APPEND, APPEND]})) == 2
    assert push_table(bench, tmp_path, format_, pa.table({"id": [1], "op": [RETRACT]})) == 1
    assert records(bench)[-1] == {"op": RETRACT, "id": 1}


def test_an_encoded_column_may_be_added(make_bench: Any, tmp_path: Path) -> None:
    bench = make_bench(None, ReadStepParquet())
    push_table(bench, tmp_path, "arrow", pa.table({"id": [1]}))
    encoded = pa.RunEndEncodedArray.from_arrays(pa.array([1], pa.int32()), pa.array(["y"]))
    table = pa.table({"id": [2], "d": pa.array(["x"]).dictionary_encode(), "r": encoded})
    push_table(bench, tmp_path, "arrow", table)
    assert records(bench)[-1] == {"op": APPEND, "id": 2, "d": "x", "r": "y"}


@pytest.fixture(autouse=True)
def _limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns_module, "MAX_INFERRED_COLUMNS", 6)


def record(*keys: str) -> bytes:
    return json.dumps({"id": 1, "by": dict.fromkeys(keys, 2)}).encode()


def test_records_with_more_columns_than_are_inferred_are_refused_with_the_way_out(
    make_bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(columns_module, "MAX_INFERRED_COLUMNS", 7)
    bench = make_bench(None, ReadStepNdJson())
    commit_messages(bench, a_message_batch({0: [record("a", "b"), record("c")]}))
    with pytest.raises(
        InvalidInput,
        match=r"have 8 columns and fields, and at most 7 .*declare those to keep.* as STRING to keep its text",
    ):
        commit_messages(bench, a_message_batch({0: [record("a"), record("d", "e")]}, start={0: 2}))
    assert len(bench.rows()) == 2, "nothing of the batch is committed"
    commit_messages(bench, a_message_batch({0: [record("a"), record("d")]}, start={0: 2}))
    assert [row["by"] for row in bench.rows()][-1]["d"] == 2


def test_an_object_with_endless_keys_is_kept_as_text_if_it_is_declared_so(make_bench: Any) -> None:
    columns = ["id BIGINT", "by STRING"]
    bench = make_bench(None, ReadStepNdJson(ddl_schema=tuple(columns)))
    for start, keys in enumerate(("abcdefgh", "ijklmnop")):
        commit_messages(bench, a_message_batch({0: [record(*keys)]}, start={0: start}))
    assert [json.loads(row["by"]) for row in bench.rows()] == [
        dict.fromkeys(keys, 2) for keys in ("abcdefgh", "ijklmnop")
    ]


def test_a_dataset_that_has_more_columns_continues_with_them() -> None:
    wide = pa.schema([(f"c{number}", pa.int64()) for number in range(9)])
    assert extend_columns(wide, wide) == wide
    assert extend_columns(wide, pa.schema([("c1", pa.int64())])) == wide
    with pytest.raises(InvalidInput, match="have 10 columns"):
        extend_columns(wide, pa.schema([("new", pa.int64())]))


@pytest.mark.parametrize(
    ("type_", "count"),
    [
        (pa.struct([(f"f{number}", pa.int64()) for number in range(6)]), 7),
        (pa.list_(pa.struct([(f"f{number}", pa.int64()) for number in range(5)])), 7),
    ],
)
def test_fields_at_any_depth_count(type_: pa.DataType, count: int) -> None:
    with pytest.raises(InvalidInput, match=f"have {count} columns"):
        extend_columns(None, pa.schema([("c", type_)]))
