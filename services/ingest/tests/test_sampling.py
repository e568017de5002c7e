import csv
import io
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from odf_common.data.time_format import EPOCHS
from odf_common.errors import InvalidInput
from odf_ingest.commit.watermark import Lateness
from odf_ingest.sampling import out_of_order, read_sample

MS = pa.timestamp("ms", "UTC")


def columns(tmp_path: Path, content: bytes, input_format: str) -> dict[str, pa.DataType]:
    file = tmp_path / "sample"
    file.write_bytes(content)
    schema = read_sample(file, input_format).table.schema
    return dict(zip(schema.names, schema.types, strict=True))


def test_csv_has_its_headers_columns_and_the_types_that_all_rows_have(tmp_path: Path) -> None:
    text = b'id,when,"a, b",empty,n\n1,2025-01-01T00:00:00Z,x,,1.0\n2,2025-01-02T00:00:00Z,"y\nz",,1.5\n'
    assert columns(tmp_path, text, "csv") == {
        "id": pa.int64(),
        "when": MS,
        "a, b": pa.string(),
        "empty": pa.string(),
        "n": pa.float64(),
    }


def test_a_header_that_looks_like_a_record_is_remarked(tmp_path: Path) -> None:
    file = tmp_path / "sample"
    file.write_bytes(b"5,hello\n6,world\n")
    assert any("'5'" in one and "header=false" in one for one in read_sample(file, "csv").remarks)
    file.write_bytes(b"id,hello\n6,world\n")
    assert read_sample(file, "csv").remarks == ()


def test_json_has_the_columns_of_all_objects(tmp_path: Path) -> None:
    text = b'{"id":1,"tags":["a"],"o":{"x":1}}\n{"id":2,"late":true,"o":{"x":2.5}}\n'
    assert columns(tmp_path, text, "ndjson") == {
        "id": pa.int64(),
        "tags": pa.list_(pa.string()),
        "o": pa.struct([("x", pa.float64())]),
        "late": pa.bool_(),
    }


def test_parquet_keeps_its_types_as_they_are_stored_without_columns_of_nulls(tmp_path: Path) -> None:
    file = tmp_path / "sample"
    table = pa.table(
        {"at": pa.array([0], pa.timestamp("us")), "n": pa.array([1], pa.int16()), "x": pa.nulls(1)}
    )
    pq.write_table(table, file)
    found = read_sample(file, "parquet").table
    assert found.schema.types == [pa.timestamp("us", "UTC"), pa.int16()]
    assert len(found) == 1


@pytest.mark.parametrize(
    ("content", "input_format", "words"),
    [
        (b"", "csv", "no records|header"),
        (b"id,v,\n1,2,\n", "csv", "column 3 has no name in the header"),
        (b"", "ndjson", "no records"),
        (b"{", "ndjson", "line 1"),
        (b"x", "parquet", "is not a Parquet file"),
        (b"x", "xml", "unknown input format 'xml'"),
        (b"x", "", "name of its format"),
    ],
)
def test_an_invalid_sample_is_refused(tmp_path: Path, content: bytes, input_format: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        columns(tmp_path, content, input_format)


def test_json_has_times_with_fractions_in_the_unit_that_holds_them(tmp_path: Path) -> None:
    text = (
        b'{"js":"2026-01-01T00:00:00.123Z","us":"2026-01-01T00:00:00Z","no":"2026-02-30T00:00:00.5Z","id":"1"}\n'
        b'{"js":null,"us":"2026-01-01 00:00:00.123456+02:00","no":"x","ns":"2026-01-01T00:00:00.123456789Z"}\n'
        b'{"js":"2026-01-01T00:00:00.5Z"}\n'
    )
    assert columns(tmp_path, text, "ndjson") == {
        "js": MS,
        "us": pa.timestamp("us", "UTC"),
        "no": pa.string(),
        "id": pa.string(),
        "ns": pa.timestamp("ns", "UTC"),
    }
    assert columns(tmp_path, b'[{"no":"2026-02-30T00:00:00.5Z"}]', "json") == {"no": pa.string()}


def test_times_that_are_out_of_order_are_counted_within_each_run() -> None:
    at = pa.array([0, 5_000, None, 2_000, 4_000, 9_000, 1_000, 8_000], MS)
    table = pa.table({"at": at, "day": pa.array([2, 1, 1, 1, 1, 1, 1, 1], pa.date32()), "n": range(8)})
    assert out_of_order(table) == {
        "at": Lateness(count=4, most=8_000),
        "day": Lateness(count=7, most=86_400_000),
    }
    assert out_of_order(table, [1, 3, 2, 2])["at"] == Lateness(count=1, most=3_000)
    assert out_of_order(table.select(["n"])) == {}
    assert out_of_order(pa.table({"at": pa.nulls(2, MS)})) == {}
    with pytest.raises(InvalidInput, match="the runs have 3 records, the sample 8"):
        out_of_order(table, [1, 2])


CELL = st.text(st.sampled_from('ab1 \\",;|\t\n'))


@given(rows=st.lists(st.tuples(CELL, CELL), min_size=1, max_size=5))
@example(rows=[("\\\\files\\sales, 2026", "1"), ("C:\\old\\", '{"p":"\\\\d+"}')])
@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_a_table_that_a_writer_of_rfc_4180_wrote_is_read_with_its_separator(
    tmp_path_factory: pytest.TempPathFactory, separator: str, rows: list[tuple[str, str]]
) -> None:
    text = io.StringIO()
    csv.writer(text, delimiter=separator).writerows([("id", "name"), *rows])
    file = tmp_path_factory.mktemp("csv") / "sample"
    file.write_text(text.getvalue(), newline="")
    sample = read_sample(file, 'csv; nullValue="NULL"')
    found = [tuple(str(value) for value in row.values()) for row in sample.table.to_pylist()]
    assert found == rows
    expected = {"header": "true", "nullValue": "NULL"}
    assert sample.options == (expected if separator == "," else {**expected, "separator": separator})


@pytest.mark.parametrize(
    ("content", "options"),
    [
        (b"a,b\n1,'x,y'\n", {"quote": "'"}),
        (b'a,b\n1,"x\\",y"\n', {"escape": "\\"}),
        (b"a;b\n1,5;it's\n2,5;x\n", {"separator": ";"}),
        (b'a;b\n1;"x\n2;y\n', None),
        (b"a\n1\n", {}),
        (b"a,b;c\n1,2;3\n", {}),
    ],
)
def test_the_dialect_of_csv_is_found(tmp_path: Path, content: bytes, options: dict[str, str] | None) -> None:
    file = tmp_path / "sample"
    file.write_bytes(content)
    if options is None:
        with pytest.raises(InvalidInput, match=r"^line 2: a quote is never closed"):
            read_sample(file, "csv")
    else:
        assert read_sample(file, "csv").options == {"header": "true", **options}


@pytest.mark.parametrize("form", ["json", "ndjson"])
def test_numbers_beyond_bigint_and_double_are_decimals_with_a_remark(tmp_path: Path, form: str) -> None:
    file = tmp_path / "sample"
    file.write_bytes(b'{"a":12345678901234567890123,"b":0.5}')
    sample = read_sample(file, form)
    assert sample.table.schema.types == [pa.decimal128(38, 0), pa.float64()]
    assert sample.remarks == (
        "column a is DECIMAL(38, 0): BIGINT and DOUBLE do not have all of its numbers exactly",
    )
    file.write_bytes(b'{"a":' + b"9" * 39 + b"}")
    with pytest.raises(
        InvalidInput, match=r"column a: 9{39} .* is too large; DECIMAL\(38, 0\) .* as a string"
    ):
        read_sample(file, form)


NULL_VALUE = "if it stands for null, `--read-option nullValue=n/a` makes the others numbers"


def test_options_of_the_format_are_kept_and_nearly_numbers_are_named(tmp_path: Path) -> None:
    file = tmp_path / "sample"
    file.write_bytes(b"zip;n;day\n00501;1;31.12.2026 10:00\n10001;n/a;01.01.2027 11:30\n")
    sample = read_sample(file, 'csv; timestampFormat="dd.MM.yyyy HH:mm"')
    assert sample.table.schema.types == [pa.string(), pa.string(), MS]
    assert sample.options == {"header": "true", "separator": ";", "timestampFormat": "dd.MM.yyyy HH:mm"}
    assert sample.remarks == (
        "column zip is STRING: '00501' would become 501; if it holds numbers, declare it as BIGINT",
        f"column n is STRING: 'n/a' in 1 of 2 rows is no number; {NULL_VALUE}",
    )
    assert read_sample(file, "csv; nullValue=n/a").table.schema.types[1] == pa.int64()


@pytest.mark.parametrize("unit", EPOCHS)
@pytest.mark.parametrize("form", ["csv", "ndjson"])
def test_numbers_that_are_times_by_name_and_size_are_timestamps(tmp_path: Path, unit: str, form: str) -> None:
    number = 1_700_000_000 * 10 ** EPOCHS[unit]
    rows = [
        (number + row * 10 ** EPOCHS[unit], 1_600_000_000_000 + row, 4_712_345_678 + row) for row in (1, 0)
    ]
    text = "".join(
        ("ts,other,phone\n", *(f"{','.join(map(str, row))}\n" for row in rows))
        if form == "csv"
        else (json.dumps(dict(zip(("ts", "other", "phone"), row, strict=True))) + "\n" for row in rows)
    )
    file = tmp_path / "sample"
    file.write_text(text)
    sample = read_sample(file, form)
    assert sample.options["timestampFormat"] == unit
    type_ = sample.table.schema.field("ts").type
    assert (
        sample.table.column("ts").cast(pa.int64()).to_pylist()[1] * 1e9
        == number * 10 ** (9 - EPOCHS[unit]) * {"ms": 1e3, "us": 1e6, "ns": 1e9}[type_.unit]
    )
    assert sample.table.schema.types[1:] == [pa.int64(), pa.int64()]
    assert sample.remarks == (
        f"column ts has numbers since 1970, which timestampFormat {unit} reads as times",
        "column other could be an epoch time: `timestampFormat: epochMillis` reads it as TIMESTAMP",
    )
    assert "ts" in out_of_order(sample.table)


def test_numbers_that_are_times_remain_numbers_next_to_times_of_another_format(tmp_path: Path) -> None:
    file = tmp_path / "sample"
    file.write_text('{"at": "2026-01-01T00:00:00Z", "createdAt": 1700000000.25, "n": 1}\n')
    sample = read_sample(file, "ndjson")
    assert sample.table.schema.types == [MS, pa.float64(), pa.int64()]
    assert sample.options == {}
    (remark,) = sample.remarks
    assert "`preprocess` can convert it by timestamp_seconds(createdAt)" in remark


def test_changes_of_a_table_have_the_columns_of_the_table(tmp_path: Path) -> None:
    row = {"id": 1, "price": 1.25, "at": "2026-01-01T00:00:00Z"}
    messages: list[object] = [
        {"status": "BEGIN", "id": "7"},
        {"op": "c", "ts_ms": 1, "before": None, "after": row},
        {"schema": {}, "payload": {"op": "d", "before": row, "after": None}},
        {"payload": {"op": "c", "before": None, "after": row}},  # which a source refuses, too
    ]
    lines = [json.dumps(one) for one in messages]
    file = tmp_path / "sample"
    file.write_text("\n".join(lines))
    sample = read_sample(file, "ndjson", is_topic=True)
    assert (len(sample.table), sample.table.column_names) == (2, ["id", "price", "at"])
    assert sample.is_changes
    assert "op" in read_sample(file, "ndjson").table.column_names, "a file is read without an envelope"
