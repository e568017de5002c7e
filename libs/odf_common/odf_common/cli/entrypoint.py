"""Where the `odf` script begins: Ctrl-C ends it with 130, also while Python is still importing the rest.

An interrupt that is raised as an exception inside of an import may be printed as a traceback or be lost, so that
meanwhile the process ends at once. Imports nothing that takes time itself.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

ABORTED = 130


@contextmanager
def importing() -> Iterator[None]:
    """Have Ctrl-C end the process at once in this block, unless it is ignored or somebody else's."""
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
    os._exit(ABORTED)
