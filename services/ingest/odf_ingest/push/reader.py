"""Reads push topics: one thread polls messages for all sources of this instance, other threads process them.

Positions come only from the chain. A source that cannot continue stops; all others continue.

A Kafka client has one position per partition, so sources of the same topic need different clients. Sources of different
topics share the first client; each further source of a topic uses the next client that does not read the topic yet. So
there are as many clients as the most shared topic has sources.
"""

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Final, Protocol

from odf_common.adapters.kafka.quiet_partitions import Partition
from odf_common.adapters.kafka.records import PollResult
from odf_common.adapters.local.faults import waiting_helps
from odf_common.errors import Unavailable
from odf_common.service.consumer.retry import keep_trying
from odf_ingest.errors import AwaitingCorrection, PositionChanged, RecordRejected, pauses_source
from odf_ingest.prepare.batch import MessageBatch
from odf_ingest.push.batches.batch_worker import BatchWorker
from odf_ingest.push.batches.source import MAX_BATCHES_IN_FLIGHT, PushSource, Wait
from odf_ingest.push.lifecycle.assigned_sources import AssignedSources
from odf_ingest.push.lifecycle.source_record import Event, Phase, Span
from odf_ingest.push.source_topics import Key


class Records(Protocol):
    """The part of the Kafka adapter that a client needs: batches of messages from assigned partitions.

    Used by one thread.
    """

    def assign(self, positions: Mapping[Partition, int]) -> None:
        """Read these partitions too, starting at these offsets."""

    def unassign(self, partitions: Iterable[Partition]) -> None:
        """Stop reading these partitions; none of their messages is returned after this."""

    def pause(self, partitions: Iterable[Partition]) -> None:
        """Pause partitions."""

    def resume(self, partitions: Iterable[Partition]) -> None:
        """Continue reading paused partitions where they were paused."""

    def take(self, count: int, timeout: float) -> PollResult:
        """Return up to `count` messages; waits at most `timeout` seconds for that many."""

    def high(self, partition: Partition) -> int | None:
        """Return the end of the partition as of the last fetch; None before the first fetch."""

    def renew(self) -> None:
        """Continue at the same positions with a new client."""

    def close(self) -> None:
        """Close the client."""


NewClient = Callable[[], Records]


@dataclass(slots=True)
class KafkaClient:
    """A Kafka client, and the source of each partition that it reads."""

    records: Records
    sources: dict[Partition, PushSource] = field(default_factory=dict)


class KafkaClients:
    """All Kafka clients of the reader. Only one thread may use them."""

    def __init__(self, first: Records, another: NewClient) -> None:
        """Begin with the client `first`; `another` creates more."""
        self._clients = [KafkaClient(first)]
        self._another = another
        self._is_busy = False  # the last round brought messages
        self._turn = 0

    def open(self, sources: Sequence[PushSource]) -> None:
        """Start reading these sources. If `Unavailable` is raised, none of them is read."""
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
        """Stop reading a source. If `Unavailable` is raised, its messages are ignored from now on."""
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
        """Return up to `count` messages of each client; waits at most `timeout` seconds in total."""
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
        """Replace all clients by new ones that continue at the same positions."""
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


# Messages per poll; with more, each would leave the CPU cache before it is used.
MESSAGES_PER_POLL: Final = 500
POLL_SECONDS: Final = 0.1  # to wait for a message; short, so that requests are executed soon
# The same while nothing happens, as each poll asks every client. Messages of the first client's partitions end the
# wait; those of a watched partition or of another client may wait that long, if they are the first for a second.
IDLE_POLL_SECONDS: Final = 0.5
BUSY_SECONDS: Final = 1.0  # after a message or a request, until the reader counts as idle
DUE_POLL_SECONDS: Final = 0.005  # the same, when a batch is due
Request = Callable[[], None]


class PushReader:
    """Reads the sources of this instance, and runs requests of other threads between polls."""

    def __init__(self, records: Records, slice_max_bytes: int, another: NewClient | None = None) -> None:
        """Poll messages from `records`; `bind` must be called before use.

        `another` creates one more client, for a topic that several sources read. By default there is only one client.
        """
        self._clients = KafkaClients(records, another or _only_one)
        self._slice_max_bytes = slice_max_bytes
        self._requests: SimpleQueue[Request] = SimpleQueue()
        self._mean_size = 1024.0  # bytes of a message
        self._active: dict[Key, PushSource] = {}  # sources with uncommitted messages
        self._idle_from = 0.0  # monotonic seconds
        self.sources: dict[Key, PushSource] = {}

    def bind(self, owned: AssignedSources, work: BatchWorker) -> None:
        """Read the sources that `owned` opens, and pass batches to `work`."""
        self._owned = owned
        self._work = work

    def request(self, action: Request) -> None:
        """Run the action on the reader's thread, between two polls."""
        self._requests.put(action)

    def run(self, stop: threading.Event) -> None:
        """Read until `stop` is set. After `Unavailable` it may be called again, and continues."""
        while not stop.is_set():
            self.step(stop)
        self._work.end()
        self._clients.close_all()

    def step(self, stop: threading.Event) -> None:
        """Execute requests, poll messages, and start full batches."""
        self._meet_requests()
        batches = keep_trying(self._poll, stop)
        for client, some in batches or ():
            self._sort(client, some)
        keep_trying(self._advance, stop)

    def open(self, sources: Sequence[PushSource]) -> None:
        """Start reading these sources. If `Unavailable` is raised, none of them is read."""
        self._clients.open(sources)
        for source in sources:
            self.sources[source.key] = source
            source.readers = self.sources
            source.log.info("source opened", topic=source.topic, next=source.offsets.next)

    def close(self, source: PushSource) -> None:
        """Stop reading a source, and drop its buffered messages."""
        # First of all: batches that have been begun then end without a commit.
        source.in_flight.is_stale = True
        if self.sources.get(source.key) is source:
            del self.sources[source.key]
            self._active.pop(source.key, None)
        try:
            self._clients.close(source)
        except Unavailable as error:
            # Its messages are ignored until it is assigned again.
            source.log.warning("cannot unassign partitions", why=str(error))

    def renew(self) -> None:
        """Replace all clients by new ones that continue at the same positions."""
        self._clients.renew()

    def on_failure(self, source: PushSource, error: Exception, batch: MessageBatch, chain: object) -> None:
        """Handle a failed batch of a source. Any thread may call it.

        `chain` is the part of the chain's state that the batch used. A source that stops continues once it changes.
        """
        search, first = batch.search, batch.parts[0].partition
        is_the_half = search is not None and search.half_in == first
        if isinstance(error, PositionChanged):
            self.request(lambda: self._owned.reopen(source))
        elif pauses_source(error):
            self.request(lambda: self._owned.retry_later(source, error))
        elif isinstance(error, AwaitingCorrection) and not is_the_half:
            wait = Wait(end=error.end, tries=error.tries + 1, why=error.why, first=first)
            doubled = None if search is None else search.double(batch.count)
            self.request(lambda: self._owned.reopen(source, wait, doubled))
        elif search is not None and batch.count > 1:
            halved = search.halve(batch.count)
            self.request(lambda: self._owned.reopen(source, search=halved))
        else:
            place = first, batch.parts[0].offsets[0]
            span = Span(
                end=batch.end,
                count=batch.count,
                first=first,
                is_first_rejected=isinstance(error, RecordRejected)
                and (error.partition, error.offset) == place,
            )
            self.request(lambda: self._owned.stop(source, error, chain, span))

    def _meet_requests(self) -> None:
        while True:
            try:
                action = self._requests.get_nowait()
            except Empty:
                break
            self._stay_alert()
            try:
                with waiting_helps():
                    action()
            except Unavailable:
                self._requests.put(action)  # for the next step
                raise
        self._owned.run_due_inspections()

    def _stay_alert(self) -> None:
        self._idle_from = time.monotonic() + BUSY_SECONDS

    def _poll(self) -> Sequence[tuple[KafkaClient, PollResult]] | None:
        if (
            self._active
            and len(self._active) == len(self.sources)
            and all(source.ready for source in self._active.values())
        ):
            # No source can take more: leave messages in the client's own queue.
            self._work.settled.wait(POLL_SECONDS)
            self._work.settled.clear()
            return None
        waiting = [source for source in self._active.values() if source.due is not None]
        due = min((source.due or 0.0 for source in waiting), default=None)
        if due is None:
            is_idle = not self._active and time.monotonic() >= self._idle_from
            return self._clients.take(1, IDLE_POLL_SECONDS if is_idle else POLL_SECONDS)
        wait = min(max(due - time.monotonic(), 0.0), POLL_SECONDS)
        if wait == 0.0 or any(source.is_hurried for source in waiting):
            wait = DUE_POLL_SECONDS
        count = max(1, min(MESSAGES_PER_POLL, int(self._slice_max_bytes / self._mean_size)))
        return self._clients.take(count, wait)

    def _sort(self, client: KafkaClient, result: PollResult) -> None:
        for partition, reason in result.faults.items():
            source = client.sources.get(partition)
            if source is not None:
                self._owned.retry_later(source, Unavailable(what=f"topic {source.topic}", why=reason))
        if result.chunks:
            self._stay_alert()
        for chunk in result.chunks:
            source = client.sources.get(chunk.partition)
            if source is None:
                continue
            source.add(chunk)
            source.offsets.high[chunk.partition[1]] = client.records.high(chunk.partition) or 0
            self._mean_size = 0.5 * self._mean_size + 0.5 * max(source.last_mean, 1.0)
            self._active[source.key] = source
            self._owned.readable(source.key)
            if self._owned.phase(source.key) is Phase.WAITING and not source.lacks_more:
                self._owned.apply_event(source, Event.MORE)
        for partition, offset in result.ends.items():
            source = client.sources.get(partition)
            if source is not None:
                source.offsets.reached_end(partition[1], offset)
                self._owned.readable(source.key)
                if source.is_idle:
                    self._owned.end_trouble(source.key)

    def _advance(self) -> None:
        now = time.monotonic()
        for source in list(self._active.values()):
            due = source.due
            # While another batch is in flight, let the batch grow.
            if due is not None and due <= now and source.in_flight.count < MAX_BATCHES_IN_FLIGHT:
                source.cut()
            while source.ready and source.in_flight.count < MAX_BATCHES_IN_FLIGHT:
                self._work.begin(source, source.ready[0])  # before it leaves the queue: see `is_idle`
                source.ready.popleft()
            self._pause(source)
            if source.in_flight.settled and not source.in_flight.is_stale:
                self._owned.end_trouble(source.key)
            if source.is_idle:
                del self._active[source.key]

    def _pause(self, source: PushSource) -> None:
        """Stop fetching for a source whose commits are slower than its reads, if there are other sources."""
        phase = self._owned.phase(source.key)
        is_ahead = len(source.ready) > 0
        if is_ahead and phase is Phase.READING and len(self.sources) > 1:
            self._clients.pause(source)
            self._owned.apply_event(source, Event.AHEAD)
        elif phase is Phase.PAUSED and not is_ahead:
            self._clients.resume(source)
            self._owned.apply_event(source, Event.CAUGHT_UP)


def _only_one() -> Records:
    raise Unavailable(what="Kafka", why="another source reads the topic")
