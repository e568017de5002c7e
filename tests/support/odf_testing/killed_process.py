"""Runs commands of sync in separate processes, and stops one, or kills it by SIGKILL before its n-th step.

A step is a change of the file system, bytes that are kept for the next attempt, or bytes that are sent to another
process, unless it is only asked for something. What is between two steps leaves nothing behind, so a kill before each
of them is a kill anywhere.

The processes are forked by one that has imported the program, has no threads, and takes orders as lines of JSON.
"""

import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Final

from urllib3 import Retry

from odf_common.service.settings import Settings
from odf_sync.repositories import http_dataset
from odf_sync.transfer import push_source, remote_chain
from odf_sync.transfer.partial_files import PartialFile
from odf_testing.sync_node import SyncNode


def freeze(process: "subprocess.Popen[bytes]") -> None:
    """Stop a child by SIGSTOP, and wait until it has stopped: until then, some of its threads still run."""
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)


CHANGES: Final = ("link", "mkdir", "rename", "replace", "rmdir", "sendfile", "unlink")
SENDING: Final = ("send", "sendall", "sendmsg")
NETWORK: Final = (socket.AF_INET, socket.AF_INET6)
SURVIVED, FAILED = 0, 1
ORDERS, LOG, ANSWERS = 0, 2, 3  # file descriptors of the process that forks
IMPORTED_LATE: Final = ("minio", "pandas", "pyarrow.parquet")  # each process would import them again
READS: Final = (b"GET ", b"HEAD ")  # requests that change nothing
QUICK: Final = Retry(1, redirect=0, backoff_factor=0.01, allowed_methods=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What a process does: `serve`, or `pull` or `push` the dataset `cities`."""

    act: str
    settings: Mapping[str, str]
    """The `ODF_…` variables of its node."""
    place: str = ""

    def node(self) -> SyncNode:
        """Return the node, as a process finds it when it starts."""
        settings = Settings.from_env(dict(self.settings))
        return SyncNode(settings.home, settings)

    def run(self) -> None:
        """Do it; a server prints its URL, and serves until a line is written to it."""
        node = self.node()
        if self.act == "pull":
            node.pull(self.place, "cities")
        elif self.act == "push":
            node.push("cities", self.place)
        else:
            with node.served() as url:
                os.write(ANSWERS, f"{url}\n".encode())
                os.read(ORDERS, 1)


class Killable:
    """Forks processes; one at a time."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        """Use a process that takes orders."""
        self._process = process

    def is_survived(self, command: Command, *, steps: int) -> bool:
        """Run a command that is killed after some steps; return whether it ended before; fails if it failed."""
        self._order(command, steps)
        return self._ended()

    @contextmanager
    def serving(self, command: Command, *, steps: int, survived: list[bool]) -> Iterator[str | None]:
        """Run a server that is killed after some steps; yield its URL, and append whether it survived.

        The URL is None if it is killed before it serves.
        """
        self._order(command, steps)
        line = self._line()
        if not line.startswith("http"):
            survived.append(_is_survivor(line))
            yield None
            return
        try:
            yield line
        finally:
            self._write("\n")
            survived.append(self._ended())

    def _order(self, command: Command, steps: int) -> None:
        self._write(json.dumps({"steps": steps, "command": asdict(command)}) + "\n")

    def _write(self, text: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(text)
        self._process.stdin.flush()

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def _ended(self) -> bool:
        return _is_survivor(self._line())


def _is_survivor(line: str) -> bool:
    status = int(line)
    assert status in (SURVIVED, -signal.SIGKILL), "the command failed: its traceback is on stderr"
    return status == SURVIVED


@contextmanager
def killable() -> Iterator[Killable]:
    """Run the process that forks others."""
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-m", __name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        yield Killable(process)
        assert process.stdin is not None
        process.stdin.close()


def be_quick(set_attribute: Callable[[object, str, object], None]) -> None:
    """Make requests to a server that has ended fail soon, and skip waiting for the disk."""
    set_attribute(http_dataset, "READ_RETRY", QUICK)
    set_attribute(push_source, "UPLOAD_RETRY", QUICK)
    set_attribute(os, "fsync", lambda _: None)


class _Steps:
    """Counts steps, and kills this process instead of the one after `left` others."""

    def __init__(self, left: int) -> None:
        self._left = left
        self._lock = threading.Lock()

    def take(self) -> None:
        with self._lock:
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            self._left -= 1

    def counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*args: Any, **named: Any) -> Any:
            self.take()
            return function(*args, **named)

        return counting

    def sending(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def counting(connection: socket.socket, *args: Any) -> Any:
            # Event loops wake themselves by other sockets.
            if connection.family in NETWORK and not _is_read(args[0]):
                self.take()
            return function(connection, *args)

        return counting

    def install(self) -> None:
        for name in CHANGES:
            setattr(os, name, self.counted(getattr(os, name)))
        for name in SENDING:
            setattr(socket.socket, name, self.sending(getattr(socket.socket, name)))
        PartialFile.write = self.counted(PartialFile.write)  # type: ignore[method-assign]
        spool = remote_chain.BlockSpool
        spool._keep = self.counted(spool._keep)  # type: ignore[method-assign]


def _is_read(sent: object) -> bool:
    return isinstance(sent, bytes | bytearray | memoryview) and bytes(sent[:5]).startswith(READS)


def _take_orders() -> None:
    for module in IMPORTED_LATE:
        importlib.import_module(module)
    gc.freeze()
    while line := _line():
        if not line.strip():
            continue  # for a server that was killed
        order = json.loads(line)
        child = os.fork()
        if not child:
            _obey(Command(**order["command"]), order["steps"])
        _, status = os.waitpid(child, 0)
        os.write(ANSWERS, f"{os.waitstatus_to_exitcode(status)}\n".encode())


def _line() -> bytes:
    """Return a line, and read no byte after it: that is for a server."""
    line = b""
    while not line.endswith(b"\n") and (byte := os.read(ORDERS, 1)):
        line += byte
    return line


def _obey(command: Command, steps: int) -> None:
    status = FAILED
    try:
        be_quick(setattr)
        _Steps(steps).install()
        command.run()
        status = SURVIVED
    except Exception:  # noqa: BLE001 - whatever it is, the test shows it
        traceback.print_exc()
    finally:
        os._exit(status)


if __name__ == "__main__":
    os.dup2(sys.stdout.fileno(), ANSWERS)
    os.dup2(LOG, sys.stdout.fileno())  # services log there
    _take_orders()
