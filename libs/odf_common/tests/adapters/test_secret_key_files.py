import os
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from odf_common.adapters.local.secret_key_files import (
    FILE,
    NoSecretKeys,
    load_secret_keys,
    rotate_secret_keys,
)
from odf_common.errors import Damaged, InvalidInput
from odf_common.resources.secret_keys import SecretKeys


def test_keys_are_created_once_for_the_nodes_user_only(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        keys = load_secret_keys(tmp_path / "home")
    finally:
        os.umask(before)
    file = tmp_path / "home" / "keys" / FILE
    assert load_secret_keys(tmp_path / "home").text() == keys.text() == file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert [entry.name for entry in file.parent.iterdir()] == [FILE]


def test_concurrent_creators_get_the_same_keys(tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda _: load_secret_keys(tmp_path).text(), range(2)))
    assert len(set(found)) == 1


def test_a_rotation_is_seen_by_others_and_loses_no_key(tmp_path: Path) -> None:
    keys = load_secret_keys(tmp_path)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda _: rotate_secret_keys(tmp_path), range(2)))
    found = load_secret_keys(tmp_path)
    assert len({key.kid for key in found.keys}) == 9
    assert [key.kid for key in found.keys[6:]] == [key.kid for key in keys.keys]
    assert stat.S_IMODE((tmp_path / "keys" / FILE).stat().st_mode) == 0o600


def test_keys_of_an_operator_are_used_and_none_are_created_in_their_place(tmp_path: Path) -> None:
    home, file = tmp_path / "home", tmp_path / "mounted.jwks"
    with pytest.raises(NoSecretKeys, match=r"mounted\.jwks does not exist") as caught:
        load_secret_keys(home, file)
    assert "ODF_RESOURCE_KEYS_FILE" in caught.value.advice()
    with pytest.raises(NoSecretKeys):
        rotate_secret_keys(home, file)
    assert not file.exists()
    file.write_text(SecretKeys.new().text())
    assert load_secret_keys(home, file).text() == file.read_text()
    rotated = rotate_secret_keys(home, file)
    assert load_secret_keys(home, file).text() == rotated.text()
    assert not (home / "keys" / FILE).exists()


@pytest.mark.parametrize("put", [Path.mkdir, os.mkfifo, lambda file: file.symlink_to(file)])
def test_what_is_no_file_is_damage(tmp_path: Path, put: Callable[[Path], None]) -> None:
    (tmp_path / "keys").mkdir()
    put(tmp_path / "keys" / FILE)
    for call in (load_secret_keys, rotate_secret_keys):
        with pytest.raises(Damaged):
            call(tmp_path)


@pytest.mark.parametrize("content", [b"", b"\xff swordfish", b'{"keys": "swordfish"}', b" " * 2_000_000])
def test_another_file_is_refused_without_being_quoted(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "keys" / FILE
    file.parent.mkdir()
    file.write_bytes(content)
    with pytest.raises(InvalidInput, match="expected a JWK set with private keys") as caught:
        load_secret_keys(tmp_path)
    assert caught.value.where == str(file)
    assert "swordfish" not in repr(caught.value)
    assert file.read_bytes() == content
