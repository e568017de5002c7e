"""The position of a source in the partitions of its topic, and its knowledge of the messages after that."""

import time
from collections.abc import Mapping

from odf_ingest.prepare.batch import TopicActivity


class PartitionOffsets:
    """Offsets by partition. Written by the reader's thread; others may ask."""

    def __init__(self, positions: Mapping[int, int]) -> None:
        """Start at `positions`."""
        self.next = dict(positions)  # the next message to be read
        self.ends: dict[int, int] = {}  # observed end
        self.high: dict[int, int] = {}  # its end at the last poll with messages
        self._opened_at = dict(positions)
        self._heard = dict.fromkeys(positions, time.monotonic())  # when each gave its last message
        self._unread: tuple[Mapping[int, int], float] | None = None

    def read(self, partition: int, offset: int) -> None:
        """Advance past a message that has just been read."""
        self._heard[partition] = time.monotonic()
        self.next[partition] = offset + 1

    def reached_end(self, partition: int, offset: int) -> None:
        """Note that there is no message between the last one and the end, but perhaps markers of transactions."""
        self.ends[partition] = offset
        self.high[partition] = self.next[partition]

    def has_reached(self, partition: int, end: int) -> bool:
        """Return whether a partition was read to this end or a later one."""
        return self.ends.get(partition, -1) >= end

    def are_after(self, offsets: Mapping[int, int]) -> bool:
        """Return whether any partition has been read beyond `offsets`."""
        return any(next_ > offsets.get(number, 0) for number, next_ in self.next.items())

    def have_reached(self, offsets: Mapping[int, int]) -> bool:
        """Return whether every partition has been read up to `offsets` again."""
        return all(next_ >= offsets.get(number, 0) for number, next_ in self.next.items())

    def lag(self, positions: Mapping[int, int]) -> int:
        """Return the number of known messages after these positions."""
        return sum(max(self.high.get(number, 0) - offset, 0) for number, offset in positions.items())

    @property
    def unread(self) -> frozenset[int]:
        """Return the partitions that are not known to be read to their ends."""
        return frozenset(
            number for number, offset in self.next.items() if not self.has_reached(number, offset)
        )

    @property
    def quiet(self) -> Mapping[int, float]:
        """Return the seconds since each partition gave a message, or was opened."""
        now = time.monotonic()
        return {number: now - since for number, since in self._heard.items()}

    def activity(self, *, is_idle: bool) -> TopicActivity:
        """Return the facts that a batch from another topic of the same source needs."""
        unread = self.unread
        if not is_idle:
            unread |= {number for number, offset in self.next.items() if offset != self._opened_at[number]}
        return TopicActivity(unread=unread, quiet=self.quiet)

    def silence(self, high: Mapping[int, int], *, is_idle: bool) -> float:
        """Return for how many seconds the source has been idle with unread messages in its topic."""
        is_behind = any(
            end > max(self.next.get(number, end), self.ends.get(number, 0)) for number, end in high.items()
        )
        if not (is_idle and is_behind):
            self._unread = None
        elif self._unread is None or self._unread[0] != self.next:
            self._unread = dict(self.next), time.monotonic()
        return 0.0 if self._unread is None else time.monotonic() - self._unread[1]
