"""Arrow schemas as SQL column definitions (spec: Schema Format): the inverse of `parse_ddl`."""

import re
from collections.abc import Mapping
from typing import Final

import pyarrow as pa
import pyarrow.types as kind

from odf_common.data.stored_types import stored_type
from odf_common.errors import InvalidInput

_PLAIN_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_WORDS: Final = ("NOT", "NULL")
_SIMPLE: Final[Mapping[pa.DataType, str]] = {
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INT",
    pa.int64(): "BIGINT",
    pa.uint8(): "TINYINT UNSIGNED",
    pa.uint16(): "SMALLINT UNSIGNED",
    pa.uint32(): "INT UNSIGNED",
    pa.uint64(): "BIGINT UNSIGNED",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.string(): "STRING",
    pa.binary(): "BINARY",
    pa.date32(): "DATE",
    pa.uuid(): "UUID",
}
_DIGITS: Final = {"s": 0, "ms": 3, "us": 6, "ns": 9}


def schema_to_ddl(schema: pa.Schema) -> tuple[str, ...]:
    """Return a definition for each column as it is stored; raises `InvalidInput` for types without one."""
    return tuple(_definition(column, " ", column.name) for column in schema)


def type_to_ddl(type_: pa.DataType) -> str:
    """Return a type as manifests write it; as Arrow does if they cannot."""
    try:
        return _type(stored_type(type_), "")
    except InvalidInput:
        return str(type_)


def _definition(column: pa.Field, gap: str, where: str) -> str:
    return f"{_name(column.name)}{gap}{_type(stored_type(column.type), where)}{_requirement(column)}"


def _requirement(column: pa.Field) -> str:
    return "" if column.nullable else " NOT NULL"


def _name(name: str) -> str:
    if _PLAIN_NAME.fullmatch(name) and name.upper() not in _WORDS:
        return name
    quote = '"' if "`" in name else "`"
    if not name or quote in name:
        raise InvalidInput(text="the name cannot be quoted", where=f"column {name}")
    return f"{quote}{name}{quote}"


def _type(type_: pa.DataType, where: str) -> str:
    simple = _SIMPLE.get(type_)
    if simple is not None:
        return simple
    if kind.is_decimal(type_) and type_.scale >= 0:
        return f"DECIMAL({type_.precision}, {type_.scale})"
    if kind.is_timestamp(type_):
        return f"TIMESTAMP({_DIGITS[type_.unit]})"
    if kind.is_time(type_):
        return f"TIME({_DIGITS[type_.unit]})"
    if kind.is_list(type_):
        item = type_.value_field
        return f"ARRAY<{_type(stored_type(item.type), f'{where}[]')}{_requirement(item)}>"
    if kind.is_struct(type_) and type_.num_fields:
        inner = (_definition(field, ": ", f"{where}.{field.name}") for field in type_.fields)
        return f"STRUCT<{', '.join(inner)}>"
    raise InvalidInput(text=f"type {type_} has no definition in SQL", where=f"column {where}")
