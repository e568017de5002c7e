"""Decides which inferred columns a dataset can have; records with values in other columns are rejected."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kind

from odf_common.data.columns import TIMESTAMP, stored_schema
from odf_common.hashing.logical import UnhashableType, check_hashable
from odf_common.metadata.events import (
    AddPushSource,
    DatasetVocabulary,
    MergeStrategyChangelogStream,
    MergeStrategyUpsertStream,
)
from odf_ingest.read.types.type_names import type_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """The columns to read; `refused` has the columns that the dataset cannot have, with the reason."""

    schema: pa.Schema | None
    refused: Mapping[str, str] = field(default_factory=dict)

    def admit(self, table: pa.Table) -> tuple[pa.Table, dict[int, str]]:
        """Return the table without the refused columns, and the reason for each row that has a value in one of them."""
        faults: dict[int, str] = {}
        for name, reason in self.refused.items():
            if name in table.column_names:
                rows = np.flatnonzero(pc.is_valid(table.column(name)).to_numpy())
                faults |= {int(row): f"column {name}: {reason}" for row in rows}
                table = table.drop_columns([name])
        return table, faults


def inferred_columns(inferred: pa.Schema | None, source: AddPushSource, vocab: DatasetVocabulary) -> Columns:
    """Return the columns for reading records whose schema is inferred.

    Event times are read as TIMESTAMP and operations as small integers. If the source has a preprocess query, all
    columns are allowed, because only the query's output becomes records.
    """
    if inferred is None or source.preprocess is not None:
        return Columns(schema=inferred)
    carries = isinstance(source.merge, MergeStrategyChangelogStream | MergeStrategyUpsertStream)
    columns = [_with_type(column, vocab, carries=carries) for column in inferred]
    if (
        isinstance(source.merge, MergeStrategyChangelogStream)
        and vocab.operation_type_column not in inferred.names
    ):
        columns.append(pa.field(vocab.operation_type_column, pa.uint8()))
    return Columns(schema=pa.schema(columns), refused=_refused_columns(inferred, vocab, carries=carries))


def _with_type(column: pa.Field, vocab: DatasetVocabulary, *, carries: bool) -> pa.Field:
    is_time = kind.is_timestamp(column.type) or kind.is_date(column.type)
    if column.name == vocab.event_time_column and not is_time:
        return column.with_type(TIMESTAMP)
    if column.name == vocab.operation_type_column and carries:
        return column.with_type(pa.uint8())
    return column


def _refused_columns(columns: pa.Schema, vocab: DatasetVocabulary, *, carries: bool) -> dict[str, str]:
    own = {vocab.event_time_column} | ({vocab.operation_type_column} if carries else set())
    system = {
        name.lower(): name for name in (getattr(vocab, vocab_field.name) for vocab_field in fields(vocab))
    }
    seen: dict[str, str] = {}
    refused = {}
    for name, column in zip(columns.names, columns, strict=True):
        lower = name.lower()
        if not name.strip():
            refused[name] = "its name is empty"
        elif lower in system and name not in own:
            refused[name] = (
                f"the name belongs to system column {system[lower]}; declare a schema, or rename that by SetVocab"
            )
        elif lower in seen:
            refused[name] = f"SQL cannot distinguish it from {seen[lower]}; declare a schema"
        elif not _is_hashable(column):
            refused[name] = f"type {type_name(column.type)} has no logical hash; declare a schema without it"
        seen.setdefault(lower, name)
    return refused


def _is_hashable(column: pa.Field) -> bool:
    try:
        check_hashable(stored_schema(pa.schema([column])))
    except UnhashableType:
        return False
    return True
