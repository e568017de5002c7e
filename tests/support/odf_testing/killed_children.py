"""Processes of a test that are killed while they use the store of resources."""

import os
import signal
import traceback
from collections.abc import Callable
from itertools import count

from sqlalchemy import Engine, event

FAILED = 1


def fork(work: Callable[[], None]) -> int:
    """Run a function in another process; return its id."""
    child = os.fork()
    if child:
        return child
    try:
        work()
    except BaseException:  # noqa: BLE001 - the test shows it
        traceback.print_exc()
        os._exit(FAILED)
    os._exit(0)


def is_survivor(child: int) -> bool:
    """Wait for a process, and return whether it was not killed; fails if it failed."""
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) in (0, -signal.SIGKILL)
    return status == 0


def kill_before(statement: int) -> None:
    """Kill this process before its n-th statement; a commit and a rollback count as one."""
    numbers = count()

    def step(*_: object) -> None:
        if next(numbers) == statement:
            os.kill(os.getpid(), signal.SIGKILL)

    for name in ("before_cursor_execute", "after_cursor_execute", "commit"):
        event.listen(Engine, name, step)
