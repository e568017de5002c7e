"""Decoding of FlatBuffers to metadata objects, by functions that are generated from the dataclasses.

Malformed bytes raise `InvalidInput`. A union member or an enum value that this version does not know raises
`UnknownMember`; an event that contains one becomes an `UnknownEvent` (wire-facts §1).
"""

import struct
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from odf_common.codec.flatbuffers.inline_values import integer_struct, unpack_timestamp
from odf_common.codec.flatbuffers.untrusted_buffer import Source, UnknownMember
from odf_common.codec.model_schema import (
    EVENTS,
    MAX_TABLE_DEPTH,
    Boolean,
    Bytes,
    EnumShape,
    Field,
    Integer,
    OneOf,
    Shape,
    TableShape,
    Text,
    TimestampShape,
    Vector,
    fields_of,
)
from odf_common.errors import InvalidInput
from odf_common.hashing.multihash import Multihash
from odf_common.metadata.events import UnknownEvent
from odf_common.metadata.scalars import Timestamp

_Read = Callable[[Source, int], Any]  # reads the value at a position; for fields: inline in the table


class _Step(NamedTuple):
    """A reader of one field of a table."""

    slot: int
    name: str
    read: _Read
    default: object  # when absent
    is_required: bool
    is_union: bool


def read_root(read: _Read, raw: bytes) -> Any:
    """Return the result of `read` for the root table of a buffer; raises `InvalidInput` for malformed bytes."""
    source = Source(raw)
    try:
        return read(source, source.follow(0))
    except (struct.error, IndexError) as error:
        raise InvalidInput(text="a field is outside the buffer") from error


@cache
def table_reader(cls: type) -> _Read:
    """Return a function that reads a table as an object of class `cls`."""
    members = fields_of(cls)
    steps: tuple[_Step, ...] | None = None  # built on first use: data types contain themselves

    def read(source: Source, position: int) -> object:
        nonlocal steps
        if steps is None:
            steps = tuple(_step_of(field) for field in members)
        return cls(**_read_table(source, position, steps, cls.__name__))

    return read


def _read_table(source: Source, position: int, steps: tuple[_Step, ...], table: str) -> dict[str, Any]:
    entries, size = source.vtable(position)
    source.depth += 1
    if source.depth > MAX_TABLE_DEPTH:
        raise InvalidInput(text=f"tables are nested deeper than {MAX_TABLE_DEPTH}")
    values: dict[str, Any] = {}
    count, tag = len(entries), 0
    for slot, name, read, default, is_required, is_union in steps:
        offset = entries[slot] if slot < count else 0
        if is_union and offset:
            tag = entries[slot - 1]
            offset = offset if tag and source.raw[position + tag] else 0  # discriminator 0 means absent
        if offset == 0:
            if is_required:
                raise InvalidInput(text=f"{table} has no {name}")
            values[name] = default
        elif offset >= size or (is_union and tag >= size):
            raise InvalidInput(text=f"{name} of {table} is outside its table")
        elif is_union:
            values[name] = read(source, source.raw[position + tag])(source, source.follow(position + offset))
        else:
            values[name] = read(source, position + offset)
    source.depth -= 1
    return values


def _step_of(field: Field) -> _Step:
    is_union = isinstance(field.shape, OneOf)
    is_scalar = isinstance(field.shape, Integer | Boolean | EnumShape)
    required = not field.is_optional and not is_scalar
    default = field.default if field.is_optional or not is_scalar else _zero(field.shape)
    return _Step(field.slot, field.name, _inline_reader(field.shape), default, required, is_union)


def _zero(shape: Shape) -> object:
    match shape:
        case Boolean():
            return False
        case EnumShape(of=of):
            return of(0)
        case _:
            return 0


def _inline_reader(shape: Shape) -> _Read:
    match shape:
        case Integer() | EnumShape():
            return _number_reader(shape)
        case Boolean():
            return lambda source, position: _unpack("<B", source, position) != 0
        case TimestampShape():
            return _read_timestamp
        case OneOf():
            return _event_reader() if shape is EVENTS else _member_reader(shape)
        case _:
            read = _reader(shape)
            return lambda source, position: read(source, source.follow(position))


def _member_reader(union: OneOf) -> _Read:
    """Return a function that selects the reader of a union member by its discriminator."""
    readers = tuple(table_reader(member) for member in union.members)

    def choose(_: Source, number: int) -> _Read:
        if number > len(readers):
            text = f"{union.prefix or 'MetadataEvent'} {number} is not known to this version"
            raise UnknownMember(text=text)
        return readers[number - 1]

    return choose


def _event_reader() -> _Read:
    """Return a function that selects the reader of an event; an unknown event is read as an `UnknownEvent`."""
    member = _member_reader(EVENTS)

    def choose(_: Source, number: int) -> _Read:
        def read(source: Source, position: int) -> object:
            depth = source.depth
            try:
                return member(source, number)(source, position)
            except UnknownMember as unknown:
                source.depth = depth
                return UnknownEvent(discriminator=number, reason=str(unknown), raw=source.raw)

        return read

    return choose


def _unpack(code: str, source: Source, position: int) -> int:
    return int(struct.unpack_from(code, source.raw, position)[0])


def _number_reader(shape: Integer | EnumShape) -> _Read:
    unpack_from = integer_struct(shape.width).unpack_from
    if isinstance(shape, Integer):
        return lambda source, position: unpack_from(source.raw, position)[0]
    choices = {choice.value: choice for choice in shape.of}

    def read(source: Source, position: int) -> object:
        number = unpack_from(source.raw, position)[0]
        choice = choices.get(number)
        if choice is None:
            raise UnknownMember(text=f"{shape.of.__name__} {number} is not known to this version")
        return choice

    return read


def _reader(shape: Shape) -> _Read:
    """Return a function that reads a value of this shape, which a reference points to."""
    match shape:
        case Text():
            return _read_text
        case Bytes(of=of):
            if of is bytes:
                return _read_octets
            if of is Multihash:
                return _read_hash
            return lambda source, position: of.from_bytes(_read_octets(source, position))  # type: ignore[union-attr]
        case TableShape(of=of):
            return table_reader(of)
        case Vector(of=OneOf() as union):
            return _vector_reader(wrapper_reader(union))
        case Vector(of=item):
            return _vector_reader(_reader(item))
        case _:
            raise TypeError(shape)


def _vector_reader(read: _Read) -> _Read:
    def read_all(source: Source, position: int) -> tuple[Any, ...]:
        first, count = source.span(position, width=4)
        return tuple([read(source, source.follow(first + 4 * n)) for n in range(count)])

    return read_all


def wrapper_reader(union: OneOf) -> _Read:
    """Return a function that reads a wrapper table `{value_type, value}` and returns the value."""
    steps = (_step_of(Field(name="value", slot=1, shape=union)),)
    name = union.prefix or "MetadataEvent"
    return lambda source, position: _read_table(source, position, steps, name)["value"]


def _read_octets(source: Source, position: int) -> bytes:
    first, count = source.span(position, width=1)
    return source.raw[first : first + count]


def _read_hash(source: Source, position: int) -> Multihash:
    raw = _read_octets(source, position)
    return Multihash(raw) if len(raw) == 34 and raw.startswith(b"\x16\x20") else Multihash.from_bytes(raw)


def _read_text(source: Source, position: int) -> str:
    try:
        return _read_octets(source, position).decode()
    except UnicodeDecodeError as error:
        raise InvalidInput(text="a string is not UTF-8") from error


def _read_timestamp(source: Source, position: int) -> Timestamp:
    return unpack_timestamp(source.raw, position)
