"""Pipe: the file through a command of this machine (spec: PrepStep::Pipe). No shell; few variables; bounded."""

import os
import select
import signal
import subprocess
import time
from pathlib import Path
from typing import IO, Final

from odf_common.errors import InvalidInput
from odf_common.metadata.fetching import PrepStepPipe
from odf_ingest.poll.errors import CommandFailed, TooLarge
from odf_ingest.poll.fetch import Context
from odf_ingest.poll.fetch.step import CHUNK_BYTES
from odf_ingest.poll.unpack.step import unpack

TIMEOUT_SECONDS: Final = 3600.0
LOOK_SECONDS: Final = 0.2  # between checks while the command writes nothing
MAX_STDERR: Final = 16 << 20  # bytes
SHOWN: Final = 500  # characters of the command's last words
PATH: Final = "/usr/local/bin:/usr/bin:/bin"


@unpack.register
def pipe(step: PrepStepPipe, file: Path, target: Path, context: Context) -> None:
    """Write what the command makes of the file; raises `CommandFailed`."""
    if not step.command:
        raise InvalidInput(where="prepare.command", text="is empty")
    stderr = target.with_suffix(".stderr")
    with file.open("rb") as source, stderr.open("w+b") as errors:
        try:
            process = subprocess.Popen(
                step.command,
                stdin=source,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=context.folder,
                env={"PATH": PATH, "HOME": str(context.folder), "LANG": "C.UTF-8"},
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            raise CommandFailed(command=step.command[0], why=f"cannot be started: {why}") from error
        try:
            _copy(step, process, target, errors, context)
        finally:
            _end(process)
        if process.returncode:
            raise CommandFailed(command=step.command[0], why=_why(process.returncode, stderr))


def _copy(
    step: PrepStepPipe, process: subprocess.Popen[bytes], target: Path, errors: IO[bytes], context: Context
) -> None:
    assert process.stdout is not None
    until, size = time.monotonic() + TIMEOUT_SECONDS, 0
    with target.open("wb") as out:
        while True:
            context.require_wanted()
            if time.monotonic() > until:
                raise CommandFailed(command=step.command[0], why=f"took longer than {TIMEOUT_SECONDS:.0f} s")
            if os.fstat(errors.fileno()).st_size > MAX_STDERR:
                raise CommandFailed(command=step.command[0], why="wrote too much to its standard error")
            if not select.select([process.stdout], [], [], LOOK_SECONDS)[0]:
                continue
            chunk = os.read(process.stdout.fileno(), CHUNK_BYTES)
            if not chunk:
                break
            size += len(chunk)
            if size > context.limits.size:
                raise TooLarge(what=f"the output of {step.command[0]}", limit=context.limits.size)
            out.write(chunk)
    process.wait(max(until - time.monotonic(), 0))


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the command and what it has started, unless it has ended."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert process.stdout is not None
    process.stdout.close()


def _why(code: int, stderr: Path) -> str:
    with stderr.open("rb") as file:
        file.seek(max(stderr.stat().st_size - SHOWN, 0))
        last = file.read().decode("utf-8", "replace").strip()
    how = f"ended by signal {-code}" if code < 0 else f"exit code {code}"
    return f"{how}: {last}" if last else how
