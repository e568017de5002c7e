"""What a source reads, when its batch is full, and its offsets in its topic: lag, and whether the topic is silent."""

import math
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
from odf_testing.builders import a_dataset, a_push_source

from odf_common.adapters.kafka.records import Chunk
from odf_common.errors import InvalidInput, Unavailable
from odf_common.metadata.events import DatasetVocabulary, MergeStrategySnapshot
from odf_ingest.message_columns import ColumnNames, HeaderColumns, MessageColumns
from odf_ingest.prepare.batch import MessageBatch
from odf_ingest.prepare.plan import Plan
from odf_ingest.prepare.preparer import PreparedRecords
from odf_ingest.push.batches import source
from odf_ingest.push.batches.source import (
    MAX_BATCH_BYTES,
    MAX_DELAY_SECONDS,
    BatchesInFlight,
    BatchLimits,
    PartitionOffsets,
    PushSource,
    Trouble,
    Wait,
)


def a_source(
    size: int = 100, delay: float = 10.0, partitions: int = 1, wait: Wait | None = None, **changes: object
) -> PushSource:
    source = replace(a_push_source(), **changes)  # type: ignore[arg-type]
    return PushSource(
        dataset=a_dataset(),
        alias="a",
        plan=Plan(source=source, vocab=DatasetVocabulary(), schema=None),
        topic="t",
        topic_id="id",
        positions=dict.fromkeys(range(partitions), 0),
        beginning=dict.fromkeys(range(partitions), 0),
        limits=BatchLimits(size=size, delay=delay),
        wait=wait,
    )


def a_chunk(sizes: Sequence[int], start: int = 0, partition: int = 0) -> Chunk:
    return Chunk(
        partition=("t", partition),
        values=[b"x" * size for size in sizes],
        offsets=range(start, start + len(sizes)),
        timestamps=lambda: list(range(len(sizes))),
    )


def shape(batches: Sequence[MessageBatch]) -> list[list[int]]:
    return [[len(value or b"") for part in batch.parts for value in part.values] for batch in batches]


@pytest.mark.parametrize(
    ("sizes", "cut"),
    [
        ([10] * 9, []),
        ([10] * 10, [[10] * 10]),
        ([10] * 25, [[10] * 10, [10] * 10]),
        ([99, 99, 99], [[99, 99]]),
        ([500], [[500]]),
        ([500, 1, 500], [[500], [1, 500]]),
        ([1] * 1000, [[1] * 100] * 10),
    ],
)
def test_a_batch_is_cut_as_soon_as_it_has_the_bytes(sizes: list[int], cut: list[list[int]]) -> None:
    source = a_source()
    source.add(a_chunk(sizes))
    assert shape(source.ready) == cut
    source.cut()
    assert sum(map(len, shape(source.ready))) == len(sizes)


def test_keys_and_headers_that_become_columns_count_too() -> None:
    source = a_source()
    source.columns = MessageColumns(
        keys=ColumnNames(["key"]), headers=HeaderColumns([("trace", "trace"), ("span", "span")])
    )
    keys: list[bytes | None] = [b"k" * 30, None, b"k" * 30, None]
    headers: dict[str, list[bytes | None]] = {"trace": [b"t" * 10, b"t" * 80, None, None], "span": [None] * 4}
    chunk = replace(
        a_chunk([10] * 4), keys=lambda: keys, headers=lambda names: {one: headers[one] for one in names}
    )
    source.add(chunk)
    source.cut()
    assert shape(source.ready) == [[10, 10], [10, 10]]
    assert [batch.size for batch in source.ready] == [140, 50]


def test_batches_are_consecutive() -> None:
    source = a_source()
    source.add(a_chunk([60] * 5))
    source.add(a_chunk([60] * 2, start=5))
    source.cut()
    ends = [(batch.start[0], batch.end[0]) for batch in source.ready]
    assert ends == [(0, 2), (2, 4), (4, 6), (6, 7)]
    assert [list(part.offsets) for batch in source.ready for part in batch.parts] == [
        [0, 1],
        [2, 3],
        [4, 5],
        [6],
    ]


def test_gaps_in_the_offsets_are_kept() -> None:
    source = a_source()
    chunk = a_chunk([1, 1])
    source.add(Chunk(partition=("t", 0), values=chunk.values, offsets=[3, 7], timestamps=chunk.timestamps))
    source.add(a_chunk([1], start=9))
    source.cut()
    (batch,) = source.ready
    assert list(batch.parts[0].offsets) == [3, 7, 9]
    assert batch.end == {0: 10}


def test_a_batch_is_due_after_its_delay_and_at_once_when_hurried_and_nothing_waits() -> None:
    source = a_source(delay=60)
    assert source.due is None
    source.add(a_chunk([1]))
    assert source.due is not None
    assert source.due > time.monotonic() + 50
    source.is_hurried = True
    assert source.due > time.monotonic() + 50
    source.offsets.ends[0] = 1
    assert source.due <= time.monotonic()


def test_a_batch_may_take_longer_while_the_topic_has_messages_to_fill_it() -> None:
    source = a_source(size=100, delay=60)
    source.add(a_chunk([10]))
    source.offsets.high[0] = 10
    assert source.due is not None
    assert source.due > time.monotonic() + 250
    source.offsets.high[0] = 9
    assert source.due < time.monotonic() + 70


def test_a_waiting_source_is_not_cut_before_new_messages_arrive() -> None:
    source = a_source(size=100, delay=5, wait=Wait(end={0: 2}, tries=1, why="half"))
    source.is_hurried = True
    source.add(a_chunk([1]))
    assert (source.due, source.is_waiting) == (math.inf, False)
    source.add(a_chunk([1], start=1))
    source.offsets.ends[0] = 2
    assert (source.due, source.is_waiting) == (None, True)
    source.is_hurried = False
    source.add(a_chunk([98], start=2))
    assert not source.ready
    assert source.due is not None
    assert source.due > time.monotonic() + 6
    source.add(a_chunk([100, 99, 1], start=3))
    assert shape(source.ready) == [[1, 1, 98, 100], [99, 1]]
    assert [batch.tries for batch in source.ready] == [1, 0]


def test_limits_double_with_each_attempt_up_to_a_maximum() -> None:
    usual = BatchLimits(size=MAX_BATCH_BYTES // 3, delay=0.1)
    assert usual.after(0) == usual
    assert usual.after(1) == BatchLimits(size=2 * (MAX_BATCH_BYTES // 3), delay=0.2)
    assert BatchLimits(size=1, delay=0.0).after(0) == BatchLimits(size=1, delay=0.0)
    assert usual.after(9999) == BatchLimits(size=MAX_BATCH_BYTES, delay=MAX_DELAY_SECONDS)
    assert BatchLimits(size=2 * MAX_BATCH_BYTES, delay=60).after(3) == BatchLimits(
        size=2 * MAX_BATCH_BYTES, delay=60
    )


def test_tombstones_count_no_bytes() -> None:
    source = a_source()
    chunk = a_chunk([50, 0, 49])
    source.add(
        Chunk(
            partition=("t", 0),
            values=[chunk.values[0], None, chunk.values[2]],
            offsets=range(3),
            timestamps=chunk.timestamps,
        )
    )
    assert not source.ready


def test_where_a_message_is_a_batch_each_is_cut_at_once() -> None:
    source = a_source(merge=MergeStrategySnapshot(primary_key=("id",)))
    source.add(a_chunk([1, 2, 3]))
    assert shape(source.ready) == [[1], [2], [3]]
    assert [batch.end[0] for batch in source.ready] == [1, 2, 3]


def test_partitions_that_were_not_read_to_their_ends_are_unread_in_a_batch() -> None:
    source = a_source(partitions=3)
    source.add(a_chunk([1] * 4, partition=0))
    source.offsets.ends = {0: 4}
    source.cut()
    (batch,) = source.ready
    assert batch.unread == {1, 2}
    assert (batch.start, batch.end) == ({0: 0, 1: 0, 2: 0}, {0: 4, 1: 0, 2: 0})


def test_a_batch_has_the_messages_of_all_partitions_in_order() -> None:
    source = a_source(partitions=3)
    source.add(a_chunk([1, 1], partition=2))
    source.add(a_chunk([1, 1, 1], partition=0))
    source.add(a_chunk([1], start=2, partition=2))
    source.cut()
    (batch,) = source.ready
    assert [(part.partition, list(part.offsets)) for part in batch.parts] == [(0, [0, 1, 2]), (2, [0, 1, 2])]
    assert batch.end == {0: 3, 1: 0, 2: 3}
    assert batch.parts[1].timestamps is not None
    assert batch.parts[1].timestamps.tolist() == [0, 1, 0]


def test_a_batch_says_how_long_each_partition_has_been_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    source = a_source(partitions=2)
    now = 130.0
    source.add(a_chunk([10] * 10, partition=1))
    now = 145.0
    source.add(a_chunk([10] * 10, start=10, partition=1))
    assert [batch.quiet for batch in source.ready] == [{0: 30.0, 1: 0.0}, {0: 45.0, 1: 0.0}]


class MovingOn(deque[MessageBatch]):
    """Ready batches, of which the reader's thread starts one just as another thread checks."""

    def __init__(self, source: PushSource) -> None:
        super().__init__()
        self._source = source

    def __len__(self) -> int:
        self._source.cut()  # the buffer's messages are ready, and then in flight
        self._source.in_flight.begun = 1
        return 0


def test_a_source_is_not_idle_while_its_messages_move_from_the_buffer_in_flight() -> None:
    source = a_source()
    source.ready = MovingOn(source)
    assert not source.is_idle
    source.in_flight.settled = 1
    source = a_source()
    source.add(a_chunk([10]))
    source.ready = MovingOn(source)
    assert not source.is_idle


def test_a_lasting_problem_has_the_time_and_the_attempts_since_it_began() -> None:
    error = Unavailable(what="the registry")
    first = Trouble.after_try(error, None)
    again = Trouble.after_try(error, replace(first, since=5.0))

    assert (first.tries, again.tries, again.since) == (1, 2, 5.0)
    assert again.delay > first.delay


def test_a_hurried_batch_is_due_once_all_partitions_are_read_to_their_ends() -> None:
    source = a_source(delay=60, partitions=2)
    source.is_hurried = True
    source.add(a_chunk([1]))
    source.offsets.ends = {0: 1}
    assert source.due is not None
    assert source.due > time.monotonic() + 50
    source.offsets.ends[1] = 0
    assert source.due <= time.monotonic()


def test_messages_in_flight_are_unread_for_the_sources_other_topics() -> None:
    source = a_source(partitions=3)
    source.offsets.ends = {0: 0, 1: 1}
    source.add(a_chunk([1], partition=1))
    source.cut()
    assert source.offsets.activity(is_idle=source.is_idle).unread == frozenset({1, 2})
    source.ready.clear()
    assert source.offsets.activity(is_idle=source.is_idle).unread == frozenset({2})


def test_a_batch_of_the_maximum_size_does_not_grow() -> None:
    source = a_source()
    source._usual = source._limits = BatchLimits(size=100, delay=1.0, most=100)
    source.add(a_chunk([99]))
    source.cut()
    source.add(a_chunk([100], start=1))
    assert [batch.may_grow for batch in source.ready] == [True, False]


def test_a_source_lacks_more_until_new_messages_arrive() -> None:
    assert not a_source().lacks_more
    source = a_source(wait=Wait(end={0: 2}, tries=1, why="half"))
    lacks = [source.lacks_more]
    for offset in range(3):
        source.add(a_chunk([1], start=offset))
        lacks.append(source.lacks_more)
    assert lacks == [True, True, True, False]


def test_a_partition_without_messages_was_seen_to_its_end() -> None:
    source = a_source(partitions=2, wait=Wait(end={0: 2}, tries=1, why="half"))
    assert not source.is_waiting, "the messages up to there are read again first"
    source.add(a_chunk([1, 1]))
    assert source.is_waiting


def test_a_waiting_half_is_searched_for_alone_in_its_partition() -> None:
    search = Wait(end={0: 2, 1: 5}, tries=1, why="half", first=1).search
    assert (search.count, search.until, search.why, search.half_in) == (1, {0: 2, 1: 5}, "half", 1)


def test_batches_are_placed_in_the_order_in_which_they_began_whichever_is_read_first() -> None:
    batches, placed = BatchesInFlight(), list[int]()
    readings = [Future[PreparedRecords]() for _ in range(3)]
    for number, reading in enumerate(readings):
        batches.in_order(reading, partial(placed.append, number))
    readings[1].set_exception(InvalidInput(text="is placed too, and fails there"))
    readings[2].cancel()
    assert placed == []
    readings[0].cancel()
    assert placed == [0, 1, 2]


def test_a_batch_that_cannot_be_placed_does_not_delay_others() -> None:
    def fail() -> None:
        raise Unavailable(what="the queue")

    batches, placed = BatchesInFlight(), list[int]()
    readings = [Future[PreparedRecords]() for _ in range(2)]
    batches.in_order(readings[0], fail)
    batches.in_order(readings[1], partial(placed.append, 1))
    for reading in readings:
        reading.cancel()
    assert placed == [1]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    made = SimpleNamespace(now=100.0)
    made.monotonic = lambda: made.now
    monkeypatch.setattr(source, "time", made)
    return made


def test_one_advanced_partition_is_enough_to_be_after_the_known_offsets() -> None:
    offsets = PartitionOffsets({0: 3, 1: 5})
    assert not offsets.are_after({0: 3, 1: 5})
    offsets.read(1, 5)
    assert offsets.are_after({0: 3, 1: 5})


def test_a_partition_without_known_offsets_counts_from_its_first_message() -> None:
    offsets = PartitionOffsets({0: 0})
    assert offsets.have_reached({})
    assert not offsets.are_after({})
    offsets.read(0, 0)
    assert offsets.are_after({})


def test_all_partitions_must_have_reached_the_known_offsets() -> None:
    offsets = PartitionOffsets({0: 3, 1: 5})
    assert offsets.have_reached({0: 3, 1: 5})
    assert not offsets.have_reached({0: 3, 1: 6})


def test_the_lag_counts_known_messages_of_all_partitions_and_none_that_are_missing() -> None:
    offsets = PartitionOffsets({0: 0, 1: 0, 2: 0})
    offsets.high = {0: 10, 1: 4}
    assert offsets.lag({0: 7, 1: 2, 2: 0}) == 5
    assert offsets.lag({0: 11, 1: 4}) == 0


def test_only_a_partition_that_is_read_to_its_end_is_read() -> None:
    offsets = PartitionOffsets({0: 3, 1: 3, 2: 3})
    offsets.high = {0: 4, 1: 4, 2: 4}
    offsets.reached_end(0, 3)
    offsets.reached_end(1, 4)  # with a marker of a transaction
    assert offsets.unread == {2}
    assert offsets.lag({0: 3, 1: 3, 2: 3}) == 1
    offsets.read(1, 4)
    assert offsets.unread == {1, 2}


def test_an_idle_source_is_silent_while_messages_of_one_partition_do_not_arrive(
    clock: SimpleNamespace,
) -> None:
    offsets = PartitionOffsets({0: 3, 1: 3})
    assert offsets.silence({0: 3, 1: 4}, is_idle=True) == 0
    clock.now += 2
    assert offsets.silence({0: 3, 1: 4}, is_idle=True) == 2
    clock.now += 2
    assert offsets.silence({0: 3, 1: 4}, is_idle=True) == 4


@pytest.mark.parametrize("ends", [{}, {0: 5}])
def test_a_source_that_has_read_its_topic_to_the_end_is_not_silent(
    clock: SimpleNamespace, ends: dict[int, int]
) -> None:
    offsets = PartitionOffsets({0: 3})
    offsets.ends = ends
    high = {0: max(ends.get(0, 0), 3)}  # of control records at the end, which are never delivered
    offsets.silence(high, is_idle=True)
    clock.now += 2
    assert offsets.silence(high, is_idle=True) == 0


def test_a_partition_that_is_not_read_makes_no_source_silent(clock: SimpleNamespace) -> None:
    offsets = PartitionOffsets({0: 3})
    offsets.silence({0: 3, 7: 9}, is_idle=True)
    clock.now += 2
    assert offsets.silence({0: 3, 7: 9}, is_idle=True) == 0


def test_a_partition_at_its_beginning_is_silent_after_its_first_message(clock: SimpleNamespace) -> None:
    offsets = PartitionOffsets({0: 0})
    offsets.silence({0: 1}, is_idle=True)
    clock.now += 2
    assert offsets.silence({0: 1}, is_idle=True) == 2


def test_silence_begins_again_after_messages(clock: SimpleNamespace) -> None:
    offsets = PartitionOffsets({0: 3})
    offsets.silence({0: 9}, is_idle=True)
    clock.now += 2
    offsets.read(0, 3)
    assert offsets.silence({0: 9}, is_idle=True) == 0
    clock.now += 1
    assert offsets.silence({0: 9}, is_idle=True) == 1
    assert offsets.silence({0: 9}, is_idle=False) == 0  # and after processing
    assert offsets.silence({0: 9}, is_idle=True) == 0
