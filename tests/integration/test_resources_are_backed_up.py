"""Commands of a running node: its keys for secrets are rotated, and its resources backed up and restored."""

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from odf_testing.absence import assert_absent
from odf_testing.embedded import EmbeddedNode

from odf_common.adapters.local.secret_key_files import load_secret_keys

SECRET = "swordfish in a backup"
MANIFESTS = f"""
{{$schema: VariableSet, headers: {{name: env}}, spec: {{variables: {{a: '1'}}}}}}
---
{{$schema: SecretSet, headers: {{name: keys}}, spec: {{secrets: {{pw: {SECRET}}}}}}}
""".encode()


@pytest.fixture
def guest(node: EmbeddedNode, tmp_path: Path) -> Iterator[EmbeddedNode]:
    made = node.guest(tmp_path / "backed-up")
    made.up("coordinator")
    yield made
    made.down()


def listed(node: EmbeddedNode) -> Any:
    return node.run("get --all --output json")


def versions(node: EmbeddedNode) -> Any:
    return [(one["headers"], one["status"]) for one in listed(node)]


def outcomes(node: EmbeddedNode, manifests: bytes) -> set[str]:
    return {row["outcome"] for row in node.run("apply -f - --output json", stdin=manifests)}


def test_resources_survive_a_rotation_and_are_restored_with_their_secrets(
    node: EmbeddedNode, guest: EmbeddedNode, tmp_path: Path
) -> None:
    guest.run("apply -f - --wait", stdin=MANIFESTS)
    exported = guest.attempt("get SecretSet keys --view input --output yaml").stdout
    first = versions(guest)
    keys = load_secret_keys(guest.home)
    assert guest.run("secret rotate --output json")["secrets"] > 0
    assert load_secret_keys(guest.home).keys[-len(keys.keys) :] == keys.keys
    assert versions(guest) == first
    assert outcomes(guest, MANIFESTS) | outcomes(guest, exported) == {"unchanged"}
    assert guest.run("secret rotate --drop-former --output json")["keys"] == len(keys.keys)
    assert outcomes(guest, MANIFESTS) == {"unchanged"}

    file = tmp_path / "resources.tar"
    written = guest.run(shlex.join(["system", "backup", str(file), "--output", "json"]))
    assert written["resources"] >= len(first)
    assert_absent(SECRET, guest.home, messages=[file.read_bytes()])
    before = listed(guest)
    guest.run("apply -f - --wait", stdin=MANIFESTS.replace(b"'1'", b"'2'"))
    restore = shlex.join(["system", "restore", str(file)])
    assert "odf down" in guest.fails(f"{restore} --yes")
    guest.down()
    assert_absent(SECRET, guest.home, node.home)  # with the logs, and the files of Kafka
    assert "--yes" in guest.fails(restore, code=2)
    guest.run(f"{restore} --yes")
    guest.up("coordinator")
    assert listed(guest) == before
    assert outcomes(guest, MANIFESTS) == {"unchanged"}
