"""Embedded stores for an index of keys, compared with our sorted runs (ADR 0035).

For each store, with millions of random keys of 16 bytes: how long a batch of 1,000 keys takes, of which 100 are known
(look up all, add the new ones, commit so that a kill of the process loses nothing), the slowest batch, the first one
after the store was opened again, and the size on disk. LMDB and RocksDB are not dependencies, and are left out unless
they are installed: `pip install lmdb rocksdict`.
"""

import importlib
import importlib.util
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final, Protocol

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from rows import Row, held_against

from odf_ingest.history.indexes import KeyIndex
from odf_ingest.history.run_store import RunStore

BATCH: Final = 1_000
KNOWN: Final = 100  # of a batch
WIDTH: Final = 16  # bytes of a key
CHUNK: Final = 250_000  # keys per batch while a store is filled
KEYS: Final = 4_000_000
BATCHES: Final = 40
OURS: Final = "runs"
Raw = npt.NDArray[np.bytes_]


class Store(Protocol):
    """A set of keys on disk."""

    def new(self, keys: Raw) -> int:
        """Return how many of the keys, distinct and ascending, are new; add them."""

    def close(self) -> None:
        """Close all files."""


class Sqlite:
    """The standard library's: a table without row ids, write-ahead log."""

    def __init__(self, folder: Path) -> None:
        """Open or create."""
        self._db = sqlite3.connect(folder / "keys.sqlite", isolation_level=None)
        for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "cache_size=-65536"):
            self._db.execute(f"PRAGMA {pragma}")
        self._db.execute("CREATE TABLE IF NOT EXISTS seen (k BLOB PRIMARY KEY) WITHOUT ROWID")

    def new(self, keys: Raw) -> int:
        """Insert missing keys."""
        self._db.execute("BEGIN")
        before = self._db.total_changes
        self._db.executemany("INSERT OR IGNORE INTO seen VALUES (?)", ((key,) for key in keys.tolist()))
        self._db.execute("COMMIT")
        return self._db.total_changes - before

    def close(self) -> None:
        """Close the connection."""
        self._db.close()


class Lmdb:
    """A B+ tree in a memory map; without fsync, since a kill alone loses nothing."""

    def __init__(self, folder: Path) -> None:
        """Open or create."""
        lmdb: Any = importlib.import_module("lmdb")
        self._env = lmdb.open(str(folder / "lmdb"), map_size=1 << 36, sync=False, metasync=False)

    def new(self, keys: Raw) -> int:
        """Put missing keys."""
        with self._env.begin(write=True) as change, change.cursor() as cursor:
            _, added = cursor.putmulti([(key, b"") for key in keys.tolist()], overwrite=False)
        return int(added)

    def close(self) -> None:
        """Close the environment."""
        self._env.close()


class RocksDb:
    """A log-structured merge tree with block checksums and Bloom filters."""

    def __init__(self, folder: Path) -> None:
        """Open or create."""
        self._lib: Any = importlib.import_module("rocksdict")
        options = self._lib.Options(raw_mode=True)
        table = self._lib.BlockBasedOptions()
        table.set_bloom_filter(10, block_based=False)
        table.set_block_cache(self._lib.Cache(64 << 20))
        options.set_block_based_table_factory(table)
        self._db = self._lib.Rdict(str(folder / "rocks"), options)

    def new(self, keys: Raw) -> int:
        """Get all, put missing ones."""
        wanted = keys.tolist()
        missing = [key for key, value in zip(wanted, self._db.get(wanted), strict=True) if value is None]
        batch = self._lib.WriteBatch(raw_mode=True)
        for key in missing:
            batch.put(key, b"")
        self._db.write(batch)
        return len(missing)

    def close(self) -> None:
        """Flush and close."""
        self._db.close()


class DuckDb:
    """A columnar database, without an index: one would have to fit in memory."""

    def __init__(self, folder: Path) -> None:
        """Open or create."""
        self._db = duckdb.connect(str(folder / "keys.duckdb"))
        self._db.execute("CREATE TABLE IF NOT EXISTS seen (k BLOB)")

    def new(self, keys: Raw) -> int:
        """Insert the anti-join."""
        batch = pa.table({"k": pa.array(keys.tolist(), pa.binary())})
        self._db.register("batch", batch)
        (added,) = self._db.execute(
            "INSERT INTO seen SELECT k FROM batch ANTI JOIN seen USING (k)"
        ).fetchall()[0]
        self._db.unregister("batch")
        return int(added)

    def close(self) -> None:
        """Checkpoint and close."""
        self._db.close()


class Runs:
    """The project's own: sorted runs in files."""

    def __init__(self, folder: Path) -> None:
        """Open or create."""
        store = RunStore(folder / "index" / "keys")
        store.load()
        self._index = KeyIndex(store)

    def new(self, keys: Raw) -> int:
        """Look all up, and add the new ones as a run."""
        places, fresh = self._index.fresh(keys)
        self._index.add(fresh, "head")
        return len(places)

    def close(self) -> None:
        """Do nothing: every batch is in the files."""


STORES: Final[Mapping[str, tuple[Callable[[Path], Store], str]]] = {  # with the library that each needs
    "SQLite": (Sqlite, "sqlite3"),
    "LMDB": (Lmdb, "lmdb"),
    "RocksDB": (RocksDb, "rocksdict"),
    "DuckDB": (DuckDb, "duckdb"),
    OURS: (Runs, "numpy"),
}


def random_keys(count: int, source: np.random.Generator) -> Raw:
    """Return keys without a zero byte, which numpy would cut off at the end."""
    raw = source.integers(1, 256, (count, WIDTH), dtype=np.uint8)
    return raw.view(f"S{WIDTH}").reshape(count)


def batches(known: Raw, source: np.random.Generator) -> Iterator[Raw]:
    """Yield batches of which some keys are known."""
    while True:
        old = source.choice(known, KNOWN)
        yield np.unique(np.concatenate((old, random_keys(BATCH - KNOWN, source))))


def timed(store: Store, feed: Iterator[Raw], count: int) -> list[float]:
    """Return the seconds of each of some batches."""
    found = []
    for _ in range(count):
        batch = next(feed)
        begun = time.perf_counter()
        store.new(batch)
        found.append(time.perf_counter() - begun)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a store takes: ms of a batch, and of the first one after it is opened; bytes on disk of a key."""

    usual: float
    slowest: float
    opened: float
    key_bytes: float


def run() -> list[Row]:
    """Return a row for each other store that is installed, compared with ours."""
    ours = measured(OURS)
    return [
        _row(ours, name, measured(name)) for name, (_, library) in STORES.items() if _is_other(name, library)
    ]


def measured(name: str) -> Measured:
    """Return what one store takes once it has `KEYS` keys."""
    source = np.random.default_rng(7)
    with tempfile.TemporaryDirectory(prefix="odf-keys-") as home:
        folder = Path(home)
        store = _opened(name, folder)
        known = random_keys(0, source)
        for _ in range(KEYS // CHUNK):
            known = random_keys(CHUNK, source)
            store.new(np.sort(known))
        feed = batches(known, source)
        seconds = timed(store, feed, BATCHES)
        store.close()
        disk = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        begun = time.perf_counter()
        store = _opened(name, folder)
        store.new(next(feed))
        again = time.perf_counter() - begun
        store.close()
    return Measured(
        usual=median(seconds) * 1000, slowest=max(seconds) * 1000, opened=again * 1000, key_bytes=disk / KEYS
    )


def _opened(name: str, folder: Path) -> Store:
    store, _ = STORES[name]
    return store(folder)


def _is_other(name: str, library: str) -> bool:
    return name != OURS and importlib.util.find_spec(library) is not None


def _row(ours: Measured, name: str, theirs: Measured) -> Row:
    parts = {
        "slowest": ours.slowest,
        "after opening": ours.opened,
        "bytes of a key": ours.key_bytes,
        "its slowest": theirs.slowest,
        "its after opening": theirs.opened,
        "its bytes of a key": theirs.key_bytes,
    }
    return held_against(
        f"{BATCH:,} keys into {KEYS:,}, median of {BATCHES} batches",
        ours.usual,
        "ms",
        peer=(name, theirs.usual),
        detail={part: round(value, 1) for part, value in parts.items()},
    )
