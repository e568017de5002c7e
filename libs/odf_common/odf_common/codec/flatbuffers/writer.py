"""Encoding of metadata objects as FlatBuffers, in a fixed order, so that every node produces and hashes the same bytes.

A buffer grows from its end: children before parents, and fields in slot order. Padding depends on the size so far.
Equal vtables are shared, equal strings are not (wire-facts §2.2). The builder of the `flatbuffers` package produces the
same bytes, as a test shows, but is several times slower and cannot write the unaligned timestamps of version 2.
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from functools import cache
from operator import attrgetter
from typing import Any, Final, NamedTuple

from odf_common.codec.flatbuffers.inline_values import integer_struct, pack_timestamp
from odf_common.codec.model_schema import (
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

_U32: Final = struct.Struct("<I")
_I32: Final = struct.Struct("<i")
_PAD: Final = tuple(bytes(n) for n in range(8))


class Buffer:
    """A FlatBuffer under construction; positions are counted in bytes from the end."""

    __slots__ = ("align_structs", "alignment", "depth", "parts", "size", "vtables")

    def __init__(self, *, align_structs: bool = True) -> None:
        """Start an empty buffer; without `align_structs`, timestamps are laid out as in manifest version 2."""
        self.parts: list[bytes] = []  # last part of the file first
        self.size = 0
        self.alignment = 4
        self.vtables: dict[bytes, int] = {}
        self.align_structs = align_structs
        self.depth = 0

    def octets(self, raw: bytes) -> int:
        """Add a vector of bytes and return its position."""
        length = len(raw)
        padding = -(self.size + length) & 3
        self.parts.append(_U32.pack(length) + raw + _PAD[padding])
        self.size += 4 + length + padding
        return self.size

    def text(self, text: str) -> int:
        """Add a zero-terminated string and return its position."""
        try:
            raw = text.encode()
        except UnicodeEncodeError as error:
            raise InvalidInput(
                text=f"{text!r} is not a valid string: it has half a surrogate pair"
            ) from error
        length = len(raw)
        padding = -(self.size + length + 1) & 3
        self.parts.append(_U32.pack(length) + raw + _PAD[1 + padding])
        self.size += 5 + length + padding
        return self.size

    def offsets(self, positions: list[int]) -> int:
        """Add a vector of references and return its position."""
        count = len(positions)
        padding = -self.size & 3
        end = self.size + padding + 4 * count
        relative = [end - 4 * index - position for index, position in enumerate(positions)]
        self.parts.append(struct.pack(f"<{count + 1}I", count, *relative) + _PAD[padding])
        self.size = end + 4
        return self.size

    def finish(self, root: int) -> bytes:
        """Return the complete buffer with `root` as its root table."""
        padding = -(self.size + 4) & (self.alignment - 1)
        self.parts.append(_U32.pack(self.size + padding + 4 - root) + _PAD[padding])
        self.parts.reverse()
        return b"".join(self.parts)


class _Inline(Enum):
    OFFSET = auto()
    UNION = auto()
    SCALAR = auto()
    TIMESTAMP = auto()


_Create = Callable[[Buffer, Any], int]
_Pack = Callable[[Any], bytes]


class _Step(NamedTuple):
    """A writer of one field of a table."""

    slot: int
    inline: _Inline
    create: _Create | None = None  # adds what the field refers to
    pack: _Pack | None = None  # packs a scalar
    width: int = 4  # bytes in the table
    default: object = None  # a scalar with this value is left out
    numbers: Mapping[type, int] = {}  # discriminators of a union's members


@cache
def table_writer(cls: type) -> _Create:
    """Return a function that adds an object of class `cls` to a buffer and returns its position."""
    members = fields_of(cls)
    if not members:
        return lambda buffer, _: _write_table(buffer, (), ())
    values_of = (
        attrgetter(*(field.name for field in members)) if len(members) > 1 else _single(members[0].name)
    )
    steps: tuple[_Step, ...] = ()  # built on first use: data types contain themselves

    def write(buffer: Buffer, value: object) -> int:
        nonlocal steps
        if not steps:
            steps = tuple(_step_of(field) for field in members)
        return _write_table(buffer, steps, values_of(value))

    return write


def _single(name: str) -> Callable[[object], tuple[object, ...]]:
    value_of = attrgetter(name)
    return lambda value: (value_of(value),)


def _write_table(buffer: Buffer, steps: tuple[_Step, ...], values: tuple[Any, ...]) -> int:
    buffer.depth += 1
    if buffer.depth > MAX_TABLE_DEPTH:
        raise InvalidInput(
            text=f"tables are nested deeper than {MAX_TABLE_DEPTH}, and could not be read back"
        )
    children = [
        step.create(buffer, value) if step.create is not None and value is not None else 0
        for step, value in zip(steps, values, strict=True)
    ]
    buffer.depth -= 1
    start = size = buffer.size
    laid: list[bytes] = []
    slots: list[int] = []  # slot, position, slot, position, …
    for step, value, child in zip(steps, values, children, strict=True):
        slot, inline, _, pack, width, default, numbers = step
        if value is None or (pack is not None and value == default):
            continue
        if pack is not None:
            padding = -size & (width - 1)
            laid.append(pack(value) + _PAD[padding])
            buffer.alignment = max(buffer.alignment, width)
        elif inline is _Inline.TIMESTAMP:
            padding = -size & 3 if buffer.align_structs else 0
            laid.append(pack_timestamp(value) + _PAD[padding])
        else:
            if inline is _Inline.UNION:
                laid.append(numbers[type(value)].to_bytes())
                size += 1
                slots += (slot - 1, size)
            padding = -size & 3
            laid.append(_U32.pack(size + padding + 4 - child) + _PAD[padding])
        size += padding + width
        slots += (slot, size)
    buffer.size = size
    return _end_table(buffer, laid, start, slots)


def _end_table(buffer: Buffer, laid: list[bytes], start: int, slots: Sequence[int]) -> int:
    padding = -buffer.size & 3
    end = buffer.size + padding + 4
    entries = [0] * (slots[-2] + 1) if slots else []
    for index in range(0, len(slots), 2):
        entries[slots[index]] = end - slots[index + 1]
    length = 4 + 2 * len(entries)
    vtable = struct.pack(f"<{2 + len(entries)}H", length, end - start, *entries)
    shared = buffer.vtables.get(vtable)
    laid.append(_I32.pack((end + length if shared is None else shared) - end) + _PAD[padding])
    buffer.parts += laid
    buffer.size = end
    if shared is None:
        buffer.parts.append(vtable)
        buffer.size = buffer.vtables[vtable] = end + length
    return end


def _step_of(field: Field) -> _Step:
    shape, slot = field.shape, field.slot
    match shape:
        case Integer() | Boolean() | EnumShape():
            default = None if field.is_optional else 0
            width = 1 if isinstance(shape, Boolean) else shape.width.size
            return _Step(slot, _Inline.SCALAR, None, _packer(shape, field.name), width, default)
        case TimestampShape():
            return _Step(slot, _Inline.TIMESTAMP, width=16)
        case OneOf():
            numbers = {member: number for number, member in enumerate(shape.members, 1)}
            return _Step(slot, _Inline.UNION, _creator(shape), numbers=numbers)
        case _:
            return _Step(slot, _Inline.OFFSET, _creator(shape))


def _packer(shape: Integer | Boolean | EnumShape, name: str) -> _Pack:
    if isinstance(shape, Boolean):
        return lambda value: b"\1" if value else b"\0"
    pack = integer_struct(shape.width).pack

    def pack_value(value: int) -> bytes:
        try:
            return pack(value)
        except struct.error as error:
            raise InvalidInput(
                text=f"{value} does not fit in {shape.width.size} bytes", where=name
            ) from error

    return pack_value


def _creator(shape: Shape) -> _Create:
    match shape:
        case Text():
            return Buffer.text
        case Bytes(of=of):
            return Buffer.octets if of is bytes else lambda buffer, value: buffer.octets(value.raw)
        case TableShape(of=of):
            return table_writer(of)
        case OneOf(members=members):
            writers = {member: table_writer(member) for member in members}
            return lambda buffer, value: writers[type(value)](buffer, value)
        case Vector(of=OneOf() as union):
            return _vector(_wrapper(union))
        case Vector(of=item):
            return _vector(_creator(item))
        case _:
            raise TypeError(shape)


def _vector(create: _Create) -> _Create:
    return lambda buffer, items: buffer.offsets([create(buffer, item) for item in items])


def _wrapper(union: OneOf) -> _Create:
    """Return a function that adds a union member in a wrapper table, because vectors cannot contain unions."""
    field = Field(name="value", slot=1, shape=union)
    steps = (_step_of(field),)
    return lambda buffer, value: _write_table(buffer, steps, (value,))


def union_writer(union: OneOf) -> _Create:
    """Return a function that adds a union member in a wrapper table `{value_type, value}`."""
    return _wrapper(union)
