"""Offsets of a source in its topic: how far it has read, its lag, and whether the topic is silent."""

from types import SimpleNamespace

import pytest

from odf_ingest.push.batches import source
from odf_ingest.push.batches.source import PartitionOffsets


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


def test_a_partition_is_quiet_since_its_last_message(clock: SimpleNamespace) -> None:
    offsets = PartitionOffsets({0: 0, 1: 0})
    clock.now += 2
    offsets.read(1, 0)
    clock.now += 3
    assert offsets.quiet == {0: 5, 1: 3}


def test_only_a_partition_that_is_read_to_its_end_is_read() -> None:
    offsets = PartitionOffsets({0: 3, 1: 3, 2: 3})
    offsets.high = {0: 4, 1: 4, 2: 4}
    offsets.reached_end(0, 3)
    offsets.reached_end(1, 4)  # with a marker of a transaction
    assert offsets.unread == {2}
    assert offsets.lag({0: 3, 1: 3, 2: 3}) == 1
    offsets.read(1, 4)
    assert offsets.unread == {1, 2}


def test_uncommitted_messages_count_as_unread() -> None:
    offsets = PartitionOffsets({0: 0, 1: 0})
    offsets.read(0, 0)
    offsets.ends = {0: 1, 1: 0}
    assert offsets.activity(is_idle=True).unread == frozenset()
    assert offsets.activity(is_idle=False).unread == frozenset({0})


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
