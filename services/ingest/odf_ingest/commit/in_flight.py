"""Pushes in flight: canceled by key, and joined by a push of the same bytes to the same source.

A client that gave up and retries has another key, so only the content shows that its first push is still running.
"""

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYetError
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final

from odf_common.errors import Refused
from odf_common.identity.did import DatasetId
from odf_common.metadata.scalars import Timestamp
from odf_ingest.commit.committer import Outcome

CALLER_POLL_SECONDS: Final = 0.2  # seconds between checks whether a waiting caller is still connected
CHUNK_BYTES: Final = 1024 * 1024  # per comparison

CANCELLED: Final = "Cancelled"
IsWanted = Callable[[], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The identity of a push, in addition to its bytes; `event_time` is None if the client gave none."""

    dataset: DatasetId
    source: str
    event_time: Timestamp | None
    input_format: str = ""
    size: int


@dataclass(slots=True, kw_only=True, eq=False)
class _Caller:
    key: str
    is_there: Callable[[], bool]
    has_withdrawn: bool = False

    def wants_it(self) -> bool:
        return not self.has_withdrawn and self.is_there()


@dataclass(slots=True, kw_only=True, eq=False)
class _Push:
    target: Target
    content: BinaryIO  # kept open: the client may remove the file when it exits
    callers: list[_Caller]
    outcome: "Future[Outcome]" = field(default_factory=Future)

    def is_wanted(self) -> bool:
        return any(caller.wants_it() for caller in list(self.callers))


class PushesInFlight:
    """All pushes running in this process; thread-safe."""

    def __init__(self) -> None:
        self._pushes: list[_Push] = []
        self._lock = threading.Lock()

    def withdraw(self, key: str) -> bool:
        """Cancel the pushes with a key; return whether there are any. A push joined by others continues."""
        with self._lock:
            callers = [caller for push in self._pushes for caller in push.callers if caller.key == key]
            for caller in callers:
                caller.has_withdrawn = True
            return bool(callers)

    def run(
        self,
        target: Target,
        file: Path,
        commit: Callable[[IsWanted], Outcome],
        *,
        key: str,
        is_there: Callable[[], bool],
        may_join: bool,
    ) -> Outcome:
        """Return the outcome of `commit`, or, as not new, of an identical push in flight.

        `commit` gets a function that returns whether any caller still wants it. Raises what it raises.
        """
        caller = _Caller(key=key, is_there=is_there)
        with file.open("rb") as content:
            if may_join:
                same = self._join(target, content, caller)
                if same is not None:
                    return _await(same, caller)
            push = _Push(target=target, content=content, callers=[caller])
            with self._registering(push):
                try:
                    outcome = commit(push.is_wanted)
                except BaseException as error:
                    push.outcome.set_exception(error)
                    raise
                push.outcome.set_result(outcome)
                return outcome

    def _join(self, target: Target, content: BinaryIO, caller: _Caller) -> _Push | None:
        """Join an identical push in flight and return it."""
        with self._lock:
            candidates = [push for push in self._pushes if push.target == target]
        for push in candidates:
            # Outside of the lock: comparing large files takes long.
            if not _are_same(push.content, content):
                continue
            with self._lock:
                # It may have ended, or lost its last caller, during the comparison.
                if push in self._pushes and push.is_wanted():
                    push.callers.append(caller)
                    return push
        return None

    @contextmanager
    def _registering(self, push: _Push) -> Iterator[None]:
        with self._lock:
            self._pushes.append(push)
        try:
            yield
        finally:
            with self._lock:
                self._pushes.remove(push)


def cancellation() -> Refused:
    """Return the error of a push that was canceled in time."""
    return Refused(reason=CANCELLED, text="cancelled; nothing was committed")


def _await(push: _Push, caller: _Caller) -> Outcome:
    while caller.wants_it():
        try:
            outcome = push.outcome.result(CALLER_POLL_SECONDS)
        except NotYetError:
            continue
        return Outcome(state=outcome.state, count=0, is_new=False)
    raise cancellation()


def _are_same(left: BinaryIO, right: BinaryIO) -> bool:
    """Return whether two files have the same bytes, without using or changing their positions."""
    offset = 0
    try:
        while chunk := os.pread(left.fileno(), CHUNK_BYTES, offset):
            if chunk != os.pread(right.fileno(), CHUNK_BYTES, offset):
                return False
            offset += len(chunk)
    except (ValueError, OSError):  # the other push has ended in the meantime and closed its file
        return False
    return not os.pread(right.fileno(), 1, offset)
