"""Schemas of datasets as queries see them, even before there is data: from the chain, or from the sources' DDL."""

from collections.abc import Mapping, Sequence

import pyarrow as pa

from odf_common.chain.state import ChainState
from odf_common.data.columns import normalize_timestamps, with_system_columns
from odf_common.data.ddl import ddl_to_schema
from odf_common.data.schema_evolution import schema_of_event
from odf_common.data.stored_types import TIMESTAMP
from odf_common.metadata.events import (
    AddPushSource,
    DatasetVocabulary,
    KnownEvent,
    SetDataSchema,
    SetPollingSource,
    SetVocab,
    vocabulary_of,
)
from odf_common.metadata.scalars import Timestamp
from odf_common.metadata.steps import MergeStrategyChangelogStream, MergeStrategyUpsertStream, ReadStep

Source = AddPushSource | SetPollingSource


def schema_of(state: ChainState) -> pa.Schema | None:
    """Return the schema of a dataset's records with system columns; None while it is unknown."""
    if state.schema is not None:
        return schema_of_event(state.schema)
    return _of_sources(sources_of(state), state.vocabulary)


def sources_of(state: ChainState) -> tuple[Source, ...]:
    """Return the sources of a chain."""
    polled = () if state.polling_source is None else (state.polling_source,)
    return (*state.push_sources.values(), *polled)


def schema_of_events(events: Sequence[KnownEvent]) -> pa.Schema | None:
    """Return the schema that a dataset with these events will have; None while it is unknown."""
    for event in events:
        if isinstance(event, SetDataSchema):
            return schema_of_event(event)
    sources = [event for event in events if isinstance(event, AddPushSource | SetPollingSource)]
    return _of_sources(sources, vocabulary_of_events(events))


def vocabulary_of_events(events: Sequence[KnownEvent]) -> DatasetVocabulary:
    """Return the names of system columns that the events set."""
    return vocabulary_of(next((event for event in events if isinstance(event, SetVocab)), None))


def with_system(schema: pa.Schema, vocabulary: DatasetVocabulary, *, signed: bool = False) -> pa.Schema:
    """Return the schema with the system columns first, unless it has them."""
    if vocabulary.offset_column in schema.names:
        return schema
    if vocabulary.event_time_column not in schema.names:
        # Ingest fills it with the arrival time.
        schema = schema.append(pa.field(vocabulary.event_time_column, TIMESTAMP))
    table = with_system_columns(
        normalize_timestamps(schema.empty_table()),
        ops=None,
        first_offset=0,
        system_time=Timestamp(0),
        vocab=vocabulary,
        signed=signed,
    )
    return table.schema


def known_schemas(schemas: Mapping[str, pa.Schema | None]) -> Mapping[str, pa.Schema]:
    """Return all schemas if every one is known, else none: a query is analysed in full or for syntax only."""
    available = {name: schema for name, schema in schemas.items() if schema is not None}
    return available if len(available) == len(schemas) else {}


def _of_sources(sources: Sequence[Source], vocabulary: DatasetVocabulary) -> pa.Schema | None:
    """Return the common schema of the sources; None with preprocessing, or without a declared schema."""
    schemas: list[pa.Schema] = []
    for source in sources:
        declared = None if source.preprocess is not None else declared_schema(source.read)
        if declared is None:
            return None
        schemas.append(without_operations(declared, source, vocabulary))
    if not schemas or any(not schema.equals(schemas[0]) for schema in schemas):
        return None
    return with_system(schemas[0], vocabulary)


def without_operations(schema: pa.Schema, source: Source, vocabulary: DatasetVocabulary) -> pa.Schema:
    """Remove the column with the operation type of changelog records."""
    index = schema.get_field_index(vocabulary.operation_type_column)
    carries = isinstance(source.merge, MergeStrategyChangelogStream | MergeStrategyUpsertStream)
    return schema.remove(index) if carries and index >= 0 else schema


def declared_schema(read: ReadStep) -> pa.Schema | None:
    """Return the schema of a read step; None if it has none; raises `InvalidInput`."""
    if read.schema is not None:
        return schema_of_event(SetDataSchema(schema=read.schema))
    return ddl_to_schema(read.ddl_schema) if read.ddl_schema else None
