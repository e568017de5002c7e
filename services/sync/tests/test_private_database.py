"""A private database: durable, deleted bytes overwritten, readable by its owner alone, and of this version."""

import sqlite3
import stat
from pathlib import Path

import pytest

from odf_common.errors import Damaged, StorageUnavailable
from odf_sync.private_database import Definition, PrivateDatabase

TABLES = "CREATE TABLE one(id INTEGER PRIMARY KEY); CREATE TABLE two(one INTEGER REFERENCES one(id));"
DEFINITION = Definition(
    file="private.sqlite", version=3, tables=TABLES, unreadable=lambda why: Damaged(file="it", why=why)
)


def test_it_is_durable_and_overwrites_deleted_bytes(tmp_path: Path) -> None:
    database = PrivateDatabase(tmp_path, DEFINITION)
    assert database.change("INSERT INTO one VALUES (1)") == 1
    assert database.rows("PRAGMA synchronous") == [(3,)], "EXTRA"
    assert database.rows("PRAGMA secure_delete") == [(1,)]
    assert database.rows("PRAGMA user_version") == [(3,)]
    with pytest.raises(sqlite3.IntegrityError):
        database.change("INSERT INTO two VALUES (2)")
    assert database.change("INSERT INTO two VALUES (?)", 1) == 1
    assert database.change("DELETE FROM one WHERE id = ?", 7) == 0
    assert stat.S_IMODE((tmp_path / DEFINITION.file).stat().st_mode) == 0o600


def test_reading_creates_no_file_and_writes_survive_a_restart(tmp_path: Path) -> None:
    assert PrivateDatabase(tmp_path / "home", DEFINITION).rows("SELECT * FROM one") == []
    assert list(tmp_path.iterdir()) == []
    PrivateDatabase(tmp_path / "home", DEFINITION).change("INSERT INTO one VALUES (1)")
    assert PrivateDatabase(tmp_path / "home", DEFINITION).rows("SELECT * FROM one") == [(1,)]
    in_memory = PrivateDatabase(None, DEFINITION)
    in_memory.change("INSERT INTO one VALUES (2)")
    assert in_memory.rows("SELECT * FROM one") == [(2,)]


def test_another_version_or_file_format_is_damaged_and_a_transient_fault_is_not(
    tmp_path: Path,
) -> None:
    with sqlite3.connect(tmp_path / DEFINITION.file) as other:
        other.execute("PRAGMA user_version = 4")
    with pytest.raises(Damaged, match="it has version 4, and this release knows 3"):
        PrivateDatabase(tmp_path, DEFINITION).rows("SELECT * FROM one")
    (tmp_path / DEFINITION.file).write_bytes(b"no database" * 100)
    with pytest.raises(Damaged):
        PrivateDatabase(tmp_path, DEFINITION).change("INSERT INTO one VALUES (1)")
    with pytest.raises(StorageUnavailable):
        PrivateDatabase(None, DEFINITION).rows("SELECT * FROM three")


def test_threads_use_its_connection_one_after_another() -> None:
    database, is_locked = PrivateDatabase(None, DEFINITION), []
    database.change("INSERT INTO one VALUES (1)")
    assert database._connection is not None
    database._connection.set_trace_callback(lambda _: is_locked.append(database._lock.locked()))
    database.rows("SELECT * FROM one")
    database.change("DELETE FROM one")
    assert len(is_locked) >= 2
    assert all(is_locked)
