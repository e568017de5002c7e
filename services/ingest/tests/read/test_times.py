from datetime import UTC, datetime

import pyarrow as pa
import pytest

from odf_common.data.ddl import ddl_to_schema
from odf_common.data.time_format import time_format
from odf_common.errors import InvalidInput
from odf_ingest.read.json_formats.json_lines import parse_objects
from odf_ingest.read.types.columns import TimeFormats
from odf_ingest.read.types.times import to_dates, to_timestamps

NOON = datetime(2020, 2, 1, 12, 0, tzinfo=UTC)


def parsed(text: str, format_text: str | None = None) -> datetime:
    found, nothing = to_timestamps(pa.array([text, None]), format_text).to_pylist()
    assert nothing is None
    assert isinstance(found, datetime)
    return found


@pytest.mark.parametrize(
    "text",
    [
        "2020-02-01T12:00:00Z",
        "2020-02-01T12:00:00z",
        "2020-02-01T12:00:00",
        "2020-02-01 12:00:00",
        "2020-02-01T14:30:00+02:30",
        "2020-02-01T12:00:00.000000001Z",
        "2020-02-01T12:00Z",
    ],
)
def test_rfc_3339_is_read_with_and_without_a_zone(text: str) -> None:
    assert parsed(text) == NOON


@pytest.mark.parametrize(
    ("format_text", "text"),
    [
        ("%d/%m/%Y %H:%M:%S", "01/02/2020 12:00:00"),
        ("%Y-%m-%dT%H:%M:%S.%f%z", "2020-02-01T11:00:00.000-0100"),
        ("%F %T", "2020-02-01 12:00:00"),
        ("%d %b %Y %I:%M %p", "01 Feb 2020 12:00 PM"),
        ("dd/MM/yyyy HH:mm:ss", "01/02/2020 12:00:00"),
        ("d.M.yyyy H:m", "1.2.2020 12:0"),
        ("yyyy-MM-dd'T'HH:mm:ss.SSSXXX", "2020-02-01T13:00:00.000+01:00"),
        ("yyyy-MM-dd'T'HH:mm:ssX", "2020-02-01T13:00:00+01"),
        ("yyyyMMddHHmmss", "20200201120000"),
        ("MMM d, yyyy h:mm a", "Feb 1, 2020 12:00 PM"),
        ("yyyy-MM-dd HH 'o''clock'", "2020-02-01 12 o'clock"),
    ],
)
def test_strftime_and_java_formats_are_followed(format_text: str, text: str) -> None:
    assert parsed(text, format_text) == NOON


@pytest.mark.parametrize("text", ["", "soon", "2020-13-01T00:00:00Z", "01/02/2020"])
def test_an_invalid_timestamp_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="is not a value of TIMESTAMP"):
        parsed(text)


@pytest.mark.parametrize(
    ("type_", "text", "reason"),
    [
        ("TIMESTAMP(3)", "2024-13-01T00:00:00Z", r"'2024-13-01T00:00:00Z' is not a value of TIMESTAMP\(3\)"),
        ("TIMESTAMP(6)", "2024-01-01T00:00:00.1234567X", "'2024-01-01T00:00:00.1234567X' is not"),
        (
            "TIMESTAMP(3)",
            "10000-01-01T00:00:00Z",
            r"'10000-01-01T00:00:00Z' is not a value of TIMESTAMP\(3\)",
        ),
        ("TIMESTAMP(9)", "9999-12-31T23:59:59Z", "whose range is the years 1677 to 2262"),
        ("TIMESTAMP(9)", "soon", r"'soon' is not a value of TIMESTAMP\(9\)$"),
        ("DATE", "2024-01-01T00:00:00Z", "'2024-01-01T00:00:00Z' is not a value of DATE"),
    ],
)
def test_the_reason_quotes_the_first_invalid_time(type_: str, text: str, reason: str) -> None:
    good = ["2024-01-01", *["2024-01-02"] * 40]
    texts = pa.array([None, *good, text, *good, "later"])
    (column,) = ddl_to_schema([f"c {type_}"])
    with pytest.raises(InvalidInput, match=reason):
        to_dates(texts, None) if type_ == "DATE" else to_timestamps(texts, None, column.type)


@pytest.mark.parametrize("text", ["2020-02-01 12", "31/02/2020 12:00", "x1/02/2020 12:00"])
def test_a_string_of_another_format_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"is not of the format|is not a value of TIMESTAMP"):
        parsed(text, "dd/MM/yyyy HH:mm")


def test_a_format_with_unknown_letters_is_refused() -> None:
    with pytest.raises(InvalidInput, match="'Q'"):
        time_format("yyyy-QQ")


def test_dates_follow_their_format() -> None:
    assert [str(day) for day in to_dates(pa.array(["1/2/2020"]), "d/M/yyyy").to_pylist()] == ["2020-02-01"]


@pytest.mark.parametrize(
    ("digits", "format_text", "text", "shown"),
    [
        (3, None, "2020-01-02T03:04:05.123456789Z", "2020-01-02 03:04:05.123Z"),
        (6, None, "2020-01-02T03:04:05.123456789Z", "2020-01-02 03:04:05.123456Z"),
        (9, None, "2020-01-02T03:04:05.123456789Z", "2020-01-02 03:04:05.123456789Z"),
        (9, None, "1900-01-01T01:00:00.0000000019+01:00", "1900-01-01 00:00:00.000000001Z"),
        (9, None, "2020-01-02 03:04:05.5", "2020-01-02 03:04:05.500000000Z"),
        (9, "%d.%m.%Y %H:%M:%S.%f", "02.01.2020 03:04:05.123456789", "2020-01-02 03:04:05.123456789Z"),
        (9, "%d.%m.%Y %H:%M:%S.%f%z", "02.01.2020 03:04:05.1+01:00", "2020-01-02 02:04:05.100000000Z"),
        (9, "%d %B %Y", "2 January 2020", "2020-01-02 00:00:00.000000000Z"),
    ],
)
def test_timestamps_have_the_declared_fraction(
    digits: int, format_text: str | None, text: str, shown: str
) -> None:
    schema = ddl_to_schema([f"at TIMESTAMP({digits})"])
    table = parse_objects([f'{{"at": "{text}"}}'.encode()], schema, TimeFormats(timestamp=format_text))
    assert table.schema.equals(schema)
    assert table.column("at").cast(pa.string()).to_pylist() == [shown]


def test_a_timestamp_that_nanoseconds_cannot_hold_is_refused() -> None:
    schema = ddl_to_schema(["at TIMESTAMP(9)"])
    with pytest.raises(InvalidInput, match="9999-01-01"):
        parse_objects([b'{"at": "9999-01-01T00:00:00Z"}'], schema, TimeFormats())


def test_a_zone_does_not_move_a_timestamp_past_the_range_of_nanoseconds() -> None:
    schema = ddl_to_schema(["at TIMESTAMP(9)"])
    formats = TimeFormats(timestamp="%Y-%m-%dT%H:%M:%S%z")
    with pytest.raises(InvalidInput, match="column at"):
        parse_objects([b'{"at": "2262-04-11T23:40:00-05:00"}'], schema, formats)
