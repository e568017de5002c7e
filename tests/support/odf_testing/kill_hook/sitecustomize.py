"""Lets a test kill a service by SIGKILL at its n-th change of the file system: before it, or after it.

The process is armed by a file named like its module in the folder `$KILL_HOOK`, with the number of changes to survive,
and `before` or `after`. It removes the file at its next change, which is the first that counts.
"""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

CHANGES: Final = ("fsync", "link", "mkdir", "rename", "replace", "rmdir", "unlink")


class _Hook:
    def __init__(self, order: Path) -> None:
        self._order = str(order)
        self._rename = os.rename
        self._left: int | None = None
        self._is_before = True
        for name in CHANGES:
            setattr(os, name, self._counted(getattr(os, name)))

    def _counted(self, change: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*args: object, **named: object) -> object:
            is_last = self._is_last()
            if is_last and self._is_before:
                os.kill(os.getpid(), signal.SIGKILL)
            done = change(*args, **named)
            if is_last:
                os.kill(os.getpid(), signal.SIGKILL)
            return done

        return counting

    def _is_last(self) -> bool:
        taken = f"{self._order}.taken"
        try:
            self._rename(self._order, taken)
        except OSError:
            pass
        else:
            with open(taken) as file:  # noqa: PTH123 - pathlib would be counted
                count, when = file.read().split()
            self._left, self._is_before = int(count), when == "before"
        if self._left is None:
            return False
        self._left -= 1
        return self._left < 0


def _module() -> str:
    """Return the module that `python -m` runs; during its start, only the command line has it."""
    words = sys.orig_argv
    return words[words.index("-m") + 1] if "-m" in words[:-1] else ""


if _folder := os.environ.get("KILL_HOOK"):
    _Hook(Path(_folder) / (_module() or "none"))
