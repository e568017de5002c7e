from pathlib import Path

import pyarrow as pa
import pytest

from odf_common.errors import InvalidInput
from odf_common.metadata.steps import ReadStepNdJson
from odf_ingest.read import read_batch, read_file, read_records

TIMESTAMP = pa.timestamp("ms", "UTC")
SCHEMA = pa.schema([("id", pa.int64()), ("city", pa.string()), ("at", TIMESTAMP), ("day", pa.date32())])
STEP = ReadStepNdJson()


def rows(*values: bytes, step: ReadStepNdJson = STEP) -> list[dict[str, object]]:
    found: list[dict[str, object]] = read_records(step, values, SCHEMA).to_pylist()
    return found


def test_one_message_is_one_record_in_order() -> None:
    assert [row["id"] for row in rows(b'{"id":2}', b'{"id":1}', b'{"id":3}')] == [2, 1, 3]


def test_columns_that_are_not_declared_are_skipped_and_missing_ones_are_null() -> None:
    assert rows(b'{"id":1,"other":{"deep":[1]}}') == [{"id": 1, "city": None, "at": None, "day": None}]


def test_one_column_is_enough() -> None:
    schema = pa.schema([("id", pa.int64())])
    assert read_records(STEP, [b'{"id":1}', b'{"id":2}'], schema).to_pylist() == [{"id": 1}, {"id": 2}]
    with pytest.raises(InvalidInput, match="has no column with a value"):
        read_records(STEP, [b'{"id":1}'], pa.schema([]))


def test_an_object_may_be_spread_over_lines_and_wrapped_in_white_space() -> None:
    assert [row["id"] for row in rows(b'{\n "id": 1\n}\n', b'  {"id":2}\r\n')] == [1, 2]


NO_OBJECT = "expected one JSON object"

BAD_LINES = {
    b"junk": NO_OBJECT,
    b"null": NO_OBJECT,
    b"[1]": NO_OBJECT,
    b'{"id":1': NO_OBJECT,
    b'{"id":1}{"id":2}': "Extra data: line 1|has more than one JSON object",
    b'{"id":1} x': NO_OBJECT,
    b'[{"id":1}]': "expected one JSON object; an array of objects is Json",
    b'{"id":1},': NO_OBJECT,
    b'{"id":"one"}': "'one' is not a value of BIGINT|changed from number to string in row 1",
    b'{"id":1.5}': "1.5 is not a value of BIGINT|couldn't parse:1.5",
    b'{"id":99999999999999999999}': "9 is not a value of BIGINT|couldn't parse:9",
    b'{"city":7}': "7 is not a value of STRING|changed from string to number in row 1",
    b'{"city":"\xff"}': "is not UTF-8 text",
    b'{"other":"\xff"}': "is not UTF-8 text",
    b'{"id":1,"id":2}': "column id: is duplicated|was specified twice in row 1",
    b'{"at":"soon"}': "'soon' is not a value of TIMESTAMP",
    b'{"day":"2020-02-30"}': "'2020-02-30' is not a value of DATE",
    b'{"city":"line\nfeed"}': "Invalid control character at",
}


@pytest.mark.parametrize(
    ("bad", "reason"),
    [(b"", NO_OBJECT), (b" ", NO_OBJECT), (b'{"id":1}\n{"id":2}', "Extra data: line 2"), *BAD_LINES.items()],
)
def test_a_bad_message_is_refused_alone_and_among_good_ones(bad: bytes, reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        rows(bad)
    with pytest.raises(InvalidInput, match=reason):
        rows(b'{"id":1}', bad, b'{"id":3}')


@pytest.mark.parametrize("bad", BAD_LINES)
def test_a_file_with_a_bad_line_is_refused(bad: bytes) -> None:
    for content in (bad, b'{"id":1}\n' + bad + b'\n{"id":3}\n'):
        with pytest.raises(InvalidInput, match=r"^line \d: "):
            read_batch(STEP, content, SCHEMA)


def test_an_empty_message_does_not_hide_a_double_one() -> None:
    with pytest.raises(InvalidInput, match="expected one JSON object"):
        rows(b'{"id":1}', b"", b'{"id":2}{"id":3}')


def test_timestamps_with_offsets_become_utc_and_naive_ones_are_utc() -> None:
    found = rows(
        b'{"at":"2020-01-01T02:00:00+02:00"}',
        b'{"at":"2020-01-01 00:00:00"}',
        b'{"at":"2020-01-01T00:00:00.000999999Z"}',
    )
    assert {row["at"].isoformat() for row in found} == {"2020-01-01T00:00:00+00:00"}  # type: ignore[attr-defined]


def test_timestamps_and_dates_follow_the_given_formats() -> None:
    step = ReadStepNdJson(timestamp_format="dd/MM/yyyy HH:mm", date_format="%d.%m.%Y")
    (row,) = rows(b'{"at":"31/01/2020 07:05","day":"1.2.2020"}', step=step)
    assert str(row["at"]) == "2020-01-31 07:05:00+00:00"
    assert str(row["day"]) == "2020-02-01"


def test_a_file_has_one_object_per_line_and_blank_lines_are_ignored(tmp_path: Path) -> None:
    file = tmp_path / "data"
    file.write_bytes(b'\xef\xbb\xbf{"id":1}\n\n{"id":2}\n')
    assert read_file(STEP, file, SCHEMA).column("id").to_pylist() == [1, 2]


def test_the_first_bad_line_of_a_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "data"
    file.write_bytes(
        b"".join(b'{"id":%d}\n' % number for number in range(1000)) + b'{"id":"x"}\n{"id":"y"}\n'
    )
    with pytest.raises(InvalidInput, match=r"^line 1001: "):
        read_file(STEP, file, SCHEMA)


def test_an_empty_file_has_no_records(tmp_path: Path) -> None:
    file = tmp_path / "data"
    file.write_bytes(b"\n \n")
    assert len(read_file(STEP, file, SCHEMA)) == 0


def test_without_a_schema_types_are_found_in_the_data() -> None:
    table = read_batch(STEP, b'{"a":1,"b":"x"}\n{"a":2}', None)
    assert table.to_pylist() == [{"a": 1, "b": "x"}, {"a": 2, "b": None}]


def test_another_encoding_is_read_as_such() -> None:
    (row,) = rows('{"city":"Köln"}'.encode("latin-1"), step=ReadStepNdJson(encoding="latin-1"))
    assert row["city"] == "Köln"


def test_a_message_longer_than_a_block_is_read() -> None:
    (row,) = rows(b'{"id":1,"city":"' + b"x" * 6_000_000 + b'"}')
    assert len(str(row["city"])) == 6_000_000


def test_a_line_of_several_objects_is_refused_in_a_file_as_in_a_message() -> None:
    with pytest.raises(InvalidInput, match=r"^line 2: is not JSON: Extra data"):
        read_batch(ReadStepNdJson(), b'{"c":1}\n{"c":2}{"c":3}\n', pa.schema([("c", pa.int64())]))
