"""Asking over the bus: send a command, wait for the answer that bears its correlation id.

A lost answer is harmless: `ask` returns None after its time, and the asker looks at the chain.
"""

import threading
import uuid

from odf_common.codec.bus import Body, Envelope, envelope
from odf_common.identity.did import DatasetId
from odf_common.ports.bus import Bus
from odf_common.service.run import Subscription


class Replies:
    """Questions of this process that wait for an answer; safe to use from many threads."""

    def __init__(self, bus: Bus) -> None:
        """Nothing waits yet; `subscription` has to be among the service's."""
        self._bus = bus
        self._waiting: dict[str, _Slot] = {}
        self._lock = threading.Lock()
        self._hears = threading.Event()

    def subscription(self, topic: str) -> Subscription:
        """Return what brings the answers here: all that lie in `topic` from now on."""
        return Subscription(topic=topic, handler=self.handle, group=False, on_owned=self.on_owned)

    def on_owned(self, _: frozenset[int]) -> None:
        """Take note that answers will be heard from now on."""
        self._hears.set()

    def handle(self, answer: Envelope) -> tuple[()]:
        """Hand an answer to whoever asked in this process; others' answers are passed over."""
        with self._lock:
            slot = self._waiting.get(answer.correlation_id)
        if slot is not None:
            slot.answer = answer
            slot.come.set()
        return ()

    def ask(self, topic: str, dataset: DatasetId, body: Body, *, timeout: float) -> Envelope | None:
        """Send a command and return its answer, None after `timeout` seconds without one. Raises `Unavailable`."""
        # An answer that comes before somebody listens would cost the whole wait.
        self._hears.wait(timeout)
        correlation = uuid.uuid4().hex
        slot = _Slot()
        with self._lock:
            self._waiting[correlation] = slot
        try:
            self._bus.send(topic, envelope(dataset, body, correlation_id=correlation))
            self._bus.flush()
            slot.come.wait(timeout)
            return slot.answer
        finally:
            with self._lock:
                del self._waiting[correlation]


class _Slot:
    """Where one answer arrives."""

    def __init__(self) -> None:
        self.come = threading.Event()
        self.answer: Envelope | None = None
