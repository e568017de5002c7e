"""SQLite databases in the node's home that only sync opens, and that only the node's user can read.

A file is created by the first change. Each change is durable when the call returns. If a database cannot be read, every
call fails.
"""

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from odf_common.adapters.local.durable import PRIVATE
from odf_common.adapters.local.faults import translate_os_errors
from odf_common.errors import Damaged, StorageUnavailable

LOCK_SECONDS: Final = 5.0


class PrivateDatabase:
    """A SQLite database; thread-safe."""

    def __init__(
        self,
        home: Path | None,
        file: str,
        tables: str,
        unreadable: Callable[[str], Damaged],
        *,
        version: int = 1,
    ) -> None:
        """Use a database in the home of a node, opened on first use; without a home, a database in memory.

        `file` is the name of the file in the home, and `tables` are the SQL statements that create its tables.
        `unreadable` returns the error for a database that cannot be read, given the reason.
        """
        self._name = file
        self._tables = tables
        self._unreadable = unreadable
        self._version = version
        self._file = None if home is None else home / file
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None

    def rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """Return the rows of a query; an empty list if the file does not exist."""
        with self._lock, self._translate_errors():
            connection = self._open(create=False)
            return [] if connection is None else connection.execute(query, values).fetchall()

    def change(self, statement: str, *values: object) -> int:
        """Execute a statement durably, and return the number of changed rows; raises `sqlite3.IntegrityError`."""
        with self._lock, self._translate_errors():
            connection = self._open(create=True)
            assert connection is not None
            with connection:
                return connection.execute(statement, values).rowcount

    def _open(self, *, create: bool) -> sqlite3.Connection | None:
        if self._connection is not None:
            return self._connection
        if self._file is not None:
            with translate_os_errors(self._file):
                if not create and not self._file.exists():
                    return None
                self._file.parent.mkdir(parents=True, exist_ok=True)
                self._file.touch(PRIVATE)
        connection = sqlite3.connect(self._file or ":memory:", timeout=LOCK_SECONDS, check_same_thread=False)
        try:
            self._prepare(connection)
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA synchronous = EXTRA")  # also the folder, when a journal is removed
        connection.execute("PRAGMA secure_delete = ON")
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version == 0:
            connection.executescript(f"BEGIN; {self._tables} PRAGMA user_version = {self._version}; COMMIT;")
        elif version != self._version:
            raise self._unreadable(f"it has version {version}, and this release knows {self._version}")

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.IntegrityError:
            raise
        except sqlite3.OperationalError as error:
            raise StorageUnavailable(file=self._name, why=str(error)) from error
        except sqlite3.DatabaseError as error:
            raise self._unreadable(str(error)) from error
