"""Opens the database of resources: SQLite in the node's home, or PostgreSQL.

One transaction writes at a time, in all processes, so events become visible in the order of their positions. It waits
for its turn before its first read, and sees everything that was committed until then. A read sees one committed state.

SQLite keeps a write-ahead log: reads of large pages neither block the writer nor are blocked by it, and a commit syncs
one file once. Commits are durable; what was erased is overwritten, and the log is emptied.
"""

import sqlite3
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, TypeVar

import psycopg
from sqlalchemy import Connection, Engine, StaticPool, create_engine, event, insert, inspect, make_url, select
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from odf_common.adapters.local.durable import PRIVATE, make_folder, sync_folder
from odf_common.adapters.local.faults import translate_os_errors
from odf_common.adapters.local.resource_backup import STORE, VERSION
from odf_common.errors import OdfError, StorageUnavailable
from odf_coordinator.resources.sql_tables import METADATA, STATE
from odf_coordinator.resources.store import ResourcesUnreadable

FILE: Final = STORE
SERVER: Final = "the database of ODF_RESOURCES"
LOCK_SECONDS: Final = 5
STATEMENT_SECONDS: Final = 9  # a server that is silent for longer is given up
IDLE_WRITER_SECONDS: Final = 30  # a stopped writer must not block others for longer
ADVISORY_LOCK: Final = 0x0DF_018  # in PostgreSQL: held by the transaction that writes
WRITES: Final = "odf_writes"  # an option of a connection
T = TypeVar("T")

_LIMITS: Final = (
    f"SET LOCAL lock_timeout = '{LOCK_SECONDS}s'; SET LOCAL statement_timeout = '{STATEMENT_SECONDS}s';"
    f"SET LOCAL idle_in_transaction_session_timeout = '{IDLE_WRITER_SECONDS}s'"
)
# By database: the first statement of a read, and of a transaction that writes. Each other statement of the latter must
# see what was committed while it waited for the lock.
BEGIN_READ: Final = {
    "sqlite": "BEGIN",
    "postgresql": f"SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY; {_LIMITS}",
}
BEGIN_WRITE: Final = {
    "sqlite": "BEGIN IMMEDIATE",
    "postgresql": f"SET TRANSACTION ISOLATION LEVEL READ COMMITTED; {_LIMITS}; "
    f"SELECT pg_advisory_xact_lock({ADVISORY_LOCK})",
}


class Database:
    """A database of resources; thread-safe. It is opened, and its tables are created, by the first use."""

    def __init__(self, engine: Engine, name: str, *, prepare: Callable[[], None] = lambda: None) -> None:
        """Use an engine; `name` is for errors, and `prepare` is called before the first connection."""
        self.name = name
        self._engine = engine
        self._prepare = prepare
        self._is_open = False
        self.has_erased = True  # perhaps, by a process that was killed
        self._lock = threading.Lock()  # the writer of this process, and in memory each reader
        self._is_shared = isinstance(engine.pool, StaticPool)
        event.listen(engine, "begin", _begin)

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """Commit at the end of the block, or roll back; who erases in it sets `has_erased`."""
        with self._translate_errors(), self._turn():
            self._open()
            with self._engine.connect().execution_options(**{WRITES: True}) as connection, connection.begin():
                yield connection
            self._forget_erased()

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Read one state in the block."""
        if not self._is_open:
            with self.write():  # it creates the tables
                pass
        if self._is_shared:
            with self._turn(), self._read() as connection:
                yield connection
        else:
            with self._read() as connection:
                yield connection

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    @contextmanager
    def _read(self) -> Iterator[Connection]:
        with self._translate_errors(), self._engine.connect() as connection, connection.begin():
            yield connection

    @contextmanager
    def _turn(self) -> Iterator[None]:
        if not self._lock.acquire(timeout=LOCK_SECONDS):
            raise self._unavailable("another transaction of this process has not ended")
        try:
            yield
        finally:
            self._lock.release()

    def _open(self) -> None:
        if self._is_open:
            return
        self._prepare()
        with (
            self._engine.connect().execution_options(**{WRITES: True}) as connection,
            connection.begin(),
        ):
            if not inspect(connection).has_table(STATE.name):
                METADATA.create_all(connection)
                connection.execute(insert(STATE).values(version=VERSION, position=0, purged=0))
            version = connection.execute(select(STATE.c.version)).scalar_one()
        if version != VERSION:
            raise ResourcesUnreadable(
                file=self.name,
                why=f"it has version {version}, and this release knows {VERSION}",
                remedy="start the release of the node that wrote it, or a newer one",
            )
        self._is_open = True

    def _forget_erased(self) -> None:
        """Empty SQLite's log, unless a read is still using it: then after the next transaction."""
        if not self.has_erased or self._engine.dialect.name != "sqlite":
            return
        with closing(self._engine.raw_connection()) as connection:
            execute = connection.cursor().execute
            execute("PRAGMA busy_timeout = 0")
            with suppress(sqlite3.OperationalError):
                is_in_use, *_ = execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
                self.has_erased = bool(is_in_use)
            execute(f"PRAGMA busy_timeout = {LOCK_SECONDS * 1000}")

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except DBAPIError as error:
            raise self._error(error.orig) from error
        except SQLAlchemyError as error:  # such as a connection that the pool waited for
            raise self._unavailable(str(error)) from error

    def _error(self, error: BaseException | None) -> OdfError:
        why = " ".join(str(error).split())
        match error:
            case psycopg.OperationalError() | psycopg.InterfaceError() | sqlite3.OperationalError():
                return self._unavailable(why)
            case psycopg.errors.ReadOnlySqlTransaction():  # a replica, until it is promoted
                return self._unavailable(why)
            case psycopg.errors.InsufficientPrivilege():
                remedy = "let the user of ODF_RESOURCES own the tables of resources"
                return ResourcesUnreadable(file=self.name, why=why, remedy=remedy)
            case _:
                return ResourcesUnreadable(file=self.name, why=why)

    def _unavailable(self, why: str) -> StorageUnavailable:
        if self._engine.dialect.name == "sqlite":
            return StorageUnavailable(file=self.name, why=why)
        return StorageUnavailable(
            what=self.name, why=why, remedy="check ODF_RESOURCES, the server, and the rights of its user"
        )


def open_sqlite(home: Path | None) -> Database:
    """Return the database of a node's home; without a home, one in memory."""
    if home is None:
        engine = create_engine(
            "sqlite://",
            creator=lambda: _connect_sqlite(":memory:"),
            poolclass=StaticPool,
            hide_parameters=True,
        )
        return Database(engine, FILE)
    file = home / FILE
    engine = create_engine(
        f"sqlite:///{file.name}", creator=lambda: _connect_sqlite(file), hide_parameters=True
    )
    return Database(engine, FILE, prepare=lambda: _create_file(file))


def _create_file(file: Path) -> None:
    with translate_os_errors(file):
        make_folder(file.parent)
        file.touch(PRIVATE)  # SQLite gives its log the same mode
        sync_folder(file.parent)


def _connect_sqlite(file: str | Path) -> sqlite3.Connection:
    # Without an isolation level, `_begin` begins: sqlite3 would do it before the first change.
    connection = sqlite3.connect(file, timeout=LOCK_SECONDS, check_same_thread=False, isolation_level=None)
    try:
        connection.execute("PRAGMA secure_delete = ON")
        connection.execute("PRAGMA synchronous = EXTRA")
        connection.execute("PRAGMA journal_mode = WAL")
    except BaseException:
        connection.close()
        raise
    return connection


def open_postgresql(url: str) -> Database:
    """Return the database of a URL: postgresql://user:password@host:port/database, with options of libpq."""
    engine = create_engine(
        make_url(url).set(drivername="postgresql+psycopg"),
        pool_pre_ping=True,
        hide_parameters=True,
        connect_args={"connect_timeout": LOCK_SECONDS, "application_name": "odf"},
    )
    event.listen(engine, "do_connect", lambda _dialect, _record, _args, kwargs: _Bounded.connect(**kwargs))
    return Database(engine, SERVER)


class _Bounded(psycopg.Connection[Any]):
    """A connection that is closed when the server is silent: a frozen one neither answers nor closes it."""

    def wait(self, gen: Generator[Any, Any, T], interval: float = 0.1, timeout: float | None = None) -> T:
        seconds = STATEMENT_SECONDS if timeout is None else timeout
        until = time.monotonic() + seconds
        try:
            return super().wait(gen, interval, seconds)
        except psycopg.OperationalError as error:
            if time.monotonic() < until:
                raise
            self.close()  # it may be amid an answer
            raise psycopg.OperationalError(f"the server was silent for {seconds:g} s") from error


def _begin(connection: Connection) -> None:
    writes = connection.get_execution_options().get(WRITES)
    connection.exec_driver_sql((BEGIN_WRITE if writes else BEGIN_READ)[connection.dialect.name])
