"""Commits of one record each, one after the other over gRPC, compared with the disk's share of a commit.

A commit fsyncs three files in this order: the slice, the block, the head; for each the file, then the folder with its
new name. The limit does only that, on the same disk.
"""

import tempfile
import time
import uuid
from pathlib import Path
from typing import Final

import numpy as np
from departures import APPEND, messages
from durable import durable
from node_under_test import BenchedNode
from rows import Row, held_against

from odf_common.cli import clients
from odf_common.proto.odf.node.v1.ingest_pb2 import PushHeader, PushPart
from odf_common.proto.odf.node.v1.ingest_pb2_grpc import IngestStub

COMMITS: Final = 1_000
TURN: Final = 100  # commits, then as many of the limit's, so that noise affects both equally
WARM: Final = 20
SIZES: Final = {"data": 6_000, "blocks": 600, "refs": 76}  # bytes


def run(node: BenchedNode) -> list[Row]:
    """Return the median and the 99th percentile."""
    node.add("commits", APPEND)
    node.settle()
    ours: list[float] = []
    limit: list[float] = []
    with (
        tempfile.TemporaryDirectory(prefix="limit-", dir=node.embedded.home) as folder,
        clients.ingest(node.node) as ingest,
    ):
        for record in messages()[:WARM]:
            _push(ingest, "commits", record)
        for start in range(WARM, WARM + COMMITS, TURN):
            ours += [_push(ingest, "commits", record) for record in messages()[start : start + TURN]]
            limit += [durable(Path(folder), SIZES) for _ in range(TURN)]
    return [_row(ours, limit, 50), _row(ours, limit, 99)]


def _row(ours: list[float], limit: list[float], percent: int) -> Row:
    value, against = (1000 * float(np.percentile(times, percent)) for times in (ours, limit))
    case = f"commit of one record, p{percent} of {COMMITS:,}"
    return held_against(case, value, "ms", peer=("3 files and folders fsynced", against))


def _push(ingest: IngestStub, name: str, record: bytes) -> float:
    header = PushHeader(ref=name, idempotency_key=uuid.uuid4().hex)
    parts = (PushPart(header=header), PushPart(content=record))
    begun = time.perf_counter()
    reply = ingest.Push(iter(parts), timeout=clients.CALL_TIMEOUT_SECONDS)
    seconds = time.perf_counter() - begun
    assert (reply.records, reply.already) == (1, False), reply
    return seconds
