"""Rows that remain after several steps keep their numbers, and a snapshot with a bad message is not an empty one."""

from pathlib import Path

import pyarrow as pa

from odf_common.metadata.steps import ReadStepNdJson
from odf_ingest.prepare.bad_rows import RejectedRows, TextRows
from odf_ingest.prepare.event_time import max_event_time
from odf_ingest.read import split_file


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


def test_an_event_time_at_the_bound_is_accepted() -> None:
    records = pa.table({"at": pa.array([5, 7, 8], pa.timestamp("ms", "UTC"))})
    assert [max_event_time(records, "at", latest) for latest in (None, 7, 6, 4)] == [8, 7, 5, None]
