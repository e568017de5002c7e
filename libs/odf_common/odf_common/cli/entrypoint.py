"""The entry point of the `odf` script: Ctrl-C exits with 130, even while Python is still importing modules.

An interrupt raised as an exception during an import may print a traceback or get lost, so the process exits at once
instead. This module imports nothing slow itself.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from odf_common.cli.exit_codes import ExitCode


@contextmanager
def importing() -> Iterator[None]:
    """Let Ctrl-C exit the process at once in this block, unless it is ignored or has another handler."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, _abort)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def main() -> int:
    """Run the command; returns the exit code."""
    with importing():
        from odf_common.cli import main as cli
    return cli.main()


def _abort(_number: int, _frame: FrameType | None) -> None:
    os.write(2, b"\naborted\n")
    os._exit(ExitCode.ABORTED)
