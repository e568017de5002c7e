"""Request and reply over the bus: send a command, then wait for the reply with the same correlation id.

A lost reply is harmless: `request` returns None after its timeout, and the caller reads the chain instead.
"""

import threading
import time
import uuid

from odf_common.codec.envelopes import Body, Envelope, envelope
from odf_common.identity.dataset_refs import DatasetId
from odf_common.ports.bus import Bus
from odf_common.service.run import Subscription


class Replies:
    """The pending requests of this process; thread-safe."""

    def __init__(self, bus: Bus) -> None:
        """Start without pending requests; the service must include `subscription` to receive replies."""
        self._bus = bus
        self._waiting: dict[str, _Pending] = {}
        self._lock = threading.Lock()
        self._hears = threading.Event()

    def subscription(self, topic: str) -> Subscription:
        """Return a subscription to all replies that are sent to `topic` from now on."""
        return Subscription(topic=topic, handler=self.handle, group=False, on_assigned=self.on_assigned)

    def on_assigned(self, _: frozenset[int]) -> None:
        """Record that the subscription is active: replies are received from now on."""
        self._hears.set()

    def handle(self, answer: Envelope) -> tuple[()]:
        """Give a reply to the caller in this process that waits for it; ignore replies to other processes."""
        with self._lock:
            pending = self._waiting.get(answer.correlation_id)
        if pending is not None:
            pending.answer = answer
            pending.arrived.set()
        return ()

    def request(self, topic: str, dataset: DatasetId, body: Body, *, timeout: float) -> Envelope | None:
        """Send a command and return its reply; None if no reply arrives within `timeout` seconds.

        Raises `Unavailable` if the command cannot be sent.
        """
        until = time.monotonic() + timeout
        # A reply that arrives before the subscription is active would be missed, and cost the whole timeout.
        self._hears.wait(timeout)
        correlation = uuid.uuid4().hex
        pending = _Pending()
        with self._lock:
            self._waiting[correlation] = pending
        try:
            self._bus.send(topic, envelope(dataset, body, correlation_id=correlation))
            self._bus.flush()
            pending.arrived.wait(until - time.monotonic())
            return pending.answer
        finally:
            with self._lock:
                del self._waiting[correlation]


class _Pending:
    """A pending request, and its reply once that has arrived."""

    def __init__(self) -> None:
        self.arrived = threading.Event()
        self.answer: Envelope | None = None
