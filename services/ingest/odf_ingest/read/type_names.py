"""Arrow types as people declare them, for messages about values that do not fit."""

from typing import Final

import pyarrow as pa
import pyarrow.types as kind

_NAMES: Final = {
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
_SHOWN: Final = 80  # characters of a value that are quoted


def type_name(type_: pa.DataType) -> str:
    """Return the type as a column definition names it, such as `DECIMAL(10, 2)`."""
    if kind.is_decimal(type_):
        return f"DECIMAL({type_.precision}, {type_.scale})"
    if kind.is_timestamp(type_):
        return f"TIMESTAMP({_DIGITS[type_.unit]})"
    if kind.is_time(type_):
        return f"TIME({_DIGITS[type_.unit]})"
    if kind.is_list(type_):
        return f"ARRAY<{type_name(type_.value_type)}>"
    if kind.is_struct(type_):
        return f"STRUCT<{', '.join(f'{inner.name}: {type_name(inner.type)}' for inner in type_.fields)}>"
    return _NAMES.get(type_, str(type_))


def shown(value: object) -> str:
    """Return a value as it is quoted in a message: on one line, and cut where it is long."""
    text = str(value) if isinstance(value, Quoted) else repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


class Quoted(str):
    """Text that is quoted as it stands, such as a JSON number."""

    __slots__ = ()
