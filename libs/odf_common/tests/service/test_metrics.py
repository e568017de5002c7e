"""The server from which Prometheus scrapes metrics: who may read, and limits on silent clients."""

import os
import socket
import ssl
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from odf_testing.certificates import self_signed
from odf_testing.other_user import NOBODY, ask

from odf_cli.embedded.parts.tcp_ports import allocate
from odf_common.errors import InvalidInput, Unavailable
from odf_common.service import metrics
from odf_common.service.protection import Unprotected
from odf_common.service.settings import Settings

ANY = "0.0.0.0"  # noqa: S104 - with TLS and a token
TOKEN = "of the metrics"


@pytest.fixture
def beyond_loopback(tmp_path: Path) -> Settings:
    certificate, key = self_signed(tmp_path)
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    return Settings(
        home=tmp_path,
        metrics_port=allocate(tmp_path, ("metrics",))["metrics"],
        metrics_host=ANY,
        metrics_token_file=tmp_path / "token",
        http_certificate_file=certificate,
        http_key_file=key,
    )


def scrape(settings: Settings, token: str | None = TOKEN) -> str:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    scheme = "http" if settings.http_certificate_file is None else "https"
    request = Request(f"{scheme}://127.0.0.1:{settings.metrics_port}/metrics", headers=headers)
    context = ssl.create_default_context(cafile=settings.http_certificate_file) if scheme == "https" else None
    with urlopen(request, context=context, timeout=5) as answer:
        text: str = answer.read().decode()
    return text


def connected(settings: Settings) -> socket.socket:
    return socket.create_connection(("127.0.0.1", settings.metrics_port or 0), 5)


def test_metrics_listen_on_loopback_only(tmp_path: Path) -> None:
    port = allocate(tmp_path, ("metrics",))["metrics"]
    settings = Settings(home=tmp_path, metrics_port=port)
    metrics.expose(settings)
    assert "odf_messages_total" in scrape(settings, token=None)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port), 5)
    with pytest.raises(Unavailable, match=f"port {port} for metrics"):
        metrics.expose(settings)


def test_metrics_beyond_loopback_are_served_by_https_and_for_the_token_only(
    beyond_loopback: Settings,
) -> None:
    metrics.expose(beyond_loopback)
    assert "odf_messages_total" in scrape(beyond_loopback)
    for token in (None, "", "of others", f"{TOKEN} "[:-2]):
        with pytest.raises(HTTPError, match="401"):
            scrape(beyond_loopback, token)
    with pytest.raises(OSError, match=r"reset|refused|closed|without response"):
        urlopen(f"http://127.0.0.1:{beyond_loopback.metrics_port}/metrics", timeout=10)


def test_a_token_that_is_set_is_required_on_loopback_too(tmp_path: Path, beyond_loopback: Settings) -> None:
    local = replace(beyond_loopback, metrics_host="127.0.0.1", http_certificate_file=None, http_key_file=None)
    metrics.expose(local)
    assert "odf_messages_total" in scrape(local)
    with pytest.raises(HTTPError, match="401"):
        scrape(local, None)
    with pytest.raises(InvalidInput, match="missing"):
        metrics.expose(replace(local, metrics_token_file=tmp_path / "missing"))


@pytest.mark.parametrize("missing", ["metrics_token_file", "http_certificate_file"])
def test_metrics_beyond_loopback_need_a_certificate_and_a_token(
    beyond_loopback: Settings, missing: str
) -> None:
    without: dict[str, None] = {missing: None}
    with pytest.raises(Unprotected) as refused:
        metrics.expose(replace(beyond_loopback, **without))  # type: ignore[arg-type]
    assert "ODF_HTTP_CERTIFICATE_FILE and ODF_METRICS_TOKEN_FILE" in refused.value.advice()


def test_a_client_that_connects_and_is_silent_does_not_keep_others_waiting(beyond_loopback: Settings) -> None:
    metrics.expose(beyond_loopback)
    with connected(beyond_loopback), connected(beyond_loopback) as second:
        second.sendall(b"\x16\x03\x01")  # the beginning of a handshake
        assert "odf_messages_total" in scrape(beyond_loopback)


def test_one_address_has_a_bounded_number_of_connections_and_time_for_each(
    beyond_loopback: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "REQUEST_SECONDS", 2.0)
    metrics.expose(beyond_loopback)
    with ExitStack() as held:
        most = metrics.MAX_CONNECTIONS_PER_ADDRESS
        silent = [held.enter_context(connected(beyond_loopback)) for _ in range(most)]
        with connected(beyond_loopback) as refused:
            assert ended(refused)
        assert all(ended(one) for one in silent)
    assert "odf_messages_total" in scrape(beyond_loopback)


def test_connections_that_end_at_the_same_time_are_counted_one_after_the_other() -> None:
    server = metrics.MetricsServer("127.0.0.1", 0, lambda *_: [])
    one, other = socket.socketpair()
    with server, other, ThreadPoolExecutor(1) as pool:
        assert server.verify_request(one, ("127.0.0.1", 1))
        with server._lock:
            other.close()
            ending = pool.submit(server.process_request_thread, one, ("127.0.0.1", 1))
            assert not wait([ending], timeout=0.2).done
            assert server._open.total() == 1
        ending.result()
        assert server._open.total() == 0


def test_a_client_that_sends_single_bytes_slowly_is_disconnected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "REQUEST_SECONDS", 1.0)
    settings = Settings(home=tmp_path, metrics_port=allocate(tmp_path, ("metrics",))["metrics"])
    metrics.expose(settings)
    with connected(settings) as slow:
        slow.settimeout(0.2)
        sent = 0
        while not ended(slow):
            slow.sendall(b"G")
            sent += 1
            assert sent < 50


def ended(connection: socket.socket) -> bool:
    """Return whether the server has closed it; False if it sends nothing before the timeout."""
    try:
        return connection.recv(1) == b""
    except TimeoutError:
        return False
    except ConnectionError:
        return True


def test_on_loopback_they_are_for_programs_of_the_same_user(tmp_path: Path) -> None:
    port = allocate(tmp_path, ("metrics",))["metrics"]
    metrics.expose(Settings(home=tmp_path, metrics_port=port))
    address = f"127.0.0.1:{port}"
    assert ask(address, "GET", "/metrics", user=os.geteuid())[0] == 200
    status, text = ask(address, "GET", "/metrics")
    assert (status, "odf_messages" in text, f"uid {NOBODY}" in text) == (403, False, True)
    assert "ODF_METRICS_TOKEN_FILE" in text


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "evil.example:80"},
        {"Host": ""},
        {"Origin": "https://evil.example"},
        {"X-Real-IP": "192.0.2.1"},
    ],
)
def test_a_web_page_or_a_proxy_does_not_read_them(tmp_path: Path, headers: dict[str, str]) -> None:
    port = allocate(tmp_path, ("metrics",))["metrics"]
    metrics.expose(Settings(home=tmp_path, metrics_port=port))
    status, text = ask(f"127.0.0.1:{port}", "GET", "/metrics", headers=headers, user=os.geteuid())
    assert (status, "odf_messages" in text) == (403, False)


def test_another_user_reads_them_with_the_token(tmp_path: Path) -> None:
    port = allocate(tmp_path, ("metrics",))["metrics"]
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    metrics.expose(Settings(home=tmp_path, metrics_port=port, metrics_token_file=tmp_path / "token"))
    address = f"127.0.0.1:{port}"
    assert ask(address, "GET", "/metrics")[0] == 401
    assert ask(address, "GET", "/metrics", headers={"Authorization": f"Bearer {TOKEN}"})[0] == 200


def test_connections_that_got_no_thread_are_no_longer_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(home=tmp_path, metrics_port=allocate(tmp_path, ("metrics",))["metrics"])
    metrics.expose(settings)

    def fail(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as failing:
        failing.setattr(threading.Thread, "start", fail)
        for _ in range(metrics.MAX_CONNECTIONS_PER_ADDRESS + 1):
            with connected(settings) as refused:
                assert refused.recv(1) == b""
    assert "odf_messages_total" in scrape(settings, token=None)
