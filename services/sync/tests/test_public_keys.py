"""Clients get the keys to encrypt secrets to without a login, and nothing else of the key file."""

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from odf_testing.http import running
from odf_testing.memory_store import in_files

from odf_common.adapters.local.secret_key_files import FILE, load_secret_keys, rotate_secret_keys
from odf_common.resources.secret_encryption import SecretPlace, decrypt_from_client, encrypt_for_node
from odf_common.resources.secret_keys import public_key
from odf_common.service.settings import Settings
from odf_sync.access.access_store import AccessStore
from odf_sync.access.directory import Directory
from odf_sync.http.authorization import Authorizer
from odf_sync.http.endpoints import application
from odf_sync.http.server import PUBLIC_KEYS, public_keys

PLACE = SecretPlace(account="alice", resource="an id", path="spec.secrets.pw")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[str]:
    with serving(Settings(home=tmp_path)) as base:
        yield base


def serving(settings: Settings) -> AbstractContextManager[str]:
    directory = Directory(AccessStore(settings.home), is_multi_tenant=True)
    authorizer = Authorizer(catalog=in_files(settings.home).catalog, local_writers="off", directory=directory)
    return running(application(authorizer, [public_keys(settings)]))


def test_the_current_keys_are_public_and_may_be_cached_for_minutes(node: str, tmp_path: Path) -> None:
    with urlopen(node + PUBLIC_KEYS, timeout=10) as answer:
        content = answer.read()
        assert answer.headers["Content-Type"] == "application/jwk-set+json"
        assert answer.headers["Cache-Control"] == "public, max-age=300"
    keys = load_secret_keys(tmp_path)
    assert json.loads(content) == keys.public()
    for item in json.loads(content)["keys"]:
        assert item.keys() <= {"kty", "use", "alg", "kid", "crv", "x", "y", "n", "e"}
    text = encrypt_for_node("swordfish", public_key(content.decode()))
    assert decrypt_from_client(text, PLACE, keys) == "swordfish"


def test_after_a_rotation_the_new_keys_are_served(node: str, tmp_path: Path) -> None:
    with urlopen(node + PUBLIC_KEYS, timeout=10) as answer:
        before = json.load(answer)
    rotated = rotate_secret_keys(tmp_path)
    with urlopen(node + PUBLIC_KEYS, timeout=10) as answer:
        assert json.load(answer) == rotated.public() != before


def test_missing_and_damaged_keys_are_a_fault_of_the_node_that_says_nothing_of_its_files(
    tmp_path: Path,
) -> None:
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / FILE).write_text('{"keys": "swordfish"}')
    for settings, status in (
        (Settings(home=tmp_path, resource_keys_file=tmp_path / "missing"), 503),
        (Settings(home=tmp_path), 500),
    ):
        with serving(settings) as base:
            with pytest.raises(HTTPError) as caught:
                urlopen(base + PUBLIC_KEYS, timeout=10)
            content = caught.value.read()
            caught.value.close()
            assert caught.value.status == status
            assert b"missing" not in content
            assert b"swordfish" not in content
