"""Simulated processes in one process: one runs at a time, and each can be killed or paused before any of its writes.

Every run is determined by its inputs, so a failure can be repeated. Time passes only when an actor waits.
"""

import threading
import time
from collections.abc import Callable
from typing import Final

import pytest

from odf_testing.killer import Killed, Killer

_HERE: Final = threading.local()
# In real time: an actor that runs for longer waits for an event that never happens.
STUCK_SECONDS: Final = 60.0


class Actor:
    """A thread that runs when `go` is called, until it pauses, ends, or is killed."""

    def __init__(self, body: Callable[[], object]) -> None:
        """Create the thread; it starts with the first `go`."""
        self.kill_after: int | None = None
        self.pause_after: int | None = None
        self.is_dead = False
        self.is_ending = False  # killed from outside, with all that it calls
        self.is_over = False
        self.error: BaseException | None = None
        self.result: object = None
        self._body = body
        self._mine = threading.Semaphore(0)
        self._theirs = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def go(self) -> None:
        """Run until the next pause or the end."""
        assert not self.is_over
        self._mine.release()
        assert self._theirs.acquire(timeout=STUCK_SECONDS), "an actor waits for what never comes"
        if self.is_over:
            self._thread.join()

    def kill(self) -> None:
        """Kill it at its current position: it writes nothing more."""
        self.is_dead = self.is_ending = True
        if not self.is_over:
            self.go()

    def pause(self) -> None:
        """Let other actors run; called by the actor."""
        if self.is_dead:  # although the code caught that
            raise Killed
        self._theirs.release()
        self._mine.acquire()
        if self.is_dead:
            raise Killed

    def step(self) -> None:
        """Count a write; die or pause before it."""
        if self.is_dead:
            raise Killed
        if self.kill_after is not None:
            self.kill_after -= 1
            if self.kill_after < 0:
                self.kill_after, self.is_dead = None, True
                raise Killed
        if self.pause_after is not None:
            self.pause_after -= 1
            if self.pause_after < 0:
                self.pause_after = None
                self.pause()

    def _run(self) -> None:
        _HERE.actor = self
        self._mine.acquire()
        try:
            if not self.is_dead:
                self.result = self._body()
        except Killed:
            self.is_dead = True
        except BaseException as error:  # noqa: BLE001 - reported to the caller of `go`
            self.error = error
        self.is_over = True
        self._theirs.release()


def current_actor() -> Actor | None:
    """Return the running actor."""
    return getattr(_HERE, "actor", None)


class ActorKiller(Killer):
    """Makes the running actor count its writes."""

    def step(self) -> None:
        """Count a write."""
        actor = current_actor()
        if actor is not None:
            actor.step()


class VirtualTime:
    """A clock that only advances by waiting; threads that earlier tests left behind keep the real one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Replace the clocks and sleeps of the code under test."""
        self.now = 1000.0
        began = time.time() - self.now
        creator = threading.current_thread()

        def replace(name: str, ours: Callable[..., object]) -> None:
            real = getattr(time, name)

            def chosen(*seconds: float) -> object:
                is_ours = current_actor() is not None or threading.current_thread() is creator
                return ours(*seconds) if is_ours else real(*seconds)

            monkeypatch.setattr(time, name, chosen)

        replace("monotonic", lambda: self.now)
        replace("time", lambda: began + self.now)
        replace("sleep", self.sleep)

    def sleep(self, seconds: float) -> None:
        """Advance the time."""
        self.now += seconds
