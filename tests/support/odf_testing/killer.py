"""Kills a simulated process at its n-th write, for tests within one process.

`Killed` is no `Exception`, so only `finally` handles it, and what `finally` tries to write is not written: a dead
process writes nothing. What the kernel does for a dead process (closing files, which releases locks) is done.
"""

import gc
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from typing import Any, Final
from zlib import crc32

import pytest

WRITES: Final = ("link", "mkdir", "rename", "replace", "rmdir", "unlink")


class Killed(BaseException):
    """The process was killed."""


def first_write(stride: int, *test: object) -> int:
    """Return the first of the writes at which a test kills, one of each `stride`: others for other tests."""
    return crc32(repr(test).encode()) % stride


class Inline(Executor):
    """Runs a task when it is submitted; `Killed` is raised there, and not kept for a result that no caller asks for."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        """Return the task's result or error."""
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - as any executor
            future.set_exception(error)
        return future


class Killer:
    """Counts durable writes while it is armed, and kills before the chosen one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Count each write to the file system; fsync takes no time."""
        self.writes = 0
        self._left: int | None = None
        for name in WRITES:
            monkeypatch.setattr(os, name, self.counted(getattr(os, name)))
        monkeypatch.setattr(os, "fsync", self.counted(lambda _: None))

    def counted(self, write: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function wrapped to count as a write, such as a request that changes something elsewhere."""

        def counting(*args: object, **named: object) -> object:
            self.step()
            return write(*args, **named)

        return counting

    def step(self) -> None:
        """Count a write; raises `Killed` instead of the chosen one, and of all later ones."""
        self.writes += 1
        if self._left is not None:
            if self._left == 0:
                raise Killed
            self._left -= 1

    @contextmanager
    def after(self, writes: int) -> Iterator[None]:
        """Let that many writes pass."""
        gc.disable()  # finalizers of other tests' folders do not count as writes of this process
        self._left = writes
        try:
            yield
        finally:
            self._left = None
            gc.enable()
