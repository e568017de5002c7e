"""The messages of one subscription that are in hand: each key has a lane of its own.

Within a key messages are handled in order, one at a time. A message that cannot be handled yet (its dataset is locked,
say) waits in its lane and is tried again, while other keys continue. The position of a partition moves over a message
once it and all before it are done, so what was in hand when a process ended comes again.
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
from odf_common.ports.bus import Received
from odf_common.service import metrics

log = structlog.stdlib.get_logger(__name__)

LIMIT: Final = 1000  # messages in hand; then no further ones are taken
PATIENCE_SECONDS: Final = 60.0  # then a message is given up: its sender asks again, or looks at the chain
BACK_OFF_SECONDS: Final = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)

Take = Callable[[Received, int], None]


@dataclass(slots=True, eq=False, kw_only=True)
class _Item:
    """A message in hand."""

    message: Received
    at: Received
    """Where it lay, without what it said."""
    since: float
    tries: int = 0
    is_done: bool = False


class Lanes:
    """Handles messages in up to `threads` threads, with none on the thread that puts them in."""

    def __init__(
        self, take: Take, *, threads: int = 0, patience: float = PATIENCE_SECONDS, limit: int = LIMIT
    ) -> None:
        """Handle with `take`, which is given a message and the number of the attempt and may raise `Unavailable`."""
        self._take = take
        self._patience = patience
        self._limit = limit
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="lane") if threads else None
        self._lanes: dict[bytes, deque[_Item]] = {}
        self._later: dict[bytes, float] = {}
        self._partitions: defaultdict[int, deque[_Item]] = defaultdict(deque)
        self._in_hand = 0
        self._failure: BaseException | None = None
        self._is_closed = False
        self._changed = threading.Condition()

    def has_room(self, timeout: float) -> bool:
        """Tell whether one more message may be put in, now or within `timeout` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: self._in_hand < self._limit, timeout)

    def put(self, message: Received) -> None:
        """Handle a message after those of its key that are in hand."""
        item = _Item(message=message, at=replace(message, key=b"", value=b""), since=time.monotonic())
        with self._changed:
            self._partitions[message.partition].append(item)
            self._in_hand += 1
            lane = self._lanes.get(message.key)
            if lane is not None:
                lane.append(item)
                return
            self._lanes[message.key] = deque((item,))
        self._begin(message.key)

    def settle(self) -> list[Received]:
        """Try again what is due; return the last message of each partition up to which all have become done.

        Raises what a handler raised beyond `Unavailable`.
        """
        now = time.monotonic()
        with self._changed:
            if self._failure is not None:
                raise self._failure
            due = [key for key, at in self._later.items() if at <= now and not self._is_closed]
            for key in due:
                del self._later[key]
            done = [at for items in self._partitions.values() if (at := _passed(items)) is not None]
        for key in due:
            self._begin(key)
        return done

    def close(self) -> None:
        """Begin nothing more; returns when what was begun has ended."""
        with self._changed:
            self._is_closed = True
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def _begin(self, key: bytes) -> None:
        if self._pool is None:
            self._run(key)
        else:
            self._pool.submit(self._run, key)

    def _run(self, key: bytes) -> None:
        """Handle the messages of a lane until it is empty, or the first of them has to wait."""
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
        """Have the message tried again later, unless that has been done for long enough."""
        metrics.RETRIES.labels(error.code).inc()
        item.tries += 1
        now = time.monotonic()
        if item.tries == 1:
            log.warning("message waits", topic=item.at.topic, key=_text(key), why=str(error))
        if now - item.since >= self._patience:
            metrics.MESSAGES.labels(item.at.topic, "given up").inc()
            log.error(
                "message given up", topic=item.at.topic, key=_text(key), tries=item.tries, why=str(error)
            )
            return False
        with self._changed:
            self._later[key] = now + BACK_OFF_SECONDS[min(item.tries, len(BACK_OFF_SECONDS)) - 1]
        return True

    def _is_emptied(self, key: bytes, item: _Item) -> bool:
        """Take the first message out of its lane; True when it was the last."""
        with self._changed:
            item.is_done = True
            self._in_hand -= 1
            lane = self._lanes[key]
            lane.popleft()
            if not lane:
                del self._lanes[key]
            self._changed.notify_all()
            return not lane


def _passed(items: deque[_Item]) -> Received | None:
    """Drop what is done from the front; return the last of it."""
    last: Received | None = None
    while items and items[0].is_done:
        last = items.popleft().at
    return last


def _text(key: bytes) -> str:
    return key.decode(errors="replace")
