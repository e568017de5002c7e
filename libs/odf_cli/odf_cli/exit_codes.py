"""Exit codes of the `odf` command, and Ctrl-C, which exits with 130 even while Python is importing modules.

An interrupt that is raised as an exception during an import may print a traceback or get lost. So the process exits at
once instead. This module imports nothing slow.
"""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from types import FrameType
from typing import Self


class ExitCode(IntEnum):
    """An exit code of the command, with its meaning for the reference documentation."""

    OK = 0, "success"
    FAILED = 1, "refused or failed"
    MISUSE = 2, "misuse: an unknown command or option, or a value of the wrong form"  # click's own
    VERIFICATION_FAILED = 3, "verification failed"
    NOT_EQUAL = 4, "compared and not equal"
    ABORTED = 130, "ended by Ctrl-C"  # 128 + SIGINT, as shells report it

    meaning: str

    def __new__(cls, value: int, meaning: str) -> Self:
        """Create a member from its number and meaning."""
        code = int.__new__(cls, value)
        code._value_ = value
        code.meaning = meaning
        return code


@contextmanager
def importing() -> Iterator[None]:
    """Make Ctrl-C exit the process at once during the `with` block, unless Ctrl-C is ignored or has another handler.

    After the block Ctrl-C raises `KeyboardInterrupt`, and errors in background threads are no longer printed.
    """
    if signal.getsignal(signal.SIGINT) not in (signal.default_int_handler, _interrupt):
        yield
        return
    signal.signal(signal.SIGINT, _abort)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, _interrupt)


@contextmanager
def keeping_interrupts() -> Iterator[None]:
    """Raise `KeyboardInterrupt` instead of an error that was caused by Ctrl-C.

    `threading.Condition`, on which gRPC waits, is not safe against interrupts. Occasionally its lock is not released,
    and the error "cannot release un-acquired lock" replaces the interrupt.
    """
    try:
        yield
    except Exception as error:
        if _is_caused_by_interrupt(error):
            raise KeyboardInterrupt from error
        raise


def _is_caused_by_interrupt(error: BaseException) -> bool:
    waiting: list[BaseException | None] = [error]
    seen: set[int] = set()
    while waiting:
        cause = waiting.pop()
        if isinstance(cause, KeyboardInterrupt):
            return True
        if cause is not None and id(cause) not in seen:
            seen.add(id(cause))
            waiting += (cause.__cause__, cause.__context__)
    return False


def _abort(_number: int, _frame: FrameType | None) -> None:
    os.write(2, b"\naborted\n")
    os._exit(ExitCode.ABORTED)


def _interrupt(number: int, frame: FrameType | None) -> None:
    # The calls that are ended now fail in gRPC's threads, too, which would print tracebacks.
    threading.excepthook = lambda _: None
    signal.default_int_handler(number, frame)
