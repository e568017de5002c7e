"""Decides about each system call of a service: it is made, or fails as a test has ordered.

An order is a file named like the service's module in `failing-calls`: `{"errno": "EIO", "after": 7}`
fails the eighth call that has this error. `MODULE.calls` then lists the calls since the order, one a line; the one that
failed is marked.
"""

import errno
import fcntl
import json
import os
import select
import socket
import struct
import sys
from pathlib import Path
from typing import Any, Final

FOLDER: Final = "failing-calls"
FAILED: Final = "failed "
RECEIVE, SEND = 0xC0502100, 0xC0182101  # SECCOMP_IOCTL_NOTIF_…
CONTINUE: Final = 1
AT_FDCWD: Final = 0xFFFFFF9C
CLONE_THREAD: Final = 0x00010000
PATH_BYTES: Final = 4096
PROTECTED: Final = (FOLDER, "logs/")  # a log that takes no line cannot say so

# Numbers on x86_64 and aarch64, which lacks some; the argument with the path or file (negative: of a folder before it).
_CALLS: Final[dict[str, tuple[int | None, int | None]]] = {
    "accept4": (288, 242),
    "clone": (56, 220),
    "clone3": (435, 435),
    "fallocate": (285, 47),
    "fdatasync": (75, 83),
    "fsync": (74, 82),
    "ftruncate": (77, 46),
    "getdents64": (217, 61),
    "link": (86, None),
    "linkat": (265, 37),
    "lstat": (6, None),
    "mkdir": (83, None),
    "mkdirat": (258, 34),
    "mmap": (9, 222),
    "newfstatat": (262, 79),
    "open": (2, None),
    "openat": (257, 56),
    "pread64": (17, 67),
    "pwrite64": (18, 68),
    "read": (0, 63),
    "rename": (82, None),
    "renameat": (264, 38),
    "renameat2": (316, 276),
    "rmdir": (84, None),
    "sendfile": (40, 71),
    "socket": (41, 198),
    "stat": (4, None),
    "statx": (332, 291),
    "unlink": (87, None),
    "unlinkat": (263, 35),
    "write": (1, 64),
    "writev": (20, 66),
}
_BY_PATH: Final = frozenset({"link", "lstat", "mkdir", "open", "rename", "rmdir", "stat", "unlink"})
_BY_FOLDER: Final = frozenset(
    {"linkat", "mkdirat", "newfstatat", "openat", "renameat", "renameat2", "statx", "unlinkat"}
)
_SOCKETS: Final = frozenset({"accept4", "socket"})
_STARTS: Final = frozenset({"clone", "clone3"})
_CREATES: Final = frozenset({"link", "linkat", "mkdir", "mkdirat", "rename", "renameat", "renameat2"})
_REMOVES: Final = frozenset({"rmdir", "unlink", "unlinkat"})
_WRITES: Final = frozenset({"fallocate", "fdatasync", "fsync", "ftruncate", "pwrite64", "write", "writev"})
_READS: Final = frozenset({"getdents64", "pread64", "read", "sendfile"})
_ASKS: Final = frozenset({"lstat", "newfstatat", "stat", "statx"})
_OPENS: Final = frozenset({"open", "openat"})
_FAIL_WITH: Final = {
    "ENOSPC": _CREATES | _WRITES | _OPENS,
    "EIO": _CREATES | _REMOVES | _WRITES | _READS | _ASKS | _OPENS,
    "EAGAIN": _STARTS,
    "EMFILE": _OPENS | _SOCKETS,
    "ENOMEM": _CREATES | _REMOVES | _ASKS | _OPENS | {"getdents64", "mmap", "socket"},
}


def numbers_of_this_machine() -> dict[str, int]:
    """Return the number of each call."""
    column = ("x86_64", "aarch64").index(os.uname().machine)
    return {name: number for name, numbers in _CALLS.items() if (number := numbers[column]) is not None}


class Handler:
    """Answers the calls of one service until it has ended."""

    def __init__(self, listener: int, home: str, module: str, pid: int) -> None:
        """Fail nothing before there is an order."""
        self._listener = listener
        self._home = home.rstrip("/") + "/"
        self._pid = pid
        self._order = Path(home) / FOLDER / module
        self._names = {number: name for name, number in numbers_of_this_machine().items()}
        self._seen: tuple[int, int] | None = None
        self._errno, self._left = "", -1
        self._owners: dict[int, int] = {}
        self._calls: Any = None

    def run(self) -> None:
        """Answer until no process is left that has the filter."""
        poll = select.poll()
        poll.register(self._listener, select.POLLIN)
        while True:
            for _, events in poll.poll():
                if events & select.POLLIN:
                    self._answer()
                elif events & (select.POLLHUP | select.POLLERR):
                    return

    def _answer(self) -> None:
        raw = bytearray(80)
        try:
            fcntl.ioctl(self._listener, RECEIVE, raw)
        except OSError:  # the process was killed in the meantime
            return
        id_, pid, _, number, _, _, *args = struct.unpack("QIIiIQ6Q", raw)
        failure = self._failure(pid, self._names[number], args)
        flags = 0 if failure else CONTINUE
        try:
            fcntl.ioctl(self._listener, SEND, bytearray(struct.pack("QqiI", id_, 0, -failure, flags)))
        except OSError:
            return

    def _failure(self, pid: int, name: str, args: list[int]) -> int:
        """Return the number of the error with which a call fails; 0 to make it."""
        self._read_order()
        if self._calls is None or name not in _FAIL_WITH[self._errno] or self._owner(pid) != self._pid:
            return 0
        subject = self._subject(pid, name, args)
        if subject is None or (self._errno == "ENOSPC" and not _may_need_space(name, args)):
            return 0
        is_failing = self._left == 0
        self._left -= 1
        self._calls.write(f"{FAILED if is_failing else ''}{name} {subject}\n")
        self._calls.flush()
        return int(getattr(errno, self._errno)) if is_failing else 0

    def _read_order(self) -> None:
        try:
            status = self._order.stat()
        except OSError:
            self._calls = None
            return
        seen = status.st_ino, status.st_mtime_ns
        if seen != self._seen or self._calls is None:
            order = json.loads(self._order.read_bytes())
            self._seen, self._errno, self._left = seen, order["errno"], order["after"]
            self._calls = self._order.with_name(f"{self._order.name}.calls").open("w")  # until the next order

    def _owner(self, thread: int) -> int:
        """Return the process of a thread."""
        if thread not in self._owners:
            text = Path(f"/proc/{thread}/status").read_text()
            self._owners[thread] = int(text.partition("\nTgid:")[2].split(None, 1)[0])
        return self._owners[thread]

    def _subject(self, pid: int, name: str, args: list[int]) -> str | None:
        """Return the path within the home, or that it is a socket; None for everything else."""
        if name == "socket":
            return "network" if args[0] in (socket.AF_INET, socket.AF_INET6) else None
        if name == "accept4":
            return "network"
        if name in _STARTS:
            flags = args[0] if name == "clone" else _number(pid, args[0])
            return "thread" if flags & CLONE_THREAD else None
        try:
            path = self._path(pid, name, args)
        except OSError:
            return None
        if not path.startswith(self._home):
            return None
        within = path[len(self._home) :]
        return None if within.startswith(PROTECTED) else within

    def _path(self, pid: int, name: str, args: list[int]) -> str:
        if name in _BY_PATH:
            return _absolute(pid, AT_FDCWD, _text(pid, args[0]))
        if name in _BY_FOLDER:
            return _absolute(pid, args[0] & 0xFFFFFFFF, _text(pid, args[1]))
        file = {"mmap": 4, "sendfile": 1}.get(name, 0)
        return str(Path(f"/proc/{pid}/fd/{args[file] & 0xFFFFFFFF}").readlink())


def _may_need_space(name: str, args: list[int]) -> bool:
    """Return whether a call may create something."""
    if name not in _OPENS:
        return True
    return bool(args[1 if name == "open" else 2] & os.O_CREAT)


def _number(pid: int, address: int) -> int:
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        memory.seek(address)
        return int.from_bytes(memory.read(8), sys.byteorder)


def _text(pid: int, address: int) -> str:
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        memory.seek(address)
        # Up to the end of the page first: the next one may not exist.
        raw = memory.read(PATH_BYTES - address % PATH_BYTES)
        if b"\0" not in raw:
            raw += memory.read(PATH_BYTES)
    return os.fsdecode(raw.partition(b"\0")[0])


def _absolute(pid: int, folder: int, path: str) -> str:
    if path.startswith("/"):
        return path
    base = Path(f"/proc/{pid}/cwd" if folder == AT_FDCWD else f"/proc/{pid}/fd/{folder}").readlink()
    return f"{base}/{path}" if path else str(base)


def _main(channel: int, home: str, module: str, pid: int) -> None:
    if os.fork():  # no process waits for this one, nor does a signal to the service's group end it
        return
    os.setsid()
    with socket.socket(fileno=channel) as connection:
        _, (listener,), _, _ = socket.recv_fds(connection, 1, 1)
    Handler(listener, home, module, pid).run()


if __name__ == "__main__":
    _main(int(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]))
