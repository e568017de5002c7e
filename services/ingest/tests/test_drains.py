"""What a drain counts as pending, and what ends it, without a broker."""

from collections.abc import Mapping
from types import MappingProxyType, SimpleNamespace
from typing import Any, cast

import pytest
from odf_testing.builders import a_dataset

from odf_common.errors import OdfError, Unavailable
from odf_common.ports.bus import TopicInfo
from odf_common.ports.store import CatalogEntry
from odf_ingest.commit.position import SourcePosition, TopicPosition
from odf_ingest.control import drain as module
from odf_ingest.control.drain import Drains, Progress
from odf_ingest.errors import SourceGone, SourceStopped
from odf_ingest.push.batches.source import PartitionOffsets
from odf_ingest.push.source_topics import Key, SourceTopic

KEY = Key(a_dataset(), "default", "")
ENTRY = CatalogEntry(alias="cities", dataset_id=a_dataset())
STOPPED = Unavailable(what="source", why="stopped")


class Parts:
    """One source with a topic of two partitions; each attribute is the answer of one component."""

    def __init__(self, bench: Any) -> None:
        self.bench = bench
        self.low, self.high = {0: 0, 1: 0}, {0: 5, 1: 0}
        self.topic_id = "id"
        self.next: dict[int, int] | None = None
        self.source: Any = None
        self.stopped: OdfError | None = None
        self.stuck: dict[Key, OdfError] = {}
        self.record: object = object()
        self.looked: list[object] = []
        self.drains = Drains(
            cast("Any", SimpleNamespace(topics_of=lambda *_: (self.topic,))),
            bench.queues,
            cast("Any", SimpleNamespace(
                reason=lambda _: self.stopped,
                stuck=lambda: self.stuck,
                record=lambda _: self.record,
                inspect=self.looked.append,
            )),
            cast("Any", self),
        )  # fmt: skip

    @property
    def sources(self) -> dict[Key, Any]:
        return {} if self.source is None else {KEY: self.source}

    def request(self, action: Any) -> None:
        action()

    @property
    def topic(self) -> SourceTopic:
        described = TopicInfo(topic_id=self.topic_id, low=self.low, high=self.high)
        return SourceTopic(source="default", name="topic", described=described)

    def waiting(self) -> int:
        ends = self.drains._ends(ENTRY, self.bench.state, {KEY: self.topic})
        return self.drains._count_waiting(self.bench.state, {KEY: self.topic}, ends)


@pytest.fixture
def parts(make_bench: Any, monkeypatch: pytest.MonkeyPatch) -> Parts:
    parts = Parts(make_bench())

    def position_of(state: object, source: str) -> SourcePosition:
        del state
        known = {} if parts.next is None else {"topic": TopicPosition(topic_id="id", next=parts.next)}
        return SourcePosition(topics=known) if source == "default" else SourcePosition()

    monkeypatch.setattr(module, "position_of", position_of)
    return parts


def reader(
    ends: Mapping[int, int] = MappingProxyType({0: 5, 1: 0}), *, is_idle: bool = True, is_stale: bool = False
) -> SimpleNamespace:
    """Return a source that has read partition 0 to its end and committed everything."""
    offsets = PartitionOffsets({})
    offsets.ends = dict(ends)
    return SimpleNamespace(
        offsets=offsets,
        in_flight=SimpleNamespace(is_stale=is_stale),
        is_idle=is_idle,
        is_hurried=None,
    )


@pytest.mark.parametrize(
    ("low", "next_", "high", "waiting"),
    [
        ({0: 0, 1: 0}, None, {0: 5, 1: 0}, 5),
        ({0: 2, 1: 0}, None, {0: 5, 1: 3}, 6),
        ({0: 0, 1: 0}, {0: 4, 1: 0}, {0: 5, 1: 0}, 1),
        ({0: 0, 1: 0}, {0: 5, 1: 0}, {0: 5, 1: 0}, 0),
        ({0: 0, 1: 0}, {0: 7, 1: 0}, {0: 5, 1: 2}, 2),
        ({0: 3, 1: 0}, {1: 1}, {0: 5, 1: 1}, 2),
    ],
)
def test_messages_between_the_position_and_the_end_wait(
    parts: Parts, low: dict[int, int], next_: dict[int, int] | None, high: dict[int, int], waiting: int
) -> None:
    parts.low, parts.next, parts.high = low, next_, high
    assert parts.waiting() == waiting


@pytest.mark.parametrize(
    ("source", "waiting"),
    [
        (reader(), 0),
        (reader(ends={0: 6}), 0),
        (reader(ends={0: 4}), 5),
        (reader(ends={}), 5),
        (reader(is_idle=False), 5),
        (reader(is_stale=True), 5),
    ],
)
def test_what_is_left_when_all_was_read_and_committed_is_no_message(
    parts: Parts, source: object, waiting: int
) -> None:
    parts.source = source
    assert parts.waiting() == waiting


def test_a_stopped_or_removed_source_ends_the_drain(parts: Parts) -> None:
    parts.stopped = STOPPED
    with pytest.raises(Unavailable):
        parts.waiting()
    gone = Key(a_dataset(), "other", "")
    with pytest.raises(SourceGone):
        parts.drains._count_waiting(parts.bench.state, {gone: parts.topic}, {(gone, 0): 5})
    parts.topic_id, parts.next = "another", {0: 1}
    with pytest.raises(SourceStopped):
        parts.waiting()


def test_a_drain_returns_the_head_at_once_or_hurries_the_source(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts.high = {0: 0, 1: 0}
    head = parts.bench.state.head
    assert list(parts.drains.wait(ENTRY)) == [Progress(waiting=0, head=head)]
    assert parts.looked == []
    parts.record = None
    list(parts.drains.wait(ENTRY))
    assert parts.looked == [a_dataset()]

    monkeypatch.setattr(module, "REPORT_INTERVAL_SECONDS", -1.0)
    parts.high, parts.source, hurried = {0: 5, 1: 0}, reader(ends={}), []

    def look(_: float) -> None:
        hurried.append(parts.source.is_hurried)
        parts.source.offsets.ends = {0: 5}

    monkeypatch.setattr("odf_ingest.control.drain.time.sleep", look)
    assert list(parts.drains.wait(ENTRY)) == [Progress(waiting=5), Progress(waiting=0, head=head)]
    assert (hurried, parts.source.is_hurried) == ([True], False)


def test_a_source_that_stays_stuck_is_waited_for_with_patience(parts: Parts) -> None:
    parts.stuck, parts.drains.waiting_timeout = {KEY: STOPPED}, 0.0
    with pytest.raises(Unavailable, match="stopped"):
        list(parts.drains.wait(ENTRY))
