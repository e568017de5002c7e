"""Announces heads; the chain is the outbox.

Only the latest state of each dataset is pending: a notification means "the head is at least this block", so older
states need not be sent. No head is lost permanently, because all heads are announced at startup.
"""

import threading
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

import structlog

from odf_common.chain.state import ChainState
from odf_common.codec.envelopes import envelope
from odf_common.codec.times import time_message, time_message_or_none
from odf_common.errors import Unavailable
from odf_common.identity.dataset_refs import DatasetId
from odf_common.metadata.events import DatasetKind
from odf_common.ports.bus import NOTIFICATIONS, Bus
from odf_common.ports.clock import Backoff
from odf_common.ports.engine import EngineProgress
from odf_common.ports.store import Catalog
from odf_common.proto.odf.bus.v1 import bus_pb2 as bus

log = structlog.stdlib.get_logger(__name__)

IDLE_SECONDS: Final = 0.5
BACKOFF: Final = Backoff(first=0.05, most=0.5)


class Publisher:
    """Sends `Committed` notifications from one background thread."""

    def __init__(self, *, bus: Bus, catalog: Catalog) -> None:
        """Send over `bus`; the names of datasets come from the catalog."""
        self._bus = bus
        self._catalog = catalog
        self._waiting: dict[DatasetId, ChainState] = {}
        self._changed = threading.Condition()

    def announce(self, state: ChainState) -> None:
        """Announce the head in the background."""
        with self._changed:
            self._waiting[state.dataset_id] = state
            self._changed.notify()

    def announce_removal(self, dataset: DatasetId, alias: str) -> None:
        """Announce that a dataset was deleted; raises `Unavailable` if the notification cannot be sent."""
        with self._changed:
            # Else a head could be announced after the removal.
            self._waiting.pop(dataset, None)
        self._bus.send(NOTIFICATIONS, envelope(dataset, bus.DatasetRemoved(alias=alias)))
        self._bus.flush()

    def report_progress(self, dataset: DatasetId, now: EngineProgress) -> None:
        """Send the progress of a derivative's transform, best effort."""
        body = bus.TransformProgress(stage=now.stage, rows=now.rows, total=now.total)
        with suppress(Unavailable):
            self._bus.send(NOTIFICATIONS, envelope(dataset, body, may_ignore=True))

    def run(self, stop: threading.Event) -> None:
        """Send pending heads until `stop` is set."""
        failures = 0
        while not stop.is_set():
            batch = self._take()
            if not batch:
                continue
            try:
                self._send(batch.values())
            except Unavailable as error:
                self._put_back(batch)
                failures += 1
                if failures == 1:
                    log.warning("cannot announce heads, retrying", why=str(error))
                stop.wait(BACKOFF.pause(failures))
            else:
                failures = 0

    def _take(self) -> dict[DatasetId, ChainState]:
        with self._changed:
            if not self._waiting:
                # Not for longer, so that `run` notices `stop`.
                self._changed.wait(IDLE_SECONDS)
            batch, self._waiting = self._waiting, {}
            return batch

    def _put_back(self, batch: dict[DatasetId, ChainState]) -> None:
        """Add unsent states to the pending ones again, unless newer states are pending."""
        with self._changed:
            # In this order: a newer state of the same dataset wins.
            self._waiting = {**batch, **self._waiting}

    def _send(self, states: Iterable[ChainState]) -> None:
        for state in states:
            entry = self._catalog.by_id(state.dataset_id)
            if entry is None:
                # A dataset is announced once it has a name, which `add` writes after the blocks.
                continue
            try:
                body = committed_message(state, alias=entry.alias)
            except Exception:
                # Requests for this dataset will report the error; continue with the others.
                log.exception("cannot announce a head", **entry.log_facts, block=str(state.head))
                continue
            self._bus.send(NOTIFICATIONS, envelope(state.dataset_id, body))
        self._bus.flush()


def committed_message(state: ChainState, *, alias: str = "", already: bool = False) -> bus.Committed:
    """Return the message that the dataset's head is that of `state` or a later block."""
    return bus.Committed(
        head=state.head.raw,
        sequence_number=state.sequence_number,
        already=already,
        last_offset=state.last_offset,
        watermark=time_message_or_none(state.watermark),
        system_time=time_message(state.system_time),
        alias=alias,
        is_derivative=state.kind is DatasetKind.Derivative,
    )
