"""Pulls in progress by the Smart Transfer Protocol: which of them may be ended when others need the places.

A client keeps its exchange open while it downloads objects, which may take hours. A pull is idle while its client sends
nothing, and its caller downloads no object of the dataset from this node.
"""

import time
from collections import Counter as Tally
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from aiohttp.web import Request

from odf_common.identity.did import DatasetId

IDLE_PULL_SECONDS: Final = 60.0  # a shorter pause says nothing
DIRECT_SECONDS: Final = 900.0  # of a pull whose objects are downloaded from a bucket, unseen by this node


@dataclass(eq=False, slots=True, kw_only=True)
class OpenPull:
    """An exchange."""

    request: Request
    caller: Hashable
    dataset: DatasetId
    clock: Callable[[], float] = time.monotonic
    is_direct: bool = False
    """Whether its client was given URLs of a bucket."""
    idle_since: float | None = None
    """None while something is done for it."""

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Wait for the client inside the block."""
        self.idle_since = self.clock()
        try:
            yield
        finally:
            self.idle_since = None

    def note_use(self) -> None:
        """Note that the client does something, while it is waited for."""
        if self.idle_since is not None:
            self.idle_since = self.clock()


class OpenPulls:
    """The pulls that are in progress; used in the event loop only."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._open: list[OpenPull] = []
        self._downloads: Tally[tuple[Hashable, DatasetId]] = Tally()

    @contextmanager
    def opened(self, request: Request, caller: Hashable, dataset: DatasetId) -> Iterator[OpenPull]:
        """Yield a pull, which is in progress until the end of the block."""
        pull = OpenPull(request=request, caller=caller, dataset=dataset, clock=self._clock)
        self._open.append(pull)
        try:
            yield pull
        finally:
            self._open.remove(pull)

    @contextmanager
    def downloading(self, caller: Hashable, dataset: DatasetId) -> Iterator[None]:
        """Download an object inside the block; no pull of the dataset by this caller is idle meanwhile."""
        self._downloads[caller, dataset] += 1
        try:
            yield
        finally:
            self._downloads[caller, dataset] -= 1
            self._downloads += Tally()  # forgets those that have ended
            for pull in self._open:
                if (pull.caller, pull.dataset) == (caller, dataset):
                    pull.note_use()

    def longest_idle(self, caller: Hashable | None = None) -> OpenPull | None:
        """Return the pull of a caller, or of any, that has been idle for longest; None if none has been for long."""
        idle = [
            (pull.idle_since, number, pull)
            for number, pull in enumerate(self._open)
            if caller in (None, pull.caller)
            and pull.idle_since is not None
            and self._may_end(pull, pull.idle_since)
        ]
        return min(idle)[2] if idle else None

    def _may_end(self, pull: OpenPull, since: float) -> bool:
        seconds = DIRECT_SECONDS if pull.is_direct else IDLE_PULL_SECONDS
        return self._clock() - since > seconds and not self._downloads[pull.caller, pull.dataset]
