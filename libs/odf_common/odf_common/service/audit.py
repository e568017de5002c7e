"""The audit log: who did what, and whether it was allowed. Topic `odf.audit.v1` (docs/formats/audit.md).

A request only puts an entry into a bounded queue; one thread sends the entries to Kafka. While Kafka is unavailable the
queue fills up, and further entries are dropped and counted. If requests waited for their entries to be sent, an outage
of Kafka would also block all reads of the node.
"""

import queue
import threading
import time
import uuid
from functools import partial
from typing import Final

import grpc
import structlog
from google.protobuf import descriptor_pool
from google.protobuf.descriptor_pb2 import MethodOptions
from prometheus_client import Counter

from odf_common.adapters.grpc.calls import Call
from odf_common.codec.envelopes import Envelope, envelope, stamp
from odf_common.errors import InvalidInput, Unavailable
from odf_common.identity.dataset_refs import DatasetId
from odf_common.ports.bus import AUDIT, Bus
from odf_common.proto.odf.bus.v1.bus_pb2 import AccessDecision
from odf_common.service.consumer.retry import keep_trying

log = structlog.stdlib.get_logger(__name__)

MAX_WAITING_ENTRIES: Final = 10_000  # waiting for Kafka; some 5 MB
MAX_BATCH_ENTRIES: Final = 500
MAX_NAME_CHARACTERS: Final = 300  # of a name that a client sent
WAIT_SECONDS: Final = 0.2
LAST_SECONDS: Final = 2.0  # for what is still in the queue when the service stops
GRPC: Final = "gRPC"
OF_NODE: Final = "/odf.node."  # the engine's calls are parts of others
# A read that ends with one of these was not refused: its caller gave up, or the service cannot answer now.
PASSING_STATUSES: Final = frozenset({
    grpc.StatusCode.OK,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.UNAVAILABLE,
})  # fmt: skip

WRITTEN_ENTRIES: Final = Counter("odf_audit_entries_total", "Audit entries written to Kafka.")
DROPPED_ENTRIES: Final = Counter(
    "odf_audit_dropped_total",
    "Audit entries lost: the queue was full, or Kafka was unavailable when the service stopped.",
)


class Audit:
    """A bounded queue of audit entries that wait to be sent; thread-safe."""

    def __init__(self, most: int = MAX_WAITING_ENTRIES) -> None:
        """Hold up to `most` unsent entries; further ones are dropped."""
        self._waiting: queue.Queue[Envelope] = queue.Queue(most)

    def put(self, dataset: DatasetId | None, entry: AccessDecision) -> None:
        """Queue an audit entry with the id of its dataset, if the dataset exists.

        Never blocks: if the queue is full, the entry is dropped and counted.
        """
        message = envelope("" if dataset is None else dataset, entry, may_ignore=True)
        try:
            # Stamped here: the time is that of the request, and an entry that is sent twice has one id.
            self._waiting.put_nowait(stamp(message, message_id=uuid.uuid4().hex, sent_at=time.time_ns()))
        except queue.Full:
            DROPPED_ENTRIES.inc()

    def note_call(self, call: Call) -> None:
        """Queue an audit entry for a gRPC call that may have changed something or that was refused."""
        if not call.method.startswith(OF_NODE) or (
            call.status in PASSING_STATUSES and _only_reads(call.method)
        ):
            return
        is_allowed = call.status is grpc.StatusCode.OK
        number, _ = call.status.value
        entry = AccessDecision(
            account=bound_text(call.certificate_name),
            address=bound_text(call.address),
            method=GRPC,
            route=call.method,
            dataset=bound_text(call.dataset),
            is_allowed=is_allowed,
            status=number,
            error=call.error,
            user_agent=bound_text(call.user_agent),
            subject=bound_text(call.subject),
        )
        self.put(_id_in(call.dataset) if is_allowed else None, entry)

    def write(self, bus: Bus, stop: threading.Event) -> None:
        """Send queued entries to Kafka until `stop` is set."""
        while not stop.is_set():
            batch = self._batch(WAIT_SECONDS)
            if batch and keep_trying(partial(_send, bus, batch), stop) is None:
                _try_last(bus, batch)

    def finish(self, bus: Bus) -> None:
        """Try once to send the entries that are still queued when the service stops; drop those that cannot be sent."""
        while batch := self._batch(0.0):
            _try_last(bus, batch)

    def _batch(self, seconds: float) -> list[Envelope]:
        """Return up to `MAX_BATCH_ENTRIES` queued entries.

        Waits up to `seconds` for the first entry; the batch is empty if none arrives.
        """
        batch: list[Envelope] = []
        try:
            batch.append(self._waiting.get(timeout=seconds) if seconds else self._waiting.get_nowait())
            while len(batch) < MAX_BATCH_ENTRIES:
                batch.append(self._waiting.get_nowait())
        except queue.Empty:
            pass
        return batch


def bound_text(text: str) -> str:
    """Return text that a client sent, truncated and with invalid Unicode replaced."""
    return text[:MAX_NAME_CHARACTERS].encode(errors="replace").decode()


def _only_reads(method: str) -> bool:
    """Return whether the protobuf definition of `/package.Service/Method` declares that it has no side effects."""
    name = method.removeprefix("/").replace("/", ".")
    try:
        descriptor = descriptor_pool.Default().FindMethodByName(name)
    except KeyError:
        return False
    return bool(descriptor.GetOptions().idempotency_level == MethodOptions.NO_SIDE_EFFECTS)


def _id_in(ref: str) -> DatasetId | None:
    try:
        return DatasetId.parse(ref)
    except InvalidInput:
        return None


def _send(bus: Bus, batch: list[Envelope], seconds: float = 10.0) -> int:
    for message in batch:
        bus.send(AUDIT, message)
    bus.flush(seconds)
    WRITTEN_ENTRIES.inc(len(batch))
    return len(batch)


def _try_last(bus: Bus, batch: list[Envelope]) -> None:
    try:
        _send(bus, batch, LAST_SECONDS)
    except Unavailable as error:
        DROPPED_ENTRIES.inc(len(batch))
        log.warning("audit entries were lost", entries=len(batch), why=error.why)
