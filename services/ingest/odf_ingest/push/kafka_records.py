"""What the reader needs of Kafka."""

from collections.abc import Iterable, Mapping
from typing import Protocol

from odf_common.adapters.kafka.quiet import Partition
from odf_common.adapters.kafka.records import Taken


class Records(Protocol):
    """Many messages of assigned partitions at a time; used by one thread."""

    def assign(self, positions: Mapping[Partition, int]) -> None:
        """Read these partitions from these offsets on, beside those that are read already."""

    def unassign(self, partitions: Iterable[Partition]) -> None:
        """Read these partitions no longer; nothing of them comes after this."""

    def pause(self, partitions: Iterable[Partition]) -> None:
        """Let partitions rest."""

    def resume(self, partitions: Iterable[Partition]) -> None:
        """Go on with partitions that rest, where they stood."""

    def take(self, count: int, timeout: float) -> Taken:
        """Return up to `count` messages, waiting `timeout` seconds at most for that many."""

    def high(self, partition: Partition) -> int | None:
        """Return the offset of the next message to come as of the last fetch, None when none was made."""

    def close(self) -> None:
        """Let go."""
