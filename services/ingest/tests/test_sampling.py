from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from odf_common.errors import InvalidInput
from odf_ingest.commit.watermark import Lateness
from odf_ingest.sampling import out_of_order, sampled

MS = pa.timestamp("ms", "UTC")


def columns(tmp_path: Path, content: bytes, input_format: str) -> dict[str, pa.DataType]:
    file = tmp_path / "sample"
    file.write_bytes(content)
    schema = sampled(file, input_format).schema
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
    found = sampled(file, "parquet")
    assert found.schema.types == [pa.timestamp("us", "UTC"), pa.int16()]
    assert len(found) == 1


@pytest.mark.parametrize(
    ("content", "input_format", "words"),
    [
        (b"", "csv", "no records|header"),
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
