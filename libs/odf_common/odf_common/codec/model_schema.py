"""The structure of the metadata dataclasses: the fields of a class in slot order, and the shape of each field.

Only this module inspects type hints, once per class. The codecs for FlatBuffers and YAML both use the result, so that
the model is defined only once (wire-facts §1).
"""

import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from enum import IntEnum
from functools import cache
from typing import Annotated, Final

from odf_common.hashing.multihash import Multihash
from odf_common.identity.dataset_refs import DatasetId
from odf_common.metadata import data_schema, engine_messages, events, fetching
from odf_common.metadata.scalars import Timestamp, Width

MAX_TABLE_DEPTH: Final = 64  # tables inside tables, in what is read and so in what is written


@dataclass(frozen=True, slots=True)
class Integer:
    """An integer of the given width."""

    width: Width


@dataclass(frozen=True, slots=True)
class Boolean:
    """A boolean, one byte."""


@dataclass(frozen=True, slots=True)
class EnumShape:
    """A value of an enum."""

    of: type[IntEnum]
    width: Width


@dataclass(frozen=True, slots=True)
class Text:
    """A UTF-8 string."""


@dataclass(frozen=True, slots=True)
class Bytes:
    """Raw bytes, or a type that wraps bytes."""

    of: type[bytes] | type[Multihash] | type[DatasetId]


@dataclass(frozen=True, slots=True)
class TimestampShape:
    """A timestamp, stored inline as a struct."""


@dataclass(frozen=True, slots=True)
class TableShape:
    """A nested table."""

    of: type


@dataclass(frozen=True, slots=True)
class OneOf:
    """A union. The n-th member, counted from 1, has discriminator n; tags are the members' names without `prefix`."""

    members: tuple[type, ...]
    prefix: str
    extensions: tuple[tuple[str, type], ...] = ()
    """The members that are written with the tag `Ext` and a `$schema`, by this schema; blocks do not contain them."""


@dataclass(frozen=True, slots=True)
class Vector:
    """A list of values of one shape."""

    of: "Shape"


@dataclass(frozen=True, slots=True)
class MapOf:
    """A mapping from arbitrary strings to values of one shape; blocks do not contain it."""

    of: "Shape"


@dataclass(frozen=True, slots=True)
class Spelled:
    """A value with a notation of its own; blocks do not contain it."""

    name: str
    """Name of the notation: a `format` of JSON Schema, or the title of a schema."""
    read: Callable[[object], object]
    """Returns the value for its notation; raises `InvalidInput` with a `where` relative to the value."""
    detail: object = None
    """Further details about the values, for code that walks over them."""


Leaf = Integer | Boolean | Text | Bytes | TimestampShape | Spelled
Shape = Leaf | EnumShape | TableShape | OneOf | Vector | MapOf


@dataclass(frozen=True, slots=True)
class Tagged:
    """Marks an annotated type as a union that blocks do not contain."""

    prefix: str
    extensions: tuple[tuple[str, type], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A field of a table: its slot, its shape, whether it is optional, and its default if it is absent."""

    name: str
    slot: int  # of the value; a union's discriminator has the slot before
    shape: Shape
    is_optional: bool = False
    default: object = None


# Tags omit the prefix that the members of a union share. The list also distinguishes one-member unions from tables.
_UNIONS: Final[tuple[tuple[str, object], ...]] = (
    ("", events.KnownEvent),
    ("ReadStep", events.ReadStep),
    ("Transform", events.Transform),
    ("MergeStrategy", events.MergeStrategy),
    ("EventTimeSource", fetching.EventTimeSource),
    ("SourceCaching", fetching.SourceCaching),
    ("FetchStep", fetching.FetchStep),
    ("PrepStep", fetching.PrepStep),
    ("Attachments", events.Attachments),
    ("DataType", data_schema.DataType),
    ("RawQueryResponse", engine_messages.RawQueryResponse),
    ("TransformResponse", engine_messages.TransformResponse),
)
_DEFAULT_WIDTH: Final = Width(4, signed=True)  # of enums without one of their own


def _members(annotation: object) -> tuple[type, ...]:
    return typing.get_args(annotation) or (typing.cast("type", annotation),)


_UNION_OF: Final[dict[tuple[type, ...], OneOf]] = {
    _members(union): OneOf(_members(union), prefix) for prefix, union in _UNIONS
}
EVENTS: Final = _UNION_OF[_members(events.KnownEvent)]


_UNION_WITH: Final[dict[type, OneOf]] = {
    member: union for union in _UNION_OF.values() for member in union.members
}


def union_with(member: type) -> OneOf | None:
    """Return the union that `member` belongs to; None if it does not belong to any."""
    return _UNION_WITH.get(member)


@cache
def fields_of(cls: type) -> tuple[Field, ...]:
    """Return the fields of a metadata dataclass in slot order."""
    hints = typing.get_type_hints(cls, include_extras=True)
    members: list[Field] = []
    slot = 0
    for declared in fields(cls):
        shape = shape_of(hints[declared.name])
        slot += isinstance(shape, OneOf)
        optional = declared.default is not MISSING
        default = declared.default if optional else None
        members.append(
            Field(name=declared.name, slot=slot, shape=shape, is_optional=optional, default=default)
        )
        slot += 1
    return tuple(members)


def shape_of(annotation: object) -> Shape:
    """Return the shape for a type hint; `| None` is ignored, because it is a property of the field."""
    origin = typing.get_origin(annotation)
    if origin in (types.UnionType, typing.Union):
        return _shape_of_members(typing.get_args(annotation))
    if origin is tuple:
        return Vector(shape_of(typing.get_args(annotation)[0]))
    if origin is Mapping:
        return MapOf(shape_of(typing.get_args(annotation)[1]))
    if origin is Annotated:
        return _shape_of_annotated(*typing.get_args(annotation))
    if not isinstance(annotation, type):
        raise TypeError(annotation)
    return _shape_of_class(annotation)


def _shape_of_annotated(of: type, mark: Width | Spelled | Tagged) -> Shape:
    match mark:
        case Spelled():
            return mark
        case Tagged(prefix=prefix, extensions=extensions):
            return OneOf(_members(of), prefix, extensions)
        case Width():
            return EnumShape(of, mark) if issubclass(of, IntEnum) else Integer(mark)


def _shape_of_members(members: tuple[object, ...]) -> Shape:
    variants = tuple(member for member in members if member not in (type(None), events.UnknownEvent))
    if len(variants) == 1:
        return shape_of(variants[0])
    return _UNION_OF[typing.cast("tuple[type, ...]", variants)]


def _shape_of_class(cls: type) -> Shape:
    if cls is bool:
        return Boolean()
    if cls is str:
        return Text()
    if cls in (bytes, Multihash, DatasetId):
        return Bytes(cls)
    if cls is Timestamp:
        return TimestampShape()
    if issubclass(cls, IntEnum):
        return EnumShape(cls, _DEFAULT_WIDTH)
    return _UNION_OF.get((cls,)) or TableShape(cls)
