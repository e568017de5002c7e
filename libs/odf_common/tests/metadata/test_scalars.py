from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odf_common.errors import InvalidInput
from odf_common.metadata.scalars import Timestamp


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00+01:00", "9999-12-31T23:59:59-00:01"])
def test_a_time_that_leaves_the_calendar_in_utc_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="outside the years 1 to 9999"):
        Timestamp.parse(text)


@given(st.integers())
def test_every_time_can_be_formatted(ns: int) -> None:
    assert str(Timestamp(ns)).endswith("Z")


@given(st.datetimes(timezones=st.just(UTC)))
def test_a_time_of_the_calendar_is_formatted_as_it_is_parsed(time: datetime) -> None:
    stamp = Timestamp.from_datetime(time)
    assert Timestamp.parse(str(stamp)) == stamp
    assert str(stamp)[:19] == time.isoformat()[:19]


@pytest.mark.parametrize(
    ("after", "text"),
    [
        (timedelta(), "9999-12-31T23:59:59Z"),
        (timedelta(seconds=1), "+10000-01-01T00:00:00Z"),
        (timedelta(days=366, seconds=1), "+10001-01-01T00:00:00Z"),
    ],
)
def test_years_past_9999_are_expanded(after: timedelta, text: str) -> None:
    last = Timestamp.parse("9999-12-31T23:59:59Z")
    assert str(Timestamp(last.ns + after // timedelta(microseconds=1) * 1000)) == text


def test_years_before_the_first_are_expanded() -> None:
    first = Timestamp.parse("0001-01-01T00:00:00Z")
    assert str(Timestamp(first.ns - 1)) == "0000-12-31T23:59:59.999999999Z"
    assert str(Timestamp(first.ns - 367 * 86_400 * 1_000_000_000)) == "-0001-12-31T00:00:00Z"


def test_a_timestamp_is_rounded_down_to_milliseconds() -> None:
    time = Timestamp.parse("1969-12-31T23:59:59.999999999Z")
    assert str(time.whole_ms()) == "1969-12-31T23:59:59.999Z"
