"""Batches of messages and files for ingest, and their commit to a bench: a dataset with all that ingest needs."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np

from odf_common.errors import OdfError
from odf_common.metadata.scalars import Timestamp
from odf_ingest.commit.committer import Outcome
from odf_ingest.commit.file_commit import FileCommit
from odf_ingest.prepare.batch import FileBatch, MessageBatch, Part
from odf_ingest.prepare.plan import plan_of
from odf_ingest.prepare.preparer import PreparedRecords
from odf_ingest.push.batches.kafka_batch import KafkaBatch
from odf_ingest.read.message_buffer import MessageBuffer

SENT_MS = 1_600_000_000_000
EVENT_TIME = Timestamp.parse("2020-06-01T00:00:00Z")


def a_message_batch(
    values: Mapping[int, Sequence[bytes | None]],
    start: Mapping[int, int] | None = None,
    *,
    sent_ms: int | None = SENT_MS,
    **fields: Any,
) -> MessageBatch:
    """Return messages by partition, from the offsets `start`; partitions of `start` alone have none."""
    begin = dict(start or dict.fromkeys(values, 0))
    parts = [
        Part(
            partition=number,
            values=MessageBuffer.pack(some),
            offsets=range(begin[number], begin[number] + len(some)),
            timestamps=None if sent_ms is None else np.full(len(some), sent_ms),
        )
        for number, some in values.items()
        if some
    ]
    given: dict[str, Any] = {
        "topic": "topic",
        "topic_id": "one",
        "partitions": len(begin),
        "parts": tuple(parts),
        "start": begin,
        "end": {number: at + len(values.get(number, ())) for number, at in begin.items()},
        "beginning": dict.fromkeys(begin, 0),
        "begun": 0.0,
        "size": 0,
    }
    return MessageBatch(**given | fields)


def read_already(bench: Any, batch: MessageBatch) -> "Future[PreparedRecords]":
    """Return the records of a batch, or the error of reading them."""
    reading: Future[PreparedRecords] = Future()
    plan = plan_of(bench.state, bench.state.push_sources["default"], batch.columns)
    try:
        reading.set_result(bench.preparer.messages(plan, batch))
    except OdfError as error:
        reading.set_exception(error)
    return reading


def a_kafka_batch(
    bench: Any, batch: MessageBatch, reading: "Future[PreparedRecords] | None" = None
) -> KafkaBatch:
    """Return the batch to commit to the source `default`."""
    return KafkaBatch(
        "default",
        batch,
        plan=plan_of(bench.state, bench.state.push_sources["default"], batch.columns),
        reading=reading or read_already(bench, batch),
        read=bench.preparer.messages,
        rejecting=bench.rejecting,
    )


def commit_messages(bench: Any, batch: MessageBatch) -> Outcome:
    """Commit messages of a topic."""
    outcome: Outcome = bench.queues.commit(bench.dataset, a_kafka_batch(bench, batch))
    return outcome


def commit_file(
    bench: Any,
    file: Path,
    content: str | bytes | None,
    key: str = "key",
    *,
    source: str = "default",
    is_wanted: Callable[[], bool] = lambda: True,
    **fields: Any,
) -> Outcome:
    """Write the content to a file, unless it is None, and commit the file."""
    if content is not None:
        file.write_bytes(content.encode() if isinstance(content, str) else content)
    given: dict[str, Any] = {"file": file, "event_time": EVENT_TIME, "key": key}
    batch = FileBatch(**given | fields)
    work = FileCommit(source, batch, bench.preparer, bench.rejecting, is_wanted)
    return work.commit(bench.queues, bench.dataset)
