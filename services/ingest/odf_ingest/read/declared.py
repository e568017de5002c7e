"""The columns that a read step declares."""

import pyarrow as pa
import pyarrow.types as kind

from odf_common.data.ddl import ddl_to_schema
from odf_common.data.schema_evolution import schema_of_event
from odf_common.errors import InvalidInput
from odf_common.metadata.events import SetDataSchema
from odf_common.metadata.steps import ReadStep, ReadStepCsv


def declared_schema(step: ReadStep) -> pa.Schema | None:
    """Return the step's schema; None if it has none; raises `InvalidInput`."""
    if step.schema is not None:
        schema = schema_of_event(SetDataSchema(schema=step.schema))
    elif step.ddl_schema:
        schema = ddl_to_schema(step.ddl_schema)
    else:
        return None
    if isinstance(step, ReadStepCsv):
        _check_flat(schema)
    return schema


def _check_flat(schema: pa.Schema) -> None:
    for column in schema:
        if kind.is_nested(column.type):
            text = f"Csv has no values of type {column.type}: declare STRING, and parse it in preprocess"
            raise InvalidInput(text=text, where=f"column {column.name}")
