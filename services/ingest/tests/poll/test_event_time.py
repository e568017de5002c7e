import pytest

from odf_common.errors import InvalidInput
from odf_common.metadata.fetching import (
    EventTimeSourceFromMetadata,
    EventTimeSourceFromPath,
    EventTimeSourceFromSystemTime,
)
from odf_common.metadata.scalars import Timestamp
from odf_ingest.poll.event_time_source import event_time

NOW = Timestamp.parse("2024-06-01T00:00:00Z")
MODIFIED = Timestamp.parse("2024-05-01T00:00:00.123456789Z")
PATH = "/data/2024/01/orders-20240105T0930.csv"


def test_from_metadata_and_the_clock() -> None:
    assert event_time(EventTimeSourceFromMetadata(), PATH, MODIFIED, NOW) == MODIFIED
    assert event_time(EventTimeSourceFromSystemTime(), PATH, MODIFIED, NOW) == NOW
    with pytest.raises(InvalidInput, match="has no time of last modification"):
        event_time(EventTimeSourceFromMetadata(), PATH, None, NOW)


@pytest.mark.parametrize(
    ("pattern", "text_format", "path", "expected"),
    [
        (r"-(\d+T\d+)", "yyyyMMdd'T'HHmm", PATH, "2024-01-05T09:30:00Z"),
        (r"-(\d+T\d+)", "%Y%m%dT%H%M", PATH, "2024-01-05T09:30:00Z"),
        (r"data/(\d+/\d+)/", "%Y/%m", PATH, "2024-01-01T00:00:00Z"),
        (r"(\d{4})/", "yyyy", PATH, "2024-01-01T00:00:00Z"),
        (r"(\d{4}-\d\d-\d\d)", None, "a/2024-01-05.csv", "2024-01-05T00:00:00Z"),
        (r"at-(.*)\.csv", None, "at-2024-01-05T09:30:00+02:00.csv", "2024-01-05T07:30:00Z"),
        (r"_(\w{3} \d+ \d+)", "MMM d yyyy", "x_Jan 5 2024", "2024-01-05T00:00:00Z"),
    ],
)
def test_from_path(pattern: str, text_format: str | None, path: str, expected: str) -> None:
    source = EventTimeSourceFromPath(pattern=pattern, timestamp_format=text_format)
    assert event_time(source, path, None, NOW) == Timestamp.parse(expected)


@pytest.mark.parametrize(
    ("pattern", "text_format", "message"),
    [
        (r"(\d{9})", None, "does not match the pattern"),
        (r"\d+", None, "has no group around the timestamp"),
        (r"(", None, "not a regular expression"),
        (r"(\d+T)", "yyyyMMdd", "'20240105T' in .* is not a time in the format 'yyyyMMdd'"),
        (r"(orders)", None, "is not a time in the format RFC 3339 or a date"),
        (r"(\d+)", "QQ", "the letter 'Q' is not supported"),
        ("(" + "x" * 1000 + ")", None, "longer than 1000 characters"),
    ],
)
def test_what_cannot_be_read_from_a_path_is_an_error_that_says_why(
    pattern: str, text_format: str | None, message: str
) -> None:
    with pytest.raises(InvalidInput, match=message) as caught:
        event_time(EventTimeSourceFromPath(pattern=pattern, timestamp_format=text_format), PATH, None, NOW)
    assert str(caught.value).startswith("fetch.eventTime")
