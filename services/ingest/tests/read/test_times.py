from datetime import UTC, datetime

import pyarrow as pa
import pytest

from odf_common.data.ddl import ddl_to_schema
from odf_common.data.time_format import time_format
from odf_common.errors import InvalidInput
from odf_ingest.read.json_formats.json_lines import parse_objects
from odf_ingest.read.types.conversions import convert_column
from odf_ingest.read.types.kinds import TimeFormats
from odf_ingest.read.types.times import to_dates

NOON = datetime(2020, 2, 1, 12, 0, tzinfo=UTC)


def parsed(text: str, format_text: str | None = None) -> datetime:
    column, formats = pa.field("c", pa.timestamp("us", "UTC")), TimeFormats(timestamp=format_text)
    found, nothing = convert_column(pa.chunked_array([pa.array([text, None])]), column, formats).to_pylist()
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
        ("TIMESTAMP(9)", "soon", r"'soon' is not a value of TIMESTAMP\(9\); write it as 2026"),
        ("DATE", "2024-01-01T00:00:00Z", "'2024-01-01T00:00:00Z' is not a value of DATE"),
    ],
)
def test_the_reason_quotes_the_first_invalid_time(type_: str, text: str, reason: str) -> None:
    good = ["2024-01-01", *["2024-01-02"] * 40]
    texts = pa.array([None, *good, text, *good, "later"])
    (column,) = ddl_to_schema([f"c {type_}"])
    with pytest.raises(InvalidInput, match=reason):
        convert_column(pa.chunked_array([texts]), column, TimeFormats())


@pytest.mark.parametrize("text", ["2020-02-01 12", "31/02/2020 12:00", "x1/02/2020 12:00"])
def test_a_string_of_another_format_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"is not of the format|has the format .* no such time exists"):
        parsed(text, "dd/MM/yyyy HH:mm")


@pytest.mark.parametrize(
    ("format_text", "why"),
    [
        ("yyyy-QQ", "the letter 'Q'"),
        ("dd.MM.yy", "'yy' is not supported: in SimpleDateFormat its century depends on the day"),
        ("uuuu-MM-dd", "the letter 'u' is not supported: in SimpleDateFormat it is the day of the week"),
        ("YYYY-MM-dd", "the year of the week"),
        ("HH:mm:ss.SSSSSS", "'SSSSSS' is not supported: in SimpleDateFormat it is a number of milliseconds"),
        ("HH:mm:ss.S", "'S' is not supported"),
        ("yyyy-MM-dd'T'HH:mmx", "the letter 'x'"),
        ("yyyy-MM-dd HH:mm XXXX", "'XXXX' is not supported: a zone has at most three"),
        ("HH:mm a", "AM and PM need an hour from 1 to 12"),
        ("%H:%M %p", "AM and PM need an hour from 1 to 12"),
        (
            "epochMilliseconds",
            "formats by name are rfc3339, epochSeconds, epochMillis, epochMicros, epochNanos",
        ),
    ],
)
def test_a_format_that_would_mean_something_else_is_refused(format_text: str, why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        time_format(format_text)


@pytest.mark.parametrize(
    ("format_text", "text", "expected"),
    [
        ("yyyyMMdd", "20200201", "2020-02-01T00:00:00"),
        ("yyyyMMdd", "202021", None),  # not the first of January
        ("%Y%m%d%H%M", "20202112", None),
        ("HHmmss", "120000", "1970-01-01T12:00:00"),
        ("yyyy-DDD", "2020-032", "2020-02-01T00:00:00"),
        ("yyyy-MM-dd HH:mm:ss.SSS", "2020-02-01 12:00:00.123", "2020-02-01T12:00:00.123000"),
        ("yyyy-MM-dd HH:mm:ss.SSS", "2020-02-01 12:00:00.123456", None),
        ("d MMM yyyy HH:mm:ss.SSS", "1 Feb 2020 12:00:00.123456", None),
        ("d MMM yyyy HH:mm:ss.SSS", "1 Feb 2020 12:00:00.123", "2020-02-01T12:00:00.123000"),
        ("d MMM HH:mm", "1 Feb 12:00", "1970-02-01T12:00:00"),
        ("%b %e %H:%M:%S %Y", "Feb  1 12:00:00 2020", "2020-02-01T12:00:00"),
        ("h:mm a", "12:05 AM", "1970-01-01T00:05:00"),
        ("dd/MM/yyyy", "31/02/2020", None),
        ("dd/MM/yyyy", "01/02/2020 and more", None),
    ],
)
def test_a_string_means_what_it_means_to_java_or_is_refused(
    format_text: str, text: str, expected: str | None
) -> None:
    if expected is None:
        with pytest.raises(InvalidInput):
            parsed(text, format_text)
    else:
        assert parsed(text, format_text) == datetime.fromisoformat(expected).replace(tzinfo=UTC)


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


@pytest.mark.parametrize("unit", ["s", "us"])
def test_a_time_that_is_too_late_for_a_column_and_for_every_reader_is_named_with_its_year(unit: str) -> None:
    times = pa.chunked_array([pa.array([0, 2**62], pa.timestamp(unit))])
    with pytest.raises(InvalidInput, match=r"column a: \+\d+-\d\d-\d\dT.* is outside of the years"):
        convert_column(times, pa.field("a", pa.timestamp("ns", "UTC")), TimeFormats())


@pytest.mark.parametrize("text", ["2026-02-30", "2026-00-10", "2026-13-01"])
def test_a_time_that_does_not_exist_is_refused_without_advice_for_another_format(text: str) -> None:
    formats = TimeFormats(date="yyyy-MM-dd", timestamp="yyyy-MM-dd HH:mm")
    time = pa.field("a", pa.timestamp("ms", "UTC"))
    with pytest.raises(InvalidInput, match=r"has the format 'yyyy-MM-dd', and no such time exists$"):
        convert_column(pa.chunked_array([["2026-01-31", text]]), pa.field("a", pa.date32()), formats)
    with pytest.raises(InvalidInput, match=r"has the format 'yyyy-MM-dd HH:mm', and no such time exists$"):
        convert_column(pa.chunked_array([["2026-01-31 10:00", f"{text} 10:00"]]), time, formats)
