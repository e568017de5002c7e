"""Proposals to the coordinator: sent over the bus, answered by correlation (design: Propose).

Losing any message is harmless: whoever waits in vain looks at the chain, and asks again.
"""

import threading
import uuid
from collections.abc import Iterable
from typing import Final

from odf_common.codec.bus import Body, Envelope, body_of, envelope
from odf_common.codec.flatbuffers import encode_event
from odf_common.ports.bus import COORDINATOR_COMMANDS, Bus
from odf_common.proto.odf.bus.v1.bus_pb2 import Propose
from odf_common.runtime.service import Outgoing
from odf_ingest.slices import Draft

WAIT: Final = 5.0  # seconds for an answer


class _Waiting:
    def __init__(self) -> None:
        self.answered = threading.Event()
        self.answer: Body | None = None


class Proposals:
    """Proposals under way from this process."""

    def __init__(self, bus: Bus) -> None:
        """Send over `bus`; answers come to `on_reply`."""
        self._bus = bus
        self._waiting: dict[str, _Waiting] = {}
        self._hears = threading.Event()

    def on_owned(self, _: frozenset[int]) -> None:
        """Take note that answers will be heard from now on."""
        self._hears.set()

    def propose(self, draft: Draft, wait: float = WAIT) -> Body | None:
        """Return `Committed`, `HeadMoved` or `Refused`, None when no answer came in time. Raises `Unavailable`."""
        body = Propose(
            expected_head=draft.before.head.raw,
            system_time=draft.system_time.ns,
            events=[encode_event(event) for event in draft.events],
        )
        # An answer that comes before somebody listens would cost the whole wait.
        self._hears.wait(wait)
        correlation = uuid.uuid4().hex
        waiting = self._waiting[correlation] = _Waiting()
        try:
            dataset = draft.before.dataset_id
            self._bus.send(COORDINATOR_COMMANDS, envelope(dataset, body, correlation_id=correlation))
            self._bus.flush()
            waiting.answered.wait(wait)
            return waiting.answer
        finally:
            del self._waiting[correlation]

    def on_reply(self, message: Envelope) -> Iterable[Outgoing]:
        """Take an answer; those to others are passed over."""
        waiting = self._waiting.get(message.correlation_id)
        if waiting is not None:
            waiting.answer = body_of(message)
            waiting.answered.set()
        return ()
