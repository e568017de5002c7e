"""New records beside those that a dataset has: its columns in its order, whichever source they come from."""

import pyarrow as pa
import pyarrow.types as kind

from odf_common.data.schema_alignment import continued
from odf_common.errors import InvalidInput
from odf_common.metadata.vocabulary import DatasetVocabulary


def data_columns(schema: pa.Schema, vocab: DatasetVocabulary) -> pa.Schema:
    """Return a dataset's schema without the system columns, event time being one of them."""
    system = {
        vocab.offset_column,
        vocab.operation_type_column,
        vocab.system_time_column,
        vocab.event_time_column,
    }
    return pa.schema([column for column in schema if column.name not in system])


def conformed(records: pa.Table, known: pa.Schema, vocab: DatasetVocabulary) -> pa.Table:
    """Return the records with every data column of the schema `known`, in its order, then those that are new.

    Optional columns that the records lack are null. Raises `InvalidInput` naming one that is required, or has nulls.
    """
    data = data_columns(known, vocab)
    for column in data:
        if column.name not in records.column_names:
            if not column.nullable:
                raise InvalidInput(
                    where=f"column {column.name}", text="is required in this dataset and is not there"
                )
            records = records.append_column(column, pa.nulls(len(records), column.type))
    new = [name for name in records.column_names if name not in data.names]
    order = [*data.names, *new]
    ordered = records if order == records.column_names else records.select(order)
    # Event times that are null yet are filled after merging; what merging compares are moments as they are kept.
    moments = [pa.field(c.name, c.type) for c in known if c.name == vocab.event_time_column]
    return continued(ordered, pa.schema([*data, *moments]), vocab)


def without_dictionaries(records: pa.Table) -> pa.Table:
    """Return the records with each value in its place, as values are compared and sorted."""
    for place, column in enumerate(records.schema):
        if kind.is_dictionary(column.type):
            plain = records.column(place).cast(column.type.value_type)
            records = records.set_column(place, column.with_type(plain.type), plain)
    return records
