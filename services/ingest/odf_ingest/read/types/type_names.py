"""Names of Arrow types as in column definitions, for error messages about values."""

from typing import Final

import pyarrow as pa
import pyarrow.types as kind

from odf_common.data.columns import stored_type
from odf_common.data.ddl import schema_to_ddl
from odf_common.errors import InvalidInput

_MAX_VALUE_CHARACTERS: Final = 80  # of a quoted value
_MAX_TEXT_CHARACTERS: Final = 200  # of a text of others


def type_name(type_: pa.DataType) -> str:
    """Return the type as in a column definition, such as `DECIMAL(10, 2)`; Arrow's name if SQL has none."""
    if (
        kind.is_time(type_) or kind.is_timestamp(type_)
    ) and type_.unit == "s":  # which is stored as milliseconds
        return type_name(stored_type(type_)).replace("3", "0")
    try:
        (definition,) = schema_to_ddl(pa.schema([("c", type_)]))
    except InvalidInput:
        return str(type_)
    return definition.removeprefix("c ")


def show_value(value: object) -> str:
    """Return a value as quoted in a message: on one line, truncated if long."""
    text = str(value) if isinstance(value, Quoted) else repr(value)
    return text if len(text) <= _MAX_VALUE_CHARACTERS else f"{text[:_MAX_VALUE_CHARACTERS]}…"


def printable(text: str) -> str:
    """Return a text on one line with control characters escaped; a long text is truncated."""
    line = "".join(
        char if char.isprintable() else repr(char)[1:-1] for char in text[: _MAX_TEXT_CHARACTERS + 1]
    )
    return line if len(line) <= _MAX_TEXT_CHARACTERS else f"{line[:_MAX_TEXT_CHARACTERS]}…"


class Quoted(str):
    """A string that is quoted verbatim, such as a JSON number."""

    __slots__ = ()
