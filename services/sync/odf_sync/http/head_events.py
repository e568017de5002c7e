"""A dataset's commits as Server-Sent Events (WHATWG HTML, 9.2; docs/formats/notifications.md).

An event has the current head, and its id is the hash of the head. A client that reconnects sends the last id that it
received, and gets an event at once if the head has moved since. Notifications only wake up the streams and webhooks of
a dataset, which then read the chain themselves. So lost or repeated notifications are harmless, and slow clients need
no queue.
"""

import asyncio
import json
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

import structlog
from aiohttp import hdrs, web

from odf_common.chain.state import ChainState
from odf_common.codec.envelopes import Envelope
from odf_common.dataset.state_cache import ChainStates
from odf_common.errors import OdfError
from odf_common.identity.dataset_refs import DatasetId
from odf_common.ports.bus import NOTIFICATIONS
from odf_common.ports.store import CatalogEntry
from odf_common.service.consumer.consumer_loop import OutgoingMessage, Subscription
from odf_sync.access.rate_limits import Shares
from odf_sync.access.rules import Action
from odf_sync.http.authorization import Authorizer, HttpRefusal
from odf_sync.http.connections import RETRY_AFTER_SECONDS
from odf_sync.http.endpoints import Endpoint, counted_caller, dataset_of

MOVES: Final = frozenset({"committed", "dataset_removed"})


class Bell(asyncio.Event):
    """An event that is set when a dataset has changed; bound to one event loop."""

    def __init__(self) -> None:
        """Bind the event to the running event loop."""
        super().__init__()
        self._loop = asyncio.get_running_loop()

    def ring(self) -> None:
        """Set the event; may be called from any thread."""
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self.set)


class HeadWatch:
    """Wakes up the event streams and webhooks of a dataset after each of its notifications; thread-safe."""

    def __init__(self) -> None:
        self._bells: dict[str, set[Bell]] = {}
        self._lock = threading.Lock()
        self.is_closed = False

    def subscription(self) -> Subscription:
        """Return the subscription to notifications. Each process reads all of them, without a consumer group."""
        return Subscription(topic=NOTIFICATIONS, handler=self._on_notification, group=False)

    @contextmanager
    def waiting(self, dataset: DatasetId) -> Iterator[Bell]:
        """Yield an event that is set after each notification of a dataset during the `with` block."""
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
        """Return whether any stream or webhook waits for a dataset."""
        with self._lock:
            return str(dataset) in self._bells

    def ring(self, dataset: str) -> None:
        """Wake up the streams and webhooks of a dataset."""
        with self._lock:
            bells = tuple(self._bells.get(dataset, ()))
        for bell in bells:
            bell.ring()

    def end_streams(self, stop: threading.Event) -> None:
        """Block until `stop` is set, then end all streams, because the server waits for them when it stops."""
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
    """Return the fields of a notification about a head (docs/formats/notifications.md)."""
    return {
        "dataset": str(entry.dataset_id),
        "alias": entry.alias,
        "head": str(state.head),
        "sequenceNumber": state.sequence_number,
        "lastOffset": state.last_offset,
        "watermark": None if state.watermark is None else str(state.watermark),
        "systemTime": str(state.system_time),
    }


log = structlog.stdlib.get_logger(__name__)

HEARTBEAT_SECONDS: Final = 15.0
WRITE_TIMEOUT_SECONDS: Final = 30.0  # a client that does not read for that long is disconnected
MAX_STREAMS: Final = 500  # in flight; half of the connections that are allowed by default
MAX_STREAMS_OF_CALLER: Final = 100
LAST_EVENT_ID: Final = "Last-Event-ID"
HEADERS: Final = {
    hdrs.CONTENT_TYPE: "text/event-stream",
    hdrs.CACHE_CONTROL: "no-store",
    "X-Accel-Buffering": "no",  # proxies would hold events back
}
HEARTBEAT: Final = b":\n\n"  # a comment
GONE: Final = b"event: gone\ndata: {}\n\n"


class EventRoutes:
    """The handler of event streams."""

    def __init__(self, states: ChainStates, authorizer: Authorizer, heads: HeadWatch) -> None:
        self._states = states
        self._authorizer = authorizer
        self._heads = heads
        self._streams = Shares(most=MAX_STREAMS, of_caller=MAX_STREAMS_OF_CALLER)

    def endpoints(self) -> Iterator[Endpoint]:
        """Yield the endpoint."""
        yield Endpoint(
            method="GET",
            path="/events",
            handler=self._events,
            summary="Each move of the dataset's head, as Server-Sent Events.",
            action=Action.READ,
            media_type=HEADERS[hdrs.CONTENT_TYPE],
        )

    async def _events(self, request: web.Request) -> web.StreamResponse:
        with self._streams.acquire(counted_caller(request)) as has_room:
            if not has_room:
                return web.Response(status=503, headers={hdrs.RETRY_AFTER: str(RETRY_AFTER_SECONDS)})
            response = web.StreamResponse(headers=HEADERS)
            await response.prepare(request)
            if request.method != hdrs.METH_HEAD:
                try:
                    with self._heads.waiting(dataset_of(request).dataset_id) as bell:
                        await self._follow(request, response, bell)
                except (TimeoutError, ConnectionError):
                    log.debug("an event stream ended: its client does not read")
            return response

    async def _follow(self, request: web.Request, response: web.StreamResponse, bell: Bell) -> None:
        """Send an event for each new head, until the caller may no longer read the dataset or the server stops."""
        entry, last = dataset_of(request), request.headers.get(LAST_EVENT_ID, "")
        while not self._heads.is_closed:
            bell.clear()
            try:
                state = await asyncio.to_thread(self._current, request, entry)
            except HttpRefusal:
                return await _send(response, GONE)
            except OdfError as error:
                # The client connects again, and is answered by then.
                log.warning(
                    "an event stream ended",
                    dataset=entry.alias,
                    dataset_id=str(entry.dataset_id),
                    code=error.code,
                    why=str(error),
                )
                return None
            if state is None or str(state.head) == last:
                await _send(response, HEARTBEAT)
            else:
                last = str(state.head)
                await _send(response, _event(entry, state))
            with suppress(TimeoutError):
                await asyncio.wait_for(bell.wait(), HEARTBEAT_SECONDS)
        return None

    def _current(self, request: web.Request, entry: CatalogEntry) -> ChainState | None:
        """Return the chain state at the head; raises `HttpRefusal` if the caller may not read the dataset any more.

        Likewise if another dataset has its name now.
        """
        readable = self._authorizer.require(self._authorizer.caller(request), entry.alias, Action.READ)
        if readable is None or readable.dataset_id != entry.dataset_id:
            raise HttpRefusal(status=404)
        return self._states.current(entry.dataset_id)


async def _send(response: web.StreamResponse, event: bytes) -> None:
    async with asyncio.timeout(WRITE_TIMEOUT_SECONDS):
        await response.write(event)


def _event(entry: CatalogEntry, state: ChainState) -> bytes:
    facts = head_facts(entry, state)
    return f"id: {state.head}\nevent: head\ndata: {json.dumps(facts)}\n\n".encode()
