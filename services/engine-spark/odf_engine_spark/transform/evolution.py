"""Checks whether a new query can replace the current query of a dataset, before anything is committed."""

import tempfile
from pathlib import Path

import pyarrow as pa

from odf_common.data.schema_evolution import aligned_schema, check_evolution, with_new_columns
from odf_common.errors import InvalidInput, InvalidQuery
from odf_common.metadata.events import DatasetVocabulary, SetTransform
from odf_common.metadata.scalars import Timestamp
from odf_common.ports.engine import MigrateRequest, PlannedInput
from odf_engine_spark.transform.execute_transform import Transforms
from odf_engine_spark.transform.migration import migrate


def require_columns(old: pa.Schema, new: pa.Schema, vocab: DatasetVocabulary) -> None:
    """Raise `InvalidQuery` unless a dataset with the columns `old` can continue with the columns of a new query.

    System columns that the engine writes are ignored. The error names the column.
    """
    written = {vocab.offset_column, vocab.operation_type_column, vocab.system_time_column}
    before = pa.schema([column for column in old if column.name not in written])
    try:
        check_evolution(before, aligned_schema(new, with_new_columns(before, new), vocab))
    except InvalidInput as error:
        text = f"{error}; a new query may add columns, but existing ones keep their names and types"
        raise InvalidQuery(text=text) from error


def require_migratable(
    transforms: Transforms,
    old: SetTransform,
    new: SetTransform,
    inputs: tuple[PlannedInput, ...],
    vocab: DatasetVocabulary,
    *,
    number: int,
) -> None:
    """Raise `InvalidQuery` unless the state of the old query can be migrated to the new one.

    `number` is the semantics number of the engine that wrote the state.
    """
    with tempfile.TemporaryDirectory(prefix="odf-engine-") as scratch:
        request = MigrateRequest(
            old=old,
            new=new,
            inputs=inputs,
            vocab=vocab,
            system_time=Timestamp(0),
            next_offset=0,
            new_checkpoint_path=str(Path(scratch) / "checkpoint"),
            new_data_path=str(Path(scratch) / "data"),
        )
        migrate(transforms, request, number)
