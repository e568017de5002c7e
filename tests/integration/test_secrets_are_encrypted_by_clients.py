"""A client encrypts a secret for a node with nothing but its address; only the node's key file opens it."""

import json
import time
from base64 import b64encode
from pathlib import Path
from urllib.request import urlopen

import pytest
from odf_testing.absence import assert_absent, forms_of, places_of
from odf_testing.embedded import PATIENCE, EmbeddedNode

from odf_common.adapters.local.secret_key_files import load_secret_keys, rotate_secret_keys
from odf_common.resources.secret_encryption import (
    InvalidJwe,
    SecretPlace,
    accept_secret,
    decrypt_at_rest,
    decrypt_from_client,
    rewrap,
)
from odf_common.resources.secret_text import WrittenSecret

SECRET = "swordfish over the wire"
PLACE = SecretPlace(account="ann", resource="5c5e0d29-f2b5-4d4c-a7f5-9a5a2a4f5f8d", path="spec.secrets.pw")


def written(text: str) -> WrittenSecret:
    return WrittenSecret(value=text, content_encoding="jwe")


def test_what_the_command_encrypts_only_the_node_opens_before_and_after_a_rotation(
    node: EmbeddedNode, tmp_path: Path
) -> None:
    began = time.time()
    text = node.run("secret encrypt", stdin=f"{SECRET}\n".encode()).strip()
    again = node.run(f"secret encrypt --node {node.node.http} --account ann", stdin=SECRET.encode()).strip()
    assert text != again
    keys = load_secret_keys(node.home)
    stored = accept_secret(written(text), place=PLACE, stored=None, keys=keys)
    assert accept_secret(written(again), place=PLACE, stored=stored, keys=keys) == stored
    with pytest.raises(InvalidJwe):
        decrypt_from_client(text, PLACE, load_secret_keys(tmp_path))

    rotated = rotate_secret_keys(node.home)
    assert decrypt_from_client(text, PLACE, rotated) == SECRET
    assert decrypt_at_rest(rewrap(stored.value, PLACE, rotated), PLACE, rotated) == SECRET
    with urlopen(f"{node.node.http}/.well-known/odf-jwks.json", timeout=PATIENCE) as answer:
        published = json.load(answer)
    assert published == rotated.public()
    file = tmp_path / "node.jwks"
    file.write_text(json.dumps(published))
    newest = node.run(f"secret encrypt --key {file}", stdin=SECRET.encode()).strip()
    assert decrypt_from_client(newest, PLACE, rotated) == SECRET
    assert_absent(SECRET, node.home, messages=[text.encode(), stored.value.encode()], since=began)


def test_the_search_finds_a_secret_in_every_form(tmp_path: Path) -> None:
    for number, form in enumerate(forms_of(SECRET)):
        (tmp_path / f"{number}").write_bytes(b"before " + form + b" after")
    for skipped in range(3):
        (tmp_path / f"base64 {skipped}").write_bytes(b64encode(b"x" * skipped + SECRET.encode() + b"after"))
    (tmp_path / "empty").touch()
    found = {place.partition(": ")[0] for place in places_of(SECRET, tmp_path)}
    assert found == {str(file) for file in tmp_path.iterdir() if file.name != "empty"}
    with pytest.raises(AssertionError, match="places have the secret"):
        assert_absent(SECRET, tmp_path)
