"""Schemas as SQL column definitions (DDL), as users write them: parsed, and formatted."""

from odf_common.data.ddl.format_ddl import schema_to_ddl, type_to_ddl
from odf_common.data.ddl.parse_ddl import ddl_to_schema

__all__ = ["ddl_to_schema", "schema_to_ddl", "type_to_ddl"]
