"""Push topics in memory, and a consumer of their records: for simulations of a node."""

import itertools
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from odf_common.adapters.kafka.quiet_partitions import Partition
from odf_common.adapters.kafka.records import Chunk, PollResult
from odf_common.errors import NotFound, OdfError
from odf_common.ports.bus import TopicInfo


@dataclass
class PushLog:
    """A topic with one partition."""

    topic_id: str
    values: list[bytes] = field(default_factory=list)


class PushLogs:
    """Port `Topics` with records; `written` is called before each change."""

    prefix = ""

    def __init__(self, written: Callable[[], None] = lambda: None) -> None:
        """Start with no topics."""
        self.logs: dict[str, PushLog] = {}
        self._written = written
        self._ids = itertools.count(1)

    def create_push_topic(self, name: str, partitions: int = 1) -> None:
        """Create a topic; nothing happens if it exists."""
        assert partitions == 1
        self._written()
        if name not in self.logs:
            self.logs[name] = PushLog(f"topic {next(self._ids)}")

    def delete_topic(self, name: str) -> None:
        """Delete a topic with its records."""
        self._written()
        self.logs.pop(name, None)

    def add_partitions(self, name: str, total: int) -> None:
        """Accept one partition."""
        self._log(name)
        assert total == 1

    def set_retention(self, name: str, ms: int | None) -> None:
        """Do nothing: no record expires."""
        del ms
        self._log(name)

    def list_names(self) -> Collection[str]:
        """Return the names of all topics."""
        return self.logs.keys()

    def offsets_at(self, name: str, ms: int) -> Mapping[int, int]:
        """Return the beginning for the epoch, otherwise the end: all records have the timestamp 0; raises `NotFound`."""
        return {0: len(self._log(name).values) if ms else 0}

    def describe(self, names: Iterable[str]) -> Mapping[str, TopicInfo | OdfError]:
        """Describe topics; missing ones have the error."""
        return {name: self._described(name) for name in names}

    def _described(self, name: str) -> TopicInfo | OdfError:
        log = self.logs.get(name)
        if log is None:
            return NotFound(what=f"topic {name}")
        return TopicInfo(topic_id=log.topic_id, low={0: 0}, high={0: len(log.values)})

    def ensure_topics(self, names: Iterable[str], partitions: int = 1) -> None:
        """Create the missing topics."""
        for name in names:
            self.create_push_topic(name, partitions)

    def topic_id(self, name: str) -> str:
        """Return the id that distinguishes a topic from a later one with the same name; raises `NotFound`."""
        return self._log(name).topic_id

    def partitions(self, name: str) -> int:
        """Return 1; raises `NotFound`."""
        self._log(name)
        return 1

    def watermarks(self, name: str, partition: int) -> tuple[int, int]:
        """Return 0 and the offset of the next record; raises `NotFound`."""
        assert partition == 0
        return 0, len(self._log(name).values)

    def _log(self, name: str) -> PushLog:
        if name not in self.logs:
            raise NotFound(what=f"topic {name}")
        return self.logs[name]


class PushConsumer:
    """Reads records at positions that the caller keeps, like `KafkaRecords`."""

    def __init__(self, logs: PushLogs, waited: Callable[[float], None]) -> None:
        """Read `logs`; `waited` is called with the time without records."""
        self._logs = logs
        self._waited = waited
        self._at: dict[Partition, int] = {}
        self._paused: set[Partition] = set()

    def assign(self, positions: Mapping[Partition, int]) -> None:
        """Read from these offsets."""
        self._at |= positions

    def unassign(self, partitions: Iterable[Partition]) -> None:
        """Stop reading these."""
        for partition in tuple(partitions):
            self._at.pop(partition, None)
            self._paused.discard(partition)

    def pause(self, partitions: Iterable[Partition]) -> None:
        """Pause these."""
        self._paused |= set(partitions)

    def resume(self, partitions: Iterable[Partition]) -> None:
        """Resume these."""
        self._paused -= set(partitions)

    def take(self, count: int, timeout: float) -> PollResult:
        """Return up to `count` records of each topic."""
        chunks: list[Chunk] = []
        ends: dict[Partition, int] = {}
        faults: dict[Partition, str] = {}
        for place, start in sorted(self._at.items()):
            log = self._logs.logs.get(place[0])
            if log is None or start > len(log.values):
                faults[place] = "the topic or the offset is gone"
                continue
            values = [] if place in self._paused else log.values[start : start + count]
            self._at[place] = stop = start + len(values)
            ends |= {place: stop} if stop == len(log.values) else {}
            if values:
                chunks.append(_chunk(place, values, start))
        if not chunks:
            self._waited(timeout)
        return PollResult(chunks=tuple(chunks), ends=ends, faults=faults)

    def high(self, partition: Partition) -> int | None:
        """Return the offset of the next record."""
        log = self._logs.logs.get(partition[0])
        return None if log is None else len(log.values)

    def renew(self) -> None:
        """Continue as before: there is no client."""

    def close(self) -> None:
        """Do nothing."""
        self._at.clear()


def _chunk(place: Partition, values: list[bytes], start: int) -> Chunk:
    return Chunk(
        partition=place,
        values=values,
        offsets=range(start, start + len(values)),
        timestamps=lambda: [0] * len(values),
    )
