"""Wakes up the event streams and webhooks of a dataset when a notification reports a change of it.

A notification is only a doorbell: streams read the chain themselves. So a lost or repeated notification is harmless,
and slow clients need no queue: they get the newest head.
"""

import asyncio
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from odf_common.chain.state import ChainState
from odf_common.codec.envelopes import Envelope
from odf_common.identity.did import DatasetId
from odf_common.ports.bus import NOTIFICATIONS
from odf_common.ports.store import CatalogEntry
from odf_common.service.consumer.consumer_loop import OutgoingMessage, Subscription

MOVES: Final = frozenset({"committed", "dataset_removed"})


class Bell(asyncio.Event):
    """An event that is set when a dataset has changed; belongs to one event loop."""

    def __init__(self) -> None:
        """Belong to the running loop."""
        super().__init__()
        self._loop = asyncio.get_running_loop()

    def ring(self) -> None:
        """Set the event, from any thread."""
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self.set)


class HeadWatch:
    """The streams that wait for datasets; thread-safe."""

    def __init__(self) -> None:
        self._bells: dict[str, set[Bell]] = {}
        self._lock = threading.Lock()
        self.is_closed = False

    def subscription(self) -> Subscription:
        """Return the subscription that wakes up streams: every process reads all notifications."""
        return Subscription(topic=NOTIFICATIONS, handler=self._on_notification, group=False)

    @contextmanager
    def waiting(self, dataset: DatasetId) -> Iterator[Bell]:
        """Yield an event that is set after each notification of a dataset while the block runs."""
        bell, key = Bell(), str(dataset)
        with self._lock:
            self._bells.setdefault(key, set()).add(bell)
        try:
            yield bell
        finally:
            with self._lock:
                self._bells[key].discard(bell)
                if not self._bells[key]:
                    del self._bells[key]

    def is_watched(self, dataset: DatasetId) -> bool:
        """Return whether a stream waits for a dataset."""
        with self._lock:
            return str(dataset) in self._bells

    def ring(self, dataset: str) -> None:
        """Wake up the streams of a dataset."""
        with self._lock:
            bells = tuple(self._bells.get(dataset, ()))
        for bell in bells:
            bell.ring()

    def end_streams(self, stop: threading.Event) -> None:
        """Wait for `stop`, then let all streams end: the server waits for them."""
        stop.wait()
        self.is_closed = True
        with self._lock:
            datasets = tuple(self._bells)
        for dataset in datasets:
            self.ring(dataset)

    def _on_notification(self, message: Envelope) -> Iterable[OutgoingMessage]:
        if message.WhichOneof("body") in MOVES:
            self.ring(message.dataset_id)
        return ()


def head_facts(entry: CatalogEntry, state: ChainState) -> dict[str, object]:
    """Return the facts that notifications have about a head (docs/formats/notifications.md)."""
    return {
        "dataset": str(entry.dataset_id),
        "alias": entry.alias,
        "head": str(state.head),
        "sequenceNumber": state.sequence_number,
        "lastOffset": state.last_offset,
        "watermark": None if state.watermark is None else str(state.watermark),
        "systemTime": str(state.system_time),
    }
