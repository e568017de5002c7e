"""Container: what an image writes to its standard output (spec: FetchStep::Container), by podman or docker.

The image gets the state of the last block (`ODF_ETAG`, `ODF_LAST_MODIFIED`, empty at first), and writes that of the
next to files whose paths are in variables. While it also creates the file of `ODF_NEW_HAS_MORE_DATA_PATH`, it is run
again.

A command of a polling source: no shell, few variables, limits on time and output; what it started ends with it.
"""

import hashlib
import os
import re
import select
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import IO, Final

from odf_common.errors import InvalidInput
from odf_common.hashing.multihash import Multihash
from odf_common.metadata.events import SourceState
from odf_common.metadata.fetching import EnvVar, FetchStepContainer
from odf_common.metadata.scalars import Timestamp
from odf_ingest.poll.fetch.fetch_step import CHUNK_BYTES, Context, FetchedFile, fetch
from odf_ingest.poll.poll_errors import CommandFailed, NoContainerEngine, SourceRefusedRequest, TooLarge
from odf_ingest.poll.polled_position import DIGEST, ETAG, LAST_MODIFIED, state_of

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


ENGINES: Final = ("podman", "docker")
ENGINE_VARIABLES: Final = (
    "HOME", "XDG_RUNTIME_DIR", "DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG", "CONTAINER_HOST", "CONTAINERS_CONF",
    "CONTAINERS_STORAGE_CONF", "REGISTRY_AUTH_FILE",
)  # fmt: skip
MOUNTED: Final = "/odf/out"
BATCH_RECORDS: Final = 10_000  # that an image is asked for at once
MAX_STATE_BYTES: Final = 64 << 10
REMOVE_SECONDS: Final = 30.0
STOP_SECONDS: Final = 1  # between the request to end and SIGKILL, when podman removes a container
_IMAGE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]*", re.ASCII)
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Result:
    """The output of a run, and its new state."""

    output: Path
    state: SourceState | None
    modified: Timestamp | None
    has_more: bool


@fetch.register
def container(step: FetchStepContainer, context: Context) -> Generator[FetchedFile]:
    """Yield the output of each run that has something new."""
    engine = _engine(context.environ)
    last, before = context.last, context.position.last
    while True:
        context.report(f"container {step.image}")
        result = _run(engine, step, context, last)
        state = result.state or state_of(DIGEST, str(_digest(result.output)))
        is_empty = result.output.stat().st_size == 0
        if state != last and (result.state is not None or not is_empty):
            yield FetchedFile(
                label=f"container {step.image}",
                file=result.output,
                event_time=context.event_time(None, "", result.modified),
                state=state,
                is_read=lambda position, before=before: position.last != before,  # type: ignore[misc]
                is_empty=is_empty,
            )
            before = state
        elif result.has_more:
            text = f"container {step.image} says that it has more data, and gives no new state"
            raise SourceRefusedRequest(text=text)
        if not result.has_more:
            return
        last = state


def _engine(environ: Mapping[str, str]) -> str:
    for name in ENGINES:
        program = shutil.which(name, path=environ.get("PATH", PATH))
        if program is not None:
            return program
    raise NoContainerEngine


def _run(engine: str, step: FetchStepContainer, context: Context, last: SourceState | None) -> _Result:
    """Run the image once; the container is removed even if the poll ends before it."""
    out = context.folder / "out"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    out.chmod(0o777)  # the image may have its own user; the folder above is closed to other users
    name = f"odf-{uuid.uuid4().hex}"
    environ = {"PATH": context.environ.get("PATH", PATH), "LANG": "C.UTF-8"}
    environ |= {name: context.environ[name] for name in ENGINE_VARIABLES if name in context.environ}
    target = context.folder / "fetched"
    line = [engine, "run", "--rm", "--name", name, *_options(step, context.folder, out, last)]
    command = Command(line=line, label=f"{Path(engine).name} run {step.image}", environ=environ)
    is_over = False
    try:
        command.run(subprocess.DEVNULL, target, context)
        is_over = True
    finally:
        if not is_over:
            # The command is only the client: the container would continue.
            with suppress(OSError, subprocess.SubprocessError):
                subprocess.run(
                    [engine, "rm", "--force", name],
                    env=environ,
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    check=False,
                    timeout=REMOVE_SECONDS,
                )
    return _result(target, out)


def _options(step: FetchStepContainer, folder: Path, out: Path, last: SourceState | None) -> list[str]:
    """Return the options, the image, and what is passed to it; values of variables are in a file, not in the line."""
    if _IMAGE.fullmatch(step.image) is None:
        raise InvalidInput(where="fetch.image", text=f"not the name of an image: {step.image!r}")
    variables = folder / "variables"
    variables.touch(mode=0o600)
    variables.write_text(
        "".join(f"{name}={value}\n" for name, value in _variables(step.env or (), last).items())
    )
    command = step.command or ()
    return [
        "--security-opt=no-new-privileges",
        f"--stop-timeout={STOP_SECONDS}",
        f"--volume={out}:{MOUNTED}:rw",
        f"--env-file={variables}",
        *(f"--entrypoint={argument}" for argument in command[:1]),
        step.image,
        *command[1:],
        *(step.args or ()),
    ]


def _variables(own: tuple[EnvVar, ...], last: SourceState | None) -> Mapping[str, str]:
    variables = {variable.name: variable.value or "" for variable in own}
    for name, value in variables.items():
        if _NAME.fullmatch(name) is None or not value.replace("\t", "").isprintable():
            raise InvalidInput(
                where="fetch.env", text=f"{name!r} is not a name, or its value not one printable line"
            )
    return variables | {
        "ODF_ETAG": last.value if last is not None and last.kind == ETAG else "",
        "ODF_LAST_MODIFIED": last.value if last is not None and last.kind == LAST_MODIFIED else "",
        "ODF_NEW_ETAG_PATH": f"{MOUNTED}/new-etag",
        "ODF_NEW_LAST_MODIFIED_PATH": f"{MOUNTED}/new-last-modified",
        "ODF_NEW_HAS_MORE_DATA_PATH": f"{MOUNTED}/new-has-more-data",
        "ODF_BATCH_SIZE": str(BATCH_RECORDS),
    }


def _result(output: Path, out: Path) -> _Result:
    etag, text = _read_written(out / "new-etag"), _read_written(out / "new-last-modified")
    modified = None if text is None else _time(text)
    state = None if etag is None else state_of(ETAG, etag)
    if state is None and modified is not None:
        state = state_of(LAST_MODIFIED, str(modified))
    return _Result(
        output=output, state=state, modified=modified, has_more=(out / "new-has-more-data").exists()
    )


def _read_written(file: Path) -> str | None:
    """Return the content of a file that the image has written; None if it is empty. Links are not followed."""
    if file.is_symlink() or not file.is_file():
        return None
    with file.open("rb") as opened:
        raw = opened.read(MAX_STATE_BYTES + 1)
    try:
        text = raw.decode().strip()
    except UnicodeDecodeError as error:
        raise InvalidInput(where=file.name, text="is not UTF-8") from error
    if len(raw) > MAX_STATE_BYTES:
        raise InvalidInput(where=file.name, text=f"has more than {MAX_STATE_BYTES} bytes")
    return text or None


def _time(text: str) -> Timestamp:
    try:
        return Timestamp.parse(text)
    except InvalidInput:
        pass
    try:
        return Timestamp.from_datetime(parsedate_to_datetime(text))
    except (ValueError, TypeError, OverflowError, InvalidInput) as error:
        raise InvalidInput(
            where="new-last-modified", text=f"expected a time as RFC 3339 or as in HTTP, got {text[:100]!r}"
        ) from error


def _digest(file: Path) -> Multihash:
    digest = hashlib.sha3_256()
    with file.open("rb") as opened:
        while chunk := opened.read(CHUNK_BYTES):
            digest.update(chunk)
    return Multihash.sha3(digest.digest())
