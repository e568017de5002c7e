"""A server as a process, whose memory and open files are measured from outside."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Server:
    url: str
    pid: int

    def peak(self) -> int:
        """Return the most bytes that it has had in memory since `forget_peak`."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        (line,) = (line for line in lines if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024

    def forget_peak(self) -> int:
        """Begin a new measurement; return the bytes that it has in memory now."""
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")
        return self.peak()

    def unnamed_bytes(self) -> int:
        """Return how many bytes its open files without a name have, such as those of `TemporaryFile`."""
        found = 0
        for handle in Path(f"/proc/{self.pid}/fd").iterdir():
            with suppress(OSError):  # it was closed meanwhile
                if str(handle.readlink()).endswith("(deleted)"):
                    found += os.stat(handle).st_size  # noqa: PTH116 - what it refers to, which has no path
        return found


@contextmanager
def measured(script: Path, *arguments: object) -> Iterator[Server]:
    """Run a script that prints the port at which it serves HTTP, and ends with its standard input."""
    command = [sys.executable, str(script), *map(str, arguments)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield Server(f"http://127.0.0.1:{int(process.stdout.readline())}", process.pid)
        finally:
            process.kill()
