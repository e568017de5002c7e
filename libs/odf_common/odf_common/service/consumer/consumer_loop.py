"""One reader per subscription: poll a message, handle it, send the results, then commit the offset.

If the handler raises `Unavailable`, the message is retried in its lane for a minute and then dropped. Any other
`OdfError` is final: the message becomes a dead letter. Any other exception is a bug: it is logged, and the message
becomes a dead letter on the third attempt. No message blocks messages of other datasets.
"""

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

import structlog

from odf_common.adapters.local.faults import waiting_helps
from odf_common.codec.envelopes import Envelope, body_of, decode
from odf_common.errors import InvalidInput, OdfError, Unavailable
from odf_common.ports.bus import FIXED_TOPICS, Bus, DeadLetter, Inbox, OnAssigned, ReceivedMessage, Topics
from odf_common.service import metrics
from odf_common.service.consumer.message_lanes import MessageLanes
from odf_common.service.consumer.retry import keep_trying

log = structlog.stdlib.get_logger(__name__)

INBOX_POLL_SECONDS: Final = 0.1  # while messages are handled: finished ones are committed between polls
IDLE_POLL_SECONDS: Final = 0.5
MAX_ATTEMPTS_AFTER_BUG: Final = 3  # then a message that hits a bug becomes a dead letter


@dataclass(frozen=True, slots=True, kw_only=True)
class OutgoingMessage:
    """A message that a handler returns, with the topic to send it to."""

    topic: str
    envelope: Envelope


Handler = Callable[[Envelope], Iterable[OutgoingMessage]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """A topic and the handler of its messages."""

    topic: str
    handler: Handler
    group: bool = True
    """Whether instances share the topic as a consumer group; otherwise each reads all messages sent from now on."""
    on_assigned: OnAssigned | None = None
    """Called on the reader's thread with the partitions of this instance whenever the assignment changes."""
    threads: int = 0
    """Number of datasets handled in parallel; the handler must be thread-safe then. 0: all on the reader's thread."""


class Reader:
    """Reads one subscription until stopped."""

    def __init__(self, subscription: Subscription, *, group: str, bus: Bus, topics: Topics) -> None:
        """Create a reader, which reads nothing before `run`."""
        self._subscription = subscription
        self._group = group if subscription.group else None
        self._bus = bus
        self._topics = topics
        self.ready = threading.Event()

    def run(self, stop: threading.Event) -> None:
        """Read and handle messages until `stop` is set."""
        while not stop.is_set():
            inbox = keep_trying(self._open, stop)
            if inbox is None:
                return
            try:
                self._read(inbox, stop)
            except Unavailable as error:
                log.warning("reopening inbox", topic=self._subscription.topic, why=str(error))
                stop.wait(1.0)
            finally:
                inbox.close()

    def _open(self) -> Inbox:
        self._topics.ensure_topics(FIXED_TOPICS)
        return self._bus.subscribe(self._subscription.topic, group=self._group, on_assigned=self._on_owned)

    def _on_owned(self, partitions: frozenset[int]) -> None:
        metrics.OWNED_PARTITIONS.labels(self._subscription.topic).set(len(partitions))
        if self._subscription.on_assigned is not None:
            self._subscription.on_assigned(partitions)

    def _read(self, inbox: Inbox, stop: threading.Event) -> None:
        lanes = MessageLanes(self._take, threads=self._subscription.threads)
        try:
            while not stop.is_set():
                if lanes.has_room(INBOX_POLL_SECONDS):
                    message = inbox.poll(IDLE_POLL_SECONDS if lanes.is_idle else INBOX_POLL_SECONDS)
                    if inbox.has_assignment:
                        self.ready.set()
                    if message is not None:
                        lanes.put(message)
                for done in lanes.settle():
                    inbox.commit(done)
        finally:
            lanes.close()
        for done in lanes.settle():
            inbox.commit(done)

    def _take(self, message: ReceivedMessage, attempt: int) -> None:
        """Handle one message or send it to the dead letters; raises `Unavailable` if it must be retried."""
        begun = time.monotonic()
        try:
            envelope = decode(message.key, message.value)
        except InvalidInput as error:
            self._send_dead_letter(message, str(error))
            return
        if body_of(envelope) is None:
            if not envelope.may_ignore:
                self._send_dead_letter(message, "its kind is unknown to this version")
            return
        with structlog.contextvars.bound_contextvars(
            dataset_id=envelope.dataset_id, correlation=envelope.correlation_id
        ):
            self._handle(message, envelope, attempt)
        metrics.SECONDS.labels(message.topic).observe(time.monotonic() - begun)

    def _handle(self, message: ReceivedMessage, envelope: Envelope, attempt: int) -> None:
        try:
            with waiting_helps():
                self._answer(envelope)
        except Unavailable:
            raise
        except OdfError as error:
            log.warning("message refused", topic=message.topic, offset=message.offset, why=str(error))
            self._send_dead_letter(message, f"{error.code}: {error}")
        except Exception as error:
            metrics.MESSAGES.labels(message.topic, "crashed").inc()
            log.exception(
                "handler failed: a bug", topic=message.topic, offset=message.offset, attempt=attempt
            )
            if attempt < MAX_ATTEMPTS_AFTER_BUG:
                raise Unavailable(what="the handler", why=type(error).__name__) from error
            self._send_dead_letter(message, f"{type(error).__name__} on attempt {attempt}")
        else:
            metrics.MESSAGES.labels(message.topic, "handled").inc()
            log.debug("message handled", topic=message.topic, offset=message.offset, attempt=attempt)

    def _answer(self, envelope: Envelope) -> None:
        for result in self._subscription.handler(envelope):
            self._bus.send(result.topic, result.envelope)
        self._bus.flush()

    def _send_dead_letter(self, message: ReceivedMessage, reason: str) -> None:
        """Send the message to the dead letters; raises `Unavailable` if Kafka does not accept it."""
        log.error("dead letter", topic=message.topic, offset=message.offset, why=reason)
        metrics.MESSAGES.labels(message.topic, "dead").inc()
        letter = DeadLetter(
            topic=message.topic,
            partition=message.partition,
            offset=message.offset,
            reason=reason,
            key=message.key,
            value=message.value,
        )
        self._bus.send_dead_letter(letter)
        self._bus.flush()
