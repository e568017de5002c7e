"""Schemas of slices: converted to and from events, and which may follow which (wire-facts §1.6, §5.5, 22).

In events they are bare FlatBuffers: the IPC `Schema` table without the enclosing message (wire-facts §1.1).
"""

import struct
from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.types as kind

from odf_common.data.ddl import type_to_ddl
from odf_common.data.odf_schema import to_arrow
from odf_common.data.stored_types import compared_schema, compared_type, stored_schema
from odf_common.errors import InvalidInput
from odf_common.metadata.events import SetDataSchema

OUTGROWN: Final = (
    "a column keeps its type, so put larger numbers into a new column (a source does by preprocess), or into a new "
    "dataset with the history (guide to ingest: Numbers that outgrow their column)"
)


def schema_to_event(schema: pa.Schema) -> SetDataSchema:
    """Return the event that declares slices of this schema: in Arrow's form, which every version can read."""
    return SetDataSchema(raw_arrow_schema=write_schema(stored_schema(schema)))


def schema_of_event(event: SetDataSchema) -> pa.Schema:
    """Return the schema, whichever form it has; raises `InvalidInput` if it is missing or malformed."""
    if event.schema is not None:
        return to_arrow(event.schema)
    if event.raw_arrow_schema is None:
        raise InvalidInput(
            text="the event has neither an Arrow schema nor an ODF schema", where="SetDataSchema"
        )
    return read_schema(event.raw_arrow_schema)


def check_evolution(old: pa.Schema, new: pa.Schema) -> bool:
    """Return whether `new` differs from `old`; raises `InvalidInput`, naming the column, if it breaks old readers.

    Columns may be added if they are optional, and may be reordered. Layouts with the same stored form do not differ.
    """
    _check_fields(tuple(old), tuple(new), "")
    return not _is_same(old, new)


def with_optionality_of(old: pa.Schema, new: pa.Schema) -> pa.Schema:
    """Return `old` with all columns, nested ones too, as optional or required as they are in `new`."""
    return pa.schema(_as_optional(tuple(old), tuple(new)))


def _as_optional(old: Sequence[pa.Field], new: Sequence[pa.Field]) -> list[pa.Field]:
    stated = {column.name: column for column in new}
    return [
        column if column.name not in stated else _as_optional_as(column, stated[column.name])
        for column in old
    ]


def _as_optional_as(old: pa.Field, new: pa.Field) -> pa.Field:
    before, after = compared_type(old.type), compared_type(new.type)
    if kind.is_struct(before) and kind.is_struct(after):
        before = pa.struct(_as_optional(before.fields, after.fields))
    elif kind.is_list(before) and kind.is_list(after):
        before = pa.list_(_as_optional_as(before.value_field, after.value_field))
    return pa.field(old.name, before, new.nullable)


def _is_same(old: pa.Schema, new: pa.Schema) -> bool:
    return bool(compared_schema(old).equals(compared_schema(new), check_metadata=False))


def _check_fields(old: Sequence[pa.Field], new: Sequence[pa.Field], parent: str) -> None:
    before = {column.name: column for column in old}
    after = {column.name: column for column in new}
    for column in new if len(after) < len(new) else ():
        if sum(other.name == column.name for other in new) > 1:
            raise InvalidInput(text="is duplicated", where=f"column {parent}{column.name}")
    for name, column in before.items():
        if name not in after:
            raise InvalidInput(text="cannot be removed from the schema", where=f"column {parent}{name}")
        _check_field(column, after[name], f"{parent}{name}")
    for name, column in after.items():
        if name not in before and not column.nullable:
            raise InvalidInput(
                text="is new and required; earlier records would have no value",
                where=f"column {parent}{name}",
            )


def _check_field(old: pa.Field, new: pa.Field, name: str) -> None:
    if old.nullable != new.nullable:
        was, now = ("optional", "required") if old.nullable else ("required", "optional")
        raise InvalidInput(text=f"was {was} and cannot become {now}", where=f"column {name}")
    before, after = compared_type(old.type), compared_type(new.type)
    if kind.is_struct(before) and kind.is_struct(after):
        _check_fields(before.fields, after.fields, f"{name}.")
    elif kind.is_list(before) and kind.is_list(after):
        _check_field(before.value_field, after.value_field, f"{name}[]")
    elif before != after:
        remedy = f"; {OUTGROWN}" if _is_number(before) and _is_number(after) else ""
        text = f"was {type_to_ddl(before)} and cannot become {type_to_ddl(after)}{remedy}"
        raise InvalidInput(text=text, where=f"column {name}")


def _is_number(type_: pa.DataType) -> bool:
    return bool(kind.is_integer(type_) or kind.is_floating(type_) or kind.is_decimal(type_))


_FRAME_BYTES: Final = 8  # continuation marker, length of the message
_HEADER_SLOT: Final = 2  # of Message: version, header_type, header, bodyLength
_ALIGNMENT: Final = 8
# A Message without a body, followed by its header: root offset 16; vtable of 10 bytes for a table of 12 (version +4,
# header_type +6, header +8); then the table, whose header offset is still to be set.
_MESSAGE: Final = struct.pack("<IH5HiHBBII", 16, 0, 10, 12, 4, 6, 8, 10, 4, 1, 0, 0, 0)
_HEADER_AT: Final = 24  # bytes into _MESSAGE


def write_schema(schema: pa.Schema) -> bytes:
    """Return the bare table, without metadata; equal schemas give equal bytes."""
    message: bytes = schema.remove_metadata().serialize().to_pybytes()[_FRAME_BYTES:]
    table = _uint32(message, 0)
    vtable = table - struct.unpack_from("<i", message, table)[0]
    slot = table + struct.unpack_from("<H", message, vtable + 4 + 2 * _HEADER_SLOT)[0]
    header = slot + _uint32(message, slot)
    first = min(header, header - struct.unpack_from("<i", message, header)[0])
    cut = first - first % _ALIGNMENT
    return struct.pack("<II", _ALIGNMENT + header - cut, 0) + message[cut:]


def read_schema(raw: bytes) -> pa.Schema:
    """Return the schema of a bare table; raises `InvalidInput` for other bytes."""
    if len(raw) < _ALIGNMENT or _uint32(raw, 0) >= len(raw):
        raise InvalidInput(text=f"{len(raw)} bytes are not an Arrow schema", where="SetDataSchema")
    message = bytearray(_MESSAGE)
    struct.pack_into("<I", message, _HEADER_AT, len(_MESSAGE) - _HEADER_AT + _uint32(raw, 0))
    message += raw
    message += bytes(-len(message) % _ALIGNMENT)
    framed = struct.pack("<iI", -1, len(message)) + message
    try:
        return pa.ipc.read_schema(pa.py_buffer(framed)).remove_metadata()
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        raise InvalidInput(text=f"not an Arrow schema: {error}", where="SetDataSchema") from error


def _uint32(raw: bytes, position: int) -> int:
    return int(struct.unpack_from("<I", raw, position)[0])
