"""A PostgreSQL server, which the tests start as a process; it refuses to run as root."""

import os
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import psycopg

from odf_cli.embedded.parts.tcp_ports import LOOPBACK, allocate
from odf_testing.killed_process import freeze

INSTALLED: Final = Path("/usr/lib/postgresql")  # Debian has its programs outside the path
START_SECONDS: Final = 30
LOOK_SECONDS: Final = 0.02
USER, PASSWORD = "odf", "a-password-that-must-not-be-shown"
# Tests kill its clients; the server itself is never killed.
OPTIONS: Final = (
    *("fsync=off", "full_page_writes=off", "max_wal_size=64MB", "shared_buffers=16MB"),
    *("max_connections=60", "timezone=UTC", "lc_messages=C"),
)


def program(name: str) -> str:
    """Return a program of the server; fails, and does not skip, if it is not installed."""
    found = next(iter(sorted(INSTALLED.glob(f"*/bin/{name}"), reverse=True)), None) or shutil.which(name)
    assert found is not None, "PostgreSQL is not installed; run `make testsetup`"
    return str(found)


@dataclass(slots=True, kw_only=True)
class PostgresServer:
    """A server on a loopback port, whose files belong to the user that runs it."""

    folder: Path
    port: int
    process: "subprocess.Popen[bytes] | None" = field(default=None)

    def url(self, database: str = "postgres", *, password: str = PASSWORD) -> str:
        """Return the URL of a database, with the password."""
        return f"postgresql://{USER}:{password}@{LOOPBACK}:{self.port}/{database}"

    def start(self) -> None:
        """Start it, and wait until it serves."""
        options = [part for option in OPTIONS for part in ("-c", option)]
        command = [
            program("postgres"),
            "-D",
            "data",
            "-h",
            LOOPBACK,
            "-p",
            str(self.port),
            "-k",
            "",
            *options,
        ]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, **_as_user(self.folder))
        until = time.monotonic() + START_SECONDS
        while not self._is_ready():
            is_late = time.monotonic() > until or self.process.poll() is not None
            assert not is_late, (self.folder / "log").read_text()
            time.sleep(LOOK_SECONDS)

    def _is_ready(self) -> bool:
        try:
            psycopg.connect(self.url()).close()
        except psycopg.OperationalError:
            return False
        return True

    def stop(self) -> None:
        """End it, and its clients' connections."""
        if self.process is not None:
            self.process.send_signal(signal.SIGINT)  # its fast shutdown
            self.process.wait()
            self.process = None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Let its processes accept connections and answer nothing."""
        assert self.process is not None
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        freeze(self.process)
        for child in children:
            os.kill(int(child), signal.SIGSTOP)
        try:
            yield
        finally:
            for child in children:
                os.kill(int(child), signal.SIGCONT)
            self.process.send_signal(signal.SIGCONT)

    @contextmanager
    def database(self) -> Iterator[str]:
        """Yield the URL of an empty database, which is dropped afterwards."""
        name = f"d{uuid4().hex}"
        self.execute(f"CREATE DATABASE {name}")
        yield self.url(name)
        self.execute(f"DROP DATABASE {name} WITH (FORCE)")

    def execute(
        self, statement: str, *values: object, database: str = "postgres"
    ) -> Sequence[tuple[Any, ...]]:
        """Run a statement by a client that is not the code under test; return its rows."""
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            cursor = connection.execute(statement.encode(), values or None)
            return cursor.fetchall() if cursor.description else []


def _as_user(folder: Path) -> Mapping[str, Any]:
    """Return the arguments of a process in a folder, as another user if this is root."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    place: Mapping[str, Any] = {"cwd": folder, "env": environment | {"LC_ALL": "C"}}
    return place if os.getuid() else {**place, "user": "nobody", "group": "nogroup", "extra_groups": []}


@contextmanager
def serving_postgres() -> Iterator[PostgresServer]:
    """Run a server inside the block, in a folder that its user can reach."""
    folder = Path(tempfile.mkdtemp(prefix="odf-postgres-"))
    server = PostgresServer(folder=folder, port=allocate(folder, ("server",))["server"])
    try:
        (folder / "password").write_text(PASSWORD)
        if not os.getuid():
            folder.parent.chmod(folder.parent.stat().st_mode | stat.S_IXOTH)
            for path in (folder, *folder.iterdir()):
                shutil.chown(path, "nobody", "nogroup")
        cluster = [
            "-D",
            "data",
            "-U",
            USER,
            "-A",
            "scram-sha-256",
            "--pwfile",
            "password",
            "-E",
            "UTF8",
            "-N",
        ]
        # It ignores dots and dashes when it compares texts, unless it is told to compare bytes.
        cluster += ["--locale-provider", "icu", "--icu-locale", "en-US-u-ka-shifted"]
        subprocess.run([program("initdb"), *cluster], check=True, capture_output=True, **_as_user(folder))
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder)
