"""The secrets of a home are created once, and only the node's user can read them."""

import os
import pwd
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from odf_common.adapters.local.secrets import HomeOfAnotherUser, ensure_secret, find_secret, secret_file
from odf_common.errors import InvalidInput

NOBODY = 65534


def test_a_secret_is_created_once_for_the_owner_only(tmp_path: Path) -> None:
    text = ensure_secret(tmp_path, "grpc")
    assert len(text) == 43
    assert ensure_secret(tmp_path, "grpc") == text
    assert ensure_secret(tmp_path, "engine") != text
    assert stat.S_IMODE(secret_file(tmp_path, "grpc").stat().st_mode) == 0o600
    assert stat.S_IMODE(secret_file(tmp_path, "grpc").parent.stat().st_mode) == 0o700
    assert sorted(file.name for file in secret_file(tmp_path, "grpc").parent.iterdir()) == ["engine", "grpc"]


def test_processes_that_start_together_share_one_secret(tmp_path: Path) -> None:
    with ThreadPoolExecutor(16) as pool:
        texts = set(pool.map(lambda _: ensure_secret(tmp_path, "grpc"), range(64)))
    assert len(texts) == 1


def test_an_emptied_file_is_named(tmp_path: Path) -> None:
    ensure_secret(tmp_path, "grpc")
    secret_file(tmp_path, "grpc").write_bytes(b"")
    with pytest.raises(InvalidInput, match="expected one line") as caught:
        ensure_secret(tmp_path, "grpc")
    assert str(secret_file(tmp_path, "grpc")) in str(caught.value)


def test_a_secret_is_found_once_it_exists(tmp_path: Path) -> None:
    assert find_secret(tmp_path, "grpc") is None
    assert not secret_file(tmp_path, "grpc").parent.exists()
    assert ensure_secret(tmp_path, "grpc") == find_secret(tmp_path, "grpc")


def test_another_user_learns_whose_home_it_is(tmp_path: Path) -> None:
    ensure_secret(tmp_path, "grpc")
    child = os.fork()
    if child == 0:
        os.setresuid(NOBODY, NOBODY, NOBODY)
        with pytest.raises(HomeOfAnotherUser) as refused:
            find_secret(tmp_path, "grpc")
        os._exit(0 if "run the command as that user" in refused.value.advice() else 1)
    assert os.waitpid(child, 0)[1] == 0
    owner = pwd.getpwuid(tmp_path.stat().st_uid).pw_name
    assert f"belongs to user {owner}" in str(HomeOfAnotherUser.at(tmp_path))
