"""A whole node with thousands of datasets: the cost of listing, idling and a killed ingest, with the real broker.

All are roots with a push topic of one partition each. The node is started and stopped here.
"""

import os
import signal
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from departures import LEDGER, manifest, messages
from node_under_test import NOT_OURS, BenchedNode, running_node

from odf_cli import clients
from odf_common.adapters.kafka.topic_messages import publish
from odf_common.proto.odf.node.v1.coordinator_pb2 import AddRequest

Row = dict[str, object]
MANY: Final = int(os.environ.get("DATASETS", "5000"))
AT_ONCE: Final = 250  # manifests per call
CALLERS: Final = 4
IDLE_SECONDS: Final = 600.0  # of the work done from time to time, the rarest is done every ten minutes
SETTLED: Final = 180.0  # seconds until all work of adding is done, and ingest only watches the partitions
ROUNDS: Final = 3


def run() -> list[Row]:
    """Return the rows; takes about half an hour."""
    with tempfile.TemporaryDirectory(prefix="odf-bench-") as folder, running_node(Path(folder)) as node:
        adding = _added(node)
        time.sleep(SETTLED)
        listing = min(_listing(node) for _ in range(ROUNDS))
        ours, broker = _idle(node)
        restart = sorted(_killed(node, number) for number in range(ROUNDS))[ROUNDS // 2]
    return [
        {"case": f"add, each of {MANY}, {CALLERS} callers", "value": adding * 1000 / MANY, "unit": "ms"},
        {"case": f"`odf list`, {MANY} datasets", "value": listing, "unit": "s", "target": "value <= 2"},
        {
            "case": f"idle, {MANY} datasets",
            "value": ours * 100,
            "unit": "% of a core",
            "target": "value <= 5",
        },
        {"case": f"idle, {MANY} datasets: Kafka", "value": broker * 100, "unit": "% of a core"},
        {
            "case": f"from the kill of ingest to the next commit, {MANY} datasets",
            "value": restart,
            "unit": "s",
            "target": "value <= 10",
        },
    ]


def _name(number: int) -> str:
    return f"many.{number:05}"


def _added(node: BenchedNode) -> float:
    """Return the seconds that several callers need to add all datasets."""
    begun = time.perf_counter()
    with clients.coordinator(node.node) as coordinator, ThreadPoolExecutor(CALLERS) as callers:

        def add(first: int) -> None:
            request = AddRequest()
            for number in range(first, min(first + AT_ONCE, MANY)):
                name = _name(number)
                request.manifests.add(name=name, text=manifest(name, LEDGER).encode())
            coordinator.Add(request, timeout=clients.STREAM_TIMEOUT_SECONDS)

        list(callers.map(add, range(0, MANY, AT_ONCE)))
    return time.perf_counter() - begun


def _listing(node: BenchedNode) -> float:
    begun = time.perf_counter()
    assert len(node.listed()) == MANY + 1  # includes the one that warmed the node up
    return time.perf_counter() - begun


def _idle(node: BenchedNode) -> tuple[float, float]:
    """Return the number of cores that our parts use while idle, and that of the broker."""
    before, broker, begun = node.effort(), _broker(node), time.perf_counter()
    time.sleep(IDLE_SECONDS)
    elapsed = time.perf_counter() - begun
    used = node.effort().since(before)
    print({name: round(100 * seconds / elapsed, 1) for name, seconds in used.by_part.items()})
    return used.seconds / elapsed, (_broker(node) - broker) / elapsed


def _broker(node: BenchedNode) -> float:
    return node.processor_seconds(NOT_OURS)


def _killed(node: BenchedNode, number: int) -> float:
    """Return the seconds from the kill of ingest to a commit of the messages published in the meantime."""
    name = _name(MANY * (2 * number + 1) // (2 * ROUNDS))
    head = node.folder(name) / "refs" / "head"
    before = head.read_bytes()
    old = node.embedded.kill("ingest", signal.SIGKILL)
    begun = time.perf_counter()
    publish(node.embedded.cluster, node.topic_of(name), messages()[:1])
    while head.read_bytes() == before:
        time.sleep(0.01)
    elapsed = time.perf_counter() - begun
    node.embedded.await_restart("ingest", old)
    return elapsed
