"""Streams of Arrow record batches over gRPC: each batch is committed, then acknowledged, then the next one is read.

A stream is a run of numbered batches (`batch_keys`), so the source state in the chain records its progress.
"""

import shutil
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from odf_common.adapters.local.faults import translating_os_errors
from odf_common.codec.times import time_of
from odf_common.dataset.batch_keys import key_in_run
from odf_common.errors import InvalidInput
from odf_common.identity.dataset_refs import DatasetId
from odf_common.metadata.scalars import Timestamp
from odf_common.ports.clock import Clock
from odf_common.proto.odf.node.v1 import push_pb2 as pb
from odf_ingest.api.lookup import PushTargets, require_key, source_named
from odf_ingest.commit.committer import CommitQueues, Outcome, position_of
from odf_ingest.commit.file_commit import FileCommit
from odf_ingest.commit.position import next_in_run
from odf_ingest.commit.rejects import RejectPolicy
from odf_ingest.errors import KeyReused
from odf_ingest.prepare.batch import FileBatch
from odf_ingest.prepare.preparer import Preparer
from odf_ingest.read.input_format import ARROW, InputFormat

MAX_ARROW_BATCH_BYTES: Final = 32 * 1024 * 1024
MAX_UNACKNOWLEDGED_BYTES: Final = 64 * 1024 * 1024
MAX_SEQUENCE: Final = 10**9 - 1  # what a key in a run can hold
IsActive = Callable[[], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stream:
    """An open stream; `event_time` is None if the client gave none."""

    id: str
    dataset: DatasetId
    source: str
    event_time: Timestamp | None
    is_active: IsActive


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrowStreams:
    """Serves streams, each on the thread of its call."""

    targets: PushTargets
    queues: CommitQueues
    preparer: Preparer
    rejecting: RejectPolicy
    clock: Clock
    scratch: Callable[[], Path]

    @translating_os_errors
    def serve(self, parts: Iterator[pb.StreamPart], is_active: IsActive) -> Iterator[pb.StreamAck]:
        """Yield the number of the next batch, then one acknowledgement per batch.

        Raises `InvalidInput` and `Unavailable`.
        """
        first = next(parts, None)
        if first is None or first.WhichOneof("part") != "header":
            raise InvalidInput(text="a stream must start with its header")
        stream = self._open(first.header, is_active)
        state = self.queues.state(stream.dataset)
        expected = next_in_run(position_of(state, stream.source), stream.id)
        yield pb.StreamAck(
            stream_id=stream.id,
            next=expected,
            head=str(state.head),
            max_batch_bytes=MAX_ARROW_BATCH_BYTES,
            max_unacknowledged_bytes=MAX_UNACKNOWLEDGED_BYTES,
        )
        for part in parts:
            if part.WhichOneof("part") != "batch":
                raise InvalidInput(text="a stream has one header, then batches")
            _require_in_order(part.batch, expected)
            outcome = self._commit(stream, part.batch)
            expected = max(expected, part.batch.sequence + 1)
            yield pb.StreamAck(
                stream_id=stream.id,
                next=expected,
                head=str(outcome.state.head),
                records=outcome.count,
                rejected=len(outcome.rejected),
                rejected_reason=next((row.reason for row in outcome.rejected), ""),
            )

    def _open(self, header: pb.StreamHeader, is_active: IsActive) -> _Stream:
        if header.stream_id:
            require_key("stream_id", header.stream_id)
        dataset = self.targets.find(header.ref).dataset_id
        return _Stream(
            id=header.stream_id or uuid.uuid4().hex,
            dataset=dataset,
            source=source_named(self.queues.state(dataset), header.source_name).source_name,
            event_time=time_of(header.event_time) if header.HasField("event_time") else None,
            is_active=is_active,
        )

    def _commit(self, stream: _Stream, batch: pb.StreamBatch) -> Outcome:
        """Commit a batch; errors in its content have the number of the batch."""
        folder = self.scratch()
        try:
            file = folder / "batch"
            file.write_bytes(batch.arrow)
            work = FileBatch(
                file=file,
                event_time=stream.event_time or self.clock.now(),
                fills_event_times=stream.event_time is not None,
                key=key_in_run(stream.id, batch.sequence),
                format=InputFormat(name=ARROW),
                label=f"batch {batch.sequence} of stream {stream.id}",
            )
            commit = FileCommit(stream.source, work, self.preparer, self.rejecting, stream.is_active)
            return commit.commit(self.queues, stream.dataset)
        except KeyReused:
            raise
        except InvalidInput as error:
            text = f"{error}; it was not committed, nor was any after it"
            raise InvalidInput(where=f"batch {batch.sequence}", text=text) from error
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _require_in_order(batch: pb.StreamBatch, expected: int) -> None:
    """Raise `InvalidInput` if batches before this one are missing, or if it is too large."""
    where = f"batch {batch.sequence}"
    if batch.sequence > min(expected, MAX_SEQUENCE):
        raise InvalidInput(where=where, text=f"batch {expected} is next: batches are numbered without gaps")
    if len(batch.arrow) > MAX_ARROW_BATCH_BYTES:
        text = f"has {len(batch.arrow)} bytes; send record batches of up to {MAX_ARROW_BATCH_BYTES} bytes"
        raise InvalidInput(where=where, text=text)
