"""Which columns a read step declares."""

import pyarrow as pa

from odf_common.data.ddl import ddl_to_schema
from odf_common.data.schema import schema_of_event
from odf_common.metadata.events import SetDataSchema
from odf_common.metadata.steps import ReadStep


def declared_schema(step: ReadStep) -> pa.Schema | None:
    """Return the columns of the step's schema, None when it has none; raises `InvalidInput`."""
    if step.schema is not None:
        return schema_of_event(SetDataSchema(schema=step.schema))
    return ddl_to_schema(step.ddl_schema) if step.ddl_schema else None
