"""Orphaned processes of a killed supervisor: usually none, unless the machine was very busy."""

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
    """Remove unfinished files of killed parts; no process may be running in `home`."""
    for name in ("scratch", "staging"):
        shutil.rmtree(home / name, ignore_errors=True)


def end_leftovers(home: Path) -> None:
    """Kill all orphaned processes of this home's node; none is left on return."""
    pids = tuple(leftovers(home))
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + EXIT_TIMEOUT_SECONDS
    while any(is_running(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.02)


def leftovers(home: Path) -> Iterator[int]:
    """Iterate over the pids of this home's parts and of their child processes.

    They are identified by environment variables that only the supervisor sets.
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
