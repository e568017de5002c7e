"""`odf` commands in processes that are forked from one that has imported their modules.

Starting an interpreter and importing modules takes most of a command's time, and tests run hundreds.
"""

import multiprocessing
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from multiprocessing.connection import wait
from pathlib import Path
from typing import Final

from odf_cli.entrypoint import main
from odf_cli.main import COMMANDS, MODULES, PACKAGE

_SERVER: Final = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload([__name__, *{f"{PACKAGE}.{MODULES.get(name, name)}" for name in COMMANDS}])
# Starting a process polls all running ones, and the status of one can be read only once.
_lock: Final = threading.Lock()


def run_warm(
    words: Sequence[str], environment: Mapping[str, str], stdin: bytes, timeout: float
) -> "subprocess.CompletedProcess[bytes]":
    """Run `odf WORDS` with this standard input; raises `TimeoutExpired` after `timeout` seconds."""
    with tempfile.TemporaryDirectory() as folder:
        given, *said = (Path(folder, name) for name in ("stdin", "stdout", "stderr"))
        given.write_bytes(stdin)
        process = _SERVER.Process(target=_run, args=(words, dict(environment), given, *said))
        with _lock:
            process.start()
        is_over = bool(wait([process.sentinel], timeout))
        with _lock:
            if not is_over:
                process.kill()
            process.join()
        if not is_over:
            raise subprocess.TimeoutExpired(["odf", *words], timeout)
        stdout, stderr = (file.read_bytes() if file.exists() else b"" for file in said)
        assert process.exitcode is not None
        return subprocess.CompletedProcess(["odf", *words], process.exitcode, stdout, stderr)


def _run(
    words: Sequence[str], environment: Mapping[str, str], stdin: Path, stdout: Path, stderr: Path
) -> None:
    for number, file, flags in (
        (0, stdin, os.O_RDONLY),
        (1, stdout, os.O_WRONLY | os.O_CREAT),
        (2, stderr, os.O_WRONLY | os.O_CREAT),
    ):
        handle = os.open(file, flags, 0o600)
        os.dup2(handle, number)
        os.close(handle)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - until the process ends
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["odf", *words]
    main()
