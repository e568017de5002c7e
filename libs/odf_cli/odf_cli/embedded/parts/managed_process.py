"""Runs one part of the node: starts it, detects when it is ready, and restarts it when it exits."""

import asyncio
import contextlib
import errno
import fcntl
import os
import signal
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from odf_cli.embedded.parts.log_excerpt import log_excerpt
from odf_cli.embedded.parts.log_files import open_log, rotate
from odf_common.adapters.local.durable import keep_files_private
from odf_common.metadata.scalars import Timestamp
from odf_common.ports.clock import Backoff
from odf_common.service.die_with_parent import with_parent_death_signal
from odf_common.service.probes import Probe

PROBE_SECONDS: Final = 0.1
LIVENESS_SECONDS: Final = 10.0  # between liveness probes; each costs one or two milliseconds
SILENCE_SECONDS: Final = 20.0  # without an answer to them until a part is unresponsive; a machine may be busy
RESTART: Final = Backoff(first=0.2, most=10.0)  # between an exit and the next start
STEADY_SECONDS: Final = 10.0  # a part that ran this long did not fail at startup
MAX_FAILED_STARTS: Final = 3  # exits before it was ever ready
_NO_SPACE: Final = "free some space on the disk"
_NO_FILES: Final = "raise the limit of open files (`ulimit -n`) and start the node again"
_NO_PROCESS: Final = "free memory, or raise the limit of processes (`ulimit -u`) and start the node again"
REMEDIES: Final[Mapping[int | None, str]] = {
    errno.ENOSPC: _NO_SPACE,
    errno.EDQUOT: _NO_SPACE,
    errno.EMFILE: _NO_FILES,
    errno.ENFILE: _NO_FILES,
    errno.EAGAIN: _NO_PROCESS,
    errno.ENOMEM: _NO_PROCESS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PartSpec:
    """The command and probes of a part.

    `prepare` is awaited before each start.
    """

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    probe: Probe
    liveness: Probe | None = None
    """Checks whether the part still responds once it has been ready; by default `probe`."""
    prepare: Callable[[], Awaitable[None]] | None = None
    is_service: bool = False
    is_ours: bool = False
    """Whether the process is one of this project, which sets its own umask and records the user's."""
    is_elsewhere: Callable[[], bool] = lambda: False
    """Whether another process, such as one in the foreground, runs the part now, so that it is not started."""


class PartProcess:
    """Keeps a part running. `state` is one of the states of `node_file.Part`."""

    def __init__(self, spec: PartSpec, logs: Path, on_change: Callable[[], None]) -> None:
        """Prepare a part, which `run` starts; `on_change` is called after each change of its state or pid."""
        self.spec = spec
        self.log = logs / f"{spec.name}.log"
        self.state = "starting"
        self.since = _now()
        self.pid: int | None = None
        self.has_failed = False
        self.problem: str | None = None
        self.remedy: str | None = None
        self._on_change = on_change
        self._was_ready = False
        self._failures = 0
        self._is_rotated = False
        self._stopping = False
        self._ended = asyncio.Event()
        self._ended.set()

    async def run(self) -> None:
        """Keep the part running until `stop` is called.

        If the operating system refuses to start it, the start is retried.
        """
        while not self._stopping:
            begun, is_started, remedy = time.monotonic(), True, None
            try:
                problem = _why_ended(await self._once())
            # Python reports a thread that cannot be started as a RuntimeError.
            except (OSError, RuntimeError) as error:
                is_started, (problem, remedy) = False, _describe(error)
            if self._stopping:
                return
            self._failures = 0 if time.monotonic() - begun > STEADY_SECONDS else self._failures + 1
            if not self._was_ready and self._failures >= MAX_FAILED_STARTS:
                self.has_failed = True
            state = self._starting if is_started else "failed"
            self._change(state, None, problem=problem, remedy=remedy)
            await asyncio.sleep(RESTART.pause(self._failures))

    async def stop(self, grace: float) -> None:
        """Stop the part by SIGTERM, and after `grace` seconds kill its process group."""
        self._stopping = True
        pid = self.pid
        if pid is not None:
            signal_group(pid, signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), grace)
            signal_group(pid, signal.SIGKILL)
        await self._ended.wait()
        self._change("stopped", None)

    def tail(self) -> str:
        """Return the last lines of the part's log in readable form; empty if the log cannot be read."""
        try:
            text = self.log.read_text(errors="replace")
        except OSError:
            return ""
        return "\n".join(log_excerpt(text))

    async def _once(self) -> int | None:
        """Start the part, and return its exit code after it has exited; None if `stop` was called before the start."""
        if not self._is_rotated:
            rotate(self.log)
            self._is_rotated = True
        while self.spec.is_elsewhere() and not self._stopping:
            if self.state != "foreground":
                self._change("foreground", None)
            await asyncio.sleep(PROBE_SECONDS)
        if self.state == "foreground":
            self._change("restarting", None)
        if self.spec.prepare is not None:
            await self.spec.prepare()
        if self._stopping:
            return None
        self._ended.clear()  # from here on `stop` waits, although there is no pid yet
        try:
            process = await self._spawn()
            return await self._until_exit(process)
        finally:
            self._ended.set()

    async def _until_exit(self, process: asyncio.subprocess.Process) -> int:
        probing = asyncio.create_task(self._probe())
        try:
            if not self._stopping:
                problem = self.problem if self.state == "restarting" else None
                self._change(self._starting, process.pid, problem=problem)
                await process.wait()
        finally:
            probing.cancel()
            # Its child processes end with it.
            signal_group(process.pid, signal.SIGKILL)
            code = await process.wait()
        return code

    async def _spawn(self) -> asyncio.subprocess.Process:
        with open_log(self.log) as log:
            return await asyncio.create_subprocess_exec(
                *with_parent_death_signal(self.spec.command),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.spec.environment,
                umask=keep_files_private() if self.spec.is_ours else -1,
                start_new_session=True,
            )

    async def _probe(self) -> None:
        while not await self.spec.probe():  # noqa: ASYNC110 - what is waited for is another process
            await asyncio.sleep(PROBE_SECONDS)
        if not self._stopping:
            self._was_ready = True
            self._change("ready", self.pid)
            await self._watch(self.spec.liveness or self.spec.probe)

    async def _watch(self, is_responding: Probe) -> None:
        """Set the state to `unresponsive` while a ready part does not answer its liveness probe.

        The process is not killed: it may be stopped for debugging, or be busy with long work on a slow machine.
        """
        answered, since = time.monotonic(), _now()
        while True:
            await asyncio.sleep(LIVENESS_SECONDS)
            is_alive = await is_responding()
            if self._stopping:
                return
            if is_alive:
                answered, since = time.monotonic(), _now()
                if self.state == "unresponsive":
                    self._change("ready", self.pid)
            elif self.state == "ready" and time.monotonic() - answered >= SILENCE_SECONDS:
                problem = "it answers no health check; its process may hang or be stopped"
                remedy = f"if it does not recover, `kill -9 {self.pid}`: the node restarts it"
                self._change("unresponsive", self.pid, problem=problem, remedy=remedy, since=since)

    @property
    def _starting(self) -> str:
        return "restarting" if self._was_ready else "starting"

    def _change(
        self,
        state: str,
        pid: int | None,
        *,
        problem: str | None = None,
        remedy: str | None = None,
        since: str | None = None,
    ) -> None:
        if state != self.state:
            self.since = since or _now()
        self.state, self.pid, self.problem, self.remedy = state, pid, problem, remedy
        self._on_change()


def _why_ended(code: int | None) -> str | None:
    """Return a sentence with the signal that killed a process, which its log does not show; None if it exited."""
    if code is None or code >= 0:
        return None
    return f"its process was ended by signal {-code} ({signal.strsignal(-code)})"


def _describe(error: OSError | RuntimeError) -> tuple[str, str]:
    """Return the reason why a part could not be started, and the remedy."""
    number = error.errno if isinstance(error, OSError) else errno.EAGAIN
    file = error.filename if isinstance(error, OSError) else None
    why = (error.strerror if isinstance(error, OSError) else None) or str(error)
    remedy = REMEDIES.get(number) or (f"make sure that {file} can be written" if file else "remove the cause")
    return f"{file}: {why}" if file else why, f"{remedy}; the start is retried every few seconds"


def _now() -> str:
    return str(Timestamp.from_ms(int(time.time()) * 1000))


@contextmanager
def held_in_foreground(home: Path, name: str) -> Iterator[None]:
    """Lock a part for the foreground during the `with` block; raises `BlockingIOError` if it is locked already.

    The supervisor does not start a locked part.
    """
    file = home / "locks" / f"foreground-{name}"
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


def is_in_foreground(home: Path, name: str) -> bool:
    """Return whether a part runs in the foreground of a terminal."""
    try:
        with held_in_foreground(home, name):
            return False
    except BlockingIOError:
        return True


def signal_group(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, number)
