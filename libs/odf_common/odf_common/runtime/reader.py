"""One thread for each subscription: take a message, handle it, send the results, then commit the position."""

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

import structlog

from odf_common.codec.bus import Envelope, body_of, decode
from odf_common.errors import InvalidInput, OdfError, Unavailable
from odf_common.ports.bus import FIXED_TOPICS, Bus, DeadLetter, Inbox, OnOwned, Received, Topics
from odf_common.runtime import metrics
from odf_common.runtime.retry import keep_trying

log = structlog.stdlib.get_logger(__name__)

POLL_SECONDS: Final = 0.1
ATTEMPTS: Final = 3  # a bug that meets the same message this often makes it a dead letter


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """A message that a handler wants sent."""

    topic: str
    envelope: Envelope


Handler = Callable[[Envelope], Iterable[Outgoing]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """What a service reacts to. In a group the instances share the topic; without, each sees all, from now on.

    `on_owned` is told the partitions that are this instance's, on its reader's thread, whenever they change.
    """

    topic: str
    handler: Handler
    group: bool = True
    on_owned: OnOwned | None = None


class Reader:
    """Reads one subscription until told to stop."""

    def __init__(self, subscription: Subscription, *, group: str, bus: Bus, topics: Topics) -> None:
        """Prepare; `run` does the rest."""
        self._subscription = subscription
        self._group = group if subscription.group else None
        self._bus = bus
        self._topics = topics
        self.ready = threading.Event()

    def run(self, stop: threading.Event) -> None:
        """Read until `stop`; what is neither `Unavailable` nor final for one message is raised."""
        while not stop.is_set():
            inbox = keep_trying(self._open, stop)
            if inbox is None:
                return
            try:
                self._read(inbox, stop)
            except Unavailable as error:
                log.warning("inbox is opened anew", topic=self._subscription.topic, why=str(error))
                stop.wait(1.0)
            finally:
                inbox.close()

    def _open(self) -> Inbox:
        self._topics.ensure_topics(FIXED_TOPICS)
        return self._bus.subscribe(self._subscription.topic, group=self._group, on_owned=self._owned)

    def _owned(self, partitions: frozenset[int]) -> None:
        metrics.PARTITIONS.labels(self._subscription.topic).set(len(partitions))
        if self._subscription.on_owned is not None:
            self._subscription.on_owned(partitions)

    def _read(self, inbox: Inbox, stop: threading.Event) -> None:
        while not stop.is_set():
            message = inbox.poll(POLL_SECONDS)
            if inbox.is_ready:
                self.ready.set()
            if message is not None and self._take(inbox, message, stop):
                inbox.done(message)

    def _take(self, inbox: Inbox, message: Received, stop: threading.Event) -> bool:
        """Handle one message; False when told to stop before it was done."""
        begun = time.monotonic()
        try:
            envelope = decode(message.key, message.value)
        except InvalidInput as error:
            return self._bury(message, str(error), stop)
        if body_of(envelope) is None:
            return envelope.may_ignore or self._bury(message, "this version does not know its kind", stop)
        with structlog.contextvars.bound_contextvars(
            dataset=envelope.dataset_id, correlation=envelope.correlation_id
        ):
            is_done = self._handle(inbox, message, envelope, stop)
        metrics.SECONDS.labels(message.topic).observe(time.monotonic() - begun)
        return is_done

    def _handle(self, inbox: Inbox, message: Received, envelope: Envelope, stop: threading.Event) -> bool:
        try:
            is_done = keep_trying(lambda: self._answer(envelope), stop) is not None
        except OdfError as error:
            log.warning("message refused", topic=message.topic, offset=message.offset, why=str(error))
            return self._bury(message, f"{error.code}: {error}", stop)
        except Exception as error:
            metrics.MESSAGES.labels(message.topic, "crashed").inc()
            if message.attempts + 1 >= ATTEMPTS:
                log.exception("a bug, for the last time")
                return self._bury(message, f"{type(error).__name__} on attempt {message.attempts + 1}", stop)
            inbox.note_attempt(message)
            raise
        if is_done:
            metrics.MESSAGES.labels(message.topic, "handled").inc()
        return is_done

    def _answer(self, envelope: Envelope) -> bool:
        for result in self._subscription.handler(envelope):
            self._bus.send(result.topic, result.envelope)
        self._bus.flush()
        return True

    def _bury(self, message: Received, reason: str, stop: threading.Event) -> bool:
        """Move the message to the dead letters; False when told to stop before that was done."""
        log.error("dead letter", topic=message.topic, offset=message.offset, reason=reason)
        metrics.MESSAGES.labels(message.topic, "dead").inc()
        letter = DeadLetter(
            topic=message.topic,
            partition=message.partition,
            offset=message.offset,
            reason=reason,
            key=message.key,
            value=message.value,
        )

        def send() -> bool:
            self._bus.send_dead_letter(letter)
            self._bus.flush()
            return True

        return keep_trying(send, stop) is not None
