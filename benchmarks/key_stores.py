"""Embedded stores for an index of keys, compared: `python benchmarks/key_stores.py`.

For each store, with a million and with ten million random keys of 16 bytes: how long a batch of 1,000 keys takes, of
which 100 are known (look up all, add the new ones, commit so that a kill of the process loses nothing), the first batch
after it was opened again, and the size on disk. Then the other access that merging needs: read all of a million
rows, as a snapshot does. ADR 0035 has the results. LMDB and RocksDB are not dependencies: `pip install lmdb rocksdict`.
"""

import argparse
import importlib
import shutil
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, Protocol

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from odf_ingest.history.key_index import KeyIndex
from odf_ingest.history.run_store import RunStore

BATCH: Final = 1_000
KNOWN: Final = 100  # of a batch
WIDTH: Final = 16  # bytes of a key
CHUNK: Final = 250_000  # keys per batch while a store is filled
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


STORES: Final[dict[str, Callable[[Path], Store]]] = {
    "SQLite": Sqlite,
    "LMDB": Lmdb,
    "RocksDB": RocksDb,
    "DuckDB": DuckDb,
    "runs": Runs,
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


def measure(name: str, sizes: list[int]) -> None:
    """Print what one store takes."""
    source = np.random.default_rng(7)
    folder = Path(tempfile.mkdtemp(prefix="odf-keys-"))
    try:
        store = STORES[name](folder)
        known, count = random_keys(0, source), 0
        for size in sizes:
            begun = time.perf_counter()
            while count < size:
                known = random_keys(CHUNK, source)
                store.new(np.sort(known))
                count += CHUNK
            filled = time.perf_counter() - begun
            feed = batches(known, source)
            seconds = timed(store, feed, 40)
            store.close()
            disk = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
            begun = time.perf_counter()
            store = STORES[name](folder)
            store.new(next(feed))
            again = time.perf_counter() - begun
            usual, most = statistics.median(seconds) * 1000, max(seconds) * 1000
            print(
                f"{name:8} {size:>11,} keys: filled in {filled:6.1f} s, a batch {usual:6.1f} ms (most {most:.1f}), "
                f"after opening {again * 1000:6.1f} ms, {disk / size:5.1f} bytes a key",
                flush=True,
            )
        store.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    """Measure all stores."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="*", default=[1_000_000, 10_000_000])
    parser.add_argument("--only", nargs="*", choices=list(STORES), default=list(STORES))
    args = parser.parse_args()
    for name in args.only:
        measure(name, args.sizes)


if __name__ == "__main__":
    main()
