"""The order of a reader's actions: results and dead letters before positions, and inboxes that are lost or closed."""

import errno
import os
import resource
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from odf_testing.bus import MemoryBus, MemoryInbox, MemoryTopics
from odf_testing.clocks import ManualClock
from structlog.testing import capture_logs

from odf_cli.embedded.parts.tcp_ports import allocate
from odf_common.codec.envelopes import Envelope, envelope
from odf_common.errors import InvalidInput, StorageUnavailable, Unavailable
from odf_common.identity.dataset_refs import DatasetId
from odf_common.ports.bus import (
    COORDINATOR_COMMANDS,
    COORDINATOR_REPLIES,
    DeadLetter,
    Inbox,
    OnAssigned,
    ReceivedMessage,
)
from odf_common.proto.odf.bus.v1.bus_pb2 import Committed, Propose
from odf_common.service import logging, metrics, run
from odf_common.service.consumer.consumer_loop import Handler, OutgoingMessage, Reader, Subscription
from odf_common.service.consumer.message_lanes import MAX_IN_FLIGHT
from odf_common.service.environment import Environment, IsolatedEnvironment
from odf_common.service.outages import SilentParts
from odf_common.service.protection import Unprotected
from odf_common.service.run import RunningService, Service
from odf_common.service.settings import Settings

MANY = 20


def connected(home: Path, close: Callable[[], object] = lambda: None) -> Environment:
    """Return what a service needs of its environment when it reads no topics."""
    settings = Settings(home=home)
    return cast(
        "Environment",
        SimpleNamespace(
            settings=settings, clock=ManualClock(), bus=MemoryBus(), close=close, silent=SilentParts()
        ),
    )


def test_busy_threads_share_one_deadline_at_shutdown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "JOIN_SECONDS", 0.2)
    release = threading.Event()
    closed: list[bool] = []

    def busy(_: threading.Event) -> None:
        release.wait()

    environment = connected(tmp_path, close=lambda: closed.append(True))
    running = RunningService(Service(name="busy", background=(busy,) * MANY), environment)
    running.start()
    begun = time.monotonic()
    try:
        with capture_logs() as logs:
            running.finish()
    finally:
        release.set()
    assert time.monotonic() - begun < MANY * 0.2 / 2
    assert closed == [True]
    (said,) = [line for line in logs if line["event"] == "not waiting for busy threads"]
    assert len([name for name in said["threads"] if name.endswith("busy")]) == MANY


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), StorageUnavailable(why="EIO", file="x")])
def test_work_continues_after_an_error_of_the_disk_and_says_so(tmp_path: Path, error: Exception) -> None:
    failures, resumed = [error], threading.Event()

    def work(stop: threading.Event) -> None:
        if failures:
            raise failures.pop()
        resumed.set()
        stop.wait()

    environment = connected(tmp_path)
    running = RunningService(Service(name="patient", background=(work,)), environment)
    with capture_logs() as logs:
        running.start()
        assert resumed.wait(10)
        assert not running.stop.is_set()
        running.finish()
    assert not running.has_failed
    (said,) = [line for line in logs if line["log_level"] == "warning"]
    assert said["event"] == "interrupted, continuing soon"
    assert said["why"].endswith("cannot be used now")


def test_a_bug_stops_the_service(tmp_path: Path) -> None:
    def work(_: threading.Event) -> None:
        raise ConnectionRefusedError(errno.ECONNREFUSED, "of a socket: no fault of the disk")

    environment = connected(tmp_path)
    running = RunningService(Service(name="buggy", background=(work,)), environment)
    running.start()
    assert running.stop.wait(10)
    running.finish()
    assert running.has_failed


def test_work_that_ends_at_shutdown_is_waited_for(tmp_path: Path) -> None:
    finished: list[bool] = []

    def work(stop: threading.Event) -> None:
        stop.wait()
        time.sleep(0.1)
        finished.append(True)

    environment = connected(tmp_path)
    running = RunningService(Service(name="tidy", background=(work,)), environment)
    running.start()
    running.finish()
    assert finished == [True]


@pytest.mark.parametrize(
    ("soft", "expected"), [(256, run.OPEN_FILES_LIMIT), (run.OPEN_FILES_LIMIT + 1, run.OPEN_FILES_LIMIT + 1)]
)
def test_a_service_may_open_as_many_files_as_the_hard_limit_allows(soft: int, expected: int) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    hard = limits[1]
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, hard), hard))
        run.allow_open_files()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (min(expected, hard), hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_service_that_only_answers_calls_is_connected_to_nothing(tmp_path: Path) -> None:
    begun = threading.Event()
    service = Service(name="alone", background=(lambda _: begun.set(),))
    running = RunningService(service, IsolatedEnvironment(settings=Settings(home=tmp_path)))
    running.start()
    assert begun.wait(5)
    running.finish()
    assert not running.has_failed


def test_a_server_listens_on_the_configured_host_and_the_port_of_its_address(tmp_path: Path) -> None:
    (port,) = allocate(tmp_path, ("server",)).values()
    # A name that nothing resolves: its address does not decide where the server listens.
    service = Service(name="alone", grpc=lambda _: (), grpc_address=f"nowhere.invalid:{port}")
    settings = Settings(home=tmp_path, grpc_listen_host="127.0.0.2")
    running = RunningService(service, IsolatedEnvironment(settings=settings))
    running.start()
    try:
        socket.create_connection(("127.0.0.2", port), timeout=5).close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=5)
    finally:
        running.finish()


def test_a_host_that_other_machines_reach_needs_protection(tmp_path: Path) -> None:
    service = Service(name="alone", grpc=lambda _: (), grpc_address="127.0.0.1:1")
    settings = Settings(home=tmp_path, grpc_listen_host="0.0.0.0")  # noqa: S104 - refused
    running = RunningService(service, IsolatedEnvironment(settings=settings))
    with pytest.raises(Unprotected, match=r"the gRPC address 0\.0\.0\.0:1 would be open"):
        running.start()


@pytest.mark.timeout(20)
def test_a_service_stops_by_a_signal_that_another_thread_has_received(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "LOOK_MS", 60_000)
    monkeypatch.setattr(logging, "configure", lambda *_, **__: None)
    monkeypatch.setattr(metrics, "expose", lambda _: None)

    def receive(stop: threading.Event) -> None:
        time.sleep(0.1)  # the main thread waits
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
        stop.wait()

    environment = connected(tmp_path)
    service = RunningService(Service(name="some", background=(receive,)), environment)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        assert run._run(lambda _: service, Settings(home=tmp_path)) == 0
    finally:
        signal.set_wakeup_fd(-1)
        for number, handler in before.items():
            signal.signal(number, handler)


def test_a_signal_that_does_not_end_a_service_does_not_keep_it_busy() -> None:
    class Counted(threading.Event):
        looks = 0

        def is_set(self) -> bool:
            self.looks += 1
            return super().is_set()

    stop = Counted()
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR1)).start()
    threading.Timer(0.3, stop.set).start()
    try:
        run._await(stop)
    finally:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGUSR1, before)
    assert stop.looks <= 4


DATASET = DatasetId.of_key(bytes(32))
POSITION = ("odf.test", COORDINATOR_COMMANDS)


class Stop(threading.Event):
    """Is set by the test, or after `looks` checks; pauses take no time."""

    def __init__(self, looks: int = 100) -> None:
        super().__init__()
        self.left = looks
        self.is_seen = threading.Event()
        self.pauses: list[float | None] = []

    def is_set(self) -> bool:
        self.left -= 1
        is_over = self.left < 0 or super().is_set()
        if is_over:
            self.is_seen.set()
        return is_over

    def wait(self, timeout: float | None = None) -> bool:
        self.pauses.append(timeout)
        return super().is_set()


class NotedInbox(MemoryInbox):
    """Records commits and closing; the first polls of the bus's inboxes fail."""

    noted: "NotedBus"

    def poll(self, timeout: float) -> ReceivedMessage | None:
        if self.noted.failing_polls > 0:
            self.noted.failing_polls -= 1
            raise Unavailable(what="Kafka")
        message = super().poll(timeout)
        self.noted.polled += message is not None
        return message

    def commit(self, message: ReceivedMessage) -> None:
        self.noted.acts.append(f"commit {message.offset}")
        super().commit(message)

    def close(self) -> None:
        self.noted.acts.append("close")


class NotedBus(MemoryBus):
    """Records the order of calls."""

    def __init__(self, *messages: Envelope) -> None:
        super().__init__()
        self.acts: list[str] = []
        self.polled = 0
        self.failing_polls = 0
        for message in messages:
            super().send(COORDINATOR_COMMANDS, message)

    def send(self, topic: str, envelope: Envelope) -> None:
        self.acts.append("send")
        super().send(topic, envelope)

    def send_dead_letter(self, letter: DeadLetter) -> None:
        self.acts.append("letter")
        super().send_dead_letter(letter)

    def flush(self, timeout: float = 10.0) -> None:
        super().flush(timeout)
        self.acts.append("flush")

    def subscribe(self, topic: str, *, group: str | None, on_assigned: OnAssigned | None = None) -> Inbox:
        self.acts.append("subscribe")
        inbox = NotedInbox(self, topic, group)
        inbox.noted = self
        return inbox


def message() -> Envelope:
    return envelope(DATASET, Propose())


def answering(cause: Envelope) -> Iterable[OutgoingMessage]:
    yield OutgoingMessage(topic=COORDINATOR_REPLIES, envelope=envelope(DATASET, Committed(), cause=cause))


def refusing(_: Envelope) -> Iterable[OutgoingMessage]:
    raise InvalidInput(text="nonsense")


def reading(bus: MemoryBus, handler: Handler, threads: int = 0) -> Reader:
    subscription = Subscription(topic=COORDINATOR_COMMANDS, handler=handler, threads=threads)
    return Reader(subscription, group="odf.test", bus=bus, topics=MemoryTopics())


def then(stop: Stop, handler: Handler) -> Handler:
    """Return a handler after which the reader stops."""

    def handle(one: Envelope) -> Iterable[OutgoingMessage]:
        stop.set()
        return handler(one)

    return handle


@pytest.mark.parametrize(("handler", "sent"), [(answering, "send"), (refusing, "letter")])
def test_a_position_moves_once_what_was_sent_has_arrived(handler: Handler, sent: str) -> None:
    bus, stop = NotedBus(message()), Stop()
    reading(bus, then(stop, handler)).run(stop)
    assert bus.acts == ["subscribe", sent, "flush", "commit 0", "close"]


@pytest.mark.parametrize("raw", [b"\xff", Envelope(dataset_id=str(DATASET)).SerializeToString()])
def test_a_dead_letter_that_did_not_arrive_leaves_its_message_in_its_place(raw: bytes) -> None:
    bus = NotedBus()
    bus.send_raw(COORDINATOR_COMMANDS, str(DATASET).encode(), raw)
    bus.losses = 1
    reading(bus, answering).run(Stop(looks=2))
    assert bus.acts == ["subscribe", "letter", "close"]
    assert bus.positions == {}


def test_a_lost_inbox_is_closed_and_after_a_pause_another_is_opened() -> None:
    bus, stop = NotedBus(message()), Stop()
    bus.failing_polls = 1
    reading(bus, then(stop, answering)).run(stop)
    assert bus.acts == ["subscribe", "close", "subscribe", "send", "flush", "commit 0", "close"]
    assert len(stop.pauses) == 1


def test_a_reader_that_is_stopped_before_it_could_open_an_inbox_ends() -> None:
    stop = Stop()

    class Lost(MemoryBus):
        def subscribe(self, topic: str, *, group: str | None, on_assigned: OnAssigned | None = None) -> Inbox:
            stop.set()
            raise Unavailable(what="Kafka")

    reading(Lost(), answering).run(stop)
    assert len(stop.pauses) == 1


def test_a_message_that_is_handled_while_the_reader_stops_is_committed() -> None:
    bus, stop = NotedBus(message()), Stop(looks=2)

    def slow(one: Envelope) -> Iterable[OutgoingMessage]:
        assert stop.is_seen.wait(10)
        return answering(one)

    reading(bus, slow, threads=1).run(stop)
    assert bus.acts == ["subscribe", "send", "flush", "commit 0", "close"]


def test_no_more_messages_are_read_while_too_many_are_in_flight() -> None:
    def unavailable(_: Envelope) -> Iterable[OutgoingMessage]:
        raise Unavailable(what="engine")

    bus = NotedBus(*[message()] * (MAX_IN_FLIGHT + 2))
    reading(bus, unavailable).run(Stop(looks=MAX_IN_FLIGHT + 2))
    assert bus.polled == MAX_IN_FLIGHT
