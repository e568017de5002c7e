"""Limits on connections and requests, with slow and greedy clients over real sockets: others are served meanwhile."""

import asyncio
import http.client
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, cast

import pytest
from aiohttp import web
from odf_testing.builders import a_dataset
from odf_testing.certificates import self_signed

from odf_cli.embedded.parts.tcp_ports import allocate
from odf_common.adapters.local.catalog import LocalCatalog
from odf_common.identity.dataset_refs import Name
from odf_common.ports.store import CatalogEntry
from odf_common.service.settings import Settings
from odf_sync.access import rate_limits
from odf_sync.access.access_store import AccessStore
from odf_sync.access.directory import Directory
from odf_sync.access.rate_limits import FailedLogins, RequestRate
from odf_sync.access.rules import Action
from odf_sync.http import connections
from odf_sync.http.authorization import Authorizer
from odf_sync.http.connections import OPEN, SentFile
from odf_sync.http.endpoints import Endpoint
from odf_sync.http.server import serve_http

pytestmark = pytest.mark.waits

FILE_BYTES: Final = 64 * 1024**2  # more than sockets buffer
REQUEST: Final = b"GET /info HTTP/1.1\r\nHost: x\r\n\r\n"


class Server:
    """The product's server with three endpoints, on a free port."""

    def __init__(self, home: Path, **settings: int | Path) -> None:
        self.port = allocate(home, ("sync",))["sync"]
        self.file = home / "file"
        self.held = threading.Event()  # ends /hold
        self.served = 0  # requests of /info and /read
        catalog = LocalCatalog(home)
        catalog.add(CatalogEntry(alias="orders", dataset_id=a_dataset()))
        self.directory = Directory(AccessStore(home), is_multi_tenant=False)
        self._authorizer = Authorizer(catalog=catalog, local_writers="loopback", directory=self.directory)
        self._settings = Settings(home=home, sync_http=f"127.0.0.1:{self.port}", **settings)  # type: ignore[arg-type]

    async def _info(self, _: web.Request) -> web.Response:
        self.served += 1
        return web.Response(text="hello")

    async def _hold(self, _: web.Request) -> web.Response:
        await asyncio.to_thread(self.held.wait, 20)
        return web.Response(text="held")

    async def _block(self, _: web.Request) -> web.Response:
        time.sleep(0.8)  # noqa: ASYNC251 - the server does nothing else meanwhile
        return web.Response(text="blocked")

    async def _file(self, _: web.Request) -> web.StreamResponse:
        return SentFile(self.file)

    @contextmanager
    def running(self) -> Iterator["Server"]:
        served = (
            Endpoint(method="GET", path="/info", handler=self._info, summary=""),
            Endpoint(method="GET", path="/hold", handler=self._hold, summary=""),
            Endpoint(method="GET", path="/block", handler=self._block, summary=""),
            Endpoint(method="GET", path="/file", handler=self._file, summary=""),
            Endpoint(method="GET", path="/read", handler=self._info, summary="", action=Action.READ),
        )
        stop = threading.Event()
        thread = threading.Thread(
            target=serve_http, args=(self._authorizer, served, self._settings, stop), daemon=True
        )
        thread.start()
        try:
            deadline = time.monotonic() + 10
            while self._is_closed() and time.monotonic() < deadline:
                time.sleep(0.02)
            yield self
        finally:
            self.held.set()
            stop.set()
            thread.join(10)

    def _is_closed(self) -> bool:
        try:
            self.connect().close()
        except OSError:
            return True
        return False

    def connect(self, sent: bytes = b"") -> socket.socket:
        """Open a connection, and send something."""
        opened = socket.create_connection(("127.0.0.1", self.port), timeout=10)
        opened.sendall(sent)
        return opened

    def ask(self, path: str = "/info", **headers: str) -> tuple[int, str | None]:
        """Return status and `Retry-After`."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            answer.read()
            return answer.status, answer.getheader("Retry-After")
        finally:
            connection.close()


def status_of(connection: socket.socket) -> int:
    """Return the status of the next response, 0 if the connection was closed without one."""
    try:
        line = connection.recv(1024)
    except ConnectionResetError:
        return 0
    return int(line.split()[1]) if line else 0


def test_a_client_that_sends_a_byte_at_a_time_is_disconnected_and_others_are_served(tmp_path: Path) -> None:
    with Server(tmp_path, http_header_timeout_ms=500).running() as server, server.connect() as slow:
        begun = time.monotonic()
        slow.settimeout(0.1)
        for byte in REQUEST:
            slow.sendall(bytes([byte]))
            assert server.ask() == (200, None)
            try:
                assert status_of(slow) == 408
                break
            except TimeoutError:
                continue
        else:
            pytest.fail("the slow client was never ended")
        assert time.monotonic() - begun < 3


def test_requests_after_a_disconnection_are_not_served(tmp_path: Path) -> None:
    with Server(tmp_path, http_header_timeout_ms=300).running() as server:
        with server.connect(REQUEST[:8]) as slow:
            assert status_of(slow) == 408
            with suppress(ConnectionError):  # it has been closed by now
                slow.sendall(REQUEST[8:])
            assert server.ask() == (200, None)
        assert server.served == 1


def test_the_second_request_of_a_connection_has_no_more_time(tmp_path: Path) -> None:
    with Server(tmp_path, http_header_timeout_ms=300).running() as server, server.connect(REQUEST) as client:
        assert status_of(client) == 200
        time.sleep(0.6)  # a connection may be idle for longer than headers may take
        client.sendall(REQUEST)
        assert status_of(client) == 200
        client.sendall(b"GET /in")
        assert status_of(client) == 408


def test_headers_that_arrived_while_the_server_was_busy_are_in_time(tmp_path: Path) -> None:
    with (
        Server(tmp_path, http_header_timeout_ms=400).running() as server,
        server.connect() as client,
        server.connect(REQUEST.replace(b"info", b"block")) as blocking,
    ):
        time.sleep(0.1)
        client.sendall(REQUEST)
        assert status_of(client) == 200
        assert status_of(blocking) == 200


def test_a_long_request_is_not_ended(tmp_path: Path) -> None:
    server = Server(tmp_path, http_header_timeout_ms=200)
    with server.running(), server.connect(REQUEST.replace(b"info", b"hold")) as client:
        time.sleep(0.6)
        server.held.set()
        assert status_of(client) == 200


def test_connections_that_send_nothing_end_and_others_are_served(tmp_path: Path) -> None:
    with Server(tmp_path, http_header_timeout_ms=500).running() as server, ExitStack() as opened:
        silent = [opened.enter_context(server.connect(REQUEST[:9])) for _ in range(60)]
        assert [server.ask() for _ in range(5)] == [(200, None)] * 5
        assert {status_of(one) for one in silent} == {408}


@pytest.mark.parametrize("is_secret", [False, True], ids=["http", "https"])
def test_clients_that_stop_reading_are_disconnected_and_others_are_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, *, is_secret: bool
) -> None:
    monkeypatch.setattr(connections, "STALLED_SECONDS", 0.5)
    certificate, key = self_signed(tmp_path)
    tls = {"http_certificate_file": certificate, "http_key_file": key} if is_secret else {}
    trust = ssl.create_default_context(cafile=certificate)
    server = Server(tmp_path, **tls)
    with server.file.open("wb") as file:
        file.truncate(FILE_BYTES)
    with server.running(), ExitStack() as opened:
        for _ in range(3):
            stalled: socket.socket = opened.enter_context(server.connect())
            if is_secret:
                stalled = opened.enter_context(trust.wrap_socket(stalled, server_hostname="127.0.0.1"))
            stalled.sendall(REQUEST.replace(b"info", b"file"))
            assert stalled.recv(1)
        deadline = time.monotonic() + 20
        while not is_served(server, trust if is_secret else None) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert is_served(server, trust if is_secret else None)
    assert not [one for one in caplog.records if one.levelname == "ERROR"]


def is_served(server: Server, trust: ssl.SSLContext | None) -> bool:
    try:
        with ExitStack() as opened:
            client: socket.socket = opened.enter_context(server.connect())
            if trust is not None:
                client = opened.enter_context(trust.wrap_socket(client, server_hostname="127.0.0.1"))
            client.sendall(REQUEST)
            return status_of(client) == 200
    except OSError:
        return False


def test_the_limits_hold_over_https_and_files_are_sent_whole(tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path)
    server = Server(
        tmp_path, http_header_timeout_ms=500, http_certificate_file=certificate, http_key_file=key
    )
    with server.file.open("wb") as file:
        file.truncate(FILE_BYTES)
    trust = ssl.create_default_context(cafile=certificate)
    with server.running(), trust.wrap_socket(server.connect(), server_hostname="127.0.0.1") as slow:
        slow.sendall(REQUEST[:9])
        connection = http.client.HTTPSConnection("127.0.0.1", server.port, timeout=10, context=trust)
        connection.request("GET", "/file")
        answer = connection.getresponse()
        got = len(answer.read(1 << 20))
        time.sleep(0.8)  # longer than headers may take
        assert got + len(answer.read()) == FILE_BYTES
        connection.close()
        assert status_of(cast("socket.socket", slow)) == 408


def test_a_caller_that_sends_too_many_requests_waits_and_others_do_not(tmp_path: Path) -> None:
    server = Server(tmp_path, http_requests_per_second=2)
    server.directory.add_account(Name("ann"), None)
    token = server.directory.create_token(Name("ann"), label="")[0].text()
    with server.running():
        found = [server.ask() for _ in range(14)]
        assert found[:10] == [(200, None)] * 10
        assert (429, "1") in found[10:]
        assert server.ask("/orders/read", Authorization=f"Bearer {token}") == (200, None)
        time.sleep(1.1)
        assert server.ask() == (200, None)


def test_a_bucket_fills_again_up_to_a_burst(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rate_limits, "MAX_CALLERS", 2)
    now = [0.0]
    rate = RequestRate(1, lambda: now[0])
    assert [rate.wait_seconds("a") for _ in range(6)] == [0] * 5 + [1]
    now[0] = 0.75
    assert rate.wait_seconds("a") == 1, "a part of a request is none"
    now[0] = 2.0
    assert [rate.wait_seconds("a") for _ in range(3)] == [0, 0, 1]
    now[0] = 100.0
    assert [rate.wait_seconds("a") for _ in range(6)] == [0] * 5 + [1]
    assert [rate.wait_seconds("b") for _ in range(2)] == [0, 0]
    assert [rate.wait_seconds(caller) for caller in "cdefgh"] == [0] * 5 + [1], "the others share one bucket"
    now[0] = 200.0
    assert rate.wait_seconds("i") == 0


def test_zero_is_no_limit() -> None:
    rate: Any = RequestRate(0)
    assert {rate.wait_seconds("a") for _ in range(10_000)} == {0}


def test_failed_logins_are_counted_per_caller_in_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rate_limits, "MAX_CALLERS", 2)
    now = 0.0
    failed = FailedLogins(2, lambda: now)
    for caller in ("a", "a", "b"):
        failed.note(caller)
    assert [failed.wait_seconds(caller) for caller in ("a", "b")] == [60.0, 0.0]
    for _ in range(2):
        failed.note("c")  # beyond the limit: counted together with all others
    assert [failed.wait_seconds(caller) for caller in ("c", "d", "b")] == [60.0, 60.0, 0.0]
    now = 60.0  # all have expired, so that there is room for others
    assert [failed.wait_seconds(caller) for caller in "abcd"] == [0.0] * 4
    failed.note("e")
    failed.note("e")
    assert [failed.wait_seconds(caller) for caller in ("e", "f")] == [60.0, 0.0]
    now = 60.0 + 60.0  # both are forgotten
    failed.note("e")
    assert failed.wait_seconds("e") == 0.0
    now += 1
    failed.note("e")
    assert failed.wait_seconds("e") == 59.0, "until the older one is forgotten"


def test_a_caller_whose_newest_failure_counts_is_not_evicted_for_its_oldest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rate_limits, "MAX_CALLERS", 2)
    now = 0.0
    failed = FailedLogins(2, lambda: now)
    for caller in ("a", "b"):
        failed.note(caller)
    now = 50.0
    failed.note("a")
    now = 60.0  # b has no failure left that counts, a has one
    failed.note("c")
    assert failed._failures.keys() == {"a", "c"}


def test_open_connections_are_counted(tmp_path: Path) -> None:
    def count() -> float:
        return float(OPEN._value.get())

    before = count()
    with Server(tmp_path).running() as server:
        deadline = time.monotonic() + 10
        while count() > before and time.monotonic() < deadline:  # the probes of the start
            time.sleep(0.01)
        with ExitStack() as clients:
            for expected in (1, 2, 3):
                assert status_of(clients.enter_context(server.connect(REQUEST))) == 200
                assert count() - before == expected
        while count() > before and time.monotonic() < deadline:
            time.sleep(0.01)
        assert count() == before


def test_requests_are_counted_by_one_thread_at_a_time() -> None:
    is_locked: list[bool] = []

    def now() -> float:
        is_locked.append(rate._lock.locked())
        return 0.0

    rate = RequestRate(1, now)
    assert rate.wait_seconds("a") == 0
    assert is_locked == [True]


def test_an_attempt_that_did_not_fail_does_not_count() -> None:
    failed = FailedLogins(2, lambda: 0.0)
    failed.forget_one("a")
    for _ in range(2):
        failed.note("a")
    failed.forget_one("a")
    assert failed.wait_seconds("a") == 0.0
    failed.note("a")
    assert failed.wait_seconds("a") == 60.0
    for _ in range(2):
        failed.forget_one("a")
    assert not failed._failures, "a caller without failures takes no memory"
