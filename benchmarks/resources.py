"""Resources over the store of a home: a batch of 1,000, changes until Ready, a restart, and the cost of idling.

The peer of a batch is sqlite3 that inserts the rows which the batch has written, with the same settings, in one
transaction. The limit of a change is that of a mutation in Kubernetes, whose API server promises 1 s at the 99th
percentile (https://github.com/kubernetes/community/blob/master/sig-scalability/slos/api_call_latency.md). Everything
is in this process, as it is in a coordinator; a call over gRPC adds about a millisecond.
"""

import sqlite3
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles
from typing import Final

from odf_testing.resource_node import apply, node
from rows import Row, Target, held_against

from odf_common.adapters.system_clock import SYSTEM_CLOCK
from odf_common.resources.registry import SOURCE, VARIABLE_SET
from odf_common.service.reconcile_loop import ReconcileLoop
from odf_coordinator.resources.attempts import Attempts
from odf_coordinator.resources.controllers import LocalStore, PlainResources
from odf_coordinator.resources.store import Query
from odf_coordinator.resources.use_cases import Resources
from odf_coordinator.resources.watch import Watch

BATCH: Final = 1000
SOURCES: Final = 5000
CHANGES: Final = 200
ROUNDS: Final = 3
IDLE_SECONDS: Final = 20.0
KUBERNETES_MS: Final = 1000.0
SECOND: Final = Target(judged="value", sense="≤", bound=KUBERNETES_MS)
SETTLED: Final = Target(judged="value", sense="≤", bound=20)
SMALL: Final = Target(judged="value", sense="≤", bound=2)
SET: Final = "{$schema: VariableSet, headers: {name: %s-%d}, spec: {variables: {a: '%d'}}}"
POLLED: Final = """
{$schema: Source, headers: {name: s-%d}, spec: {ingress: {kind: Url, url: 'https://a.example/%d'}, read: {kind: Csv}}}
"""
TABLES: Final = ("resources", "resource_events", "resource_labels", "resource_references")


def run() -> list[Row]:
    """Return the times of batches and changes, of a restart, and the processor time of an idle store."""
    with tempfile.TemporaryDirectory(prefix="odf-bench-") as folder:
        home = Path(folder)
        resources, _ = node(home)
        apply(resources, SET % ("warm", 0, 0))
        return [*_batches(resources, home), *_changes(resources), *_many(resources)]


def _batches(resources: Resources, home: Path) -> Iterator[Row]:
    ours, peers, again = [], [], []
    for number in range(ROUNDS):
        manifests = [SET % (f"batch{number}", n, n) for n in range(BATCH)]
        begun = time.perf_counter()
        apply(resources, *manifests)
        ours.append(time.perf_counter() - begun)
        peers.append(_insert_same(home, number))
        begun = time.perf_counter()
        apply(resources, *manifests)
        again.append(time.perf_counter() - begun)
    peer = ("INSERT of the same rows", median(peers))
    yield held_against(f"apply of {BATCH} resources in one batch", median(ours), "s", peer=peer)
    yield held_against(f"the same {BATCH} again, unchanged", median(again), "s", peer=peer)


def _insert_same(home: Path, number: int) -> float:
    """Return the seconds of an INSERT of the rows that the newest batch has written."""
    file = home / f"peer{number}.db"
    with sqlite3.connect(home / "resources.db") as source:
        schema = [sql for (sql,) in source.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")]
        events = f"SELECT * FROM resource_events ORDER BY position DESC LIMIT {BATCH}"
        own = f"(SELECT resource FROM ({events}))"
        rows = {"resource_events": source.execute(events).fetchall()}
        rows["resources"] = source.execute(f"SELECT * FROM resources WHERE id IN {own}").fetchall()
    source.close()
    peer = sqlite3.connect(file, isolation_level=None)
    for pragma in ("secure_delete = ON", "synchronous = EXTRA", "journal_mode = WAL"):
        peer.execute(f"PRAGMA {pragma}")
    for sql in schema:
        peer.execute(sql)
    begun = time.perf_counter()
    peer.execute("BEGIN IMMEDIATE")
    for table, values in rows.items():
        assert table in TABLES
        assert len(values) == BATCH
        marks = ", ".join("?" * len(values[0]))
        peer.executemany(f"INSERT INTO {table} VALUES ({marks})", values)
    peer.execute("COMMIT")
    seconds = time.perf_counter() - begun
    peer.close()
    return seconds


@contextmanager
def _reconciling(resources: Resources) -> Iterator[None]:
    """Reconcile sets and sources in the background, as a coordinator does after its start."""
    watch = Watch(resources.store)
    resources.changed[:] = [watch.notify]
    attempts = Attempts(store=resources.store, clock=SYSTEM_CLOCK, changed=watch.notify)
    controllers = {str(kind.uri): PlainResources() for kind in (VARIABLE_SET, SOURCE)}
    loop = ReconcileLoop(LocalStore(resources.store, attempts, watch, resources.types), controllers)
    stop = threading.Event()
    thread = threading.Thread(target=loop.run, args=(stop,))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _changes(resources: Resources) -> Iterator[Row]:
    """Change one resource after another, each until it is Ready."""
    with _reconciling(resources):
        _await_settled(resources)
        times = []
        for number in range(CHANGES):
            begun = time.perf_counter()
            apply(resources, SET % ("warm", 0, number + 1))
            while not _is_ready(resources):
                time.sleep(0.001)
            times.append(1000 * (time.perf_counter() - begun))
    parts = quantiles(times, n=100)
    peer = ("Kubernetes' objective for a mutation, p99", KUBERNETES_MS)
    yield held_against("a change until Ready, p50", parts[49], "ms", peer=peer)
    yield held_against("a change until Ready, p99", parts[98], "ms", peer=peer, target=SECOND)


def _is_ready(resources: Resources) -> bool:
    with resources.store.read() as snapshot:
        (found,) = snapshot.find(Query(name="warm-0")).resources
    return found.phase == "Ready" and found.document["status"]["observedGeneration"] == found.generation


def _many(resources: Resources) -> Iterator[Row]:
    """Settle many sources after a start, and idle."""
    for first in range(0, SOURCES, BATCH):
        apply(resources, *(POLLED % (n, n) for n in range(first, first + BATCH)))
    begun = time.perf_counter()
    with _reconciling(resources):
        _await_settled(resources)
        settled = time.perf_counter() - begun
        case = f"{SOURCES} changed sources after a start, until settled"
        yield Row(case=case, value=settled, unit="s", target=SETTLED)
    begun = time.perf_counter()
    with _reconciling(resources):
        _await_settled(resources)
        restart = time.perf_counter() - begun
        yield Row(case=f"{SOURCES} settled sources after a start", value=restart, unit="s", target=SETTLED)
        time.sleep(1)
        begun, used = time.perf_counter(), time.process_time()
        time.sleep(IDLE_SECONDS)
        share = 100 * (time.process_time() - used) / (time.perf_counter() - begun)
        yield Row(case=f"{SOURCES} sources idle, of a core", value=share, unit="%", target=SMALL)


def _await_settled(resources: Resources) -> None:
    while True:
        with resources.store.read() as snapshot:
            if {phase for _, phase in snapshot.counts()} == {"Ready"}:
                return
        time.sleep(0.1)
