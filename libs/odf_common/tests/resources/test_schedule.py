from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as some

from odf_common.errors import InvalidInput
from odf_common.metadata.scalars import Timestamp
from odf_common.resources.schedule import CronSchedule, advance_schedule


def at(text: str) -> Timestamp:
    return Timestamp.parse(text.replace(" ", "T") + ("Z" if len(text) > 16 else ":00Z"))


@pytest.mark.parametrize(
    ("text", "time", "expected"),
    [
        ("*/30 * * * *", "2026-11-21 12:00", "2026-11-21 12:30"),
        ("5 * * * *", "2026-11-21 12:04:59", "2026-11-21 12:05"),
        ("5 * * * *", "2026-11-21 12:05", "2026-11-21 13:05"),
        ("0 0 * * 7", "2026-11-21 00:00", "2026-11-22 00:00"),
        ("0 0 * * 0", "2026-11-21 00:00", "2026-11-22 00:00"),
        ("0 0 * * 6-7", "2026-11-22 00:00", "2026-11-28 00:00"),
        ("0 9 * * mon-fri", "2026-11-20 09:00", "2026-11-23 09:00"),
        ("0 0 1 JAN,jul *", "2026-11-21 00:00", "2027-01-01 00:00"),
        ("0 0 29 2 *", "2026-11-21 00:00", "2028-02-29 00:00"),
        ("10-20/5,50 6 * * *", "2026-11-21 06:20", "2026-11-21 06:50"),
        ("  0   0  *  *  * ", "2026-11-21 12:00", "2026-11-22 00:00"),
        ("5-5/20 * * * *", "2026-11-21 12:05", "2026-11-21 13:05"),
        ("5/20 * * * *", "2026-11-21 12:05", "2026-11-21 12:25"),
        ("59 23 31 12 *", "2026-12-31 23:59", "2027-12-31 23:59"),
    ],
)
def test_cron_has_five_fields_in_utc(text: str, time: str, expected: str) -> None:
    assert CronSchedule(text).next_after(at(time)) == at(expected)


@pytest.mark.parametrize(
    ("macro", "expected"),
    [
        ("@yearly", "2027-01-01 00:00"),
        ("@annually", "2027-01-01 00:00"),
        ("@monthly", "2026-12-01 00:00"),
        ("@weekly", "2026-11-22 00:00"),
        ("@daily", "2026-11-22 00:00"),
        ("@midnight", "2026-11-22 00:00"),
        ("@hourly", "2026-11-21 13:00"),
    ],
)
def test_macro(macro: str, expected: str) -> None:
    assert CronSchedule(macro).next_after(at("2026-11-21 12:30")) == at(expected)


@pytest.mark.parametrize(
    ("text", "days"),
    [
        ("0 0 13 * 5", [13, 6, 20, 27]),
        ("0 0 13 * *", [13]),
        ("0 0 * * 5", [6, 13, 20, 27]),
        ("0 0 */2 * 5", [13, 27]),
    ],
)
def test_restricted_days_of_month_and_of_week_match_either_as_in_posix(text: str, days: list[int]) -> None:
    schedule, time, found = CronSchedule(text), at("2026-11-01 00:00"), set()
    while (time := schedule.next_after(time)) < at("2026-12-01 00:00"):
        found.add(time.datetime().day)
    assert found == set(days)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("@reboot", "a flow has no start of a machine"),
        ("@dayly", "did you mean @daily"),
        ("@x", "expected one of @yearly"),
        ("", "expected the five fields"),
        ("* * * *", "expected the five fields"),
        ("0 * * * * *", "expected the five fields"),
        ("60 * * * *", "bad minute"),
        ("* 24 * * *", "bad hour"),
        ("* * 0 * *", "bad day-of-month"),
        ("* * * 13 *", "bad month"),
        ("* * * * 8", "bad day-of-week"),
        ("*/0 * * * *", "bad minute"),
        ("20-10 * * * *", "bad minute"),
        ("0 0 30 2 *", "bad day-of-month"),
        ("0 0 L * *", "cannot read the day of the month 'L'"),
        ("0 0 LW * *", "cannot read the day of the month 'LW'"),
        ("0 0 * * 5#2", "cannot read the day of the week '5#2'"),
        ("0 0 * * 5L", "cannot read the day of the week '5L'"),
        ("0 0 ? * *", "cannot read the day of the month"),
        ("0 0 * FOO *", "bad month"),
        ("1,,2 * * * *", "cannot read the minute"),
        ("*/15,", "expected the five fields"),
        ("٣ * * * *", "cannot read the minute"),
        (",".join(["1"] * 200) + " * * * *", "expected the five fields"),
    ],
)
def test_other_expressions_are_refused(text: str, problem: str) -> None:
    with pytest.raises(InvalidInput, match="is not a schedule") as caught:
        CronSchedule(text)
    assert problem in str(caught.value)


HOURLY = CronSchedule("@hourly")


def test_schedule_fires_at_its_time_and_then_waits_for_the_next() -> None:
    created = at("2026-11-21 12:30")
    early = advance_schedule(HOURLY, created, at("2026-11-21 12:59:59"))
    assert (early.handled_until, early.firing, early.wake_at) == (created, None, at("2026-11-21 13:00"))
    step = advance_schedule(HOURLY, created, at("2026-11-21 13:00:00.250"))
    assert (step.firing, step.handled_until, step.wake_at) == (
        at("2026-11-21 13:00"),
        at("2026-11-21 13:00"),
        at("2026-11-21 14:00"),
    )
    assert advance_schedule(HOURLY, step.handled_until, at("2026-11-21 13:00:01")).firing is None


def test_missed_times_while_down_give_one_catch_up_run() -> None:
    step = advance_schedule(HOURLY, at("2026-11-21 12:30"), at("2026-11-23 07:15"))
    assert step.firing == step.handled_until == at("2026-11-23 07:00")
    assert step.wake_at == at("2026-11-23 08:00")
    assert advance_schedule(HOURLY, step.handled_until, at("2026-11-23 07:15")).firing is None


def test_clock_that_is_set_back_fires_nothing_again() -> None:
    step = advance_schedule(HOURLY, at("2026-11-21 13:00"), at("2026-11-21 12:00"))
    assert (step.firing, step.handled_until, step.wake_at) == (
        None,
        at("2026-11-21 13:00"),
        at("2026-11-21 14:00"),
    )


VALUES = [("minute", 0, 59), ("hour", 0, 23), ("day", 1, 31), ("month", 1, 12), ("weekday", 0, 7)]


@some.composite
def fields(draw: some.DrawFn, low: int, high: int) -> tuple[str, set[int]]:
    kind = draw(some.sampled_from(["*", "list", "range", "step"]))
    if kind == "list":
        numbers = draw(some.sets(some.integers(low, high), min_size=1, max_size=3))
        return ",".join(map(str, sorted(numbers))), numbers
    start = draw(some.integers(low, high))
    end = draw(some.integers(start, high))
    if kind == "range":
        return f"{start}-{end}", set(range(start, end + 1))
    if kind == "step":
        step = draw(some.integers(1, 9))
        return f"{start}-{end}/{step}", set(range(start, end + 1, step))
    return "*", set(range(low, high + 1))


@given(
    some.tuples(*(fields(low, high) for _, low, high in VALUES)),
    some.datetimes(datetime(2000, 1, 1), datetime(2030, 1, 1)),  # noqa: DTZ001
)
def test_next_time_is_the_first_minute_whose_fields_match(
    parts: tuple[tuple[str, set[int]], ...], start: datetime
) -> None:
    (_, minutes), (_, hours), (day, days), (_, months), (week, weekdays) = parts

    def is_day(date: datetime) -> bool:
        by_month, by_week = (
            date.day in days,
            bool(weekdays & ({0, 7} if date.isoweekday() == 7 else {date.isoweekday()})),
        )
        either = day != "*" and week != "*"
        return date.month in months and ((by_month or by_week) if either else (by_month and by_week))

    try:
        schedule = CronSchedule(" ".join(text for text, _ in parts))
    except InvalidInput:
        assert min(days) > 29 or not weekdays
        return
    begin = start.replace(tzinfo=UTC)
    found = schedule.next_after(Timestamp.from_datetime(begin)).datetime()
    assert found > begin
    assert (found.minute in minutes, found.hour in hours, is_day(found), found.second) == (
        True,
        True,
        True,
        0,
    )
    assert schedule.latest_until(Timestamp.from_datetime(found)).datetime() == found
    before = schedule.latest_until(Timestamp.from_datetime(found - timedelta(microseconds=1))).datetime()
    assert before <= begin
    date = begin.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
    for _ in range(min((found - date).days, 800)):
        assert not is_day(date)
        date += timedelta(days=1)
