"""Aligns new records with a dataset's columns and their order, whichever source they come from."""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.types as kind

from odf_common.data.schema_evolution import align_to_schema
from odf_common.errors import InvalidInput
from odf_common.metadata.events import DatasetVocabulary
from odf_ingest.read.types.times import cut


def data_columns(schema: pa.Schema, vocab: DatasetVocabulary) -> pa.Schema:
    """Return a dataset's schema without the system columns, including event time."""
    system = {
        vocab.offset_column,
        vocab.operation_type_column,
        vocab.system_time_column,
        vocab.event_time_column,
    }
    return pa.schema([column for column in schema if column.name not in system])


def align_columns(records: pa.Table, schema: pa.Schema, vocab: DatasetVocabulary) -> pa.Table:
    """Return the records with the data columns of `schema`, in its order, followed by the records' new columns.

    Missing optional columns are null. Raises `InvalidInput` for a required column that is missing or has nulls.
    """
    data = data_columns(schema, vocab)
    for column in data:
        if column.name not in records.column_names:
            if not column.nullable:
                raise InvalidInput(
                    where=f"column {column.name}", text="is required in this dataset and is missing"
                )
            records = records.append_column(column, pa.nulls(len(records), column.type))
    new = [name for name in records.column_names if name not in data.names]
    _require_other_names(data.names, new)
    order = [*data.names, *new]
    ordered = records if order == records.column_names else records.select(order)
    # Null event times are filled after merging, which compares event times in their stored type.
    event_time = [pa.field(c.name, c.type) for c in schema if c.name == vocab.event_time_column]
    return align_to_schema(ordered, pa.schema([*data, *event_time]), vocab, cut)


def _require_other_names(names: Sequence[str], new: Sequence[str]) -> None:
    """Raise `InvalidInput` for a new column whose name differs from one of `names` only in case."""
    spelled = {name.lower(): name for name in names}
    for name in new:
        if name.lower() in spelled:
            text = f"the dataset spells it {spelled[name.lower()]}, and SQL cannot distinguish the two"
            raise InvalidInput(where=f"column {name}", text=text)


def without_dictionaries(records: pa.Table) -> pa.Table:
    """Return the records with dictionary-encoded columns decoded, as needed for comparing and sorting."""
    for index, column in enumerate(records.schema):
        if kind.is_dictionary(column.type):
            plain = records.column(index).cast(column.type.value_type)
            records = records.set_column(index, column.with_type(plain.type), plain)
    return records
