"""A node behind nginx with the configuration of `deploy/compose`: strangers are never its owner, and transfers work."""

import http.client
import socket
import ssl
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest
from odf_testing.certificates import self_signed
from odf_testing.http import proxied, running
from odf_testing.sync_node import SyncNode, open_exchanges

from odf_common.adapters.networks import Networks
from odf_sync.http.authorization import Authorizer

from .access_matrix import PRIVATE, PUBLIC, UNKNOWN, Node

IDLE_CONNECTIONS: Final = 150
MALFORMED: Final = (
    b"GET /../../etc/passwd HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /%2e%2e/%2e%2e/etc/passwd HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /harbours/data/..%2f..%2faccess.db HTTP/1.1\r\nHost: x\r\n\r\n",
    b"TRACE / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"CONNECT 127.0.0.1:1 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET http://127.0.0.1/wiretaps/refs/head HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /wiretaps/refs/head HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: x\r\n\r\n",
    b"GET /wiretaps/refs/head HTTP/1.1\r\n\r\n",
    b"GET /wiretaps/refs/head HTTP/1.0\r\n\r\n",
    b"GET /" + b"\xff" * 7900 + b"\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\n" + b"X-A: b\r\n" * 20_000 + b"\r\n",
)
# A second request that only one of the two servers would see.
SMUGGLED: Final = b"GET /wiretaps/refs/head HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
AMBIGUOUS: Final = (
    (b"Content-Length: %d\r\nTransfer-Encoding: chunked\r\n" % (5 + len(SMUGGLED)), b"0\r\n\r\n" + SMUGGLED),
    (b"Content-Length: 0\r\nContent-Length: %d\r\n" % len(SMUGGLED), SMUGGLED),
    (b"Transfer-Encoding: xchunked\r\n", b"0\r\n\r\n" + SMUGGLED),
    (b"Transfer-Encoding : chunked\r\n", b"0\r\n\r\n" + SMUGGLED),
    (b"Content-Length: +0\r\n", SMUGGLED),
)


@pytest.mark.parametrize(
    ("names_clients", "is_of_node_user"), [(True, False), (True, True), (False, False), (False, True)]
)
def test_strangers_behind_a_proxy_on_this_machine_own_nothing(
    tmp_path: Path, *, names_clients: bool, is_of_node_user: bool
) -> None:
    """Without `Host` and `X-Forwarded-For` its requests look local, so the kernel or the settings say that they are not."""
    node = Node(tmp_path, is_multi_tenant=False)
    trusted = Networks.parse(("127.0.0.1",)) if is_of_node_user else Networks()
    with ExitStack() as stack:
        base = stack.enter_context(running(node.application(trusted)))
        url = stack.enter_context(
            proxied(tmp_path / "proxy", base, names_clients=names_clients, is_of_node_user=is_of_node_user)
        )
        node.base = url.removeprefix("http://")
        assert node.ask("GET", f"/{PUBLIC}/refs/head", {}) == 200
        assert node.ask("GET", f"/{PRIVATE}/refs/head", {}) == 404
        listed = node.answer("GET", "/datasets", {})[2].decode()
        assert PUBLIC in listed
        assert PRIVATE not in listed
        for dataset, status in ((PUBLIC, 403), (PRIVATE, 404), (UNKNOWN, 404)):
            assert node.ask("POST", f"/{dataset}/ingest", {"Content-Length": "0"}) == status
        assert node.ask("PUT", f"/{PUBLIC}/data/x", {"Content-Length": "0"}) == 403
        assert node.ask("GET", f"/{UNKNOWN}/push", {}) == 401
    node.close()


def exchange(base: str, request: bytes) -> bytes:
    """Return all that is answered within a moment."""
    host, _, port = base.partition(":")
    answer = b""
    with socket.create_connection((host, int(port)), timeout=0.3) as client:
        try:
            client.sendall(request)
            while part := client.recv(65536):
                answer += part
        except (TimeoutError, ConnectionError):
            return answer
    return answer


@pytest.mark.parametrize("is_proxied", [False, True])
def test_requests_that_are_not_http_or_ambiguous_reveal_nothing(tmp_path: Path, *, is_proxied: bool) -> None:
    node = Node(tmp_path, is_multi_tenant=True)
    with node.running(tmp_path / "proxy" if is_proxied else None):
        sent = [*MALFORMED, *(one.replace(b"wiretaps", b"alice/wiretaps") for one in MALFORMED)]
        for headers, body in AMBIGUOUS:
            sent.append(b"POST /alice/harbours/ingest HTTP/1.1\r\nHost: x\r\n" + headers + b"\r\n" + body)
        for request in sent:
            answer = exchange(node.base, request)
            statuses = [int(line.split()[1]) for line in answer.split(b"\r\n") if line.startswith(b"HTTP/1.")]
            assert all(400 <= status <= 501 and status != 500 for status in statuses), (
                request[:200],
                answer[:500],
            )
            assert not any(secret.encode() in answer for secret in node.secrets if secret != PRIVATE)
        assert node.ask("GET", f"/alice/{PUBLIC}/refs/head", {}) == 200


def test_idle_connections_and_slow_headers_keep_nobody_out(tmp_path: Path) -> None:
    node = Node(tmp_path, is_multi_tenant=False)
    with node.running(tmp_path / "proxy"), ExitStack() as stack:
        host, _, port = node.base.partition(":")
        for _ in range(IDLE_CONNECTIONS):
            idle = stack.enter_context(socket.create_connection((host, int(port)), timeout=10))
            idle.sendall(b"GET /info HTTP/1.1\r\nX-")
        began = time.monotonic()
        assert node.ask("GET", "/info", {}) == 200
        assert time.monotonic() - began < 5


@pytest.mark.parametrize("opens_exchange", [False, True])
def test_a_push_and_a_pull_through_a_proxy_with_tls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, opens_exchange: bool
) -> None:
    certificate = self_signed(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
    # aiohttp has read that when it was imported.
    context = ssl.create_default_context(cafile=certificate[0])
    monkeypatch.setattr("aiohttp.connector._SSL_CONTEXT_VERIFIED", context)
    near, far, third, fourth = (SyncNode(tmp_path / name) for name in ("near", "far", "third", "fourth"))
    near.add_cities(["Kyiv"], ["Quito", "Šiauliai"] * 20_000)
    if opens_exchange:
        open_exchanges(monkeypatch)
    anyone = Authorizer(catalog=far.catalog, local_writers="anywhere")
    with far.served(anyone) as base, proxied(tmp_path / "proxy", base, certificate=certificate) as url:
        near.push("cities", f"odf+{url}/towns")
        third.pull(f"odf+{url}/towns", "towns")
        fourth.pull(f"{url}/towns", "towns")
    assert far.content("towns") == third.content("towns") == near.content("cities")
    assert fourth.content("towns") == near.content("cities")


def test_a_client_of_a_proxy_is_named_by_its_address(tmp_path: Path) -> None:
    """What a client writes into `X-Forwarded-For` is replaced."""
    node = Node(tmp_path, is_multi_tenant=False)
    with node.running(tmp_path / "proxy"):
        connection = http.client.HTTPConnection(node.base, timeout=10)
        connection.request("GET", f"/{PRIVATE}/refs/head", headers={"X-Forwarded-For": "127.0.0.1"})
        assert connection.getresponse().status == 404
        connection.close()
