"""The settings of a source that hold the watermark back, and what counts as late."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from odf_testing.builders import a_dataset
from odf_testing.guarded import GuardedDict
from odf_testing.ingest_batches import a_message_batch, commit_messages

from odf_common.metadata.events import MergeStrategySnapshot, MergeStrategyUpsertStream
from odf_common.metadata.scalars import Timestamp
from odf_ingest.commit.committer import Outcome, position_of
from odf_ingest.commit.watermark import (
    KEEP_WATERMARK,
    FutureRecord,
    Lateness,
    LateRecords,
    latest_counted,
    proposed_delay,
    watermark_of,
)
from odf_ingest.source_settings import (
    DAY_MS,
    HOUR_MS,
    UNLIMITED,
    Milliseconds,
    SourceSettings,
    load_settings,
    save_settings,
)

HOURS = [f"2020-01-01T{hour:02}:00:00Z" for hour in range(24)]


def message(number: int, time: str) -> bytes:
    return json.dumps({"id": number, "v": "a", "event_time": time}).encode()


class Topic:
    """Publishes records, each call as one batch."""

    def __init__(self, bench: Any, partitions: int = 1) -> None:
        self.bench = bench
        self.next = dict.fromkeys(range(partitions), 0)

    def publish(self, times: Mapping[int, list[str]], quiet: Mapping[int, float] | None = None) -> Outcome:
        values = {
            number: [message(at, time) for at, time in enumerate(some)] for number, some in times.items()
        }
        batch = a_message_batch(values, self.next, quiet=quiet or {})
        self.next = dict(batch.end)
        return commit_messages(self.bench, batch)

    def configure(self, **changes: str) -> None:
        bench = self.bench
        settings = load_settings(bench.blobs, bench.dataset, "default").with_changes(changes)
        save_settings(bench.blobs, bench.dataset, "default", settings)

    @property
    def watermark(self) -> str | None:
        found = self.bench.state.watermark
        return None if found is None else str(found)


def test_the_watermark_stays_behind_by_the_delay_and_never_decreases(make_bench: Any) -> None:
    topic = Topic(make_bench())
    topic.configure(watermarkDelay="2h")
    topic.publish({0: [HOURS[5]]})
    assert topic.watermark == HOURS[3]
    topic.publish({0: [HOURS[4]]})
    assert topic.watermark == HOURS[3]
    topic.configure(watermarkDelay="4h")
    topic.publish({0: [HOURS[6]]})
    assert topic.watermark == HOURS[3]
    topic.configure(watermarkDelay="0")
    topic.publish({0: [HOURS[6]]})
    assert topic.watermark == HOURS[6]


def test_records_that_are_older_than_the_watermark_are_counted(bench: Any) -> None:
    topic = Topic(bench)
    assert topic.publish({0: [HOURS[9], HOURS[2]]}).late == Lateness()
    assert topic.publish({0: [HOURS[9], HOURS[8], HOURS[7]]}).late == Lateness(count=2, most=2 * HOUR_MS)
    assert topic.publish({0: [HOURS[10], HOURS[6]]}).late == Lateness(count=1, most=3 * HOUR_MS)
    assert bench.queues.late.lateness_of(bench.dataset, "default") == Lateness(count=3, most=3 * HOUR_MS)
    assert bench.queues.late.lateness_of(bench.dataset, "other") == Lateness()


def test_with_the_proposed_delay_the_same_records_are_not_late(make_bench: Any) -> None:
    disorder = [9, 7, 10, 8, 12, 6, 14, 13]
    topic = Topic(make_bench())
    for hour in disorder:
        topic.publish({0: [HOURS[hour]]})
    late = topic.bench.queues.late.lateness_of(topic.bench.dataset, "default")
    assert late == Lateness(count=4, most=6 * HOUR_MS)

    patient = Topic(make_bench())
    patient.configure(watermarkDelay=str(proposed_delay(late.most)))
    for hour in disorder:
        assert patient.publish({0: [HOURS[hour]]}).late == Lateness()


def test_a_state_that_replaces_a_newer_one_is_late(make_bench: Any) -> None:
    topic = Topic(make_bench(MergeStrategyUpsertStream(primary_key=("v",))))
    assert topic.publish({0: [HOURS[9]]}).late == Lateness()
    assert topic.publish({0: [HOURS[7]]}).late == Lateness(count=1, most=2 * HOUR_MS)
    # Newer than what it replaces, although it is behind the watermark.
    assert topic.publish({0: [HOURS[8]]}).late == Lateness()
    assert topic.publish({0: [HOURS[10]]}).late == Lateness()


def test_corrections_of_a_snapshot_are_not_late(make_bench: Any) -> None:
    topic = Topic(make_bench(MergeStrategySnapshot(primary_key=("id",))))
    bench = topic.bench
    topic.configure(maxRetractedShare="1")

    def snapshot(*rows: tuple[int, str, str]) -> Outcome:
        value = "\n".join(json.dumps({"id": i, "v": v, "event_time": t}) for i, v, t in rows).encode()
        batch = a_message_batch({0: [value]}, topic.next)
        topic.next = dict(batch.end)
        return commit_messages(bench, batch)

    snapshot((1, "a", HOURS[1]), (2, "a", HOURS[9]))
    assert snapshot((1, "b", HOURS[1])).late == Lateness()
    assert snapshot((1, "b", HOURS[1]), (3, "a", HOURS[8])).late == Lateness(count=1, most=HOUR_MS)


FAR = "2999-01-01T00:00:00Z"


def future(hours: int) -> str:
    return (datetime.now(UTC) + timedelta(hours=hours)).strftime("%Y-%m-%dT%H:%M:%SZ")


def test_by_default_one_wrong_clock_makes_no_record_late(make_bench: Any) -> None:
    topic = Topic(make_bench())
    for time in (HOURS[1], FAR, HOURS[2], HOURS[3]):
        assert topic.publish({0: [time]}).late.count == 0
    assert topic.watermark == HOURS[3]
    tomorrow = future(23)
    topic.publish({0: [tomorrow]})
    assert topic.watermark == tomorrow


def test_records_too_far_in_the_future_are_counted_and_the_first_is_named(make_bench: Any) -> None:
    topic = Topic(make_bench())
    assert topic.publish({0: [HOURS[1], HOURS[2]]}).late.future == 0
    late = topic.publish({0: [HOURS[9], FAR, "2998-01-01T00:00:00Z"]}).late
    first = FutureRecord(offset=3, time=Timestamp.parse("2998-01-01T00:00:00Z"))  # a batch is sorted by time
    assert late == Lateness(future=2, first_future=first)
    assert topic.bench.rows()[first.offset]["event_time"].year == 2998
    topic.publish({0: [FAR]})
    assert topic.bench.queues.late.lateness_of(topic.bench.dataset, "default") == Lateness(
        future=3, first_future=first
    )
    topic.configure(maxFuture="none")
    assert topic.publish({0: [FAR]}).late == Lateness()


def test_no_delay_is_proposed_while_the_watermark_is_in_the_future(make_bench: Any) -> None:
    topic = Topic(make_bench())
    topic.configure(maxFuture="none")
    topic.publish({0: ["2999-01-01T00:00:00Z"]})
    late = topic.publish({0: [HOURS[2]]}).late
    assert (late.count, late.is_watermark_in_future) == (1, True)


@pytest.mark.parametrize("partitions", [1, 2])
def test_one_record_from_the_far_future_freezes_no_stream_with_a_bound(
    make_bench: Any, partitions: int
) -> None:
    topic = Topic(make_bench(), partitions)
    topic.configure(maxFuture="1h")
    others = {1: [HOURS[9]]} if partitions > 1 else {}
    topic.publish({0: ["2999-01-01T00:00:00Z"], **others})
    assert topic.watermark == (HOURS[9] if partitions > 1 else None)
    topic.publish({0: [HOURS[5], "2999-01-01T00:00:00Z", HOURS[4]]})
    assert topic.watermark == (HOURS[9] if partitions > 1 else HOURS[5])
    topic.publish({0: [HOURS[12]], **({1: [HOURS[11]]} if partitions > 1 else {})})
    assert topic.watermark == HOURS[11 if partitions > 1 else 12]
    near = future(0)
    topic.publish({0: [near], **({1: [near]} if partitions > 1 else {})})
    assert topic.watermark == near
    topic.configure(maxFuture="none")
    topic.publish({number: ["2999-01-01T00:00:00Z"] for number in range(partitions)})
    assert topic.watermark == "2999-01-01T00:00:00Z"
    assert len(topic.bench.rows()) == (7 if partitions == 1 else 11)


def test_event_times_up_to_the_bound_in_the_future_are_used() -> None:
    now = Timestamp.from_ms(5)
    assert latest_counted(SourceSettings(max_future=Milliseconds(HOUR_MS)), now) == 5 + HOUR_MS
    assert latest_counted(SourceSettings(max_future=UNLIMITED), now) is None


def test_a_batch_that_keeps_the_watermark_has_none_whatever_its_records() -> None:
    records = pa.table({"event_time": pa.array([7], pa.timestamp("ms", "UTC"))})
    now, settings = Timestamp.from_ms(5), SourceSettings()
    assert watermark_of(None, records, "event_time", settings, now) == Timestamp.from_ms(7)
    assert watermark_of(KEEP_WATERMARK, records, "event_time", settings, now) is None


def test_each_partition_is_judged_by_its_own_records_if_some_are_ignored(make_bench: Any) -> None:
    topic, far = Topic(make_bench(), 2), "2999-01-01T00:00:00Z"
    topic.configure(maxFuture="1h")
    topic.publish({0: [HOURS[12]], 1: [HOURS[6], far]})
    assert topic.watermark == HOURS[6]
    topic.publish({0: [HOURS[13], far], 1: [HOURS[14]]})
    assert topic.watermark == HOURS[13]


def test_a_partition_that_has_been_quiet_does_not_hold_the_watermark_forever(make_bench: Any) -> None:
    topic = Topic(make_bench(), 2)
    topic.publish({0: [HOURS[5]], 1: [HOURS[2]]})
    assert topic.watermark == HOURS[2]
    topic.publish({0: [HOURS[6]]}, quiet={0: 0.0, 1: 3600.0})
    assert topic.watermark == HOURS[2]
    topic.configure(idleTimeout="1h")
    topic.publish({0: [HOURS[7]]}, quiet={0: 0.0, 1: 3599.9})
    assert topic.watermark == HOURS[2]
    topic.publish({0: [HOURS[8]]}, quiet={0: 0.0, 1: 3600.0})
    assert topic.watermark == HOURS[8]
    assert topic.publish({1: [HOURS[3]]}, quiet={0: 0.0, 1: 0.0}).late == Lateness(count=1, most=5 * HOUR_MS)
    assert topic.watermark == HOURS[8]
    greatest = position_of(topic.bench.state, "default").topics["topic"].greatest
    assert {number: str(Timestamp.from_ms(ms)) for number, ms in greatest.items()} == {
        0: HOURS[8],
        1: HOURS[3],
    }


def test_a_delay_applies_to_several_partitions_as_well(make_bench: Any) -> None:
    topic = Topic(make_bench(), 2)
    topic.configure(watermarkDelay="90m")
    topic.publish({0: [HOURS[5]], 1: [HOURS[4]]})
    assert topic.watermark == "2020-01-01T02:30:00Z"


@pytest.mark.parametrize(
    ("most", "delay"),
    [
        (1, "1m"),
        (60_000, "1m"),
        (60_001, "2m"),
        (59 * 60_000 + 1, "1h"),
        (HOUR_MS, "1h"),
        (HOUR_MS + 1, "2h"),
        (23 * HOUR_MS + 1, "1d"),
        (DAY_MS + 1, "2d"),
        (400 * DAY_MS, "400d"),
    ],
)
def test_a_proposed_delay_is_round_and_enough(most: int, delay: str) -> None:
    assert str(proposed_delay(most)) == delay
    assert proposed_delay(most) >= most


@pytest.mark.parametrize(
    ("text", "ms", "shown"),
    [
        ("0", 0, "0"),
        ("0s", 0, "0"),
        ("250ms", 250, "250ms"),
        ("90s", 90_000, "1m30s"),
        ("1d12h", 36 * HOUR_MS, "1d12h"),
        ("36h", 36 * HOUR_MS, "1d12h"),
        ("none", -1, "none"),
    ],
)
def test_durations_are_read_and_written(text: str, ms: int, shown: str) -> None:
    assert Milliseconds.parse(text) == ms
    assert str(Milliseconds.parse(text)) == shown
    assert Milliseconds.parse(shown) == ms


@pytest.mark.parametrize("text", ["", "5", "-1s", "1.5h", "1 h", "h", "1h30", "1y", "٣s", "None"])
def test_an_invalid_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        Milliseconds.parse(text)


def test_late_records_are_added_up_under_the_lock() -> None:
    late, dataset = LateRecords(), a_dataset()
    late._lateness = GuardedDict(late._lock, {(dataset, "default"): Lateness(count=1, most=5)})
    late.add(dataset, "default", Lateness(count=2, most=3))
    late.add(dataset, "default", Lateness())
    assert late.lateness_of(dataset, "default") == Lateness(count=3, most=5)
