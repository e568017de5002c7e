"""A command of a polling source: no shell, few variables, limits on time and output; what it started ends with it."""

import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from odf_ingest.poll.fetch.fetch_step import CHUNK_BYTES, Context
from odf_ingest.poll.poll_errors import CommandFailed, TooLarge

TIMEOUT_SECONDS: Final = 3600.0
LOOK_SECONDS: Final = 0.2  # between checks while the command writes nothing
MAX_STDERR_BYTES: Final = 16 << 20
SHOWN_CHARACTERS: Final = 500  # of the command's last words
PATH: Final = "/usr/local/bin:/usr/bin:/bin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command to run; `label` stands for it in errors."""

    line: Sequence[str]
    label: str
    environ: Mapping[str, str]

    def run(self, stdin: IO[bytes] | int, target: Path, context: Context) -> None:
        """Write its output to `target`; raises `CommandFailed`, `TooLarge`, `PollCancelled`."""
        stderr = target.with_suffix(".stderr")
        with stderr.open("w+b") as errors:
            try:
                process = subprocess.Popen(
                    self.line,
                    stdin=stdin,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    cwd=context.folder,
                    env=self.environ,
                    start_new_session=True,
                )
            except (OSError, ValueError) as error:
                why = error.strerror if isinstance(error, OSError) else str(error)
                raise self._failure(f"cannot be started: {why}") from error
            try:
                self._copy(process, target, errors, context)
            finally:
                _end(process)
            if process.returncode:
                raise self._failure(_why(process.returncode, stderr))

    def _copy(
        self, process: subprocess.Popen[bytes], target: Path, errors: IO[bytes], context: Context
    ) -> None:
        assert process.stdout is not None
        until, size = time.monotonic() + TIMEOUT_SECONDS, 0
        output = select.poll()  # select() takes no more than 1,024 open files
        output.register(process.stdout, select.POLLIN)
        with target.open("wb") as out:
            while True:
                context.require_wanted()
                if time.monotonic() > until:
                    raise self._failure(f"took longer than {TIMEOUT_SECONDS:.0f} s")
                if os.fstat(errors.fileno()).st_size > MAX_STDERR_BYTES:
                    raise self._failure("wrote too much to its standard error")
                if not output.poll(LOOK_SECONDS * 1000):
                    continue
                chunk = os.read(process.stdout.fileno(), CHUNK_BYTES)
                if not chunk:
                    break
                size += len(chunk)
                if size > context.limits.size:
                    raise TooLarge(what=f"the output of {self.label}", limit=context.limits.size)
                out.write(chunk)
        process.wait(max(until - time.monotonic(), 0))

    def _failure(self, why: str) -> CommandFailed:
        return CommandFailed(command=self.label, why=why)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the command and what it has started, unless it has ended."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert process.stdout is not None
    process.stdout.close()


def _why(code: int, stderr: Path) -> str:
    with stderr.open("rb") as file:
        file.seek(max(stderr.stat().st_size - SHOWN_CHARACTERS, 0))
        last = file.read().decode("utf-8", "replace").strip()
    how = f"ended by signal {-code}" if code < 0 else f"exit code {code}"
    return f"{how}: {last}" if last else how
