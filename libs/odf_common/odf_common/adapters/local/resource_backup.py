"""Backups of the store of resources and of the keys for their secrets: one archive, which is secret itself.

A backup is of one state, while the node runs, too: the keys are locked meanwhile, so they open all secrets of that
state. To restore, the store must not be in use. Keys are only added, so a restore that was killed can be repeated.
"""

import json
import sqlite3
import tarfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path
from typing import IO, Final

from odf_common.adapters.local import durable
from odf_common.adapters.local.faults import naming, translating_os_errors
from odf_common.adapters.local.secret_key_files import MAX_BYTES, add_secret_keys, lock_secret_keys
from odf_common.errors import Damaged, InvalidInput, NotFound, OdfError, Refused
from odf_common.resources.secret_keys import SecretKeys

STORE: Final = "resources.db"
VERSION: Final = 1
"""Of the tables of the store."""
KEYS: Final = "resources.jwks"
FACTS: Final = "backup.json"
FORMAT: Final = 1
_CHUNK: Final = 1 << 20
_SIDE_FILES: Final = ("-wal", "-shm")


class StoreInUse(Refused):
    """A process uses the store of resources that a backup would replace."""

    MESSAGE = "{text} is in use"
    ADVICE = "stop the node with `odf down`, and repeat the command"


class NewerStore(Refused):
    """A newer release wrote what a restore would read, or replace."""

    ADVICE = "use the release that wrote it, or a newer one"


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupFacts:
    """The content of a backup."""

    version: int
    """Of the tables of the store."""
    resources: int
    position: int
    """Of the newest event."""


@translating_os_errors
def write_backup(home: Path, file: Path, configured: Path | None = None) -> BackupFacts:
    """Write the store and the keys to a new file, which only its owner can read.

    Raises `NotFound` for a home without a store, and `InvalidInput` if the file exists.
    """
    store = home / STORE
    if not durable.exists(store):
        raise NotFound(what=f"a store of resources in {home}")
    if durable.exists(file):
        raise InvalidInput(where=str(file), text="the file exists")
    copy, pending = durable.pending_beside(file), durable.pending_beside(file)
    try:
        with lock_secret_keys(home, configured) as keys:
            _copy_store(store, copy)
        facts = _facts(copy)
        with _private(pending) as opened, tarfile.open(fileobj=opened, mode="w") as archive:
            plain = {"format": FORMAT, **asdict(facts)}
            _add(archive, FACTS, BytesIO(json.dumps(plain).encode()))
            _add(archive, KEYS, BytesIO(keys.text().encode()))
            with copy.open("rb") as content:
                _add(archive, STORE, content)
        durable.move(pending, file)
    finally:
        copy.unlink(missing_ok=True)
        pending.unlink(missing_ok=True)
    return facts


@translating_os_errors
def existing_store(home: Path) -> BackupFacts | None:
    """Return the facts of a home's store; None if it has none. Raises `Damaged` if it cannot be read."""
    store = home / STORE
    return _facts(store) if durable.exists(store) else None


@translating_os_errors
def restore_backup(home: Path, file: Path, configured: Path | None = None) -> BackupFacts:
    """Replace the store of a home by that of a backup, and add its keys, whose current ones are current then.

    Raises `StoreInUse`, `NewerStore`, and `InvalidInput` for a file that is no backup.
    """
    store = home / STORE
    durable.make_folder(home)
    pending = durable.pending_beside(store)
    try:
        keys = _extract(file, pending)
        facts = _facts(pending)
        _require_not_newer(facts, VERSION, f"the backup {file}")
        if durable.exists(store):
            _close_store(store, facts)
        add_secret_keys(home, keys, configured)
        durable.move(pending, store)
    finally:
        for side in ("", *_SIDE_FILES):
            pending.with_name(pending.name + side).unlink(missing_ok=True)
    return facts


@contextmanager
def _private(file: Path) -> Iterator[IO[bytes]]:
    file.touch(durable.PRIVATE, exist_ok=False)
    with naming(file), file.open("wb") as opened:
        yield opened


def _copy_store(store: Path, copy: Path) -> None:
    copy.touch(durable.PRIVATE, exist_ok=False)
    with _translating(store), closing(sqlite3.connect(store)) as source, closing(sqlite3.connect(copy)) as to:
        source.backup(to)
        to.execute("PRAGMA journal_mode = DELETE")


def _facts(store: Path) -> BackupFacts:
    """Return the facts of a store; raises `Damaged`."""
    with _translating(store), closing(sqlite3.connect(store)) as connection:
        version, position = connection.execute("SELECT version, position FROM resource_store").fetchone()
        if version > VERSION:
            return BackupFacts(version=version, resources=0, position=position)
        count = "SELECT count(*) FROM resources WHERE removed_ms IS NULL"
        (resources,) = connection.execute(count).fetchone()
    return BackupFacts(version=version, resources=resources, position=position)


def _close_store(store: Path, facts: BackupFacts) -> None:
    """Empty the log of the store that is about to be replaced; raises `StoreInUse` or `NewerStore`."""
    try:
        with _translating(store), closing(sqlite3.connect(store, timeout=0)) as connection:
            (version,) = connection.execute("SELECT version FROM resource_store").fetchone()
            connection.execute("PRAGMA journal_mode = DELETE")  # refused while others are connected
    except Damaged as error:
        if isinstance(error.__cause__, sqlite3.OperationalError) and "locked" in str(error.__cause__):
            raise StoreInUse(text=str(store)) from error
        for side in _SIDE_FILES:  # of a damaged one
            durable.remove(store.with_name(store.name + side))
    else:
        _require_not_newer(BackupFacts(version=version, resources=0, position=0), facts.version, str(store))


def _require_not_newer(facts: BackupFacts, known: int, what: str) -> None:
    if facts.version > known:
        raise NewerStore(text=f"{what} has version {facts.version} of the store, which is newer than {known}")


@contextmanager
def _translating(store: Path) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, TypeError) as error:  # a table without its row has no version
        raise Damaged(file=str(store), why=str(error)) from error


def _add(archive: tarfile.TarFile, name: str, content: IO[bytes]) -> None:
    member = tarfile.TarInfo(name)
    member.mode = durable.PRIVATE
    member.size = content.seek(0, 2)
    content.seek(0)
    archive.addfile(member, content)


def _extract(file: Path, store: Path) -> SecretKeys:
    """Write the store of an archive to a new file, and return the keys; raises `InvalidInput`."""
    try:
        with tarfile.open(file, "r:") as archive:
            plain = json.loads(_member(archive, FACTS).read(MAX_BYTES))
            if plain["format"] > FORMAT:
                raise NewerStore(text=f"the backup {file} has format {plain['format']}")
            keys = SecretKeys.parse(_member(archive, KEYS).read(MAX_BYTES).decode())
            with _private(store) as opened:
                content = _member(archive, STORE)
                while chunk := content.read(_CHUNK):
                    opened.write(chunk)
    except OdfError:
        raise
    except (tarfile.TarError, ValueError, KeyError, TypeError) as error:
        raise InvalidInput(where=str(file), text="it is not a backup of resources, or damaged") from error
    return keys


def _member(archive: tarfile.TarFile, name: str) -> IO[bytes]:
    content = archive.extractfile(name)
    if content is None:
        raise ValueError
    return content
