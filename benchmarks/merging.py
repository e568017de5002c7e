"""Merging into a long history: batches of a Ledger and of an UpsertStream, snapshots, and the memory that they take.

A batch is timed from its prepared records to its committed block, in processor time; "after a restart" it is the first
batch of a new process' history, which has only the stored index. The store is in a file system in memory, if there is
one: on ext4, creating one of the four files of a batch costs from 0.01 to 0.6 ms, depending on how many files were
created and removed nearby in the last seconds, whatever the size of the dataset. The peer of the large snapshot
is DuckDB, which compares the same rows with its own table, kept in a file too, with as many threads as there are
cores. Each number is measured in a separate process, so that its peak memory is known.
"""

import contextlib
import logging
import multiprocessing
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import structlog
from merge_growth import KEY, ROWS, Dataset, a_batch, a_dataset
from rows import Row, Target, held_against

from odf_common.adapters.local.stores import LocalBlobStore
from odf_common.data.columns import TIMESTAMP
from odf_common.metadata.events import (
    MergeStrategy,
    MergeStrategyLedger,
    MergeStrategySnapshot,
    MergeStrategyUpsertStream,
)
from odf_ingest.source_settings import SourceSettings

BATCHES: Final = 1_000
EARLY: Final = range(8, 24)  # about the 10th batch
FRESH: Final = range(3)  # datasets of which early batches are measured
RESTARTS: Final = 5  # of each of them, of which the median is taken
LARGE: Final = 1_000_000  # rows of a snapshot
CHANGED: Final = LARGE // 10
COMPARISONS: Final = 7  # of which the median is taken
SNAPSHOTS: Final = 100
LAST: Final = 5  # of them are measured, each next to the second one of another dataset
SNAPSHOT_ROWS: Final = 200_000
CHURN: Final = SNAPSHOT_ROWS // 100
SNAPSHOT: Final = MergeStrategySnapshot(primary_key=KEY)
FLAT: Final = Target(judged="ratio", sense="≤", bound=1.2)
IN_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - a folder of our own in it
Numbers = npt.NDArray[np.int64]

DIFFERENCE: Final = """
WITH pairs AS (
    SELECT s, n FROM state AS s FULL JOIN new AS n ON s.id = n.id
    WHERE s.id IS NULL OR n.id IS NULL OR s.name IS DISTINCT FROM n.name OR s.value IS DISTINCT FROM n.value
        OR s.price IS DISTINCT FROM n.price OR s.event_time IS DISTINCT FROM n.event_time
)
SELECT CASE WHEN n IS NULL THEN 1 ELSE 2 END AS op, unnest(s) FROM pairs WHERE s IS NOT NULL
UNION ALL
SELECT CASE WHEN s IS NULL THEN 0 ELSE 3 END AS op, unnest(n) FROM pairs WHERE n IS NOT NULL
ORDER BY id, op
"""


def run() -> list[Row]:
    """Return the rows; takes some minutes."""
    found = []
    for case in (_ledger, _upserts, _large_snapshot, _many_snapshots):
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            found += pool.submit(_alone, case).result()
    return found


def _alone(case: Callable[[], list[Row]]) -> list[Row]:
    """Return the rows of a case, and the peak memory of its process."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    before = _peak_mb()
    rows = case()
    name = rows[0].case.partition(", ")[0]
    return [
        *rows,
        Row(case=f"{name}, peak memory over that of the imports", value=_peak_mb() - before, unit="MB"),
    ]


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _ledger() -> list[Row]:
    return _batches("Ledger", MergeStrategyLedger(primary_key=KEY))


def _upserts() -> list[Row]:
    return _batches("UpsertStream", MergeStrategyUpsertStream(primary_key=KEY))


def _batches(name: str, strategy: MergeStrategy) -> list[Row]:
    """Measure early and late batches in turn, so that other load slows both."""
    random = np.random.default_rng(7)
    with _stored(strategy) as long:
        _grow(long, BATCHES - len(FRESH) * len(EARLY), random)
        early, late, restarted = list[float](), list[float](), list[tuple[float, float]]()
        for _ in FRESH:
            with _stored(strategy) as fresh:
                _grow(fresh, EARLY.start, random)
                for _ in EARLY:
                    early.append(_committed(fresh, random))
                    late.append(_committed(long, random))
                restarted += [(_restarted(fresh, random), _restarted(long, random)) for _ in range(RESTARTS)]
    restarted_early, restarted_late = (statistics.median(column) for column in zip(*restarted, strict=True))
    # The mean of batches, in which a merge of runs counts as often as it happens.
    return [
        _flat(
            f"{name}, the 1,000th batch of {ROWS:,}",
            statistics.fmean(late) * 1000,
            ("the 10th", statistics.fmean(early) * 1000),
        ),
        _flat(
            f"{name}, the 1,000th after a restart",
            restarted_late * 1000,
            ("the 30th after a restart", restarted_early * 1000),
        ),
    ]


def _grow(dataset: Dataset, batches: int, random: np.random.Generator) -> None:
    while len(dataset.whole) < batches:
        _committed(dataset, random)


def _committed(dataset: Dataset, random: np.random.Generator) -> float:
    """Return the seconds of one more batch."""
    dataset.commit(a_batch(len(dataset.whole), random))
    return dataset.whole[-1]


def _restarted(dataset: Dataset, random: np.random.Generator) -> float:
    """Return the seconds of the first batch after a restart."""
    dataset.restart()
    return _committed(dataset, random)


def _flat(case: str, value: float, peer: tuple[str, float]) -> Row:
    return held_against(case, value, "ms", peer=peer, target=FLAT)


def _large_snapshot() -> list[Row]:
    random = np.random.default_rng(7)
    values = random.integers(0, 1000, LARGE)
    with _stored(SNAPSHOT) as dataset:
        folder = Path(tempfile.mkdtemp())
        first = a_snapshot(values, random)
        dataset.commit(first)
        ours, theirs = [], []
        with duckdb.connect(folder / "state.duckdb") as db:
            db.register("first", first)
            db.execute("CREATE TABLE state AS SELECT * FROM first")
            for _ in range(1 + COMPARISONS):
                changed = values.copy()
                changed[random.choice(LARGE, CHANGED, replace=False)] += 1
                new = a_snapshot(changed, random)
                dataset.restart()
                ours.append(_seconds(partial(_merged, dataset, new)))
                theirs.append(_seconds(partial(_compared, db, new)))
    return [
        held_against(
            f"Snapshot of {LARGE:,} rows, 10 % changed, {name}",
            statistics.median(clock[number] for clock in ours[1:]),  # the first of both allocates memory
            "s",
            peer=("DuckDB", statistics.median(clock[number] for clock in theirs[1:])),
            target=Target(judged="ratio", sense="≤", bound=1.5),
        )
        for number, name in enumerate(("on the clock", "processor time"))
    ]


def _merged(dataset: Dataset, new: pa.Table) -> int:
    dataset.catch_up()
    found = dataset.drafter.merge_records(
        dataset.state, dataset.prepared(new), dataset.history.at(dataset.state), SourceSettings()
    )
    assert len(found.records) == 2 * CHANGED
    return len(found.records)


def _compared(db: duckdb.DuckDBPyConnection, new: pa.Table) -> int:
    db.register("new", new)
    differences = db.sql(DIFFERENCE).to_arrow_table()
    assert len(differences) == 2 * CHANGED
    return len(differences)


def _many_snapshots() -> list[Row]:
    random = np.random.default_rng(7)
    with _stored(SNAPSHOT) as long:
        values = _grown(long, SNAPSHOTS - LAST, random)
        early, late = list[float](), list[float]()
        for _ in range(LAST):
            with _stored(SNAPSHOT) as fresh:
                begun = _grown(fresh, 1, random)
                early.append(_changed_snapshot(fresh, begun, random))
                late.append(_changed_snapshot(long, values, random))
    last, second = (statistics.median(column) * 1000 for column in (late, early))
    return [_flat(f"{SNAPSHOTS} snapshots of {SNAPSHOT_ROWS:,} rows, the last", last, ("the second", second))]


def _grown(dataset: Dataset, snapshots: int, random: np.random.Generator) -> Numbers:
    """Commit snapshots; return the values of the last one."""
    values = random.integers(0, 1000, SNAPSHOT_ROWS)
    dataset.commit(a_snapshot(values, random))
    for _ in range(snapshots - 1):
        _changed_snapshot(dataset, values, random)
    return values


def _changed_snapshot(dataset: Dataset, values: Numbers, random: np.random.Generator) -> float:
    """Return the seconds of one more snapshot, a hundredth of whose values have changed."""
    values[random.choice(SNAPSHOT_ROWS, CHURN, replace=False)] += 1
    dataset.commit(a_snapshot(values, random))
    return dataset.whole[-1]


def a_snapshot(values: Numbers, random: np.random.Generator) -> pa.Table:
    """Return rows in random order; the nth has the nth value."""
    ids = random.permutation(len(values))
    return pa.table(
        {
            "id": ids,
            "name": [f"name of {number}" for number in ids],
            "value": values[ids],
            "price": values[ids] * 0.5,
            "event_time": pa.array(np.zeros(len(ids), np.int64)).cast(TIMESTAMP),
        }
    )


def _seconds(work: Callable[[], object]) -> tuple[float, float]:
    """Return the seconds on the clock, and of the processor."""
    begun, used = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - begun, time.process_time() - used


@contextlib.contextmanager
def _stored(strategy: MergeStrategy) -> Iterator[Dataset]:
    memory = IN_MEMORY if IN_MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="odf-bench-", dir=memory) as folder:
        yield a_dataset(strategy, LocalBlobStore(Path(folder)))
