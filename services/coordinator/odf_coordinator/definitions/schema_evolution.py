"""Checks, at commit, that a source's or query's declared columns are compatible with the dataset's schema.

The same is checked for every batch. A source may lack optional columns that it never had: they are null in its
records. A column that the source had before must not be dropped silently.
"""

import pyarrow as pa

from odf_common.chain.state import ChainState
from odf_common.data.schema_alignment import aligned_schema, with_new_columns
from odf_common.data.schema_evolution import check_evolution, schema_of_event
from odf_common.errors import InvalidInput
from odf_common.metadata.events import AddPushSource, DatasetVocabulary
from odf_coordinator.definitions.declared_columns import declared_columns, of_source
from odf_coordinator.definitions.declared_schemas import (
    Source,
    declared_schema,
    with_system,
    without_operations,
)


def require_continuing(
    dataset_schema: pa.Schema, source: Source, before: Source | None, vocabulary: DatasetVocabulary
) -> None:
    """Raise `InvalidInput`, naming the column, unless records of the source fit the dataset's schema.

    `before` is the definition that the source replaces. The output of SQL, or of a read step without a schema, is known
    only per batch, so it is not checked here.
    """
    declared = declared_records(source, vocabulary)
    if declared is None:
        return
    try:
        _require_case(dataset_schema, declared)
        previous = None if before is None else declared_records(before, vocabulary)
        if previous is not None:
            _require_kept(dataset_schema, previous, declared)
        check_evolution(
            dataset_schema, aligned_schema(_with_nulls(declared, dataset_schema), dataset_schema, vocabulary)
        )
    except InvalidInput as error:
        invalid = InvalidInput(text=str(error), where=_path(source, error.where or ""))
        raise of_source(source, invalid) from error


def require_consistent(source: AddPushSource, other: AddPushSource, vocabulary: DatasetVocabulary) -> None:
    """Raise `InvalidInput`, naming the column, if two sources of one dataset declare it differently.

    Otherwise the one whose records come first would stop the other forever. SQL ignores the case of names.
    """
    declared, other_columns = declared_records(source, vocabulary), declared_records(other, vocabulary)
    if declared is None or other_columns is None or source.source_name == other.source_name:
        return
    by_name = {column.name.lower(): column for column in other_columns}
    for column in declared:
        before = by_name.get(column.name.lower())
        text = None
        if before is not None and before.name != column.name:
            text = f"source {other.source_name} spells it {before.name}, and SQL cannot distinguish the two"
        elif before is not None and not (_is_extended(before, column) or _is_extended(column, before)):
            text = f"source {other.source_name} declares it as {before.type}, and this one as {column.type}"
        if text is not None:
            error = InvalidInput(text=f"column {column.name}: {text}", where=_path(source, column.name))
            raise of_source(source, error)


def _is_extended(old: pa.Field, new: pa.Field) -> bool:
    """Return whether a column can have both types: they are the same, or `new` has more fields."""
    try:
        check_evolution(
            pa.schema([old.with_nullable(nullable=True)]), pa.schema([new.with_nullable(nullable=True)])
        )
    except InvalidInput:
        return False
    return True


def require_additive(past: ChainState, output: pa.Schema) -> None:
    """Raise `InvalidInput`, naming the column, unless records of a new query fit a derivative's schema.

    A new query may add columns. `output` includes the system columns (spec: Query Evolution).
    """
    if past.schema is None:
        return
    dataset_schema = schema_of_event(past.schema)
    try:
        check_evolution(
            dataset_schema, aligned_schema(output, with_new_columns(dataset_schema, output), past.vocabulary)
        )
    except InvalidInput as error:
        text = f"{error}; a new query may add columns, but existing ones keep their names and types"
        raise InvalidInput(text=text, where="transform") from error


def declared_records(source: Source, vocabulary: DatasetVocabulary) -> pa.Schema | None:
    """Return the declared schema of a source's records, system columns first; None if it is not declared."""
    declared = None if source.preprocess is not None else declared_schema(source.read)
    return (
        None
        if declared is None
        else with_system(without_operations(declared, source, vocabulary), vocabulary)
    )


def _with_nulls(declared: pa.Schema, dataset_schema: pa.Schema) -> pa.Schema:
    names = set(declared.names)
    return pa.schema(
        [*declared, *(field for field in dataset_schema if field.nullable and field.name not in names)]
    )


def _require_case(dataset_schema: pa.Schema, declared: pa.Schema) -> None:
    names = {name.lower(): name for name in dataset_schema.names}
    for name in declared.names:
        existing = names.get(name.lower(), name)
        if existing != name:
            raise InvalidInput(text=f"the dataset spells it {existing}", where=f"column {name}")


def _require_kept(dataset_schema: pa.Schema, before: pa.Schema, declared: pa.Schema) -> None:
    """Raise `InvalidInput` unless the source keeps its columns of the dataset, and none becomes required."""
    for column in dataset_schema:
        old = before.get_field_index(column.name)
        if old < 0:
            continue
        new = declared.get_field_index(column.name)
        if new < 0:
            raise InvalidInput(text="cannot be removed from the schema", where=f"column {column.name}")
        if column.nullable and before.field(old).nullable and not declared.field(new).nullable:
            raise InvalidInput(text="was optional and cannot become required", where=f"column {column.name}")


def _path(source: Source, where: str) -> str:
    """Return the path of the column that an error is about, or of the read step."""
    name = where.removeprefix("column ").partition(".")[0].removesuffix("[]")
    columns = declared_columns(source.read) or ()
    return next((column.path for column in columns if column.field.name == name), "read")
