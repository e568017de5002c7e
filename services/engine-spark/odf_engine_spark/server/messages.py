"""Conversions between the engine's messages and domain values; received messages are validated here."""

import io
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa

from odf_common.codec.flatbuffers import decode_event, decode_message, encode_message
from odf_common.codec.times import time_message_or_none, time_of
from odf_common.errors import InvalidInput, InvalidQuery
from odf_common.metadata.engine_messages import (
    TransformRequest,
    TransformResponse,
    TransformResponseInvalidQuery,
    TransformResponseRoot,
    TransformResponseSuccess,
    Watermark,
)
from odf_common.metadata.events import DatasetVocabulary, SetTransform
from odf_common.metadata.scalars import Timestamp
from odf_common.ports.engine import (
    EngineProgress,
    MigrateRequest,
    PlannedInput,
    QueryFailed,
    QueryOutOfMemory,
    QueryTable,
)
from odf_common.proto.engine import engine_pb2

_LAST_MS: Final = (2**63 - 1) // 1_000_000  # the state keeps watermarks as nanoseconds in 64 bits
_FIRST_MS: Final = -_LAST_MS


def transform_of(raw: bytes) -> TransformRequest:
    """Return a decoded transform request, with watermarks limited to the range that a checkpoint can store."""
    request = decode_message(TransformRequest, raw)
    inputs = (
        replace(input_, explicit_watermarks=held_watermarks(input_.explicit_watermarks))
        for input_ in request.query_inputs
    )
    return replace(request, query_inputs=tuple(inputs))


def transform_response(value: TransformResponse) -> engine_pb2.TransformResponse:
    """Return a response to a transform request."""
    return engine_pb2.TransformResponse(flatbuffer=encode_message(TransformResponseRoot(value=value)))


def invalid_transform(error: InvalidQuery) -> engine_pb2.TransformResponse:
    """Return the response for a transform whose query is refused or fails."""
    response = transform_response(TransformResponseInvalidQuery(message=str(error)))
    match error:
        case QueryOutOfMemory():
            response.failure = engine_pb2.QUERY_FAILURE_OUT_OF_MEMORY
        case QueryFailed(records=records, instead=instead):
            response.failure = engine_pb2.QUERY_FAILURE_WHILE_RUNNING
            response.instead = instead
            for one in records:
                response.failing_records.add(dataset_id=str(one.dataset), first=one.first, last=one.last)
        case _:  # refused: as of engines that do not say
            pass
    return response


def held_watermarks(watermarks: Iterable[Watermark]) -> tuple[Watermark, ...]:
    """Return the watermarks limited to the years 1677 to 2262; no watermark gets later.

    A later one is lowered to the end of the range. An earlier one is omitted, as if there were no watermark yet.
    """
    last = Timestamp.from_ms(_LAST_MS)
    return tuple(
        replace(watermark, event_time=min(watermark.event_time, last))
        for watermark in watermarks
        if watermark.event_time.ms >= _FIRST_MS
    )


def schema_of(raw: bytes) -> pa.Schema:
    """Return the Arrow schema in an IPC message; raises `InvalidInput`."""
    try:
        return pa.ipc.read_schema(pa.BufferReader(raw))
    except (pa.ArrowException, OSError) as error:
        raise InvalidInput(text=f"not an Arrow schema: {error}") from error


def set_transform_of(raw: bytes) -> SetTransform:
    """Return the decoded event; raises `InvalidInput` unless it is a SetTransform."""
    event = decode_event(raw)
    if not isinstance(event, SetTransform):
        raise InvalidInput(text="expected a SetTransform")
    return event


def vocabulary_of(vocab: engine_pb2.Vocabulary) -> DatasetVocabulary:
    """Return the names of the system columns, with defaults for missing ones."""
    default = DatasetVocabulary()
    return DatasetVocabulary(
        offset_column=vocab.offset_column or default.offset_column,
        operation_type_column=vocab.operation_type_column or default.operation_type_column,
        system_time_column=vocab.system_time_column or default.system_time_column,
        event_time_column=vocab.event_time_column or default.event_time_column,
    )


def tables_of(request: engine_pb2.QueryRequest) -> tuple[QueryTable, ...]:
    """Return the tables of an ad-hoc query."""
    return tuple(
        QueryTable(name=table.name, schema=schema_of(table.schema), data_paths=tuple(table.data_paths))
        for table in request.tables
    )


def migration_of(request: engine_pb2.MigrateQueryRequest) -> MigrateRequest:
    """Return a migration request as a domain value."""
    return MigrateRequest(
        old=set_transform_of(request.old_set_transform),
        new=set_transform_of(request.new_set_transform),
        inputs=tuple(
            PlannedInput(name=input_.name, schema=schema_of(input_.schema), vocab=vocabulary_of(input_.vocab))
            for input_ in request.inputs
        ),
        vocab=vocabulary_of(request.output_vocab),
        system_time=time_of(request.system_time),
        next_offset=request.next_offset,
        prev_checkpoint_path=request.prev_checkpoint_path or None,
        new_checkpoint_path=request.new_checkpoint_path,
        new_data_path=request.new_data_path,
    )


def migration_response(done: TransformResponseSuccess) -> engine_pb2.MigrateQueryResponse:
    """Return the response to a migration."""
    interval, watermark = done.new_offset_interval, done.new_watermark
    return engine_pb2.MigrateQueryResponse(
        new_offset_interval=None
        if interval is None
        else engine_pb2.OffsetInterval(start=interval.start, end=interval.end),
        new_watermark=time_message_or_none(watermark),
    )


def progress(now: EngineProgress) -> engine_pb2.Progress:
    """Return a progress report as a message."""
    return engine_pb2.Progress(
        stage=now.stage,
        rows=now.rows,
        total=now.total,
        late=now.late,
        held=now.held,
        held_until=now.held_until,
        held_by=now.held_by,
    )


def ipc_chunks(records: pa.RecordBatchReader, size: int) -> Iterator[bytes]:
    """Yield one Arrow IPC stream in chunks of at most `size` bytes, with only one batch of records in memory."""
    sink = _Sink()
    with pa.ipc.new_stream(sink, records.schema) as stream:
        for batch in records:
            stream.write_batch(batch)
            if sink.waiting >= size:
                yield from sink.take_chunks(size)
    yield from sink.take_chunks(size)


class _Sink(io.RawIOBase):
    """A writable file whose content is taken out while it grows."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._position = 0
        self.waiting = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def write(self, part: Any) -> int:  # noqa: ANN401 - bytes, or a buffer of Arrow
        self._parts.append(bytes(part))
        self._position += len(part)
        self.waiting += len(part)
        return len(part)

    def take_chunks(self, size: int) -> Iterator[bytes]:
        """Yield, in chunks, the bytes written since the last call."""
        whole = b"".join(self._parts)
        self._parts.clear()
        self.waiting = 0
        for start in range(0, len(whole), size):
            yield whole[start : start + size]
