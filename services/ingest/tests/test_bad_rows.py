"""Rows that remain after several steps keep their numbers, and a snapshot with a bad message is not an empty one."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from odf_common.data.ddl import ddl_to_schema
from odf_common.errors import InvalidInput
from odf_common.metadata.steps import ReadStepNdJson, ReadStepParquet
from odf_ingest.prepare.bad_rows import RejectedRows, TextRows
from odf_ingest.prepare.event_time import max_event_time
from odf_ingest.read import infer_records, read_records, split_file
from odf_ingest.read.arrow_ipc import ReadArrowIpc, row_stream


def test_rows_are_numbered_as_in_the_file_whichever_were_left_out_before() -> None:
    records = split_file(ReadStepNdJson(), b'{"a":0}\n{"a":1}\n{"a":2}\n{"a":3}\n')
    assert records is not None
    rows = TextRows(records)
    table = rows.without(pa.table({"a": [0, 1, 2, 3]}), {1: "first"})
    table = rows.without(table, {1: "second"})
    assert table["a"].to_pylist() == [0, 3]
    assert [(one.offset, one.value, one.reason) for one in rows.bad] == [
        (1, b'{"a":1}', "line 2: first"),
        (2, b'{"a":2}', "line 3: second"),
    ]


def test_columns_of_a_file_with_a_bad_row_are_those_of_all_its_good_ones(tmp_path: Path) -> None:
    file = tmp_path / "data"
    file.write_bytes(b'{"a":0}\n{"b":1}\njunk\n{"c":2}\n')
    rejected = RejectedRows(ReadStepNdJson(), file)
    columns = rejected.infer(pa.schema([("known", pa.string())]))
    assert columns is not None
    assert columns.names == ["known", "a", "b", "c"]
    assert rejected.read(columns, is_declared=False).num_rows == 3
    assert [(row.offset, row.value) for row in rejected.bad] == [(2, b"junk")]
    assert rejected.count == 4


def test_of_a_file_without_bad_rows_nothing_is_counted_or_left_out(tmp_path: Path) -> None:
    file = tmp_path / "data"
    file.write_bytes(b'{"a":0}\n{"a":1}\n')
    rejected, table = RejectedRows(ReadStepNdJson(), file), pa.table({"a": [0, 1]})
    assert rejected.without(table, {}) is table
    assert (rejected.count, rejected.bad) == (0, ())


@pytest.mark.parametrize("write", [pq.write_table, pa.feather.write_feather], ids=["parquet", "arrow"])
def test_rows_of_a_table_are_found_in_structs_and_lists_at_any_place(
    tmp_path: Path, write: Callable[[pa.Table, Path], None]
) -> None:
    rows = [{"id": 1, "s": {"n": "1", "l": ["1", None]}, "m": [{"key": "k", "value": 1}]}] * 100
    rows[40] = {"id": 2, "s": {"n": "x", "l": None}, "m": None}
    rows[63] = {"id": 3, "s": None, "m": [{"key": "k", "value": 70_000}]}
    rows[64] = {"id": 4, "s": {"n": None, "l": ["1", "y"]}, "m": []}
    rows[99] = {"id": None, "s": None, "m": None}
    inner = pa.struct([("n", pa.string()), ("l", pa.list_(pa.string()))])
    pairs = pa.list_(pa.struct([("key", pa.string()), ("value", pa.int64())]))
    file, own = tmp_path / "data", pa.schema([("id", pa.int64()), ("s", inner), ("m", pairs)])
    write(pa.Table.from_pylist(rows, own), file)
    step = ReadStepParquet() if write is pq.write_table else ReadArrowIpc()
    wanted = ddl_to_schema(
        [
            "id BIGINT NOT NULL",
            "s STRUCT<n: INT, l: ARRAY<INT>>",
            "m ARRAY<STRUCT<key: STRING, value: SMALLINT>>",
        ]
    )
    rejected = RejectedRows(step, file)
    table = rejected.read(wanted, is_declared=True)
    assert (table.schema, table["id"].to_pylist()) == (wanted, [1] * 96)
    reasons = [one.reason.partition(";")[0] for one in rejected.bad]
    assert reasons == [
        "row 41: column s.n: 'x' is not a value of INT",
        "row 64: column m[].value: 70000 is not a value of SMALLINT: it is too large",
        "row 65: column s.l[]: 'y' is not a value of INT",
        "row 100: column id: null is not allowed",
    ]
    # Rows are numbered as in the file, whichever were left out before.
    table = rejected.without(table, {40: "first", 95: "last"})
    assert len(table) == 94
    assert [one.offset for one in rejected.bad] == [40, 41, 63, 64, 98, 99]
    kept = [read_records(ReadArrowIpc(), [one.value or b""], own).to_pylist() for one in rejected.bad]
    assert kept == [[rows[row]] for row in (40, 41, 63, 64, 98, 99)]
    assert rejected.count == 100


def test_a_kept_row_has_none_of_the_values_of_other_rows() -> None:
    long = ["x" * 1000] * 1000
    columns = {"view": pa.array(long, pa.string_view()), "encoded": pa.array(long).dictionary_encode()}
    table = pa.table(
        columns | {"plain": long, "map": pa.array([[("k", 1)]] * 1000, pa.map_(pa.string(), pa.int64()))}
    )
    value = row_stream(table, 500)
    assert len(value) < 5000
    wanted = ddl_to_schema(["view STRING", "encoded STRING", "map ARRAY<STRUCT<key: STRING, value: BIGINT>>"])
    read = read_records(ReadArrowIpc(), [value, value], wanted)
    row = {"view": long[0], "encoded": long[0], "map": [{"key": "k", "value": 1}]}
    assert read.to_pylist() == [row, row]
    # As are its columns, if the source declares none.
    assert infer_records(ReadArrowIpc(), [b"no table", value], None).names == [
        "view",
        "encoded",
        "plain",
        "map",
    ]


def test_only_a_stream_of_one_row_is_a_kept_row() -> None:
    two = pa.table({"a": [1, 2]})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, two.schema) as writer:
        writer.write_table(two)
    for value, why in ((bytes(sink.getvalue()), "^expected one row, got 2"), (b"x", "^is not Arrow data")):
        with pytest.raises(InvalidInput, match=why):
            read_records(ReadArrowIpc(), [value], two.schema)
    with pytest.raises(InvalidInput, match=r"^column a: 2 is not a value of BOOLEAN"):
        read_records(ReadArrowIpc(), [row_stream(two, 1)], pa.schema([("a", pa.bool_())]))


def test_the_first_bad_row_refuses_a_file_if_each_is_bad(tmp_path: Path) -> None:
    file = tmp_path / "data"
    file.write_bytes(b'junk\n{"a":0}\n{"a":1}\n')
    rejected = RejectedRows(ReadStepNdJson(), file)
    table = rejected.read(pa.schema([("a", pa.int64())]), is_declared=True)
    with pytest.raises(InvalidInput, match=r"^line 1: expected one JSON object"):
        rejected.without(table, {1: "neither", 0: "no"})


def test_an_event_time_at_the_bound_is_accepted() -> None:
    records = pa.table({"at": pa.array([5, 7, 8], pa.timestamp("ms", "UTC"))})
    assert [max_event_time(records, "at", latest) for latest in (None, 7, 6, 4)] == [8, 7, 5, None]
