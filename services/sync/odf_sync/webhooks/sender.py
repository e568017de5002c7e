"""Posts the events of webhooks in one task per webhook, so that a slow or dead receiver does not delay the others.

A task reads the chain when a notification arrives, and every minute in case one was lost. It has at most one attempt in
flight, of limited duration. A failed event is retried with growing delays, even after a restart, and not before the
receiver's `Retry-After`. Only 2xx is a success; 410 removes the webhook. Redirects are not followed, and the body of a
response is not read.
"""

import asyncio
import re
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Final, TypeVar

import aiohttp
import structlog
from aiohttp.hdrs import RETRY_AFTER
from yarl import URL

from odf_common.adapters.networks import AddressForbidden, Networks, open_socket
from odf_common.errors import OdfError, with_advice
from odf_common.ports.clock import Clock
from odf_sync.http.head_events import Bell, HeadWatch
from odf_sync.webhooks.deliveries import METHOD, Deliveries
from odf_sync.webhooks.webhook_store import LONGEST_RETRY_MS, Outcome, Webhook

log = structlog.stdlib.get_logger(__name__)

ATTEMPT_SECONDS: Final = 10.0  # from the name's resolution to the answer's status
CHAIN_CHECK_SECONDS: Final = 60.0  # between looks at a chain without a notification
NAME_THREADS: Final = 64  # resolving names; those of a dead name server must not delay what is read here
STORE_THREADS: Final = 8  # reading chains, and storing deliveries
DELAY_SECONDS: Final = re.compile(r"[0-9]{1,9}")
SUCCESS: Final = range(200, 300)
REDIRECTS: Final = range(300, 400)
HEADERS: Final = {"User-Agent": "odf", "Accept": "*/*", "Accept-Encoding": "identity"}

T = TypeVar("T")
Tasks = dict[str, asyncio.Task[None]]


class WebhookPoster:
    """Posts one message at a time to a receiver, and connects only to allowed addresses."""

    def __init__(self, networks: Networks, clock: Clock) -> None:
        """Read `Retry-After` by a clock."""
        self._networks, self._clock = networks, clock

    def post(self, url: str, body: bytes, headers: dict[str, str]) -> Outcome:
        """Post a message and return the outcome, for callers without an event loop."""

        async def run() -> Outcome:
            async with self.session() as session:
                return await self.attempt(url, body, headers, session)

        return asyncio.run(run())

    async def attempt(
        self, url: str, body: bytes, headers: dict[str, str], session: aiohttp.ClientSession
    ) -> Outcome:
        """Post a message; the outcome has the reason of a failure."""
        try:
            async with (
                asyncio.timeout(ATTEMPT_SECONDS),
                session.request(
                    METHOD, URL(url, encoded=True), data=body, headers=headers, allow_redirects=False
                ) as answer,
            ):
                return self._outcome(answer.status, answer.headers.get(RETRY_AFTER, ""))
        except (aiohttp.ClientError, OSError, ValueError, AddressForbidden) as error:
            return Outcome(error=_reason(error))

    def _outcome(self, status: int, retry_after: str) -> Outcome:
        if status in SUCCESS:
            return Outcome()
        return Outcome(
            error=f"status {status}" + ("; redirects are not followed" if status in REDIRECTS else ""),
            pause_ms=pause_ms(retry_after, self._clock.now().ms),
            is_unwanted=status == HTTPStatus.GONE,
        )

    def session(self) -> aiohttp.ClientSession:
        """Return a session whose connections are checked."""
        connector = aiohttp.TCPConnector(
            limit=0,  # one connection per webhook at most
            force_close=True,
            use_dns_cache=False,
            resolver=aiohttp.ThreadedResolver(),
            happy_eyeballs_delay=None,
            socket_factory=self._socket,
        )
        return aiohttp.ClientSession(
            connector=connector,
            headers=HEADERS,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            timeout=aiohttp.ClientTimeout(total=None),  # `attempt` limits the whole
        )

    def _socket(self, target: aiohttp.AddrInfoType) -> socket.socket:
        """Return a socket for an address that is about to be connected to; raises `AddressForbidden`."""
        address = target[4]
        self._networks.require(str(address[0]), str(address[0]))
        return open_socket(target)


class WebhookSender:
    """Runs one delivery task per webhook."""

    def __init__(self, deliveries: Deliveries, heads: HeadWatch, poster: WebhookPoster) -> None:
        """Post by `poster`."""
        self._deliveries = deliveries
        self._heads = heads
        self._poster = poster
        self._changes: Bell | None = None
        self._threads = ThreadPoolExecutor(STORE_THREADS, "webhooks")

    def run(self, stop: threading.Event) -> None:
        """Deliver events until `stop` is set; may be called again after an error."""
        asyncio.run(self._run(stop))

    def end(self, stop: threading.Event) -> None:
        """Block until `stop` is set, then wake up `run` so that it returns."""
        # Not in a thread of the loop: a loop that ends by an error waits for all of its threads.
        stop.wait()
        self.notice_change()

    def notice_change(self) -> None:
        """Start and stop tasks after a webhook was added or removed; callable from any thread."""
        if self._changes is not None:
            self._changes.ring()

    async def _run(self, stop: threading.Event) -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(NAME_THREADS, "webhook-names"))
        self._changes = changes = Bell()
        tasks: Tasks = {}
        async with self._poster.session() as session:
            while True:
                changes.clear()
                if stop.is_set():
                    break
                try:
                    await self._reconcile(tasks, session)
                except OdfError as error:
                    log.warning("cannot read webhooks", code=error.code, why=with_advice(error))
                await _wait(changes, CHAIN_CHECK_SECONDS)
            for task in tasks.values():
                task.cancel()
            await asyncio.gather(*tasks.values(), return_exceptions=True)

    async def _reconcile(self, tasks: Tasks, session: aiohttp.ClientSession) -> None:
        """Start a task for each new webhook, and cancel those of removed ones; raises the error of a failed task."""
        hooks = {hook.id: hook for hook in await self._in_thread(self._deliveries.store.all)}
        for id in tuple(tasks):  # noqa: A001
            if tasks[id].done():
                tasks.pop(id).result()
            elif id not in hooks:
                tasks.pop(id).cancel()
        for id in hooks.keys() - tasks.keys():  # noqa: A001
            tasks[id] = asyncio.create_task(self._follow(hooks[id], session))

    async def _follow(self, hook: Webhook, session: aiohttp.ClientSession) -> None:
        """Deliver the events of one webhook until the webhook is removed."""
        current: Webhook | None = hook
        with self._heads.waiting(hook.dataset) as bell:
            while current is not None:
                # While an event is retried, moves of the head wait for the next attempt.
                await asyncio.sleep(self._delay_seconds(current))
                bell.clear()
                try:
                    current = await self._advance(current, session)
                except OdfError as error:
                    log.warning("webhook waits", webhook=hook.id, code=error.code, why=with_advice(error))
                    await _wait(bell, CHAIN_CHECK_SECONDS)
                else:
                    if current is not None and not current.delivery.is_pending:
                        await _wait(bell, CHAIN_CHECK_SECONDS)

    async def _advance(self, hook: Webhook, session: aiohttp.ClientSession) -> Webhook | None:
        """Make one attempt to deliver the newest event, if any.

        Returns the webhook after it, None if the webhook has ended.
        """
        look = await self._in_thread(self._deliveries.next_delivery, hook)
        if look is None or look.body is None:
            return None if look is None else look.hook
        headers = await self._in_thread(self._deliveries.headers, look.hook, look.body)
        outcome = await self._poster.attempt(look.hook.url, look.body, headers, session)
        return await self._in_thread(self._deliveries.settle, look.hook, outcome)

    async def _in_thread(self, call: Callable[..., T], *args: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call, *args)

    def _delay_seconds(self, hook: Webhook) -> float:
        # A clock that was set back must not suspend a webhook.
        return min(max(hook.delivery.next_ms - self._deliveries.clock.now().ms, 0), LONGEST_RETRY_MS) / 1000


def pause_ms(retry_after: str, now_ms: int) -> int:
    """Return the delay of a `Retry-After` header (seconds or a date), in ms; 0 if it is missing or malformed."""
    text = retry_after.strip()
    if DELAY_SECONDS.fullmatch(text):
        return int(text) * 1000
    try:
        return max(int(parsedate_to_datetime(text).timestamp() * 1000) - now_ms, 0)
    except (ValueError, OverflowError, OSError):
        return 0


async def _wait(bell: Bell, seconds: float) -> None:
    with suppress(TimeoutError):
        await asyncio.wait_for(bell.wait(), seconds)


def _reason(error: Exception) -> str:
    """Return the reason why no response was received."""
    match error:
        case AddressForbidden():
            return with_advice(error)
        case TimeoutError():
            return f"no answer in {ATTEMPT_SECONDS:g} s"
        case aiohttp.ClientConnectorDNSError():
            return "its host name cannot be resolved"
        case aiohttp.ClientConnectorCertificateError() | aiohttp.ClientConnectorSSLError():
            return f"TLS: {error}"
        case aiohttp.ClientConnectorError():
            return f"no connection: {error.os_error.strerror or error.os_error}"
        case aiohttp.ServerDisconnectedError() | ConnectionError():
            return "the connection was interrupted"
        case _:
            return type(error).__name__
