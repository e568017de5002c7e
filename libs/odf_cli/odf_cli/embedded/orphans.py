"""Processes and files that a killed supervisor has left; usually none, as its parts are killed with it."""

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from odf_cli.embedded.node_file import is_running

EXIT_TIMEOUT_SECONDS: Final = 5.0


def sweep(home: Path) -> None:
    """Delete the unfinished files of killed parts; no process may be running in `home`."""
    for name in ("scratch", "staging"):
        shutil.rmtree(home / name, ignore_errors=True)


def end_leftovers(home: Path) -> None:
    """Kill all processes that an earlier node of this home has left, and wait until they are gone."""
    pids = tuple(leftovers(home))
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + EXIT_TIMEOUT_SECONDS
    while any(is_running(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.02)


def leftovers(home: Path) -> Iterator[int]:
    """Yield the pids of this home's parts and of their child processes, except of this process.

    They are recognized by environment variables that only the supervisor sets.
    """
    mark = f"ODF_HOME={home}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environment = (folder / "environ").read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        is_part = any(variable.startswith(b"ODF_PART=") for variable in environment)
        if is_part and mark in environment and int(folder.name) != os.getpid():
            yield int(folder.name)
