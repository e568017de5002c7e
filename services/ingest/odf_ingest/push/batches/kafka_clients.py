"""Kafka clients for all sources: a client has one position per partition, so sources of one topic need several clients.

Sources of different topics share the first client. Each further source of a topic uses the next client that does not
read the topic yet, so there are as many clients as sources of the most shared topic.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from odf_common.adapters.kafka.quiet_partitions import Partition
from odf_common.adapters.kafka.records import PollResult
from odf_common.errors import Unavailable
from odf_ingest.push.batches.source import PushSource


class Records(Protocol):
    """The part of the Kafka adapter that a client needs: batches of messages from assigned partitions.

    Used by one thread.
    """

    def assign(self, positions: Mapping[Partition, int]) -> None:
        """Also read these partitions, starting at these offsets."""

    def unassign(self, partitions: Iterable[Partition]) -> None:
        """Stop reading these partitions; none of their messages is returned after this."""

    def pause(self, partitions: Iterable[Partition]) -> None:
        """Pause partitions."""

    def resume(self, partitions: Iterable[Partition]) -> None:
        """Continue paused partitions where they were paused."""

    def take(self, count: int, timeout: float) -> PollResult:
        """Return up to `count` messages, waiting at most `timeout` seconds for that many."""

    def high(self, partition: Partition) -> int | None:
        """Return the partition's end as of the last fetch; None before the first."""

    def renew(self) -> None:
        """Continue at the same positions with a new client."""

    def close(self) -> None:
        """Close the client."""


NewClient = Callable[[], Records]


@dataclass(slots=True)
class KafkaClient:
    """One client, and the source of each partition that it reads."""

    records: Records
    sources: dict[Partition, PushSource] = field(default_factory=dict)


class KafkaClients:
    """All clients; used by one thread."""

    def __init__(self, first: Records, another: NewClient) -> None:
        """Begin with one client; `another` makes more."""
        self._clients = [KafkaClient(first)]
        self._another = another
        self._is_busy = False  # the last round brought messages
        self._turn = 0

    def open(self, sources: Sequence[PushSource]) -> None:
        """Read sources; raises `Unavailable`, and then none of them is read."""
        chosen: dict[int, list[PushSource]] = {}
        by_client = [set(client.sources) for client in self._clients]
        for source in sources:
            number = next(
                (
                    index
                    for index, partitions in enumerate(by_client)
                    if partitions.isdisjoint(source.partitions)
                ),
                len(by_client),
            )
            if number == len(by_client):
                by_client.append(set())
            by_client[number].update(source.partitions)
            chosen.setdefault(number, []).append(source)
        while len(self._clients) < len(by_client):
            self._clients.append(KafkaClient(self._another()))
        for number, some in chosen.items():
            positions = {
                (source.topic, partition): offset
                for source in some
                for partition, offset in source.offsets.next.items()
            }
            self._clients[number].records.assign(positions)
        for number, some in chosen.items():
            for source in some:
                self._clients[number].sources.update(dict.fromkeys(source.partitions, source))

    def close(self, source: PushSource) -> None:
        """Stop reading a source; raises `Unavailable`, and then its messages are ignored."""
        client = self._client_of(source)
        if client is None:
            return
        for partition in source.partitions:
            del client.sources[partition]
        client.records.unassign(source.partitions)

    def pause(self, source: PushSource) -> None:
        """Stop returning messages of a source."""
        client = self._client_of(source)
        if client is not None:
            client.records.pause(source.partitions)

    def resume(self, source: PushSource) -> None:
        """Continue a paused source."""
        client = self._client_of(source)
        if client is not None:
            client.records.resume(source.partitions)

    def take(self, count: int, timeout: float) -> Sequence[tuple[KafkaClient, PollResult]]:
        """Return up to `count` messages of each client, waiting at most `timeout` seconds in total."""
        clients = self._clients[self._turn :] + self._clients[: self._turn]
        self._turn = (self._turn + 1) % len(clients)
        wait = 0.0 if self._is_busy and len(clients) > 1 else timeout / len(clients)
        batches: list[tuple[KafkaClient, PollResult]] = []
        for client in clients:
            try:
                batches.append((client, client.records.take(count, wait)))
            except Unavailable:
                # What other clients returned must not be lost; the next round begins with another one.
                if not any(result.chunks or result.ends or result.faults for _, result in batches):
                    raise
        self._is_busy = any(result.chunks for _, result in batches)
        return batches

    def renew(self) -> None:
        """Continue with new clients of the broker at the same positions."""
        for client in self._clients:
            client.records.renew()

    def close_all(self) -> None:
        """Close the clients."""
        for client in self._clients:
            client.records.close()

    def _client_of(self, source: PushSource) -> KafkaClient | None:
        first = source.partitions[:1]
        return next(
            (
                client
                for client in self._clients
                if any(client.sources.get(topic) is source for topic in first)
            ),
            None,
        )
