"""The store of resources and its keys in one archive: of one state, private, restored into an empty home."""

import sqlite3
import stat
import threading
from itertools import count
from pathlib import Path

import pytest
from odf_testing.resource_node import apply, exported, node, opened, stored

from odf_common.adapters.local.resource_backup import (
    NewerStore,
    StoreInUse,
    existing_store,
    restore_backup,
    write_backup,
)
from odf_common.adapters.local.secret_key_files import load_secret_keys, rotate_secret_keys
from odf_common.errors import Damaged, InvalidInput, NotFound
from odf_coordinator.resources.store import START
from odf_coordinator.resources.use_cases import Resources

SECRETS = "{$schema: SecretSet, headers: {name: keys-%d}, spec: {secrets: {pw: swordfish-%d}}}"


def filled(home: Path) -> Resources:
    resources, _ = node(home)
    apply(resources, *(SECRETS % (n, n) for n in range(3)))
    return resources


def close(resources: Resources) -> None:
    resources.store.close()  # type: ignore[attr-defined]


def set_version(store: Path, version: int) -> None:
    connection = sqlite3.connect(store)
    connection.execute("UPDATE resource_store SET version = ?", (version,))
    connection.commit()
    connection.close()


def test_a_backup_of_a_running_node_is_restored_into_an_empty_home(tmp_path: Path) -> None:
    old, new, file = tmp_path / "old", tmp_path / "new", tmp_path / "resources.tar"
    resources = filled(old)
    before, secrets = stored(resources), opened(resources, load_secret_keys(old))
    written = write_backup(old, file)
    assert (written.resources, stat.S_IMODE(file.stat().st_mode)) == (len(before), 0o600)
    assert existing_store(new) is None
    assert restore_backup(new, file) == written
    again, _ = node(new)
    assert stored(again) == before
    assert opened(again, load_secret_keys(new)) == secrets
    assert stat.S_IMODE((new / "resources.db").stat().st_mode) == 0o600
    assert set(apply(again, *exported(resources))) == {"unchanged"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "old", "resources.tar"]


def test_what_is_written_meanwhile_is_in_a_backup_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    resources, rotation = node(tmp_path / "old")
    stop = threading.Event()
    writer = threading.Thread(target=write_until, args=(resources, stop))
    writer.start()
    try:
        while len(stored(resources)) < 3:
            """The first batch is not stored."""
        for number in range(1, 5):
            write_backup(tmp_path / "old", tmp_path / f"{number}.tar")
            if number == 2:
                rotation.rotate()
    finally:
        stop.set()
        writer.join()
    for number in range(1, 5):
        home = tmp_path / str(number)
        restore_backup(home, tmp_path / f"{number}.tar")
        restored, _ = node(home)
        last = opened(restored, load_secret_keys(home))[:3]
        assert len({secret.rpartition("-")[2] for secret in last}) == 1
        with restored.store.read() as snapshot:
            assert len(snapshot.events_after(START)) == snapshot.position()


def write_until(resources: Resources, stop: threading.Event) -> None:
    for version in count():
        if stop.is_set():
            return
        apply(resources, *(SECRETS % (n, version) for n in range(3)))


def test_a_store_in_use_is_not_replaced(tmp_path: Path) -> None:
    resources = filled(tmp_path)
    write_backup(tmp_path, tmp_path / "file")
    stored(resources)
    with pytest.raises(StoreInUse):
        restore_backup(tmp_path, tmp_path / "file")
    close(resources)
    restore_backup(tmp_path, tmp_path / "file")


def test_a_restore_brings_back_what_was_changed_and_keeps_newer_keys(tmp_path: Path) -> None:
    resources = filled(tmp_path)
    before = stored(resources)
    write_backup(tmp_path, tmp_path / "file")
    keys = load_secret_keys(tmp_path)
    apply(resources, SECRETS % (0, 7), SECRETS % (8, 8))
    newer = rotate_secret_keys(tmp_path)
    close(resources)
    for _ in range(2):
        restore_backup(tmp_path, tmp_path / "file")
    again, _ = node(tmp_path)
    assert stored(again) == before
    after = load_secret_keys(tmp_path)
    assert [key.kid for key in after.current().keys] == [key.kid for key in keys.keys]
    assert {key.kid for key in after.keys} == {key.kid for key in newer.keys}


def test_stores_and_backups_of_newer_releases_are_refused(tmp_path: Path) -> None:
    home, other = tmp_path / "home", tmp_path / "other"
    for folder in (home, other):
        close(filled(folder))
    write_backup(home, tmp_path / "file")
    set_version(home / "resources.db", 99)
    with pytest.raises(NewerStore):
        restore_backup(home, tmp_path / "file")
    write_backup(home, tmp_path / "newer")
    with pytest.raises(NewerStore):
        restore_backup(other, tmp_path / "newer")


def test_a_damaged_store_is_replaced(tmp_path: Path) -> None:
    resources = filled(tmp_path)
    before = stored(resources)
    write_backup(tmp_path, tmp_path / "file")
    close(resources)
    (tmp_path / "resources.db").write_bytes(b"not a database at all" * 1000)
    with pytest.raises(Damaged):
        existing_store(tmp_path)
    restore_backup(tmp_path, tmp_path / "file")
    assert stored(node(tmp_path)[0]) == before


def test_what_is_no_backup_and_what_has_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        write_backup(tmp_path, tmp_path / "file")
    (tmp_path / "file").write_bytes(b"something else")
    with pytest.raises(InvalidInput):
        restore_backup(tmp_path / "new", tmp_path / "file")
    filled(tmp_path)
    with pytest.raises(InvalidInput):
        write_backup(tmp_path, tmp_path / "file")
    with pytest.raises(NotFound):
        restore_backup(tmp_path / "new", tmp_path / "missing")
    whole = tmp_path / "whole"
    write_backup(tmp_path, whole)
    (tmp_path / "cut").write_bytes(whole.read_bytes()[:20_000])
    with pytest.raises((InvalidInput, Damaged)):
        restore_backup(tmp_path / "new", tmp_path / "cut")
    assert not [path for path in (tmp_path / "new").iterdir() if path.name.startswith(".")]
