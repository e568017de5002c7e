"""A secret is the only line of its file, for connections and for commands; no error repeats it."""

import os
import pwd
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from odf_testing.memory_store import MemoryCatalog

from odf_common.adapters.local import durable
from odf_common.adapters.local.key_files import (
    NODE,
    NoPrivateKey,
    NotOwned,
    dataset_key,
    keep_dataset_key,
    node_key,
    require_owned,
)
from odf_common.adapters.local.secrets import (
    MAX_SECRET_BYTES,
    HomeOfAnotherUser,
    close_home,
    ensure_secret,
    find_secret,
    keep_private,
    read_secret,
    secret_file,
)
from odf_common.errors import InvalidInput
from odf_common.identity.keys import generate
from odf_common.ports.store import CatalogEntry


@pytest.mark.parametrize("content", ["s3cret", "s3cret\n", "s3cret\r\n"])
def test_a_secret_is_the_one_line_of_its_file(tmp_path: Path, content: str) -> None:
    file = tmp_path / "password"
    file.write_bytes(content.encode())
    assert read_secret(file) == "s3cret"


@pytest.mark.parametrize(
    "content",
    [b"", b"\n", b"s3cret\nother\n", b"s3cret\0", b"s3cret" * MAX_SECRET_BYTES, b"s3cret\xff"],
    ids=lambda it: str(len(it)),
)
def test_another_content_is_refused_without_repeating_it(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "password"
    file.write_bytes(content)
    with pytest.raises(InvalidInput, match=r"expected one line|not UTF-8") as caught:
        read_secret(file)
    assert str(file) in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_white_space_belongs_to_the_secret(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text(" s3 cret \n")
    assert read_secret(file) == " s3 cret "


def test_a_missing_file_of_a_secret_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="missing: No such file"):
        read_secret(tmp_path / "missing")


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


def modes_in_process(umask: int, work: Callable[[], None], *paths: Path) -> list[int]:
    """Do the work in another process with a umask, and return the modes of files."""
    child = os.fork()
    if child == 0:
        os.umask(umask)
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    return [stat.S_IMODE(path.stat().st_mode) for path in paths]


def test_files_and_folders_are_private_from_then_on(tmp_path: Path) -> None:
    file, folder = tmp_path / "a" / "file", tmp_path / "a"

    def work() -> None:
        assert durable.keep_files_private() == durable.keep_files_private() == 0o022
        durable.write(file, b"x")

    assert modes_in_process(0o022, work, file, folder) == [0o600, 0o700]


def test_what_is_shared_has_the_modes_of_the_first_umask(tmp_path: Path) -> None:
    file, folder, parent = tmp_path / "a" / "b" / "file", tmp_path / "a" / "b", tmp_path / "a"

    def work() -> None:
        durable.keep_files_private()
        durable.make_folder(folder, is_shared=True)
        file.touch()
        durable.share(file, durable.READABLE)

    assert modes_in_process(0o027, work, file, folder, parent) == [0o640, 0o750, 0o750]


def test_without_it_modes_are_those_of_the_umask(tmp_path: Path) -> None:
    file = tmp_path / "file"

    def work() -> None:
        durable.write(file, b"x")
        durable.share(file, durable.READABLE)

    assert modes_in_process(0o022, work, file) == [0o644]


def test_a_command_keeps_private_what_it_creates_in_a_home_of_its_own_user(tmp_path: Path) -> None:
    own, other = tmp_path / "own", tmp_path / "other"
    for home in (own, other):
        home.mkdir()
    os.chown(other, NOBODY, NOBODY)

    def work() -> None:
        for home in (other, own):
            keep_private(home)
            durable.write(home / "file", b"x")

    assert modes_in_process(0o022, work, own / "file", other / "file") == [0o600, 0o644]


def test_the_entries_of_an_existing_home_are_closed(tmp_path: Path) -> None:
    home, outside = tmp_path / "home", tmp_path / "outside"
    outside.touch(0o644)
    (home / "datasets" / "deep").mkdir(parents=True)
    (home / "keys").mkdir(0o700)
    (home / "node-id").touch()
    (home / "shared").mkdir()  # a folder that datasets are pushed to
    (home / "link").symlink_to(outside)
    for path, mode in (
        (home, 0o755),
        (home / "datasets", 0o755),
        (home / "shared", 0o755),
        (home / "node-id", 0o644),
    ):
        path.chmod(mode)
    (home / "datasets" / "deep").chmod(0o755)
    outside.chmod(0o644)
    close_home(home)
    found = {
        name: stat.S_IMODE((home / name).stat().st_mode)
        for name in ("datasets", "keys", "node-id", "datasets/deep", "shared")
    }
    kept = {"datasets/deep": 0o755, "shared": 0o755}
    assert found == {"datasets": 0o700, "keys": 0o700, "node-id": 0o600, **kept}
    assert [stat.S_IMODE(path.stat().st_mode) for path in (home, outside)] == [0o755, 0o644]
    close_home(tmp_path / "no home")


def test_the_nodes_key_is_created_once_and_readable_by_its_owner_only(tmp_path: Path) -> None:
    folder = tmp_path / "home" / "keys"
    before = os.umask(0)
    try:
        key = node_key(folder)
    finally:
        os.umask(before)
    assert node_key(folder) == key
    assert (folder / NODE).stat().st_mode & 0o777 == 0o600
    assert folder.stat().st_mode & 0o777 == 0o700
    assert [file.name for file in folder.iterdir()] == [NODE]


def test_concurrent_creators_get_the_same_key(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: node_key(tmp_path / "keys"), range(32)))
    assert len({key.raw for key in made}) == 1


def test_a_truncated_key_is_refused_and_left_unchanged(tmp_path: Path) -> None:
    (tmp_path / NODE).write_bytes(b"short")
    with pytest.raises(InvalidInput, match="32 bytes"):
        node_key(tmp_path)
    assert (tmp_path / NODE).read_bytes() == b"short"


def test_a_datasets_key_is_read_from_its_file(tmp_path: Path) -> None:
    key = generate()
    (tmp_path / key.dataset_id.folder).write_bytes(key.raw)
    assert dataset_key(tmp_path, key.dataset_id) == key


def test_a_dataset_of_another_node_has_no_local_key(tmp_path: Path) -> None:
    with pytest.raises(NoPrivateKey) as caught:
        dataset_key(tmp_path, generate().dataset_id)
    assert "ODF_HOME" in caught.value.advice()


def test_a_dataset_is_a_copy_until_its_key_is_here(tmp_path: Path) -> None:
    key, catalog = generate(), MemoryCatalog()
    with pytest.raises(NotOwned, match=f"{key.dataset_id} is a copy; only the node that has"):
        require_owned(tmp_path, catalog, key.dataset_id)
    catalog.add(CatalogEntry(alias="cities", dataset_id=key.dataset_id))
    with pytest.raises(NotOwned, match="cities is a copy") as caught:
        require_owned(tmp_path, catalog, key.dataset_id)
    assert "odf key import" in caught.value.advice()
    keep_dataset_key(tmp_path, key)
    require_owned(tmp_path, catalog, key.dataset_id)


def test_the_key_of_another_dataset_is_not_used_for_it(tmp_path: Path) -> None:
    dataset = generate().dataset_id
    (tmp_path / dataset.folder).write_bytes(generate().raw)
    with pytest.raises(InvalidInput, match="another dataset"):
        dataset_key(tmp_path, dataset)
