"""The in-flight messages of one subscription: each key has its own lane.

Messages with the same key are handled in order, one at a time. A message that cannot be handled yet (for example
because its dataset is locked) is retried in its lane while other keys continue. The position of a partition advances
past a message once it and all before it are done, so messages in flight when a process dies are delivered again.
"""

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Final

import structlog

from odf_common.errors import Unavailable
from odf_common.ports.bus import ReceivedMessage
from odf_common.ports.clock import Backoff
from odf_common.service import metrics

log = structlog.stdlib.get_logger(__name__)

MAX_IN_FLIGHT: Final = 1000  # messages in flight; above that, polling pauses
GIVE_UP_AFTER_SECONDS: Final = 60.0  # then a message is dropped: its sender asks again, or reads the chain
POSTPONED_BACKOFF: Final = Backoff(first=0.05, most=2.0)

Take = Callable[[ReceivedMessage, int], None]


@dataclass(slots=True, eq=False, kw_only=True)
class _Item:
    """A message in flight."""

    message: ReceivedMessage
    position: ReceivedMessage
    """The topic, partition and offset of the message, without its key and value."""
    since: float
    tries: int = 0
    is_done: bool = False


class MessageLanes:
    """Handles messages in up to `threads` threads; if 0, in the thread that calls `put` or `settle`."""

    def __init__(
        self,
        take: Take,
        *,
        threads: int = 0,
        give_up_after: float = GIVE_UP_AFTER_SECONDS,
        limit: int = MAX_IN_FLIGHT,
    ) -> None:
        """Handle each message by `take(message, attempt)`, where `attempt` counts from 1.

        `take` raises `Unavailable` to be called again with the message later; after `give_up_after` seconds of retries
        the message is dropped. Up to `limit` messages should be in flight (see `has_room`).
        """
        self._take = take
        self._give_up_after = give_up_after
        self._limit = limit
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="lane") if threads else None
        self._lanes: dict[bytes, deque[_Item]] = {}
        self._later: dict[bytes, float] = {}
        self._partitions: defaultdict[int, deque[_Item]] = defaultdict(deque)
        self._in_hand = 0
        self._failure: BaseException | None = None
        self._is_closed = False
        self._changed = threading.Condition()

    @property
    def is_idle(self) -> bool:
        """Return whether no message is in flight."""
        return self._in_hand == 0

    def has_room(self, timeout: float) -> bool:
        """Return whether another message may be put, after waiting up to `timeout` seconds for room."""
        with self._changed:
            return self._changed.wait_for(lambda: self._in_hand < self._limit, timeout)

    def put(self, message: ReceivedMessage) -> None:
        """Handle a message after all messages in flight with the same key."""
        item = _Item(message=message, position=replace(message, key=b"", value=b""), since=time.monotonic())
        with self._changed:
            self._partitions[message.partition].append(item)
            self._in_hand += 1
            lane = self._lanes.get(message.key)
            if lane is not None:
                lane.append(item)
                return
            self._lanes[message.key] = deque((item,))
        self._begin(message.key)

    def settle(self) -> list[ReceivedMessage]:
        """Start the retries that are due; return the positions that can be committed, at most one per partition.

        A position is that of the last message of its partition which is finished and has no unfinished message before
        it. Raises whatever a handler raised, except `Unavailable`.
        """
        now = time.monotonic()
        with self._changed:
            if self._failure is not None:
                raise self._failure
            due = [key for key, retry_at in self._later.items() if retry_at <= now and not self._is_closed]
            for key in due:
                del self._later[key]
            done = [
                message
                for items in self._partitions.values()
                if (message := _drop_finished(items)) is not None
            ]
        for key in due:
            self._begin(key)
        return done

    def close(self) -> None:
        """Start no more handlers; return when the running ones have finished."""
        with self._changed:
            self._is_closed = True
        if self._pool is not None:
            self._pool.shutdown(wait=True)  # lanes that are queued see that it is closed

    def _begin(self, key: bytes) -> None:
        if self._pool is None:
            self._run(key)
        else:
            self._pool.submit(self._run, key)

    def _run(self, key: bytes) -> None:
        """Handle the messages of a lane until the lane is empty or its first message has to be retried later."""
        while True:
            with self._changed:
                if self._is_closed:
                    return
                item = self._lanes[key][0]
            try:
                self._take(item.message, item.tries + 1)
            except Unavailable as error:
                if self._is_postponed(key, item, error):
                    return
            except BaseException as error:  # noqa: BLE001 - raised again by `settle`, on the reader's thread
                with self._changed:
                    self._failure = error
                return
            if self._is_emptied(key, item):
                return

    def _is_postponed(self, key: bytes, item: _Item, error: Unavailable) -> bool:
        """Schedule a retry of the message and return True; return False once it has been retried for long enough."""
        metrics.RETRIES.labels(error.code).inc()
        item.tries += 1
        now = time.monotonic()
        if item.tries == 1:
            log.warning("message postponed", topic=item.position.topic, key=_text(key), why=str(error))
        if now - item.since >= self._give_up_after:
            metrics.MESSAGES.labels(item.position.topic, "given up").inc()
            log.error(
                "message given up",
                topic=item.position.topic,
                key=_text(key),
                tries=item.tries,
                why=str(error),
            )
            return False
        with self._changed:
            self._later[key] = now + POSTPONED_BACKOFF.pause(item.tries)
        return True

    def _is_emptied(self, key: bytes, item: _Item) -> bool:
        """Remove the first message of its lane; return whether the lane is now empty."""
        with self._changed:
            item.is_done = True
            self._in_hand -= 1
            lane = self._lanes[key]
            lane.popleft()
            if not lane:
                del self._lanes[key]
            self._changed.notify_all()
            return not lane


def _drop_finished(items: deque[_Item]) -> ReceivedMessage | None:
    """Drop finished messages from the front of a partition; return the position of the last one, if any."""
    last: ReceivedMessage | None = None
    while items and items[0].is_done:
        last = items.popleft().position
    return last


def _text(key: bytes) -> str:
    return key.decode(errors="replace")
