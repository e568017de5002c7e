"""Commits of one record each, one after the other over gRPC, compared with what disk and broker take for a commit.

A commit fsyncs three files in this order: the slice, the block, the head; for each the file, then the folder with its
new name. Two messages pass the broker: the proposal and its outcome. The limit does only that, one after the other, on
the same disk and the same broker; half the commits may take twice as long.
"""

import tempfile
import time
import uuid
from contextlib import closing
from pathlib import Path
from typing import Final

import numpy as np
from confluent_kafka import Consumer, Producer, TopicPartition
from departures import APPEND, messages
from durable import durable
from node_under_test import BenchedNode
from rows import Row, Target, held_against

from odf_cli import clients
from odf_common.proto.odf.node.v1.ingest_pb2 import PushHeader, PushPart
from odf_common.proto.odf.node.v1.ingest_pb2_grpc import IngestStub

COMMITS: Final = 1_000
TURN: Final = 100  # commits, then as many of the limit's, so that noise affects both equally
WARM: Final = 20
SIZES: Final = {"data": 6_000, "blocks": 600, "refs": 76}  # bytes
MESSAGE: Final = 600  # bytes
PEER_NAME: Final = "3 files and folders fsynced, 2 Kafka messages"
TWICE: Final = Target(judged="ratio", sense="≤", bound=2)


def run(node: BenchedNode) -> list[Row]:
    """Return the median and the 99th percentile."""
    node.add("commits", APPEND)
    node.settle()
    ours: list[float] = []
    limit: list[float] = []
    with (
        tempfile.TemporaryDirectory(prefix="limit-", dir=node.embedded.home) as folder,
        clients.ingest(node.node) as ingest,
        closing(Hop(node)) as hop,
    ):
        for _ in range(WARM):
            hop.seconds()
        for record in messages()[:WARM]:
            _push(ingest, "commits", record)
        for start in range(WARM, WARM + COMMITS, TURN):
            ours += [_push(ingest, "commits", record) for record in messages()[start : start + TURN]]
            limit += [durable(Path(folder), SIZES) + 2 * hop.seconds() for _ in range(TURN)]
    return [_row(ours, limit, 50, TWICE), _row(ours, limit, 99)]


class Hop:
    """A topic with a producer and a consumer."""

    def __init__(self, node: BenchedNode) -> None:
        """Create the topic."""
        self._topic = node.topic_of("commits.hop")
        node.embedded.topics().create_push_topic(self._topic)
        broker = node.embedded.clients
        self._producer = Producer({**broker, "acks": "all", "linger.ms": 0})
        self._consumer = Consumer({**broker, "group.id": "benchmark", "enable.auto.commit": False})
        self._consumer.assign([TopicPartition(self._topic, 0, 0)])

    def seconds(self) -> float:
        """Return how long a message takes from the producer to the consumer."""
        begun = time.perf_counter()
        self._producer.produce(self._topic, bytes(MESSAGE))
        self._producer.poll(0)
        message = self._consumer.poll(clients.COMMAND_TIMEOUT_SECONDS)
        assert message is not None, "it was produced"
        assert message.error() is None, message.error()
        return time.perf_counter() - begun

    def close(self) -> None:
        """Close the clients."""
        self._producer.flush()
        self._consumer.close()


def _row(ours: list[float], limit: list[float], percent: int, target: Target | None = None) -> Row:
    value, against = (1000 * float(np.percentile(times, percent)) for times in (ours, limit))
    case = f"commit of one record, p{percent} of {COMMITS:,}"
    return held_against(case, value, "ms", peer=(PEER_NAME, against), target=target)


def _push(ingest: IngestStub, name: str, record: bytes) -> float:
    header = PushHeader(ref=name, idempotency_key=uuid.uuid4().hex)
    parts = (PushPart(header=header), PushPart(content=record))
    begun = time.perf_counter()
    reply = ingest.Push(iter(parts), timeout=clients.COMMAND_TIMEOUT_SECONDS)
    seconds = time.perf_counter() - begun
    assert (reply.records, reply.already) == (1, False), reply
    return seconds
