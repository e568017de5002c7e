"""Records that several producers publish out of order, at different speeds: windows count each, or report it as late."""

import json
import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from threading import Barrier

from odf_testing.story import APPEND, Row, Sender, Story, chunks, derivative, root

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
