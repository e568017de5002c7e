"""Which messages remain in a batch that is cut before one of them, and how far a search for a message has got."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from odf_common.errors import InvalidInput, StorageUnavailable
from odf_ingest.errors import (
    AwaitingCorrection,
    PositionChanged,
    RegistryUnavailable,
    SourceGone,
    TopicGone,
    TopicReplaced,
)
from odf_ingest.prepare.batch import MessageBatch, Part, SkipSearch
from odf_ingest.push.batches.batch_worker import _is_to_be_skipped
from odf_ingest.read.message_buffer import MessageBuffer


def a_batch(offsets: Mapping[int, Sequence[int]]) -> MessageBatch:
    return MessageBatch(
        topic="topic",
        topic_id="one",
        partitions=len(offsets),
        parts=tuple(
            Part(
                partition=number, values=MessageBuffer.pack([b"x"] * len(some)), offsets=some, timestamps=None
            )
            for number, some in offsets.items()
        ),
        start={number: some[0] for number, some in offsets.items()},
        end={number: some[-1] + 1 for number, some in offsets.items()},
        beginning=dict.fromkeys(offsets, 0),
        begun=0.0,
        size=sum(map(len, offsets.values())),
        unread=frozenset({9}),
    )


BATCH = a_batch({0: [0, 2, 5], 1: [10, 11]})


def kept(batch: MessageBatch | None) -> dict[int, list[int]]:
    return {} if batch is None else {part.partition: list(part.offsets) for part in batch.parts}


def test_a_batch_is_cut_before_a_record_which_is_counted_without_bad_messages() -> None:
    bad = {(0, 2)}
    assert kept(BATCH.before(0, bad)) == {}
    assert kept(BATCH.before(1, bad)) == {0: [0, 2]}
    assert kept(BATCH.before(2, bad)) == {0: [0, 2, 5]}
    assert kept(BATCH.before(3, bad)) == {0: [0, 2, 5], 1: [10]}
    assert kept(BATCH.before(4, bad)) == {0: [0, 2, 5], 1: [10, 11]}


def test_messages_cut_off_are_unread_and_the_position_follows_the_last_one_kept() -> None:
    cut = BATCH.before(1, {(0, 2)})
    assert cut is not None
    assert (cut.start, cut.end, cut.size) == (BATCH.start, {0: 3, 1: 10}, 2)
    assert cut.unread == {0, 1, 9}


def test_a_batch_is_cut_in_each_partition_before_its_first_bad_message() -> None:
    cut = BATCH.before_bad({(0, 5), (0, 2), (1, 11)})
    assert cut is not None
    assert kept(cut) == {0: [0], 1: [10]}
    assert cut.end == {0: 1, 1: 11}
    assert cut.unread == {0, 1, 9}
    assert kept(BATCH.before_bad({(0, 0), (1, 10)})) == {}


def test_a_search_is_over_once_every_partition_is_past_it() -> None:
    search = SkipSearch(count=8, until={0: 5, 1: 7}, why="x")
    assert not search.is_over({0: 5, 1: 6})
    assert search.is_over({0: 5, 1: 7, 2: 0})
    assert [search.halve(count).count for count in (8, 3, 1)] == [4, 1, 1]
    assert search.double(4).count == 8


def test_the_first_result_of_a_search_is_kept() -> None:
    search = SkipSearch(count=1, until={}, why="x")
    search.finish((0, 3))
    search.finish(None)
    assert search.found.result() == (0, 3)


SEARCH = SkipSearch(count=1, until={1: 9, 2: 9}, why="bad", half_in=1)
ALONE = replace(a_batch({1: [4]}), search=SEARCH)
HALF = AwaitingCorrection(end={1: 5}, tries=1, why="half")


@pytest.mark.parametrize(
    "error", [InvalidInput(text="bad"), TypeError("a bug"), HALF], ids=lambda error: type(error).__name__
)
def test_a_message_that_fails_alone_is_skipped_while_one_is_searched(error: Exception) -> None:
    assert _is_to_be_skipped(ALONE, error)
    assert not _is_to_be_skipped(replace(ALONE, search=None), error)
    assert not _is_to_be_skipped(replace(a_batch({1: [4, 5]}), search=SEARCH), error)
    assert not _is_to_be_skipped(replace(a_batch({1: [4], 2: [4]}), search=SEARCH), error)


def test_a_message_after_the_search_is_not_skipped() -> None:
    assert _is_to_be_skipped(replace(a_batch({2: [8]}), search=SEARCH), InvalidInput(text="bad"))
    for place in ({2: [9]}, {3: [0]}):
        assert not _is_to_be_skipped(replace(a_batch(place), search=SEARCH), InvalidInput(text="bad"))


def test_half_of_a_correction_is_skipped_in_the_partition_of_the_search_only() -> None:
    assert not _is_to_be_skipped(replace(a_batch({2: [4]}), search=SEARCH), HALF)
    assert _is_to_be_skipped(replace(a_batch({2: [4]}), search=SEARCH), InvalidInput(text="bad"))


@pytest.mark.parametrize(
    "error",
    [
        PositionChanged(source="default"),
        SourceGone.for_source("default"),
        TopicGone(topic="topic"),
        TopicReplaced(topic="topic", expected="one", actual="two"),
        StorageUnavailable(why="the disk is full"),
        RegistryUnavailable(what="http://registry", why="no answer"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_no_message_is_skipped_for_an_unrelated_fault(error: Exception) -> None:
    assert not _is_to_be_skipped(ALONE, error)
