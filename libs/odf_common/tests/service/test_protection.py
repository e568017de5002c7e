"""What may listen beyond the loopback address, and what callers on it show."""

import os
from pathlib import Path

import pytest
from multidict import CIMultiDict
from odf_testing.certificates import self_signed

from odf_cli import main as cli
from odf_common.adapters.grpc.peer_credentials import PeerSecret, PeerTls
from odf_common.adapters.local.secrets import ensure_secret
from odf_common.errors import InvalidInput
from odf_common.service.protection import (
    ENGINE_SECRET,
    FORWARDED,
    GRPC_SECRET,
    Unprotected,
    command_credentials,
    http_tls,
    is_loopback,
    peer_credentials,
    peer_tls,
    require_protected,
    why_another_user,
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
        {"Referer": "http://127.0.0.1:5545/", "Sec-Fetch-Site": "same-site"},
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


LOCAL = "127.0.0.1:5541"


def test_on_loopback_the_parts_of_a_home_share_a_secret(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    assert command_credentials(settings, LOCAL) is None, "a command creates nothing"
    secret = peer_credentials(settings, LOCAL)
    assert isinstance(secret, PeerSecret)
    assert secret.text == ensure_secret(tmp_path, GRPC_SECRET)
    assert command_credentials(settings, "[::1]:5541") == secret
    assert secret.users == frozenset({0, os.geteuid(), tmp_path.stat().st_uid})


def test_the_engine_has_a_secret_of_its_own(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    engine = peer_credentials(settings, LOCAL, ENGINE_SECRET)
    assert isinstance(engine, PeerSecret)
    assert [file.name for file in (tmp_path / "secrets").iterdir()] == ["engine"]
    assert engine != peer_credentials(settings, LOCAL)


def test_processes_with_different_homes_share_files(tmp_path: Path) -> None:
    files = {f"ODF_{name}_SECRET_FILE": str(tmp_path / name.lower()) for name in ("GRPC", "ENGINE")}
    for file in files.values():
        Path(file).write_text(f"content of {Path(file).name}\n")
    settings = Settings.from_env({"ODF_HOME": str(tmp_path / "home"), **files})
    for secret in (GRPC_SECRET, ENGINE_SECRET):
        expected = PeerSecret(text=f"content of {secret}")
        assert (
            peer_credentials(settings, LOCAL, secret)
            == command_credentials(settings, LOCAL, secret)
            == expected
        )
    assert not (tmp_path / "home").exists()


def test_beyond_loopback_nothing_is_sent_in_plain_text(tmp_path: Path) -> None:
    ensure_secret(tmp_path, GRPC_SECRET)
    settings = Settings(home=tmp_path, listen_unprotected=True)
    assert peer_credentials(settings, OPEN) is None
    assert command_credentials(settings, "ingest:5540") is None


def test_with_tls_no_secret_is_needed(tmp_path: Path) -> None:
    certificate, key = map(str, self_signed(tmp_path))
    files = {"CERTIFICATE": certificate, "KEY": key, "CA": certificate}
    tls = {f"ODF_GRPC_{name}_FILE": file for name, file in files.items()}
    settings = Settings.from_env({"ODF_HOME": str(tmp_path / "home"), **tls})
    assert isinstance(peer_credentials(settings, LOCAL), PeerTls)
    assert isinstance(command_credentials(settings, LOCAL), PeerTls)
    assert not (tmp_path / "home").exists()


def test_where_the_kernel_says_nothing_all_users_count_as_the_node_s(monkeypatch: pytest.MonkeyPatch) -> None:
    nowhere = (("127.0.0.1", 1), ("127.0.0.1", 2))
    assert why_another_user(*nowhere) == "its program has closed the connection"
    monkeypatch.setattr("odf_common.service.protection.are_users_known", lambda: False)
    assert why_another_user(*nowhere) is None


@pytest.mark.parametrize("name", ["Origin", "Referer"])
def test_each_of_two_headers_with_one_name_counts(name: str) -> None:
    for values in (
        ("http://localhost:3", "http://evil.example"),
        ("http://evil.example", "http://localhost:3"),
    ):
        headers = CIMultiDict((name, value) for value in values)
        why = why_not_local(peer="127.0.0.1", host="localhost", headers=headers)
        assert why == "a web page from elsewhere sent it"
