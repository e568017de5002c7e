"""Arrow types as people declare them, for messages about values that do not fit."""

from typing import Final

import pyarrow as pa

from odf_common.data.ddl_text import schema_to_ddl
from odf_common.errors import InvalidInput

_SHOWN: Final = 80  # characters of a value that are quoted


def type_name(type_: pa.DataType) -> str:
    """Return the type as a column definition names it, such as `DECIMAL(10, 2)`; Arrow's name where SQL has none."""
    try:
        (definition,) = schema_to_ddl(pa.schema([("c", type_)]))
    except InvalidInput:
        return str(type_)
    return definition.removeprefix("c ")


def shown(value: object) -> str:
    """Return a value as it is quoted in a message: on one line, and cut where it is long."""
    text = str(value) if isinstance(value, Quoted) else repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


class Quoted(str):
    """Text that is quoted as it stands, such as a JSON number."""

    __slots__ = ()
