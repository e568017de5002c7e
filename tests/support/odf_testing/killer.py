"""A process that is killed at its n-th write, for tests within one process.

`Killed` is no `Exception`, so nothing but `finally` sees it, and whatever `finally` would still write is not written:
a dead process writes nothing. What the kernel does for a dead process (closing files, which releases locks) is done.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest

WRITES: Final = ("link", "mkdir", "rename", "replace", "rmdir", "unlink")


class Killed(BaseException):
    """The process is dead."""


class Killer:
    """Counts durable writes while it is armed, and kills before the one that is chosen."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Have each write to the file system counted; syncing takes no time."""
        self.writes = 0
        self._left: int | None = None
        for name in WRITES:
            monkeypatch.setattr(os, name, self.counted(getattr(os, name)))
        monkeypatch.setattr(os, "fsync", self.counted(lambda _: None))

    def counted(self, write: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function so that it counts as a write, such as a request that changes something elsewhere."""

        def counting(*args: object, **named: object) -> object:
            self.step()
            return write(*args, **named)

        return counting

    def step(self) -> None:
        """Count one write; raises `Killed` in place of the one chosen, and of all after it."""
        self.writes += 1
        if self._left is not None:
            if self._left == 0:
                raise Killed
            self._left -= 1

    @contextmanager
    def after(self, writes: int) -> Iterator[None]:
        """Let so many writes through."""
        self._left = writes
        try:
            yield
        finally:
            self._left = None
