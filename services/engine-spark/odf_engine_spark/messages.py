"""The engine's messages as values: what came over the wire is checked here."""

import pyarrow as pa

from odf_common.codec.flatbuffers import decode_event
from odf_common.errors import InvalidInput
from odf_common.metadata.engine import TransformResponseSuccess
from odf_common.metadata.events import SetTransform
from odf_common.metadata.scalars import Timestamp
from odf_common.metadata.vocabulary import DatasetVocabulary
from odf_common.ports.engine import EngineProgress, MigrateInput, MigrateRequest, QueryTable
from odf_common.proto.engine import engine_pb2


def schema_of(raw: bytes) -> pa.Schema:
    """Return a schema; raises `InvalidInput`."""
    try:
        return pa.ipc.read_schema(pa.BufferReader(raw))
    except (pa.ArrowException, OSError) as error:
        raise InvalidInput(text=f"not an Arrow schema: {error}") from error


def set_transform_of(raw: bytes) -> SetTransform:
    """Return the event; raises `InvalidInput` for another one."""
    event = decode_event(raw)
    if not isinstance(event, SetTransform):
        raise InvalidInput(text="expected a SetTransform")
    return event


def vocabulary_of(given: engine_pb2.Vocabulary) -> DatasetVocabulary:
    """Return the names of the system columns, the default ones where none are given."""
    default = DatasetVocabulary()
    return DatasetVocabulary(
        offset_column=given.offset_column or default.offset_column,
        operation_type_column=given.operation_type_column or default.operation_type_column,
        system_time_column=given.system_time_column or default.system_time_column,
        event_time_column=given.event_time_column or default.event_time_column,
    )


def tables_of(request: engine_pb2.QueryRequest) -> tuple[QueryTable, ...]:
    """Return the tables of an ad-hoc query."""
    return tuple(
        QueryTable(name=each.name, schema=schema_of(each.schema), data_paths=tuple(each.data_paths))
        for each in request.tables
    )


def migration_of(request: engine_pb2.MigrateQueryRequest) -> MigrateRequest:
    """Return a migration as asked for."""
    return MigrateRequest(
        old=set_transform_of(request.old_set_transform),
        new=set_transform_of(request.new_set_transform),
        inputs=tuple(
            MigrateInput(name=each.name, schema=schema_of(each.schema), vocab=vocabulary_of(each.vocab))
            for each in request.inputs
        ),
        vocab=vocabulary_of(request.output_vocab),
        system_time=Timestamp(request.system_time),
        next_offset=request.next_offset,
        prev_checkpoint_path=request.prev_checkpoint_path or None,
        new_checkpoint_path=request.new_checkpoint_path,
        new_data_path=request.new_data_path,
    )


def migrated(done: TransformResponseSuccess) -> engine_pb2.MigrateQueryResponse:
    """Return the answer to a migration."""
    interval, watermark = done.new_offset_interval, done.new_watermark
    return engine_pb2.MigrateQueryResponse(
        new_offset_interval=None
        if interval is None
        else engine_pb2.OffsetInterval(start=interval.start, end=interval.end),
        new_watermark=None if watermark is None else watermark.ns,
    )


def progress(now: EngineProgress) -> engine_pb2.Progress:
    """Return a report."""
    return engine_pb2.Progress(stage=now.stage, rows=now.rows, total=now.total, late=now.late)
