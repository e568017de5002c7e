"""A node of thousands of small datasets: listing, restart, and the cost of idling.

The datasets are written straight into the store, on an in-memory file system if there is one, and read by a
coordinator without Kafka, Redis or Spark. A fifth are derivatives. Ratios are costs per dataset at 5,000 compared
with those at 500.
"""

import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, cast

import grpc
from odf_testing.builders import (
    a_chain,
    a_push_source,
    a_schema,
    a_seed,
    a_time,
    a_transform,
    some_data,
)
from odf_testing.coordinator import Coordinator

from odf_common.adapters.local.catalog import LocalCatalog
from odf_common.adapters.local.key_files import keep_dataset_key
from odf_common.adapters.local.stores import LocalBlobStore, LocalRefStore
from odf_common.chain.build_blocks import build_blocks
from odf_common.identity.dataset_refs import DatasetId
from odf_common.identity.keys import generate
from odf_common.metadata.events import DatasetKind, KnownEvent
from odf_common.ports.bus import PARTITIONS
from odf_common.ports.store import CatalogEntry, ObjectKind
from odf_common.proto.odf.node.v1.coordinator_pb2 import ListRequest
from odf_coordinator.api.grpc_servicer import Servicer
from odf_coordinator.catalog.partitions import PartitionOwnership

Row = dict[str, object]
FEW: Final = 500
MANY: Final = 5000
DERIVED: Final = 5  # every fifth is a derivative
IDLE_SECONDS: Final = 5.0
CONTEXT = cast("grpc.ServicerContext", None)  # `List` does not use it


def run() -> list[Row]:
    """Return the rows; takes about a minute."""
    few, many = _measured(FEW), _measured(MANY)
    return [
        {
            "case": f"{name}, {MANY} datasets",
            "value": many[name],
            "unit": "s",
            "peer": f"{MANY // FEW} times {FEW} datasets",
            "limit_or_peer": few[name] * MANY / FEW,
            "ratio": many[name] / (few[name] * MANY / FEW),
            "target": f"value <= {wanted}",
        }
        for name, wanted in (("list, cold", 10), ("list, warm", 2), ("restart", 10))
    ] + [
        {
            "case": f"idle, {MANY} datasets",
            "value": many["idle"] * 100,
            "unit": "% of a core",
            "target": "value <= 5",
        }
    ]


def _measured(count: int) -> dict[str, float]:
    """Return the duration of each operation on a node with that many datasets, in seconds."""
    memory = Path("/dev/shm")  # noqa: S108 - a file system, in which a folder of our own is made
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        home = Path(folder)
        _fill(home, count)
        node = Coordinator(home=home, is_durable=True)
        servicer = _servicer(node)
        seconds = {"list, cold": _seconds(lambda: _list(servicer, count))}
        seconds["list, warm"] = min(_seconds(lambda: _list(servicer, count)) for _ in range(3))
        return seconds | _restarted(Coordinator(home=home, is_durable=True), count)


def _restarted(node: Coordinator, count: int) -> dict[str, float]:
    """Return the seconds until all heads are announced and all derivatives checked; then the cost of idling."""
    node.committer.listen(node.publisher.announce)
    ownership = PartitionOwnership(datasets=node.datasets, keys=node.keys, announce=node.committer.announce)
    stop = threading.Event()
    works = (ownership.run, node.publisher.run, node.scheduler.run, node.scheduler.run)
    threads = [threading.Thread(target=work, args=(stop,)) for work in works]
    begun = time.perf_counter()
    for thread in threads:
        thread.start()
    ownership.on_assigned(frozenset(range(PARTITIONS)))
    while len(node.bus.sent) < count or node.scheduler.waiting():
        time.sleep(0.01)
    restart = time.perf_counter() - begun
    busy, begun = time.process_time(), time.perf_counter()
    time.sleep(IDLE_SECONDS)
    idle = (time.process_time() - busy) / (time.perf_counter() - begun)
    stop.set()
    for thread in threads:
        thread.join()
    return {"restart": restart, "idle": idle}


def _list(servicer: Servicer, count: int) -> None:
    assert len(servicer.List(ListRequest(), CONTEXT).datasets) == count


def _seconds(action: Callable[[], None]) -> float:
    begun = time.perf_counter()
    action()
    return time.perf_counter() - begun


def _servicer(node: Coordinator) -> Servicer:
    return Servicer(node.parts)


def _fill(home: Path, count: int) -> None:
    """Write datasets with names, keys and a few blocks each."""
    blobs, refs, catalog = LocalBlobStore(home), LocalRefStore(home), LocalCatalog(home)
    roots: list[DatasetId] = []
    for number in range(count):
        key = generate()
        dataset = key.dataset_id
        is_derived = number % DERIVED == DERIVED - 1
        events = list(_derivative(dataset, roots[-1]) if is_derived else _root(dataset, number))
        if not is_derived:
            roots.append(dataset)
        blocks, state = build_blocks(None, events, system_time=a_time(number), version=3)
        for block in blocks:
            blobs.put(dataset, ObjectKind.BLOCK, block.hash, block.raw)
        refs.compare_and_set(dataset, expected=None, new=state.head)
        keep_dataset_key(home / "keys", key)
        catalog.add(CatalogEntry(alias=f"dataset.{number:05}", dataset_id=dataset))


def _root(dataset: DatasetId, number: int) -> Iterator[KnownEvent]:
    yield a_seed(dataset=dataset)
    yield a_push_source()
    if number % DERIVED != DERIVED - 2:  # inputs of derivatives have no records, so that no transform is due
        chain = a_chain(a_seed(dataset=dataset), a_push_source(), a_schema())
        yield a_schema()
        yield some_data(chain.state)


def _derivative(dataset: DatasetId, read: DatasetId) -> Iterator[KnownEvent]:
    yield a_seed(DatasetKind.Derivative, dataset)
    yield a_transform(read)
