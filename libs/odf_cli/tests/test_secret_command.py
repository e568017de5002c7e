import json
import socket
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO, TextIOWrapper
from pathlib import Path
from threading import Thread
from typing import ClassVar

import pytest

from odf_cli import main as cli
from odf_common.resources.secret_encryption import InvalidJwe, SecretPlace, decrypt_from_client
from odf_common.resources.secret_keys import SecretKeys

PLACE = SecretPlace(account="alice", resource="an id", path="spec.secrets.pw")
SECRET = "-----BEGIN KEY-----\nswordfish\n-----END KEY-----"


@cache
def keys() -> SecretKeys:
    return SecretKeys.new()


class Node(BaseHTTPRequestHandler):
    """A node that publishes its keys, or answers something else."""

    answer: ClassVar[tuple[int, bytes]]

    def do_GET(self) -> None:
        status, content = self.answer if self.path == "/.well-known/odf-jwks.json" else (404, b"")
        self.send_response(status)
        self.send_header("Location", "https://elsewhere.example/")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def node() -> Iterator[str]:
    Node.answer = (200, json.dumps(keys().public()).encode())
    with ThreadingHTTPServer(("127.0.0.1", 0), Node) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def run(monkeypatch: pytest.MonkeyPatch, content: bytes, *arguments: str) -> int:
    monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO(content)))
    return cli.main(["secret", "encrypt", *arguments])


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
@pytest.mark.parametrize("slash", ["", "/"])
def test_a_secret_is_encrypted_for_a_node_without_its_end_of_line(
    node: str, end: str, slash: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, (SECRET + end).encode(), "--node", node + slash) == 0
    said = capsys.readouterr()
    assert said.out.count("\n") == 1
    assert said.err == ""
    assert decrypt_from_client(said.out.strip(), PLACE, keys()) == SECRET


def test_a_secret_for_one_account_is_bound_to_it(
    node: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, b"swordfish", "--node", node, "--account", "bob") == 0
    text = capsys.readouterr().out.strip()
    assert decrypt_from_client(text, replace(PLACE, account="bob"), keys()) == "swordfish"
    with pytest.raises(InvalidJwe, match="another account"):
        decrypt_from_client(text, PLACE, keys())


def test_a_key_in_a_file_needs_no_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "node.jwks"
    for plain in (keys().public(), *keys().public()["keys"]):
        file.write_text(json.dumps(plain))
        assert run(monkeypatch, b"swordfish", "--key", str(file)) == 0
        assert decrypt_from_client(capsys.readouterr().out.strip(), PLACE, keys()) == "swordfish"


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "found nothing"),
        (b"\n", "found nothing"),
        (b"swordfish\xff", "not UTF-8"),
        (b"swordfish" * 8000, "longer"),
    ],
)
def test_what_is_no_secret_is_refused_without_being_shown(
    node: str, content: bytes, why: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, content, "--node", node) == 1
    said = capsys.readouterr()
    assert why in said.err
    assert "swordfish" not in said.err + said.out


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ((404, b""), "status 404"),
        ((302, b""), "status 302"),
        ((200, b"<html>"), "expected a JWK set with a public key"),
        ((200, b'{"keys": []}'), "expected a JWK set with a public key"),
    ],
)
def test_an_answer_that_has_no_key_is_named(
    node: str,
    answer: tuple[int, bytes],
    why: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    Node.answer = answer
    assert run(monkeypatch, b"swordfish", "--node", node) == 1
    said = capsys.readouterr().err
    assert why in said
    assert f"{node}/.well-known/odf-jwks.json" in said


@pytest.mark.parametrize(
    "url",
    [
        "http://node.example",
        "ftp://node.example",
        "node.example",
        "http://",
        "https://",
        "file:///keys",
        "http://[1",
    ],
)
def test_a_key_that_others_could_replace_is_not_fetched(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, b"swordfish", "--node", url) == 1
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert "swordfish" not in said


def test_a_node_that_does_not_answer_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    assert run(monkeypatch, b"swordfish", "--node", url) == 1
    assert f"{url}/.well-known/odf-jwks.json cannot be reached" in capsys.readouterr().err


def test_node_and_key_exclude_each_other(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, b"swordfish", "--node", "https://node.example", "--key", "node.jwks") == 2
    assert "either --node or --key" in capsys.readouterr().err


def test_without_a_running_node_the_command_says_how_to_start_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ODF_HOME", str(tmp_path))
    assert run(monkeypatch, b"swordfish") == 1
    assert "odf up" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
