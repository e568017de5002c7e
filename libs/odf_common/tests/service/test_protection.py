"""What may listen beyond the loopback address."""

from pathlib import Path

import pytest

from odf_common.cli import main as cli
from odf_common.errors import InvalidInput
from odf_common.service.protection import (
    FORWARDED,
    Unprotected,
    http_tls,
    is_loopback,
    peer_tls,
    require_protected,
    why_not_local,
)
from odf_common.service.settings import Settings

GRPC = {f"ODF_GRPC_{name}_FILE": "file.pem" for name in ("CERTIFICATE", "KEY", "CA")}
HTTP = {f"ODF_HTTP_{name}_FILE": "file.pem" for name in ("CERTIFICATE", "KEY")}
ANY = "0.0.0.0"  # noqa: S104 - refused
OPEN = f"{ANY}:80"


@pytest.mark.parametrize(
    ("host", "is_ours"),
    [
        ("127.0.0.1", True), ("127.8.8.8", True), ("localhost", True), ("::1", True), ("::ffff:127.0.0.1", True), (ANY, False),
        ("::", False), ("::ffff:10.0.0.1", False), ("192.168.0.1", False), ("node.example", False), ("localhost.example", False), ("", False),
    ],
)  # fmt: skip
def test_only_addresses_that_no_other_machine_reaches_are_loopback(host: str, *, is_ours: bool) -> None:
    assert is_loopback(host) == is_ours


@pytest.mark.parametrize(
    "what", ["ODF_INGEST_GRPC", "ODF_ENGINE", "ODF_SYNC_HTTP", "ODF_VIEWS_HTTP", "ODF_METRICS_HOST"]
)
def test_nothing_listens_beyond_loopback_unless_settings_say_so_explicitly(what: str) -> None:
    with pytest.raises(Unprotected, match=f"{what} 0.0.0.0:80 would be open") as refused:
        require_protected(Settings.from_env({}), what, OPEN)
    assert "ODF_LISTEN_UNPROTECTED=1" in refused.value.advice()
    for everywhere in (":80", "[::]:80"):
        with pytest.raises(Unprotected):
            require_protected(Settings.from_env({}), what, everywhere)
    require_protected(Settings.from_env({}), what, "[::1]:80")
    require_protected(Settings.from_env({"ODF_LISTEN_UNPROTECTED": "1"}), what, OPEN)


@pytest.mark.parametrize(
    ("what", "protected_by"),
    [
        ("ODF_INGEST_GRPC", "grpc"),
        ("the gRPC address", "grpc"),
        ("ODF_SYNC_HTTP", "http"),
        ("ODF_VIEWS_HTTP", None),
        ("ODF_METRICS_HOST", None),  # it needs a token, too
    ],
)
def test_each_server_needs_its_own_protection(what: str, protected_by: str | None) -> None:
    for name, variables in (("grpc", GRPC), ("http", HTTP)):
        settings = Settings.from_env(variables)
        if name == protected_by:
            require_protected(settings, what, OPEN)
        else:
            with pytest.raises(Unprotected):
                require_protected(settings, what, OPEN)


@pytest.mark.parametrize(
    ("variable", "value", "hint"),
    [
        ("ODF_SYNC_HTTP", OPEN, "set ODF_HTTP_CERTIFICATE_FILE"),
        ("ODF_ENGINE", OPEN, "set ODF_GRPC_CERTIFICATE_FILE"),
        ("ODF_METRICS_HOST", ANY, "set ODF_HTTP_CERTIFICATE_FILE"),
    ],
)
def test_a_node_does_not_start_with_an_open_address(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *,
    variable: str,
    value: str,
    hint: str,
) -> None:
    monkeypatch.setenv("ODF_HOME", str(tmp_path))
    monkeypatch.setenv(variable, value)
    assert cli.main(["up"]) == 1
    said = capsys.readouterr().err
    assert f"error: {variable} {ANY}:" in said
    assert f"hint: {hint}" in said


@pytest.mark.parametrize("peer", ["127.0.0.1", "::1", "::ffff:127.0.0.1"])
@pytest.mark.parametrize("host", ["localhost:8080", "127.0.0.1", "[::1]:8080"])
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Origin": "http://localhost:3000"},
        {"Origin": "https://[::1]"},
        {"Referer": "http://127.0.0.1:3000/page?q=https://page.example"},
        {"Sec-Fetch-Site": "none"},
        {"Sec-Fetch-Site": "same-origin", "Referer": "http://localhost:8080/"},
        # A page of this machine at another port, or by another name of it.
        {"Origin": "http://localhost:3000", "Sec-Fetch-Site": "cross-site"},
    ],
)
def test_programs_on_this_machine_are_local(peer: str, host: str, headers: dict[str, str]) -> None:
    assert why_not_local(peer=peer, host=host, headers=headers) is None


@pytest.mark.parametrize(
    ("peer", "host", "headers"),
    [
        (None, "localhost", {}),
        ("10.0.0.7", "localhost", {}),
        ("", "localhost", {}),
        *(("127.0.0.1", "localhost", {name: "127.0.0.1"}) for name in FORWARDED),
        ("127.0.0.1", "node.example:80", {}),
        ("127.0.0.1", "localhost.example:80", {}),
        ("127.0.0.1", "localhost@page.example", {}),
        ("127.0.0.1", "", {}),
        ("127.0.0.1", "[", {}),
        ("127.0.0.1", "localhost", {"Origin": "https://page.example"}),
        ("127.0.0.1", "localhost", {"Origin": "https://localhost.page.example"}),
        ("127.0.0.1", "localhost", {"Origin": "null"}),
        ("127.0.0.1", "localhost", {"Origin": ""}),
        ("127.0.0.1", "localhost", {"Origin": "http://["}),
        ("127.0.0.1", "localhost", {"Sec-Fetch-Site": "cross-site"}),
        ("127.0.0.1", "localhost", {"Sec-Fetch-Site": "same-site"}),
        ("127.0.0.1", "localhost", {"Sec-Fetch-Site": "Cross-Site "}),
        ("127.0.0.1", "localhost", {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}),
        ("127.0.0.1", "localhost", {"Referer": "https://page.example/"}),
        ("127.0.0.1", "localhost", {"Referer": "https://page.example/?at=http://localhost"}),
        ("127.0.0.1", "localhost", {"Referer": "http://["}),
        ("127.0.0.1", "localhost", {"Referer": "https://page.example/", "Origin": "http://localhost"}),
        ("127.0.0.1", "localhost", {"Referer": "https://page.example/", "Sec-Fetch-Site": "none"}),
    ],
)
def test_requests_that_others_may_have_caused_are_not_local(
    peer: str | None, host: str, headers: dict[str, str]
) -> None:
    assert why_not_local(peer=peer, host=host, headers=headers)


def test_tls_is_that_of_the_settings_and_a_bad_file_is_an_error() -> None:
    for tls, variables in ((http_tls, HTTP), (peer_tls, GRPC)):
        assert tls(Settings.from_env({})) is None
        with pytest.raises(InvalidInput, match="in PEM"):
            tls(Settings.from_env(variables))
