"""The part of the Kafka adapter that the reader needs."""

from collections.abc import Iterable, Mapping
from typing import Protocol

from odf_common.adapters.kafka.quiet import Partition
from odf_common.adapters.kafka.records import Taken


class Records(Protocol):
    """Batches of messages from assigned partitions; used by one thread."""

    def assign(self, positions: Mapping[Partition, int]) -> None:
        """Also read these partitions, starting at these offsets."""

    def unassign(self, partitions: Iterable[Partition]) -> None:
        """Stop reading these partitions; none of their messages is returned after this."""

    def pause(self, partitions: Iterable[Partition]) -> None:
        """Pause partitions."""

    def resume(self, partitions: Iterable[Partition]) -> None:
        """Continue paused partitions where they were paused."""

    def take(self, count: int, timeout: float) -> Taken:
        """Return up to `count` messages, waiting at most `timeout` seconds for that many."""

    def high(self, partition: Partition) -> int | None:
        """Return the partition's end as of the last fetch; None before the first."""

    def renew(self) -> None:
        """Continue at the same positions with a new client."""

    def close(self) -> None:
        """Close the client."""
