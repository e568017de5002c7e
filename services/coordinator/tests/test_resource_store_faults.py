"""Databases of resources that cannot be used: an error with a remedy, no password, and work continues afterwards."""

import sqlite3
import stat
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from odf_testing.postgres import PASSWORD, PostgresServer, serving_postgres
from odf_testing.resources import SECRETS, a_resource, save

from odf_common.errors import Damaged, StorageUnavailable
from odf_coordinator.resources.sql_database import FILE, LOCK_SECONDS, STATEMENT_SECONDS
from odf_coordinator.resources.sql_store import SqlResourceStore
from odf_coordinator.resources.store import (
    Change,
    EventKind,
    NewEvent,
    Query,
    ResourcesUnreadable,
)

CIPHERTEXT = "eyJhbGciOiJBMjU2S1cifQ.ciphertext-to-be-erased"
LATE_SECONDS = 2.0


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlResourceStore]:
    opened = SqlResourceStore.open(tmp_path)
    yield opened
    opened.close()


@pytest.fixture
def url(server: PostgresServer) -> Iterator[str]:
    with server.database() as url:
        yield url


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """Run a server that tests stop and pause."""
    with serving_postgres() as server:
        yield server


def names(store: SqlResourceStore) -> list[str]:
    with store.read() as snapshot:
        return [resource.name for resource in snapshot.find(Query()).resources]


def test_only_the_nodes_user_reads_the_files(store: SqlResourceStore, tmp_path: Path) -> None:
    save(store, a_resource("a"))
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()}
    assert modes == {FILE: 0o600, f"{FILE}-wal": 0o600, f"{FILE}-shm": 0o600}


def test_a_store_opens_in_a_home_that_does_not_exist_yet(tmp_path: Path) -> None:
    with closing(SqlResourceStore.open(tmp_path / "new" / "home")) as store:
        assert names(store) == []
        save(store, a_resource("a"))
    with closing(SqlResourceStore.open(tmp_path / "new" / "home")) as store:
        assert names(store) == ["a"]


@pytest.mark.parametrize("content", [b"this is no database" * 100, b"SQLite format 3\0" + b"\xff" * 5_000])
def test_a_file_that_is_no_database_is_unreadable(
    store: SqlResourceStore, tmp_path: Path, content: bytes
) -> None:
    (tmp_path / FILE).write_bytes(content)
    with pytest.raises(ResourcesUnreadable, match=FILE) as refused:
        names(store)
    assert "restore" in refused.value.advice()
    assert (tmp_path / FILE).read_bytes() == content


def test_a_folder_in_its_place_is_named(store: SqlResourceStore, tmp_path: Path) -> None:
    (tmp_path / FILE).mkdir()
    with pytest.raises((Damaged, StorageUnavailable), match=FILE):
        names(store)


def test_damaged_pages_are_unreadable(store: SqlResourceStore, tmp_path: Path) -> None:
    save(store, *(a_resource(f"n{number}") for number in range(200)))
    store.close()
    file = tmp_path / FILE
    file.write_bytes(file.read_bytes()[:4096] + b"\xff" * (file.stat().st_size - 4096))
    with closing(SqlResourceStore.open(tmp_path)) as other, pytest.raises(ResourcesUnreadable):
        names(other)


def test_a_newer_version_is_refused(store: SqlResourceStore, tmp_path: Path) -> None:
    save(store, a_resource("a"))
    store.close()
    with closing(sqlite3.connect(tmp_path / FILE)) as connection, connection:
        connection.execute("UPDATE resource_store SET version = 2")
    with closing(SqlResourceStore.open(tmp_path)) as other:
        for _ in range(2):
            with pytest.raises(ResourcesUnreadable, match="version 2, and this release knows 1") as refused:
                save(other, a_resource("b"))
            assert "newer" in refused.value.advice()


def test_a_file_that_another_process_locks_is_unavailable_for_now(
    store: SqlResourceStore, tmp_path: Path
) -> None:
    save(store, a_resource("a"))
    with closing(sqlite3.connect(tmp_path / FILE, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert names(store) == ["a"]
        with pytest.raises(StorageUnavailable, match="locked"):
            save(store, a_resource("b"))
        other.execute("ROLLBACK")
    save(store, a_resource("b"))
    assert names(store) == ["a", "b"]


def test_a_transaction_that_does_not_end_holds_others_up_for_a_limited_time(store: SqlResourceStore) -> None:
    with store.transaction():
        refused: list[Exception] = []

        def write() -> None:
            try:
                save(store, a_resource("b"))
            except StorageUnavailable as error:
                refused.append(error)

        writer = threading.Thread(target=write)
        writer.start()
        writer.join(LOCK_SECONDS + LATE_SECONDS)
        assert "another transaction" in str(refused)
    save(store, a_resource("b"))


def test_what_was_erased_is_in_no_file(store: SqlResourceStore, tmp_path: Path) -> None:
    created = NewEvent(kind=EventKind.CREATED, subject="alice", time_ms=1, payload={"pw": CIPHERTEXT * 500})
    new = a_resource("keys", type=SECRETS, spec={"secrets": {"pw": CIPHERTEXT * 500}})
    others = [a_resource(f"n{number}") for number in range(50)]
    with store.transaction() as transaction:
        (secret,) = transaction.save([Change(resource=new, events=[created])])
    save(store, *others)
    assert CIPHERTEXT in files(tmp_path)
    with store.transaction() as transaction:
        transaction.remove(secret, 2)
        transaction.erase_payloads(secret.id)
    assert "ciphertext" not in files(tmp_path)
    assert len(names(store)) == len(others)


def test_what_was_erased_while_others_read_is_gone_with_the_next_transaction(
    store: SqlResourceStore, tmp_path: Path
) -> None:
    (secret,) = save(store, a_resource("keys", type=SECRETS, spec={"pw": CIPHERTEXT * 500}))
    with store.read() as snapshot:
        assert snapshot.by_id(secret.id) == secret
        with store.transaction() as transaction:
            transaction.remove(secret, 2)
        assert snapshot.by_id(secret.id) == secret
    save(store, a_resource("b"))
    assert "ciphertext" not in files(tmp_path)


def files(folder: Path) -> str:
    return "".join(file.read_bytes().decode("latin-1") for file in folder.iterdir())


def test_a_server_that_stops_is_unavailable_until_it_is_back(server: PostgresServer, url: str) -> None:
    with closing(SqlResourceStore.open(None, url)) as store:
        save(store, a_resource("a"))
        server.stop()
        with pytest.raises(StorageUnavailable) as refused:
            names(store)
        assert "ODF_RESOURCES" in refused.value.advice()
        server.start()
        assert names(store) == ["a"]
        server.stop()
        server.start()
        assert names(store) == ["a"]  # its connections have ended unseen


def test_a_connection_that_breaks_in_a_transaction_rolls_it_back(server: PostgresServer, url: str) -> None:
    with closing(SqlResourceStore.open(None, url)) as store:
        save(store, a_resource("a"))
        with pytest.raises(StorageUnavailable):
            save_without_connection(server, store)
        assert names(store) == ["a"]
        save(store, a_resource("b"))


def save_without_connection(server: PostgresServer, store: SqlResourceStore) -> None:
    with store.transaction() as transaction:
        transaction.save([Change(resource=a_resource("b"), events=[created()])])
        server.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE state = 'idle in transaction'"
        )


def created() -> NewEvent:
    return NewEvent(kind=EventKind.CREATED, subject="alice", time_ms=1)


def test_a_server_that_is_silent_is_given_up(server: PostgresServer, url: str) -> None:
    with closing(SqlResourceStore.open(None, url)) as store:
        save(store, a_resource("a"))
        began = time.monotonic()
        with pytest.raises(StorageUnavailable, match="silent"):
            save_while_paused(server, store)
        assert time.monotonic() - began < STATEMENT_SECONDS + LATE_SECONDS
        assert names(store) == ["a"]
        save(store, a_resource("c"))


def save_while_paused(server: PostgresServer, store: SqlResourceStore) -> None:
    with store.transaction() as transaction, server.paused():
        transaction.save([Change(resource=a_resource("b"), events=[created()])])


def test_a_new_connection_to_a_silent_server_is_given_up(server: PostgresServer, url: str) -> None:
    with closing(SqlResourceStore.open(None, url)) as store, server.paused():
        began = time.monotonic()
        with pytest.raises(StorageUnavailable, match="timeout"):
            names(store)
        assert time.monotonic() - began < LOCK_SECONDS + LATE_SECONDS


def test_another_writer_of_a_server_holds_up_for_a_limited_time(server: PostgresServer, url: str) -> None:
    with closing(SqlResourceStore.open(None, url)) as one, closing(SqlResourceStore.open(None, url)) as other:
        save(one, a_resource("a"))
        with one.transaction(), pytest.raises(StorageUnavailable, match="lock timeout"):
            save(other, a_resource("b"))
        save(other, a_resource("b"))
        assert names(one) == ["a", "b"]


@pytest.mark.parametrize(
    ("database", "password", "why"),
    [("nowhere", PASSWORD, "does not exist"), ("postgres", "wrong-secret", "authentication failed")],
)
def test_a_wrong_address_names_what_is_wrong_and_no_password(
    server: PostgresServer, database: str, password: str, why: str
) -> None:
    store = SqlResourceStore.open(None, server.url(database, password=password))
    with pytest.raises(StorageUnavailable, match=why) as refused:
        names(store)
    text = "".join(traceback.format_exception(refused.value))
    assert password not in text + repr(refused.value) + str(refused.value)


def test_no_values_are_in_the_error_of_a_database(server: PostgresServer, url: str) -> None:
    with closing(SqlResourceStore.open(None, url)) as store:
        save(store, a_resource("a"))
        server.execute("DROP TABLE resource_events", database=url.rpartition("/")[2])
        with pytest.raises(ResourcesUnreadable, match="resource_events") as refused:
            save(store, a_resource("b", spec={"pw": CIPHERTEXT}))
    assert "ciphertext" not in "".join(traceback.format_exception(refused.value))


def test_a_server_with_a_newer_version_is_refused(server: PostgresServer, url: str) -> None:
    with closing(SqlResourceStore.open(None, url)) as store:
        save(store, a_resource("a"))
    server.execute("UPDATE resource_store SET version = 7", database=url.rpartition("/")[2])
    with (
        closing(SqlResourceStore.open(None, url)) as store,
        pytest.raises(ResourcesUnreadable, match="version 7"),
    ):
        names(store)


def test_a_user_who_may_not_write_is_told_so(server: PostgresServer, url: str) -> None:
    with closing(SqlResourceStore.open(None, url)) as store:
        save(store, a_resource("a"))
    server.execute("CREATE ROLE reader LOGIN PASSWORD 'x'")
    reader = url.replace(f"odf:{PASSWORD}", "reader:x")
    store = SqlResourceStore.open(None, reader)
    with pytest.raises(ResourcesUnreadable, match="permission denied") as refused:
        names(store)
    assert "own the tables" in refused.value.advice()
    store.close()
