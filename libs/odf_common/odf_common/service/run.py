"""The life of a service process: settings, wiring, one reader per subscription, gRPC, and graceful shutdown.

`consumer_loop` describes what happens to messages that cannot be handled. On SIGTERM the process stops polling,
finishes messages in flight and closes its connections.
"""

import os
import resource
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from types import FrameType
from typing import Final

import structlog

from odf_common.adapters.grpc.server import GrpcServer, Register, serve
from odf_common.adapters.local.durable import keep_files_private
from odf_common.adapters.local.faults import waiting_helps
from odf_common.adapters.local.outage_files import OutageFile
from odf_common.adapters.local.secrets import close_home
from odf_common.data.arrow_threads import start_arrow_threads
from odf_common.errors import InvalidInput, OdfError, Unavailable
from odf_common.ports.clock import Backoff
from odf_common.service import logging, metrics
from odf_common.service.audit import Audit
from odf_common.service.consumer.consumer_loop import Handler, OutgoingMessage, Reader, Subscription
from odf_common.service.consumer.retry import keep_trying
from odf_common.service.environment import Environment, IsolatedEnvironment, connect
from odf_common.service.outages import OutageWatch
from odf_common.service.part_checks import checks_of
from odf_common.service.protection import GRPC_SECRET, listening_address, peer_credentials, require_protected
from odf_common.service.settings import Settings, load

__all__ = ["Handler", "OutgoingMessage", "Service", "Subscription", "run_isolated", "run_service"]

log = structlog.stdlib.get_logger(__name__)

JOIN_SECONDS: Final = 8.0  # for all messages in flight together; the supervisor kills after 10 s
LOOK_MS: Final = 500  # between two looks whether a bug has ended the service
_MAX_SIGNALS_READ: Final = 4096  # that are read from the pipe at a time, a byte each
EXIT_BUG: Final = 70  # exit code: a bug; the supervisor restarts
OPEN_FILES_LIMIT: Final = 1 << 16
RESUME_BACKOFF: Final = Backoff(first=0.2, most=5.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """The definition of a service: its subscriptions, gRPC methods and background tasks."""

    name: str
    subscriptions: tuple[Subscription, ...] = ()
    grpc: Register | None = None
    grpc_address: str | None = None
    caller_secret: str = GRPC_SECRET
    """Name of the secret that callers must send on the loopback address; it is stored in the home."""
    background: tuple[Callable[[threading.Event], None], ...] = ()
    on_stop: Callable[[], None] | None = None
    audit: Audit = field(default_factory=Audit)
    """The audit log, which receives this service's gRPC calls."""
    uses: tuple[str, ...] = ()
    """The services that it calls; their outages are detected, like those of Kafka, Redis and the bucket."""


class RunningService:
    """A running service: its threads, its gRPC server, and the event that stops them."""

    def __init__(self, service: Service, environment: Environment | IsolatedEnvironment) -> None:
        """Prepare the service; nothing runs before `start`."""
        self.service = service
        self.environment = environment
        self._connected = None if isinstance(environment, IsolatedEnvironment) else environment
        self._readers = () if self._connected is None else _readers(service, self._connected)
        self._threads: list[threading.Thread] = []
        self._server: GrpcServer | None = None
        self.stop = threading.Event()
        self.has_failed = False

    def start(self) -> None:
        """Start readers, gRPC server and background tasks; report SERVING once every reader has its partitions.

        Raises `TopicsTaken`, before any message is read, if the topics belong to another node.
        """
        if self.service.grpc is not None:
            self._server = keep_trying(self._listen, self.stop)
        if self._connected is not None and self._readers:
            keep_trying(self._connected.claim, self.stop)
        for reader in self._readers:
            self._begin(reader.run)
        for work in self.service.background:
            self._begin(work)
        if self._connected is not None:
            self._begin(partial(self.service.audit.write, self._connected.bus))
            self._begin(_outages(self.service, self._connected).run)
        self._begin(self._announce)

    def finish(self) -> None:
        """Shut down gracefully: wait up to 8 s for messages in flight, then close the connections."""
        deadline = time.monotonic() + JOIN_SECONDS
        self.stop.set()
        if self._server is not None:
            self._server.stop(JOIN_SECONDS / 2)
        for thread in self._threads:
            thread.join(max(deadline - time.monotonic(), 0))
        if busy := [thread.name for thread in self._threads if thread.is_alive()]:
            log.warning("not waiting for busy threads", threads=busy)
        if self.service.on_stop is not None:
            self.service.on_stop()
        if self._connected is not None:
            self.service.audit.finish(self._connected.bus)
        self.environment.close()

    def _listen(self) -> GrpcServer:
        assert self.service.grpc is not None
        if self.service.grpc_address is None:
            raise InvalidInput(where=self.service.name, text="no address to listen on is configured")
        settings = self.environment.settings
        address = listening_address(settings, self.service.grpc_address)
        require_protected(settings, "the gRPC address", address)
        return serve(
            address,
            self.service.grpc,
            credentials=peer_credentials(settings, self.service.grpc_address, self.service.caller_secret),
            is_ready=False,
            on_call=self.service.audit.note_call,
        )

    def _announce(self, stop: threading.Event) -> None:
        for reader in self._readers:
            while not reader.ready.wait(0.1):
                if stop.is_set():
                    return
        if self._server is not None:
            self._server.set_ready()
        log.info("ready")

    def _begin(self, work: Callable[[threading.Event], None]) -> None:
        name = getattr(work, "__qualname__", "work")

        def run_guarded() -> None:
            try:
                resume_after_faults(work, name, self.stop)
            except Exception:
                log.exception("stopping because of a bug")
                self.has_failed = True
                self.stop.set()

        thread = threading.Thread(target=run_guarded, name=name, daemon=True)
        thread.start()
        self._threads.append(thread)


def resume_after_faults(work: Callable[[threading.Event], None], name: str, stop: threading.Event) -> None:
    """Run `work` until it returns; call it again after a temporary fault, such as a full disk."""
    for failures in count(1):
        try:
            with waiting_helps():
                work(stop)
        except Unavailable as error:
            log.warning("interrupted, continuing soon", work=name, why=str(error), advice=error.advice())
            if stop.wait(RESUME_BACKOFF.pause(failures)):
                return
        else:
            return


def run_service(build: Callable[[Environment], Service]) -> None:
    """Run a service until SIGTERM or SIGINT, then exit the process.

    Exit codes: 0 after a signal, 1 if the service could not start, 70 after a bug.
    """

    def prepare(settings: Settings) -> RunningService:
        environment = connect(settings)
        return RunningService(build(environment), environment)

    _run_prepared(build.__module__, prepare)


def run_isolated(build: Callable[[IsolatedEnvironment], Service]) -> None:
    """Run a service without Kafka, Redis and store until SIGTERM or SIGINT; exits as `run_service` does."""

    def prepare(settings: Settings) -> RunningService:
        environment = IsolatedEnvironment(settings=settings)
        return RunningService(build(environment), environment)

    _run_prepared(build.__module__, prepare)


def allow_open_files() -> None:
    """Raise the soft limit of open files of this process to the hard limit, up to 65,536.

    The usual soft limit of 1,024 protects programs that use select(). The HTTP server accepts more connections.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = OPEN_FILES_LIMIT if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES_LIMIT)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _outages(service: Service, environment: Environment) -> OutageWatch:
    settings = environment.settings
    name = "-".join(part for part in (service.name, settings.instance) if part)
    file = OutageFile(settings.home, name)
    checks = checks_of(settings, service.uses)
    return OutageWatch(service.name, file, checks, environment.clock, silent=environment.silent)


def _readers(service: Service, environment: Environment) -> tuple[Reader, ...]:
    return tuple(
        Reader(subscription, group=f"odf.{service.name}", bus=environment.bus, topics=environment.topics)
        for subscription in service.subscriptions
    )


def _run_prepared(module: str, prepare: Callable[[Settings], RunningService]) -> None:
    package = module.partition(".")[0]
    logging.configure("info", service=package.removeprefix("odf_").replace("_", "-"))
    try:
        code = _run(prepare, load())
    except OdfError as error:
        log.error("cannot start", why=str(error), advice=error.advice())  # noqa: TRY400 - no traceback is needed
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads of SDKs that are still busy must not keep the process alive.
    os._exit(code)


def _run(prepare: Callable[[Settings], RunningService], settings: Settings) -> int:
    keep_files_private()
    close_home(settings.home)
    allow_open_files()
    start_arrow_threads()
    running = prepare(settings)
    logging.configure(settings.log_level, service=running.service.name)
    metrics.expose(settings)

    def end(number: int, _: FrameType | None) -> None:
        log.info("stopping", signal=signal.Signals(number).name)
        running.stop.set()

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    running.start()
    _await(running.stop)
    running.finish()
    return EXIT_BUG if running.has_failed else 0


def _await(stop: threading.Event) -> None:
    """Block the main thread until `stop` is set; a signal ends the wait at once, whichever thread receives it.

    Only the main thread runs signal handlers, and only the wakeup pipe wakes it for a signal that another thread
    received. Waiting for the event itself could deadlock: a handler may set an event whose lock its own thread holds.
    """
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signals = select.poll()  # select() takes no more than 1,024 open files
    signals.register(woken, select.POLLIN)
    while not stop.is_set():
        if signals.poll(LOOK_MS):
            os.read(
                woken, _MAX_SIGNALS_READ
            )  # or it would be ready for ever, after a signal that does not end the service
