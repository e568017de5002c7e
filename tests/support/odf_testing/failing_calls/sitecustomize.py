"""Lets a test fail one system call of a service: whatever library makes it, as the kernel itself would.

The process installs a seccomp filter whose listener is `handler.py`, a process of its own. That takes neither rights nor
a compiler. Only services of a home with the folder `failing-calls` are concerned; children inherit the filter.
"""

import ctypes
import os
import socket
import struct
import subprocess
import sys
from pathlib import Path
from typing import Final

FOLDER: Final = "failing-calls"
SERVICES: Final = frozenset(
    {"odf_ingest", "odf_coordinator", "odf_coordinator.views", "odf_engine_spark", "odf_sync", "odf_verifier"}
)
SECCOMP: Final = {"x86_64": 317, "aarch64": 277}
PR_SET_NO_NEW_PRIVS: Final = 38
SECCOMP_SET_MODE_FILTER: Final = 1
SECCOMP_FILTER_FLAG_NEW_LISTENER: Final = 8
ALLOW: Final = 0x7FFF0000
NOTIFY: Final = 0x7FC00000
LOAD, EQUALS, RETURN = 0x20, 0x15, 0x06  # BPF
NUMBER_AT: Final = 0  # of struct seccomp_data
FILE_OF_MMAP_AT: Final = 48  # the low half of its fifth argument
ANONYMOUS: Final = 0xFFFFFFFF


class _Filter(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p))


def _program(numbers: list[int], mmap: int) -> bytes:
    """Return a filter that reports these calls, and mappings of files."""
    steps = [(LOAD, 0, 0, NUMBER_AT), (EQUALS, 0, 2, mmap), (LOAD, 0, 0, FILE_OF_MMAP_AT)]
    steps.append((EQUALS, len(numbers), len(numbers) + 1, ANONYMOUS))
    steps += [(EQUALS, len(numbers) - index, 0, number) for index, number in enumerate(numbers)]
    steps += [(RETURN, 0, 0, ALLOW), (RETURN, 0, 0, NOTIFY)]
    return b"".join(struct.pack("HBBI", *step) for step in steps)


def _install(module: str, home: str) -> None:
    from odf_testing.failing_calls import handler

    ours, theirs = socket.socketpair()
    words = [
        sys.executable,
        "-I",
        handler.__file__,
        str(theirs.fileno()),
        home,
        module,
        str(os.getpid()),
    ]
    subprocess.run(words, pass_fds=(theirs.fileno(),), env={}, check=True)  # it goes on in the background
    theirs.close()
    numbers = dict(handler.numbers_of_this_machine())
    mmap = numbers.pop("mmap")
    program = ctypes.create_string_buffer(_program(list(numbers.values()), mmap))
    filter_ = _Filter(len(program) // 8, ctypes.addressof(program))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    listener = libc.syscall(
        SECCOMP[os.uname().machine],
        SECCOMP_SET_MODE_FILTER,
        SECCOMP_FILTER_FLAG_NEW_LISTENER,
        ctypes.byref(filter_),
    )
    if listener < 0:
        raise OSError(ctypes.get_errno(), "no seccomp listener")
    socket.send_fds(ours, [b"x"], [listener])
    os.close(listener)
    ours.close()


def _module() -> str:
    """Return the module that `python -m` runs; during its start, only the command line has it."""
    words = sys.orig_argv
    return words[words.index("-m") + 1] if "-m" in words[:-1] else ""


_home = os.environ.get("ODF_HOME", "")
if _home and _module() in SERVICES and (Path(_home) / FOLDER).is_dir():
    _install(_module(), _home)
