"""SQLite databases in the node's home that only sync opens, readable by the node's user only.

A file is created by the first change. Each change is durable on return. A database that cannot be read makes every
call fail.
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
    """A database; thread-safe."""

    def __init__(
        self,
        home: Path | None,
        file: str,
        tables: str,
        unreadable: Callable[[str], Damaged],
        *,
        version: int = 1,
    ) -> None:
        """Open the database of a node on first use; without a home, keep everything in memory.

        `file` is its name in the home; `tables` has the statements that create its tables; `unreadable` returns the
        error of a database that cannot be read, from the reason.
        """
        self._name = file
        self._tables = tables
        self._unreadable = unreadable
        self._version = version
        self._file = None if home is None else home / file
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None

    def rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """Return the rows of a query; none if the file does not exist."""
        with self._lock, self._translate_errors():
            connection = self._open(create=False)
            return [] if connection is None else connection.execute(query, values).fetchall()

    def change(self, statement: str, *values: object) -> int:
        """Return the number of rows that a statement changed, durably; raises `sqlite3.IntegrityError`."""
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
