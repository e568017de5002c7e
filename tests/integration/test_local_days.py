"""Totals by the days of people, who change their clocks in spring and autumn."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from odf_testing.story import Story, derivative, ledger, root

ZONE = "America/Halifax"
COLUMNS = ("event_time TIMESTAMP(3)", "litres DOUBLE")
LOCAL = f"from_utc_timestamp(event_time, '{ZONE}')"
DAY = f"to_date({LOCAL})"
HOUR = f"date_trunc('hour', {LOCAL})"
SPRING, AUTUMN = datetime(2026, 3, 7, 4, tzinfo=UTC), datetime(2026, 10, 31, 3, tzinfo=UTC)
HOURS = [
    start + timedelta(hours=number)
    for start, count in ((SPRING, 71), (AUTUMN, 73))
    for number in range(count)
]


def totals(key: str, name: str) -> str:
    return f"SELECT max(event_time) AS event_time, {key} AS {name}, count(*) AS n FROM pump GROUP BY {key}"


def test_a_day_has_the_hours_that_its_people_had(story: Story) -> None:
    pump = "pump"
    windows = f"SELECT window.start AS event_time, count(*) AS n FROM pump GROUP BY window({LOCAL}, '1 day')"
    story.add(
        root(pump, COLUMNS, merge=ledger("event_time")),
        derivative("pump.days", {"pump": pump}, totals(DAY, "day")),
        derivative("pump.truncated", {"pump": pump}, totals(f"date_trunc('day', {LOCAL})", "day")),
        derivative("pump.hours", {"pump": pump}, totals(HOUR, "hour")),
    )
    said = story.refused(derivative("pump.windows", {"pump": pump}, windows))
    assert f"GROUP BY to_date(from_utc_timestamp(<event time>, '{ZONE}'))" in said

    for some in (HOURS[:40], HOURS[40:]):
        story.ingest(pump, [{"event_time": f"{at:%Y-%m-%dT%H:%M:%SZ}", "litres": 1.0} for at in some])
        story.pull("pump.days pump.truncated pump.hours")

    expected = Counter(f"{at.astimezone(ZoneInfo(ZONE)):%Y-%m-%d}" for at in HOURS)
    assert list(expected.values()) == [24, 23, 24, 24, 25, 24]
    assert last(story, "pump.days", "day") == expected
    assert {day[:10]: n for day, n in last(story, "pump.truncated", "day").items()} == expected
    hours = last(story, "pump.hours", "hour")
    assert {hour for hour, n in hours.items() if n > 1} == {"2026-11-01T01:00:00Z"}


def last(story: Story, dataset: str, column: str) -> dict[str, int]:
    """Return the count of each day or hour after all corrections."""
    return {row[column]: row["n"] for row in story.tail(dataset) if row["op"] in (0, 3)}
