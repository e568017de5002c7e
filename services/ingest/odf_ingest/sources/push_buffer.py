"""The records that were pushed to Source resources, until every dataset that a source feeds has committed them.

They are rows of `source-pushes.db` in the node's home, which several processes may use. A push is accepted by one
transaction, so a kill leaves all of its records or none. Records are numbered from 0 in the order of acceptance, and
the chain of each dataset has the number of the next one, as it has offsets of a topic.
"""

import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from odf_common.adapters.local.durable import PRIVATE
from odf_common.adapters.local.faults import translate_os_errors
from odf_common.errors import Damaged, StorageUnavailable
from odf_ingest.errors import BufferFull, KeyReused

FILE: Final = "source-pushes.db"
LOCK_SECONDS: Final = 10.0
KEPT_MS: Final = 7 * 24 * 3600 * 1000  # after which a repeat of a push is not recognised any more
_TABLES: Final = """
CREATE TABLE IF NOT EXISTS ends (source TEXT PRIMARY KEY, next INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS messages (
  source TEXT, first INTEGER, records INTEGER NOT NULL, ms INTEGER NOT NULL, value BLOB NOT NULL,
  PRIMARY KEY (source, first));
CREATE TABLE IF NOT EXISTS pushes (
  source TEXT, receipt TEXT, digest TEXT NOT NULL, records INTEGER NOT NULL, size INTEGER NOT NULL,
  accepted_ms INTEGER NOT NULL, PRIMARY KEY (source, receipt));
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewPush:
    """A push to accept."""

    receipt: str
    """The id of its receipt, the same in each repeat."""
    key: str
    """The idempotency key, from which the id was computed."""
    digest: str
    values: Sequence[bytes]
    """Its messages: each is one record, or the only one has all."""
    records: int
    ms: int
    """The event time of records that have none."""
    accepted_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptedPush:
    """A push that was accepted."""

    receipt: str
    records: int
    size: int
    accepted_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferedMessage:
    """An accepted message; `first` is the number of its first record."""

    first: int
    records: int
    ms: int
    value: bytes


class PushBuffer:
    """The buffers of all Source resources of a node; thread-safe."""

    def __init__(self, home: Path) -> None:
        """Use a database in the home of the node, which the first push creates."""
        self._file = home / FILE

    def accept(self, source: str, push: NewPush, room: int) -> AcceptedPush:
        """Store a push durably, or return that of an earlier call with its receipt.

        Raises `BufferFull` if the buffer would have more than `room` records, and `KeyReused`.
        """
        with self._transaction() as database:
            earlier = database.execute(
                "SELECT records, size, accepted_ms, digest FROM pushes WHERE source = ? AND receipt = ?",
                (source, push.receipt),
            ).fetchone()
            if earlier is not None:
                records, size, accepted_ms, digest = earlier
                if digest != push.digest:
                    text = "other content was pushed with this idempotency key; nothing of this push was accepted"
                    raise KeyReused(text=text, key=push.key)
                return AcceptedPush(receipt=push.receipt, records=records, size=size, accepted_ms=accepted_ms)
            waiting = _count(database, source, 0)
            if waiting + push.records > room:
                raise BufferFull(
                    what=f"{waiting} of {room} records are waiting, and the push has {push.records}"
                )
            return _insert(database, source, push)

    def read(
        self, source: str, start: int, *, max_messages: int, max_bytes: int
    ) -> Sequence[BufferedMessage]:
        """Return messages from a record on; at least one if there is one."""
        found: list[BufferedMessage] = []
        size = 0
        with self._transaction() as database:
            rows = database.execute(
                "SELECT first, records, ms, value FROM messages WHERE source = ? AND first >= ?"
                " ORDER BY first LIMIT ?",
                (source, start, max_messages),
            )
            for first, records, ms, value in rows:
                found.append(BufferedMessage(first=first, records=records, ms=ms, value=value))
                size += len(value)
                if size >= max_bytes:
                    break
        return found

    def count(self, source: str, start: int = 0) -> int:
        """Return the number of records from one on."""
        if not self._file.exists():
            return 0
        with self._transaction() as database:
            return _count(database, source, start)

    def bounds(self, source: str) -> tuple[int, int]:
        """Return the number of the first record in the buffer, and that of the next one to be accepted."""
        if not self._file.exists():
            return 0, 0
        with self._transaction() as database:
            (first,) = database.execute(
                "SELECT min(first) FROM messages WHERE source = ?", (source,)
            ).fetchone()
            end = _end(database, source)
        return end if first is None else first, end

    def release(self, source: str, before: int) -> None:
        """Drop the messages before a record, and receipts older than a week."""
        if not self._file.exists():
            return
        oldest = int(time.time() * 1000) - KEPT_MS
        with self._transaction() as database:
            database.execute("DELETE FROM messages WHERE source = ? AND first < ?", (source, before))
            database.execute("DELETE FROM pushes WHERE source = ? AND accepted_ms < ?", (source, oldest))

    def forget(self, source: str) -> None:
        """Drop everything of a source that is deleted."""
        if not self._file.exists():
            return
        with self._transaction() as database:
            for table in ("messages", "pushes", "ends"):
                database.execute(f"DELETE FROM {table} WHERE source = ?", (source,))  # noqa: S608 - a constant

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with translate_os_errors(self._file), _translate_errors(self._file):
            self._file.touch(PRIVATE)
            # Opened for each call, since the threads of several pools use it, and so do other processes.
            with closing(sqlite3.connect(self._file, timeout=LOCK_SECONDS, isolation_level=None)) as database:
                database.execute("PRAGMA synchronous = EXTRA")  # also the folder, when a journal is removed
                database.executescript(_TABLES)
                database.execute("BEGIN IMMEDIATE")
                yield database
                database.execute("COMMIT")


def _insert(database: sqlite3.Connection, source: str, push: NewPush) -> AcceptedPush:
    end = _end(database, source)
    size = sum(map(len, push.values))
    each = 1 if len(push.values) > 1 else push.records
    database.executemany(
        "INSERT INTO messages VALUES (?, ?, ?, ?, ?)",
        ((source, first, each, push.ms, value) for first, value in enumerate(push.values, start=end)),
    )
    database.execute("INSERT OR REPLACE INTO ends VALUES (?, ?)", (source, end + push.records))
    database.execute(
        "INSERT INTO pushes VALUES (?, ?, ?, ?, ?, ?)",
        (source, push.receipt, push.digest, push.records, size, push.accepted_ms),
    )
    return AcceptedPush(receipt=push.receipt, records=push.records, size=size, accepted_ms=push.accepted_ms)


def _end(database: sqlite3.Connection, source: str) -> int:
    row = database.execute("SELECT next FROM ends WHERE source = ?", (source,)).fetchone()
    return 0 if row is None else int(row[0])


def _count(database: sqlite3.Connection, source: str, start: int) -> int:
    (count,) = database.execute(
        "SELECT coalesce(sum(records), 0) FROM messages WHERE source = ? AND first >= ?", (source, start)
    ).fetchone()
    return int(count)


@contextmanager
def _translate_errors(file: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as error:  # for example a full disk
        raise StorageUnavailable(what=file.name, why=str(error)) from error
    except sqlite3.DatabaseError as error:
        raise Damaged(file=file.name, why=str(error)) from error
