"""A second engine, already warmed up, that takes over when the serving one exits.

A keeper runs workers, each with a JVM of its own. Worker and keeper communicate over a socket, which is the worker's
standard input: the worker reports that it is warm, the keeper tells it to serve. A worker whose JVM exits or hangs
exits too, even while it waits, since the keeper only sees the worker's process. If the keeper exits, its workers do as
well. If no standby is ready, the keeper exits with the worker's status, and is restarted by its supervisor.
"""

import socket
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import structlog

log = structlog.stdlib.get_logger(__name__)

READY: Final = b"r"
GO: Final = b"g"
POLL_SECONDS: Final = 0.1  # between checks
MAX_IDLE_CPU_SECONDS: Final = 0.02  # of an idle engine between two checks
WORKER_EXIT_SECONDS: Final = 10.0  # for workers to exit


class NotWanted(RuntimeError):
    """The keeper exited before it needed this worker."""


@dataclass
class Worker:
    """An engine process: the serving one or the standby."""

    process: "subprocess.Popen[bytes]"
    line: socket.socket
    is_ready: bool = False
    _spent: float = field(default=0.0, repr=False)

    @classmethod
    def start(cls, command: tuple[str, ...]) -> "Worker":
        """Start a worker, which warms up and then waits."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                process = subprocess.Popen(command, stdin=theirs.fileno())
            except BaseException:
                ours.close()
                raise
        ours.settimeout(0)
        return cls(process, ours)

    def is_alive(self) -> bool:
        """Return whether the process is running; also checks whether it has reported to be warm."""
        if not self.is_ready:
            with suppress(BlockingIOError, ConnectionError):
                self.is_ready = self.line.recv(1) == READY
        return self.process.poll() is None

    def go(self) -> None:
        """Tell the worker to serve as soon as it is warm."""
        self.line.send(GO)

    def is_busy(self) -> bool:
        """Return whether the process has used CPU time since the last call."""
        spent = processor_time(self.process.pid)
        is_busy = spent - self._spent > MAX_IDLE_CPU_SECONDS
        self._spent = spent
        return is_busy

    def end(self) -> None:
        """Terminate the process, and kill it if it does not exit in time."""
        self.process.terminate()
        try:
            self.process.wait(WORKER_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.line.close()


def keep(
    start: Callable[[], Worker],
    stop: threading.Event,
    *,
    after: float,
    now: Callable[[], float] = time.monotonic,
) -> int:
    """Keep an engine serving until `stop` is set, and return the exit status.

    A standby is started once the engine has been idle for `after` seconds.
    """
    serving, standby = start(), None
    serving.go()
    quiet_since = now()
    code = 0
    while not stop.wait(POLL_SECONDS):
        if not serving.is_alive():
            code = serving.process.returncode
            if standby is None or not standby.is_alive() or not standby.is_ready:
                break
            log.warning(
                "the standby engine takes over", ended=serving.process.pid, serves=standby.process.pid
            )
            standby.go()
            serving.line.close()
            serving, standby, quiet_since, code = standby, None, now(), 0
        elif standby is not None:
            if not standby.is_alive():
                log.warning("the standby engine has ended", status=standby.process.returncode)
                standby.line.close()
                standby, quiet_since = None, now()
        elif serving.is_busy() or not serving.is_ready:
            quiet_since = now()
        elif now() - quiet_since >= after:
            standby, quiet_since = _start_standby(start), now()
    for engine in (serving, standby):
        if engine is not None:
            engine.end()
    return 0 if stop.is_set() else code


def _start_standby(start: Callable[[], Worker]) -> Worker | None:
    try:
        return start()
    except OSError as error:  # the engine that serves needs none
        log.warning("cannot start a standby engine for now", why=str(error))
        return None


def await_turn(line: socket.socket, *, meanwhile: tuple[Callable[[threading.Event], None], ...] = ()) -> None:
    """Report that this worker is warm, and wait until the keeper tells it to serve; raises `NotWanted`.

    While it waits, each function in `meanwhile` runs in a thread.
    """
    line.settimeout(None)
    stop = threading.Event()
    for work in meanwhile:
        threading.Thread(target=work, args=(stop,), daemon=True).start()
    try:
        line.send(READY)
        signal = line.recv(1)
    except ConnectionError:
        signal = b""
    finally:
        stop.set()  # not joined: one of them may be waiting for a hanging JVM
    if signal != GO:
        raise NotWanted


def processor_time(pid: int) -> float:
    """Return the CPU time of a process and its children in seconds, 0 if it cannot be read."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    ticks = int(fields[11]) + int(fields[12])  # user and system time, in hundredths of a second
    return ticks / 100 + sum(processor_time(int(child)) for child in children)
