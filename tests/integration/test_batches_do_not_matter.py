import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Barrier
from zoneinfo import ZoneInfo

import pytest
from odf_testing import nycflights as data
from odf_testing.story import APPEND, Row, Sender, Story, chunks, derivative, ledger, renamed, root

EXAMPLE = Path(__file__).parents[2] / "examples" / "nycflights"
ROOTS = ("flights", "weather")
DERIVED = ("flights.late", "flights.delays.hourly")
BATCHES = 6
CLOSING = "2013-01-03T12:00:00Z"
Rows = Counter[tuple[str | None, str | None]]
CALLS = ("event_time TIMESTAMP(3)", "id BIGINT", "line STRING")
ANSWERS = ("event_time TIMESTAMP(3)", "id BIGINT", "who STRING")
CALL = ((0, 1, "fire"), (4, 2, "police"), (7, 3, "ambulance"), (30, 4, "fire"), (50, 5, "police"))
# The second answer to call 1 comes exactly at the bound.
ANSWER = ((0, 1, "Ann"), (3, 20, "Bob"), (5, 1, "Cem"), (30, 4, "Dee"), (50, 5, "Eve"))
MATCHED = Rows({("fire", "Ann"): 1, ("fire", "Cem"): 1, ("fire", "Dee"): 1})
MISSED = Rows({("police", None): 1, ("ambulance", None): 1})
UNASKED = Rows({(None, "Bob"): 1})
CALLED = Rows({("fire", None): 2})
JOINS: Mapping[str, Rows] = {
    "INNER": MATCHED,
    "LEFT": MATCHED + MISSED,
    "RIGHT": MATCHED + UNASKED,
    "FULL": MATCHED + MISSED + UNASKED,
    "LEFT ANTI": MISSED,
    "LEFT SEMI": CALLED,
}
DOORS = ("event_time TIMESTAMP(3)", "door BIGINT", "state STRING")
NEWEST = """
    SELECT event_time, door, state FROM (
        SELECT *, row_number() OVER (PARTITION BY door ORDER BY event_time DESC) AS place FROM doors
    ) WHERE place = 1
"""
EARLY, NOON, BETWEEN = (
    {"event_time": f"2026-04-01T{time}:00Z", "door": 4, "state": state}
    for time, state in (("06:00", "open"), ("12:00", "locked"), ("09:00", "closed"))
)


def test_one_batch_and_six_batches_derive_the_same_records(story: Story, tmp_path: Path) -> None:
    messages = {
        "flights": data.as_messages(data.of_days(data.flights(), data.days(2))),
        "weather": data.as_messages(data.of_days(data.weather(), data.days(2))),
    }
    for prefix, count in (("one", 1), ("six", BATCHES)):
        story.add(*renamed(EXAMPLE, prefix))
        files = {name: cut(messages[name], tmp_path / f"{prefix}.{name}", count) for name in ROOTS}
        # A few at a time, so that transforms run in between.
        for group in range(0, count, 3):
            for name in ROOTS:
                some = " ".join(map(str, files[name][group : group + 3]))
                story.node.run(f"ingest {prefix}.{name} {some}")
            story.pull(" ".join(f"{prefix}.{name}" for name in DERIVED))
        story.pull(" ".join(f"{prefix}.{name}" for name in ROOTS) + f" --set-watermark {CLOSING}")
        story.pull(" ".join(f"{prefix}.{name}" for name in DERIVED))
    for name in (*ROOTS, *DERIVED):
        one, six = story.chain(f"one.{name}"), story.chain(f"six.{name}")
        assert len(six.records()) > 0, name
        assert six.records() == one.records(), name
        assert six.watermark == one.watermark, name
    for name in ROOTS:
        assert story.chain(f"one.{name}").data_blocks == 1
        assert story.chain(f"six.{name}").data_blocks == BATCHES
    for name in DERIVED:
        assert story.chain(f"six.{name}").transforms > story.chain(f"one.{name}").transforms
    # With one input the order is the same too.
    late = [story.chain(f"{prefix}.flights.late").table for prefix in ("one", "six")]
    bare = [table.drop_columns(["system_time"]) for table in late if table is not None]
    assert bare[0].equals(bare[1])
    verdicts = story.verify(" ".join(f"{prefix}.{name}" for prefix in ("one", "six") for name in DERIVED))
    assert [(one["verdict"], one["problems"]) for one in verdicts] == [("valid", [])] * 4
    assert all(one["transforms"] > 0 for one in verdicts)


def cut(messages: list[bytes], folder: Path, count: int) -> list[Path]:
    """Write messages as `count` files, in order."""
    folder.mkdir()
    files = [folder / f"{number:03}.ndjson" for number in range(count)]
    for file, part in zip(files, chunks(messages, count), strict=True):
        file.write_bytes(b"\n".join(part) + b"\n")
    return files


def second(number: int) -> str:
    return f"2026-04-01T10:00:{number:02}Z"


def joined(kind: str) -> str:
    event_time = {"RIGHT": "a.event_time", "FULL": "coalesce(c.event_time, a.event_time)"}.get(
        kind, "c.event_time"
    )
    who = "" if kind in {"LEFT ANTI", "LEFT SEMI"} else ", a.who"
    return f"""
        SELECT {event_time} AS event_time, c.line{who} FROM calls AS c {kind} JOIN answers AS a
        ON c.id = a.id AND a.event_time BETWEEN c.event_time AND c.event_time + INTERVAL 5 SECONDS
    """


@pytest.mark.parametrize("is_apart", [False, True], ids=["at once", "one by one"])
def test_a_row_whose_match_has_left_the_join_is_not_taken_for_one_without(
    story: Story, *, is_apart: bool
) -> None:
    prefix = f"calls.{'apart' if is_apart else 'whole'}"
    inputs = {"calls": f"{prefix}.calls", "answers": f"{prefix}.answers"}
    names = {kind: f"{prefix}.{kind.lower().replace(' ', '.')}" for kind in JOINS}
    derived = " ".join(names.values())
    story.add(
        root(inputs["calls"], CALLS, merge=ledger("id")),
        root(inputs["answers"], ANSWERS),
        *(derivative(name, inputs, joined(kind)) for kind, name in names.items()),
    )
    calls, answers = (
        [
            dict(zip(("event_time", "id", column), (second(at), id_, text), strict=True))
            for at, id_, text in rows
        ]
        for rows, column in ((CALL, "line"), (ANSWER, "who"))
    )
    for number in range(len(calls)) if is_apart else [slice(None)]:
        for name, rows in (("calls", calls), ("answers", answers)):
            some = rows[number]
            story.ingest(inputs[name], some if isinstance(some, list) else [some])
            story.pull(derived)
    for kind, name in names.items():
        rows = [row for row in story.tail(name) if row["event_time"] < second(50)]
        assert Counter((row["line"], row.get("who")) for row in rows) == JOINS[kind], kind
    assert {one["verdict"] for one in story.verify(derived)} == {"valid"}


@pytest.mark.parametrize(
    "pushes", [[[EARLY, NOON, BETWEEN]], [[EARLY], [NOON], [BETWEEN]]], ids=["at once", "one by one"]
)
def test_an_older_state_that_comes_later_is_the_last_but_not_the_newest(
    story: Story, pushes: Sequence[Sequence[Row]]
) -> None:
    prefix = f"doors.{len(pushes)}"
    last, events, newest = f"{prefix}.last", f"{prefix}.events", f"{prefix}.newest"
    story.add(
        root(last, DOORS, merge={"kind": "UpsertStream", "primaryKey": ["door"]}),
        root(events, DOORS, merge=APPEND),
        derivative(newest, {"doors": events}, NEWEST),
    )
    for push in pushes:
        for name in (last, events):
            story.ingest(name, push)
        story.pull(newest)
    assert remaining(story.tail(last)) == {"closed": 1}
    assert remaining(story.tail(newest)) == {"locked": 1}

    changes = story.records(newest)
    for name in (last, events):
        story.ingest(name, [EARLY, NOON])
    story.pull(newest)
    assert remaining(story.tail(last)) == {"locked": 1}
    assert remaining(story.tail(newest)) == {"locked": 1}
    assert story.records(newest) == changes
    (source,) = story.node.run(f"source show {last} --output json")
    assert source["late"] == (1 if len(pushes) > 1 else 0)
    assert [one["verdict"] for one in story.verify(newest)] == ["valid"]


def remaining(rows: Sequence[Row]) -> Counter[object]:
    """Return the states that are left, without those that were taken back."""
    left: Counter[object] = Counter()
    for row in rows:
        left[row["state"]] += 1 if row["op"] in (0, 3) else -1
    return +left


COLUMNS = ("id BIGINT", "at TIMESTAMP(3)")
START = datetime(2026, 1, 1, tzinfo=UTC)
HOURS = 6
EACH = 600  # records per producer, one every 36 s of event time
PRODUCERS = 3
DELAY = 30  # maximum delay of a record, in minutes
HOURLY = "SELECT window.start AS event_time, count(*) AS n, sum(id) AS total FROM visits GROUP BY window(at, '1 hour')"


def records(producer: int) -> list[Row]:
    """Return a producer's records in the order in which they arrive: up to half an hour after their time."""
    chance = random.Random(producer)
    due = []
    for number in range(EACH):
        at = START + timedelta(hours=HOURS) * number / EACH
        row = {"id": producer * EACH + number, "at": f"{at:%Y-%m-%dT%H:%M:%S}Z"}
        due.append((at + timedelta(minutes=DELAY) * chance.random(), row))
    return [row for _, row in sorted(due, key=lambda one: one[0])]


def closing() -> Row:
    """Return a record after the end of all windows, whatever the delay."""
    at = START + timedelta(hours=HOURS, minutes=DELAY)
    return {"id": 0, "at": f"{at:%Y-%m-%dT%H:%M:%S}Z"}


def hours(rows: list[Row]) -> dict[str, tuple[int, int]]:
    """Return count and sum of ids by the hour in which the records happened."""
    count, total = Counter[str](), Counter[str]()
    for row in rows:
        hour = f"{row['at'][:13]}:00:00Z"
        count[hour] += 1
        total[hour] += row["id"]
    return {hour: (count[hour], total[hour]) for hour in count}


def counted(story: Story, dataset: str) -> dict[str, tuple[int, int]]:
    return {row["event_time"]: (row["n"], row["total"]) for row in story.tail(dataset)}


def test_records_within_the_delay_are_all_counted_whatever_the_order_of_producers(story: Story) -> None:
    visits, hourly = "unordered.visits", "unordered.hourly"
    story.add(root(visits, COLUMNS, merge=APPEND, event_time="at"))
    story.node.run(f"source set {visits} partitions={PRODUCERS} watermarkDelay={DELAY}m")
    story.add(derivative(hourly, {"visits": visits}, HOURLY))
    topic, sent = story.topic(visits), [records(producer) for producer in range(PRODUCERS)]
    begun = Barrier(PRODUCERS)

    def produce(partition: int) -> None:
        """Send a producer's records in bursts, the more the larger its number, so that others are ahead of it."""
        sender, messages = Sender(story.node), [json.dumps(row).encode() for row in sent[partition]]
        sender.send(topic, messages[:1], partition)
        begun.wait()  # a partition without a message yet holds no watermark back
        for burst in chunks(messages[1:], 1 + 4 * partition):
            sender.send(topic, burst, partition)
        sender.send(topic, [json.dumps(closing()).encode()], partition)

    with ThreadPoolExecutor(PRODUCERS) as pool:
        list(pool.map(produce, range(PRODUCERS)))
    story.pull(f"{visits} {hourly}")
    rows = [row for one in sent for row in one]
    assert counted(story, hourly) == hours(rows)
    assert len(hours(rows)) == HOURS
    assert sorted(story.chain(visits).column("id")) == sorted([*range(PRODUCERS * EACH), *[0] * PRODUCERS])
    (source,) = story.node.run(f"source show {visits} --output json")
    assert source["late"] == 0
    assert [one["verdict"] for one in story.verify(f"{visits} {hourly}")] == ["valid", "valid"]


def test_late_records_are_in_their_dataset_and_counted_in_every_report(story: Story) -> None:
    visits, hourly = "unordered.late", "unordered.late.hourly"
    story.add(root(visits, COLUMNS, merge=APPEND, event_time="at"))
    story.add(derivative(hourly, {"visits": visits}, HOURLY))
    first, second = (
        [{"id": id_, "at": f"2026-01-01T{hour}:00:00.000Z"} for id_, hour in enumerate(hours_)]
        for hours_ in (("00", "05"), ("01", "02", "04", "06"))
    )
    for some in (first, second):
        story.publish(visits, some)
        story.pull(f"{visits} {hourly}")
    assert len(story.tail(visits)) == len(first) + len(second)
    (source,) = story.node.run(f"source show {visits} --output json")
    assert (source["late"], source["lateBy"]) == (3, "4h")
    assert "`odf source set" in story.node.attempt(f"source show {visits}").stderr.decode()
    assert counted(story, hourly) == {"2026-01-01T00:00:00Z": (1, 0), "2026-01-01T05:00:00Z": (1, 1)}


ZONE = "America/Halifax"
READINGS = ("event_time TIMESTAMP(3)", "litres DOUBLE")
LOCAL = f"from_utc_timestamp(event_time, '{ZONE}')"
DAY = f"to_date({LOCAL})"
HOUR = f"date_trunc('hour', {LOCAL})"
SPRING, AUTUMN = datetime(2026, 3, 7, 4, tzinfo=UTC), datetime(2026, 10, 31, 3, tzinfo=UTC)
READING_TIMES = [
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
        root(pump, READINGS, merge=ledger("event_time")),
        derivative("pump.days", {"pump": pump}, totals(DAY, "day")),
        derivative("pump.truncated", {"pump": pump}, totals(f"date_trunc('day', {LOCAL})", "day")),
        derivative("pump.hours", {"pump": pump}, totals(HOUR, "hour")),
    )
    said = story.refused(derivative("pump.windows", {"pump": pump}, windows))
    assert f"GROUP BY to_date(from_utc_timestamp(<event time>, '{ZONE}'))" in said

    for some in (READING_TIMES[:40], READING_TIMES[40:]):
        story.ingest(pump, [{"event_time": f"{at:%Y-%m-%dT%H:%M:%SZ}", "litres": 1.0} for at in some])
        story.pull("pump.days pump.truncated pump.hours")

    expected = Counter(f"{at.astimezone(ZoneInfo(ZONE)):%Y-%m-%d}" for at in READING_TIMES)
    assert list(expected.values()) == [24, 23, 24, 24, 25, 24]
    assert last(story, "pump.days", "day") == expected
    assert {day[:10]: n for day, n in last(story, "pump.truncated", "day").items()} == expected
    hours = last(story, "pump.hours", "hour")
    assert {hour for hour, n in hours.items() if n > 1} == {"2026-11-01T01:00:00Z"}


def last(story: Story, dataset: str, column: str) -> dict[str, int]:
    """Return the count of each day or hour after all corrections."""
    return {row[column]: row["n"] for row in story.tail(dataset) if row["op"] in (0, 3)}
