"""Parquet and Arrow files of sources without a declared schema: later files may bring new columns."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from odf_testing.ingest_batches import commit_file

from odf_common.metadata.scalars import Timestamp
from odf_common.metadata.steps import (
    MergeStrategy,
    MergeStrategyAppend,
    MergeStrategySnapshot,
    MergeStrategyUpsertStream,
    ReadStepParquet,
)
from odf_ingest.read.input_format import InputFormat

EVENT_TIME = Timestamp.parse("2020-06-01T00:00:00Z")
FORMATS = ["parquet", "arrow"]
APPEND, RETRACT, FROM, TO = range(4)


def push(bench: Any, folder: Path, format_: str, table: pa.Table) -> int:
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
    assert push(bench, tmp_path, format_, pa.table({"id": [1], "s": [{"a": 1}]})) == 1
    more = pa.table({"id": [1, 2], "s": [{"a": 1}, {"a": 2, "b": "x"}], "n": [None, 3], "none": pa.nulls(2)})
    push(bench, tmp_path, format_, more)
    assert records(bench)[-1] == {"op": APPEND, "id": 2, "s": {"a": 2, "b": "x"}, "n": 3}
    assert push(bench, tmp_path, format_, pa.table({"id": [4], "n": [5]})) > 0
    assert {"op": APPEND, "id": 4, "s": None, "n": 5} in records(bench)


@pytest.mark.parametrize("format_", FORMATS)
def test_a_later_file_may_delete_keys(make_bench: Any, tmp_path: Path, format_: str) -> None:
    bench = make_bench(MergeStrategyUpsertStream(primary_key=("id",)), ReadStepParquet())
    assert push(bench, tmp_path, format_, pa.table({"id": [1, 2], "op": [APPEND, APPEND]})) == 2
    assert push(bench, tmp_path, format_, pa.table({"id": [1], "op": [RETRACT]})) == 1
    assert records(bench)[-1] == {"op": RETRACT, "id": 1}


def test_an_encoded_column_may_be_added(make_bench: Any, tmp_path: Path) -> None:
    bench = make_bench(None, ReadStepParquet())
    push(bench, tmp_path, "arrow", pa.table({"id": [1]}))
    encoded = pa.RunEndEncodedArray.from_arrays(pa.array([1], pa.int32()), pa.array(["y"]))
    table = pa.table({"id": [2], "d": pa.array(["x"]).dictionary_encode(), "r": encoded})
    push(bench, tmp_path, "arrow", table)
    assert records(bench)[-1] == {"op": APPEND, "id": 2, "d": "x", "r": "y"}
