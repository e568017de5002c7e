"""The supervisor: one process that runs all parts of a home, publishes their addresses, and stops them together."""

import asyncio
import contextlib
import fcntl
import logging
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Self

import structlog

from odf_cli.embedded.checks import require_home, require_kafka, require_redis, require_store
from odf_cli.embedded.node_file import Node, Part, forget_node, write_node
from odf_cli.embedded.orphans import end_leftovers, sweep
from odf_cli.embedded.parts.log_files import LogLimits, keep_bounded
from odf_cli.embedded.parts.managed_process import PartProcess
from odf_cli.embedded.plan import INFRASTRUCTURE, Plan, make_plan
from odf_common.adapters.local.durable import keep_files_private
from odf_common.adapters.local.secrets import close_home
from odf_common.errors import Conflict, Unavailable
from odf_common.service.node_home import require_tenancy
from odf_common.service.settings import Settings, child_environment

log = structlog.stdlib.get_logger(__name__)

LOCK: Final = "node.lock"
START_TIMEOUT_SECONDS: Final = 300.0  # for all parts to become ready; a machine may be busy
PROGRESS_INTERVAL_SECONDS: Final = 1.0
SERVICE_GRACE_SECONDS: Final = 10.0  # seconds between SIGTERM and SIGKILL
INFRASTRUCTURE_GRACE_SECONDS: Final = 15.0
OnChange = Callable[[Node], None]


class AlreadyRunning(Conflict):
    """A node is already running for this home."""

    ADVICE = "`odf status` shows it, `odf down` stops it"

    home: Path


class StartFailed(Unavailable):
    """A part of the node did not start."""

    log: Path
    tail: str
    remedy: str | None = None

    def __str__(self) -> str:
        """Return a sentence with the part, the reason, and the end of its log."""
        shown = f"; the end of its log:\n{self.tail}" if self.tail else ""
        return f"{self.what} did not start: {self.why}{shown}"

    def advice(self) -> str:
        """Return the remedy, or else the path of the complete log."""
        return self.remedy or f"the whole log is {self.log}"


class Supervisor:
    """Runs the parts of one home until it is stopped."""

    def __init__(self, plan: Plan, on_change: OnChange) -> None:
        """Prepare the parts of a plan, which `run` starts; `on_change` is called after each change of a part."""
        self._plan = plan
        self._on_change = on_change
        self._parts = [PartProcess(spec, plan.node.home / "logs", self._record_change) for spec in plan.parts]
        self._stop = asyncio.Event()
        self._step = asyncio.Event()
        self._is_written = True
        self.node = plan.node

    def stop(self) -> None:
        """Make `run` stop all parts and return."""
        self._stop.set()
        self._step.set()

    async def run(self) -> None:
        """Keep the parts running until `stop`; raises `StartFailed`.

        In any case, all processes have ended on return.
        """
        write_node(self.node)
        keeping = [asyncio.create_task(part.run()) for part in self._parts]
        try:
            await self._await_start(keeping)
            await self._await_end(keeping)
        finally:
            await self._stop_all(keeping)
            forget_node(self.node.home)

    async def _await_start(self, keeping: Sequence[asyncio.Task[None]]) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(START_TIMEOUT_SECONDS):
                while not self._stop.is_set() and any(part.state != "ready" for part in self._parts):
                    await self._changed_or_ended(keeping, PROGRESS_INTERVAL_SECONDS)
                    self._on_change(
                        self.node
                    )  # without a change, too: progress output may name the missing parts
                    for part in self._parts:
                        if part.has_failed:
                            raise _start_failed(part, part.problem or "it exited repeatedly")
                return
        late = next(part for part in self._parts if part.state != "ready")
        raise _start_failed(late, f"it was not ready after {START_TIMEOUT_SECONDS:g} s")

    async def _await_end(self, keeping: Sequence[asyncio.Task[None]]) -> None:
        while not self._stop.is_set():
            await self._changed_or_ended(keeping, None if self._is_written else PROGRESS_INTERVAL_SECONDS)
            if not self._is_written:
                self._write()

    async def _changed_or_ended(self, keeping: Sequence[asyncio.Task[None]], seconds: float | None) -> None:
        """Wait for the next change of a part, at most `seconds`; raises the error of a part, such as `NotInstalled`."""
        self._step.clear()
        step = asyncio.create_task(self._step.wait())
        try:
            done, _ = await asyncio.wait(
                [step, *keeping], timeout=seconds, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            step.cancel()
        for task in done - {step}:
            task.result()

    async def _stop_all(self, keeping: Sequence[asyncio.Task[None]]) -> None:
        services = [part for part in self._parts if part.spec.name not in INFRASTRUCTURE]
        rest = [part for part in self._parts if part.spec.name in INFRASTRUCTURE]
        # Services first: they still send to Kafka while stopping.
        await asyncio.gather(*(part.stop(SERVICE_GRACE_SECONDS) for part in services))
        await asyncio.gather(*(part.stop(INFRASTRUCTURE_GRACE_SECONDS) for part in rest))
        for task in keeping:
            task.cancel()
        await asyncio.gather(*keeping, return_exceptions=True)

    def _record_change(self) -> None:
        shown = [
            (
                part.spec.is_service,
                Part(
                    name=part.spec.name,
                    pid=part.pid,
                    state=part.state,
                    since=part.since,
                    problem=part.problem,
                    remedy=part.remedy,
                ),
            )
            for part in self._parts
        ]
        self.node = replace(
            self._plan.node,
            services=tuple(part for is_service, part in shown if is_service),
            parts=tuple(part for is_service, part in shown if not is_service),
        )
        self._write()
        self._on_change(self.node)
        self._step.set()

    def _write(self) -> None:
        """Write `node.json`; a failed write, for example on a full disk, is retried later."""
        was_written = self._is_written
        try:
            write_node(self.node)
            self._is_written = True
        except OSError as error:
            self._is_written = False
            if was_written:
                log.warning("cannot write node.json, retrying", why=str(error))


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The options of a start: the services, by default all, and what it may change."""

    services: tuple[str, ...] = ()
    new_ports: bool = False
    """Whether a port that another process uses may be replaced by a new one."""
    take_over: bool = False
    """Whether to take over the topics of another node, which no longer exists."""

    def arguments(self) -> list[str]:
        """Return the command line arguments that `parse` reads."""
        flags = {"--new-ports": self.new_ports, "--take-over": self.take_over}
        return [*(name for name, is_set in flags.items() if is_set), *self.services]

    @classmethod
    def parse(cls, words: Sequence[str]) -> Self:
        """Return the options in arguments that `arguments` has returned."""
        services = tuple(word for word in words if not word.startswith("--"))
        return cls(services=services, new_ports="--new-ports" in words, take_over="--take-over" in words)


def supervise(settings: Settings, start: Start, on_change: OnChange) -> None:
    """Run the node of this home in this process until SIGTERM or SIGINT.

    Raises `AlreadyRunning`, `StartFailed`, `NotInstalled`, and the errors of `checks`. In any case, all processes have
    ended on return.
    """
    keep_files_private()
    require_home(settings.home)
    close_home(settings.home)
    # The client's messages about a starting broker are noise: the broker has its own log.
    logging.getLogger("kafka").addHandler(logging.NullHandler())
    logging.getLogger("kafka").propagate = False
    with only_one(settings.home):
        end_leftovers(settings.home)
        sweep(settings.home)
        require_store(settings)
        require_tenancy(settings)
        if settings.kafka is not None:
            require_kafka(settings, is_taking_over=start.take_over)
        if settings.redis is not None:
            require_redis(settings)
        plan = make_plan(
            settings,
            start.services,
            child_environment(),
            pid=os.getpid(),
            may_change_ports=start.new_ports,
        )
        limits = LogLimits(max_bytes=settings.log_max_bytes)
        asyncio.run(_supervise(plan, on_change, limits))


async def _supervise(plan: Plan, on_change: OnChange, limits: LogLimits) -> None:
    supervisor = Supervisor(plan, on_change)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, supervisor.stop)
    bounding = asyncio.create_task(keep_bounded(plan.node.home / "logs", limits))
    try:
        await supervisor.run()
    finally:
        bounding.cancel()


@contextmanager
def only_one(home: Path) -> Iterator[None]:
    """Hold the lock of the home during the `with` block; raises `AlreadyRunning` if another process holds it."""
    with (home / LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise AlreadyRunning(home=home) from error
        yield


def _start_failed(part: PartProcess, why: str) -> StartFailed:
    return StartFailed(what=part.spec.name, why=why, log=part.log, tail=part.tail(), remedy=part.remedy)
