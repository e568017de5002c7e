from pathlib import Path

import pyarrow as pa
import pytest

from odf_common.errors import InvalidInput
from odf_common.metadata.steps import ReadStepCsv
from odf_ingest.read import read_file, read_records

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("day", pa.date32())])


def rows(*values: bytes, **options: object) -> list[tuple[object, ...]]:
    table = read_records(ReadStepCsv(**options), values, SCHEMA)  # type: ignore[arg-type]
    return [
        (row["id"], row["name"], None if row["day"] is None else str(row["day"])) for row in table.to_pylist()
    ]


def test_one_message_is_one_line() -> None:
    assert rows(b"1,a,2020-01-01", b'2,"b,c",') == [(1, "a", "2020-01-01"), (2, "b,c", None)]


def test_a_message_may_carry_the_header_where_the_source_has_one() -> None:
    assert rows(b"id,name,day\n1,a,", b"2,b,", header=True) == [(1, "a", None), (2, "b", None)]


def test_a_line_feed_inside_quotes_belongs_to_the_value() -> None:
    assert rows(b'1,"a\nb",', b"2,c,") == [(1, "a\nb", None), (2, "c", None)]


def test_separator_quote_escape_null_value_and_date_format_are_followed() -> None:
    found = rows(
        b"1;'a;\\'b';NA",
        b"NA;'';31.12.2020",
        separator=";",
        quote="'",
        escape="\\",
        null_value="NA",
        date_format="dd.MM.yyyy",
    )
    assert found == [(1, "a;'b", None), (None, "", "2020-12-31")]


@pytest.mark.parametrize(
    "bad", [b"", b"x,a,", b"1,a", b"1,a,,", b"1,a,\n2,b,", b'1,"a,', b"1,\xff,", b"1,a,soon"]
)
def test_a_bad_line_is_refused_alone_and_among_good_ones(bad: bytes) -> None:
    with pytest.raises(InvalidInput):
        rows(bad)
    with pytest.raises(InvalidInput):
        rows(b"1,a,", bad, b"2,b,")


def test_a_file_has_columns_by_their_place_and_its_bad_line_is_named(tmp_path: Path) -> None:
    file = tmp_path / "data.csv"
    step = ReadStepCsv(header=True)
    file.write_bytes(b"x,y,z\n1,a,\n2,b,2020-01-01\n")
    assert read_file(step, file, SCHEMA).column("id").to_pylist() == [1, 2]
    file.write_bytes(b"x,y,z\n1,a,\n2,b,2020-01-\n")
    with pytest.raises(InvalidInput, match=r"^line 3: "):
        read_file(step, file, SCHEMA)


def test_without_a_schema_columns_are_text_unless_types_are_to_be_found(tmp_path: Path) -> None:
    file = tmp_path / "data.csv"
    file.write_bytes(b"a,b\n1,x\n")
    assert read_file(ReadStepCsv(header=True), file, None).to_pylist() == [{"a": "1", "b": "x"}]
    found = read_file(ReadStepCsv(header=True, infer_schema=True), file, None)
    assert found.to_pylist() == [{"a": 1, "b": "x"}]
