"""Times in every notation: the same, exact timestamp from every format, or a refusal."""

from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from odf_common.data.ddl import ddl_to_schema
from odf_common.data.time_format import EPOCHS, time_format
from odf_common.errors import InvalidInput
from odf_common.metadata.events import ReadStepCsv, ReadStepJson, ReadStepNdJson
from odf_ingest.read import read_records
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


SCHEMA = ddl_to_schema(["at TIMESTAMP(3)", "n BIGINT"])
FIRST, LAST = -62_135_596_800, 253_402_300_799  # seconds of the years 1 to 9999
NUMBERS = st.decimals(-(10**20), 10**20, allow_nan=False, places=10) | st.builds(
    lambda seconds, places, digits: Decimal(seconds).scaleb(digits) + Decimal(places).scaleb(-9),
    st.integers(FIRST - 2, LAST + 2),
    st.integers(0, 10**9 - 1),
    st.sampled_from(list(EPOCHS.values())),
)


def milliseconds(number: Decimal, digits: int) -> int | None:
    """Return the number as milliseconds, cut; None if it has a finer fraction than nanoseconds, or another year."""
    nanoseconds = Fraction(number) * 10 ** (9 - digits)
    is_known = nanoseconds.denominator == 1 and FIRST * 10**9 <= nanoseconds < (LAST + 1) * 10**9
    return int(nanoseconds // 10**6) if is_known else None


def read(step: Any, *messages: str) -> list[int | None] | None:
    """Return the times in milliseconds; None if a message is refused."""
    try:
        table = read_records(step, [message.encode() for message in messages], SCHEMA)
    except InvalidInput:
        return None
    found: list[int | None] = table.column("at").cast(pa.int64()).to_pylist()
    return found


@given(number=NUMBERS)
@example(number=Decimal("-0.000000001"))
@example(number=Decimal("1700000000.1"))
@example(number=Decimal("1.7E+12"))
@pytest.mark.parametrize("name", EPOCHS)
def test_a_number_or_its_text_is_the_same_time_in_every_format(name: str, number: Decimal) -> None:
    expected = milliseconds(number, EPOCHS[name])
    text = str(number)
    options: Any = {"timestamp_format": name}
    json = [f'{{"at": {text}, "n": 1}}', f'{{"at": "{text}", "n": 1.0}}', '{"at": null, "n": 1}']
    outcomes = [
        read(ReadStepCsv(**options), f"{text},1"),
        read(ReadStepCsv(**options), f"{text},1", ",2"),
        *(
            read(kind(**options), *some)
            for kind in (ReadStepNdJson, ReadStepJson)
            for some in (json[:1], json[1:2], json)
        ),
    ]
    if expected is None:
        assert outcomes == [None] * len(outcomes)
    else:
        assert outcomes == [
            [expected],
            [expected, None],
            *2 * [[expected], [expected], [expected, expected, None]],
        ]


@pytest.mark.parametrize(
    "value", ['"soon"', "true", '""', '"1_0"', '"0x10"', '" 5 x"', "1e300", '"nan"', "{}", "1.12345678901"]
)
def test_what_is_no_number_is_refused_with_its_unit(value: str) -> None:
    step = ReadStepNdJson(timestamp_format="epochSeconds")
    assert read(step, f'{{"at": {value}}}') is None
    if value not in {"true", "{}"}:
        with pytest.raises(InvalidInput, match=r"^column at: .* is not a time in seconds since 1970$"):
            read_records(step, [f'{{"at": {value}}}'.encode(), b'{"at": 1}'][:1], SCHEMA)


def test_numbers_inside_objects_and_arrays_are_times_too_and_keep_the_columns_unit() -> None:
    schema = ddl_to_schema(["o STRUCT<at: TIMESTAMP(9), l: ARRAY<TIMESTAMP(0)>>"])
    step = ReadStepNdJson(timestamp_format="EPOCHMICROS")
    for text in (
        '{"o": {"at": 1.001, "l": [2000000, "3000000", null]}}',
        '{"o": {"at": 1.001, "l": [2e6, 3000000, null]}}',
    ):
        (row,) = read_records(step, [text.encode()], schema).to_pylist()
        assert row["o"]["at"].value == 1001
        assert [None if one is None else one.timestamp() for one in row["o"]["l"]] == [2, 3, None]


@pytest.mark.parametrize(("step", "message"), [(ReadStepNdJson(), '{"at": %s}'), (ReadStepCsv(), "%s,1")])
@pytest.mark.parametrize("name", EPOCHS)
def test_a_number_without_a_format_is_refused_with_the_format_to_write(
    step: Any, message: str, name: str
) -> None:
    number = 1_700_000_000 * 10 ** EPOCHS[name]
    with pytest.raises(
        InvalidInput, match=f"is not a value of TIMESTAMP.3.; with `timestampFormat: {name}` it is"
    ):
        read_records(step, [(message % number).encode()], SCHEMA)
