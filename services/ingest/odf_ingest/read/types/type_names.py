"""Names of Arrow types as in column definitions, for error messages about values."""

from typing import Final

import pyarrow as pa

from odf_common.data.ddl import schema_to_ddl
from odf_common.errors import InvalidInput

_SHOWN: Final = 80  # maximum characters of a quoted value
_LONGEST: Final = 200  # maximum characters of a text of others


def type_name(type_: pa.DataType) -> str:
    """Return the type as in a column definition, such as `DECIMAL(10, 2)`; Arrow's name if SQL has none."""
    try:
        (definition,) = schema_to_ddl(pa.schema([("c", type_)]))
    except InvalidInput:
        return str(type_)
    return definition.removeprefix("c ")


def shown(value: object) -> str:
    """Return a value as quoted in a message: on one line, truncated if long."""
    text = str(value) if isinstance(value, Quoted) else repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def printable(text: str) -> str:
    """Return a text on one line, with control characters escaped; truncated if long."""
    found = "".join(char if char.isprintable() else repr(char)[1:-1] for char in text[: _LONGEST + 1])
    return found if len(found) <= _LONGEST else f"{found[:_LONGEST]}…"


class Quoted(str):
    """A string that is quoted verbatim, such as a JSON number."""

    __slots__ = ()
