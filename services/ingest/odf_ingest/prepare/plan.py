"""The plan for reading a source's batches: read step, declared schema, and the columns of the dataset."""

from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Self

import pyarrow as pa
import pyarrow.types as kind

from odf_common.chain.state import ChainState
from odf_common.data.ddl import ddl_to_schema
from odf_common.data.schema_evolution import schema_of_event
from odf_common.errors import InvalidInput
from odf_common.metadata.events import (
    AddPushSource,
    DatasetVocabulary,
    ReadStep,
    ReadStepCsv,
    ReadStepEsriShapefile,
    ReadStepParquet,
    SetDataSchema,
)
from odf_common.ports.engine import IsWanted, always
from odf_ingest.history.align_columns import data_columns
from odf_ingest.merge.strategies import key_columns, takes_whole_batches
from odf_ingest.message_columns import NO_COLUMNS, Envelope, MessageColumns, MessageFormat
from odf_ingest.read.input_format import InputFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The plan for reading a source's batches: the source, the vocabulary, and its declared schema.

    A source without a schema uses the columns of `dataset_schema`, and may add columns. `also_required` are columns
    that the dataset requires and the source's schema does not. `fills_event_times`: null event times are replaced by
    that of the batch; otherwise such rows are bad. The preprocess query is canceled once `is_wanted` returns False.
    """

    source: AddPushSource
    vocab: DatasetVocabulary
    schema: pa.Schema | None
    dataset_schema: pa.Schema | None = None
    also_required: tuple[str, ...] = ()
    fills_event_times: bool = False
    refuses_finer_times: bool = False
    """Whether a time with more fractional digits than its column has is refused; otherwise it is truncated."""
    completes_retractions: bool = False
    """Whether a -R or -C of a ChangelogStream needs only its key; other values are taken from the current record."""
    has_envelope: bool = False
    """Whether messages have an envelope with operation and time; the latter replaces null event times."""
    is_wanted: IsWanted = field(default=always, compare=False)

    def with_settings(self, messages: MessageColumns) -> Self:
        """Return the plan with the policies of the source's settings."""
        return replace(
            self,
            refuses_finer_times=messages.refuses_finer_times,
            completes_retractions=messages.completes_retractions,
            has_envelope=messages.envelope is not Envelope.NONE,
        )

    @property
    def takes_whole_batches(self) -> bool:
        """Return whether each message is a batch of its own."""
        is_file = isinstance(self.source.read, ReadStepParquet | ReadStepEsriShapefile)
        return takes_whole_batches(self.source.merge) or is_file

    @property
    def needs_timestamps(self) -> bool:
        """Return whether a record's event time may be its message's timestamp."""
        has_event_time = self.schema is not None and self.vocab.event_time_column in self.schema.names
        return self.takes_whole_batches or self.source.preprocess is not None or not has_event_time

    @property
    def required_columns(self) -> tuple[str, ...]:
        """Return the columns that must have a value in every record."""
        declared = [] if self.schema is None or self.source.preprocess else self.schema
        own = (column.name for column in declared if not column.nullable)
        return (*key_columns(self.source.merge), *own, *self.also_required)


def declared_schema(step: ReadStep) -> pa.Schema | None:
    """Return the schema that a read step declares; None if it declares none. Raises `InvalidInput`."""
    if step.schema is not None:
        schema = schema_of_event(SetDataSchema(schema=step.schema))
    elif step.ddl_schema:
        schema = _parse_ddl(tuple(step.ddl_schema))
    else:
        return None
    if isinstance(step, ReadStepCsv):
        _check_flat(schema)
    return schema


@lru_cache(maxsize=256)  # a plan is made for each push and each batch
def _parse_ddl(columns: tuple[str, ...]) -> pa.Schema:
    return ddl_to_schema(columns)


def sent_as(source: AddPushSource, messages: MessageColumns) -> AddPushSource:
    """Return the source with the read step for the `value_format` in its settings, if that is set."""
    if messages.value_format is MessageFormat.SOURCE:
        return source
    return replace(source, read=InputFormat(name=messages.value_format).step(source.read))


def plan_of(state: ChainState, source: AddPushSource, messages: MessageColumns = NO_COLUMNS) -> Plan:
    """Return the plan for reading batches of the source. Without a declared schema, the dataset's columns are used."""
    source = sent_as(source, messages)
    plan = Plan(source=source, vocab=state.vocabulary, schema=declared_schema(source.read)).with_settings(
        messages
    )
    if state.schema is None:
        return plan
    schema = schema_of_event(state.schema)
    data = data_columns(schema, plan.vocab)
    required = tuple(f.name for f in data if not f.nullable and f.name not in plan.required_columns)
    if plan.schema is not None or source.preprocess is not None:
        return replace(plan, also_required=required)
    own = {*data.names, plan.vocab.event_time_column}
    fields = [pa.field(column.name, column.type) for column in schema if column.name in own]
    return replace(plan, dataset_schema=pa.schema(fields), also_required=required)


def _check_flat(schema: pa.Schema) -> None:
    for column in schema:
        if kind.is_nested(column.type):
            text = f"Csv has no values of type {column.type}: declare STRING, and parse it in preprocess"
            raise InvalidInput(text=text, where=f"column {column.name}")
