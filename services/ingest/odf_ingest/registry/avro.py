"""Avro records as JSON. fastavro reads the values; logical types are converted here, exactly.

A schema is checked before it is used: it must not be recursive, and the JSON of a payload must be at most `MAX_GROWTH`
times as long, plus a constant. Otherwise a few bytes could encode millions of values that need no bytes.
"""

import io
import json
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeAlias

from fastavro import parse_schema, schemaless_reader
from fastavro.schema import SchemaParseException

from odf_common.errors import InvalidInput
from odf_ingest.registry.client import Schema
from odf_ingest.registry.json_text import (
    MAX_DIGITS,
    array_json,
    boolean_json,
    bytes_json,
    date_json,
    decimal_json,
    floating_json,
    integer_json,
    object_json,
    text_json,
    time_json,
    timestamp_json,
)

MAX_DEPTH: Final = 64
MAX_GROWTH: Final = 128  # characters of JSON per byte of payload
MAX_CONSTANT_CHARACTERS: Final = 1 << 20  # of JSON that take no bytes
AVRO_FAULTS: Final = (EOFError, IndexError, KeyError, OverflowError, TypeError, ValueError, struct.error)
BAD_SCHEMA: Final = (SchemaParseException, AttributeError, RecursionError, *AVRO_FAULTS)
UUID_BYTES: Final = 16
_ENDS_IN_NUMBER: Final = "string index out of range"  # fastavro's text; elsewhere it raises EOFError

Write: TypeAlias = Callable[[Any], str]
Json: TypeAlias = Any  # a part of a schema: a name, an object or a list


@dataclass(frozen=True, slots=True, kw_only=True)
class _Type:
    """Writes the values of an Avro type. JSON of a value has at most `excess` + MAX_GROWTH × (its bytes) characters.

    `python` are the names of the classes of its values, by which the branches of a union are distinguished.
    """

    write: Write
    excess: int
    python: tuple[str, ...]


def avro_decoder(schema: Schema, *, is_key: bool = False) -> Callable[[bytes], str]:
    """Return a function from payload to JSON; raises `InvalidInput` if the schema cannot be used.

    The schema of a value is that of a record; that of a key may also be that of a single value.
    """
    try:
        logical: dict[str, Json] = {}
        plain: dict[str, Json] = {}
        for text in schema.references.values():
            _parse(text, logical, plain)
        shape, readable = _parse(schema.text, logical, plain)
        top = _Types(logical).build_type(shape, 0)
    except BAD_SCHEMA as error:
        raise InvalidInput(text=f"is not an Avro schema: {_reason(error)}") from error
    if not all(name.startswith("record ") or (is_key and name in SINGLE) for name in top.python):
        kinds = "neither an Avro record nor a single value" if is_key else "not an Avro record"
        raise InvalidInput(text=f"is {kinds}, so it has no columns")
    if top.excess > MAX_CONSTANT_CHARACTERS:
        raise InvalidInput(text="has too many values that take no bytes")
    return partial(_decode, readable, top.write)


def _parse(text: str, logical: dict[str, Json], plain: dict[str, Json]) -> tuple[Json, Json]:
    """Return a schema with and without its logical types; its names are added to both dictionaries."""
    document = json.loads(text)
    internal = {"__fastavro_parsed", "__named_schemas"}
    shape = parse_schema(_clean(document, 0, internal), named_schemas=logical)
    readable = parse_schema(_clean(document, 0, {*internal, "logicalType"}), named_schemas=plain)
    for schema in plain.values():
        _counted_from_zero(schema)
    return shape, _counted_from_zero(readable)


def _clean(part: Json, depth: int, without: set[str]) -> Json:
    if depth > 4 * MAX_DEPTH:
        raise InvalidInput(text="is nested too deeply")
    if isinstance(part, dict):
        return {key: _clean(inner, depth + 1, without) for key, inner in part.items() if key not in without}
    return [_clean(inner, depth + 1, without) for inner in part] if isinstance(part, list) else part


class _FromZero(list[Json]):
    """The branches of a union or the symbols of an enum; a payload has an index into it, which must not be negative.

    Python counts a negative index from the end, and fastavro's compiled reader adds the length first. So the length is
    0, and a negative index raises an error.
    """

    def __len__(self) -> int:
        """Return 0, so that a negative index stays negative."""
        return 0

    def __getitem__(self, index: Any) -> Json:  # noqa: ANN401 - as of a list
        """Return a branch or symbol; raises `IndexError`."""
        if index < 0:
            raise IndexError(f"{index} is not the index of a branch or symbol")
        return super().__getitem__(index)


def _counted_from_zero(part: Json) -> Json:
    """Replace unions and enums in a parsed schema by `_FromZero` and return it.

    Its objects are changed in place, because other parts of the schema refer to them by name.
    """
    if isinstance(part, list):
        return _FromZero(map(_counted_from_zero, part))
    if isinstance(part, dict):
        if part["type"] == "enum":
            part["symbols"] = _FromZero(part["symbols"])
        for member in part.get("fields", ()):
            member["type"] = _counted_from_zero(member["type"])
        for key in part.keys() & {"type", "items", "values"}:
            part[key] = _counted_from_zero(part[key])
    return part


def _decode(schema: Json, write: Write, payload: bytes) -> str:
    stream = io.BytesIO(payload)
    try:
        value = schemaless_reader(stream, schema, None, return_record_name=True)
    except AVRO_FAULTS as error:
        raise InvalidInput(text=f"the payload is not a value of the schema: {_reason(error)}") from error
    left = len(payload) - stream.tell()
    if left:
        raise InvalidInput(text=f"the payload has {left} bytes after the value")
    return write(value)


def _reason(error: BaseException) -> str:
    text = str(error)
    if isinstance(error, EOFError) or text == _ENDS_IN_NUMBER:
        return "it ends too early"
    return text or type(error).__name__


@dataclass(frozen=True, slots=True)
class _Types:
    """Builds types of a parsed schema; `named` has its named types by full name."""

    named: Mapping[str, Json]
    types: dict[str, _Type] = field(default_factory=dict)
    defined: dict[str, Json] = field(default_factory=dict)
    open: set[str] = field(default_factory=set)

    def build_type(self, shape: Json, depth: int) -> _Type:
        """Return a type; raises `InvalidInput`."""
        if depth > MAX_DEPTH:
            raise InvalidInput(text=f"is nested more than {MAX_DEPTH} levels deep")
        if isinstance(shape, list):
            return self._union(shape, depth)
        if isinstance(shape, str):
            return PRIMITIVES[shape] if shape in PRIMITIVES else self._resolve_name(self.named[shape], depth)
        kind = shape["type"]
        if kind in {"record", "error", "enum", "fixed"}:
            return self._resolve_name(shape, depth)
        if kind == "array":
            return self._array(self.build_type(shape["items"], depth + 1))
        if kind == "map":
            return self._map(self.build_type(shape["values"], depth + 1))
        return _logical(shape) or self.build_type(kind, depth + 1)

    def _resolve_name(self, shape: Json, depth: int) -> _Type:
        name = str(shape["name"])
        if name in self.open:
            raise InvalidInput(text=f"{name} contains itself: a column cannot have such a type")
        if self.defined.setdefault(name, shape) != shape:  # which fastavro accepts in a union at the top
            raise InvalidInput(text=f"defines {name} twice, differently")
        if name not in self.types:
            self.open.add(name)
            self.types[name] = self._define(shape, name, depth)
            self.open.discard(name)
        return self.types[name]

    def _define(self, shape: Json, name: str, depth: int) -> _Type:
        if shape["type"] == "enum":
            longest = max((len(text_json(str(symbol))) for symbol in shape["symbols"]), default=0)
            return _Type(write=text_json, excess=longest - MAX_GROWTH, python=("str",))
        if shape["type"] == "fixed":
            size = shape["size"]
            if not isinstance(size, int) or size < 0:
                raise InvalidInput(text=f"is not an Avro schema: {name} has the size {size!r}")
            logical = _logical(shape)
            return logical or _Type(write=bytes_json, excess=2 + (2 - MAX_GROWTH) * size, python=("bytes",))
        members = [
            (str(member["name"]), self.build_type(member["type"], depth + 1)) for member in shape["fields"]
        ]
        if len(dict(members)) < len(members):
            raise InvalidInput(text=f"{name} has two fields of the same name")
        parts = [
            (text_json(key) + ":", key, _with_place(member.write, f"{name}.{key}")) for key, member in members
        ]
        excess = 2 + sum(len(key) + 1 for key, _, _ in parts) + sum(member.excess for _, member in members)
        return _Type(write=partial(_record_json, parts), excess=excess, python=(f"record {name}",))

    def _union(self, shape: Sequence[Json], depth: int) -> _Type:
        branches = [self.build_type(branch, depth + 1) for branch in shape]
        writes: dict[str, Write] = {}
        for branch in branches:
            for python in branch.python:
                if writes.setdefault(python, branch.write) is not branch.write:
                    text = f"has a union in which several branches are read as {python}: {json.dumps(shape)[:200]}"
                    raise InvalidInput(text=text)
        excess = max((branch.excess for branch in branches), default=0) - MAX_GROWTH
        return _Type(write=partial(_union_json, writes), excess=excess, python=tuple(writes))

    def _array(self, item: _Type) -> _Type:
        _require_bytes(item.excess + 1)
        return _Type(write=partial(_array_json, item.write), excess=2 - MAX_GROWTH, python=("list",))

    def _map(self, item: _Type) -> _Type:
        _require_bytes(item.excess + 4 - MAX_GROWTH)
        return _Type(write=partial(_map_json, item.write), excess=2 - MAX_GROWTH, python=("dict",))


def _require_bytes(excess: int) -> None:
    """Raise `InvalidInput` unless elements of an array or map need so many bytes that their number is limited."""
    if excess > 0:
        raise InvalidInput(text="has an array or map whose elements take too few bytes for what they contain")


def _logical(shape: Json) -> _Type | None:
    """Return a logical type; None if it is unknown or malformed, so it has to be ignored (Avro: Logical Types)."""
    kind, name = shape["type"], shape.get("logicalType")
    excess, python = 40 - MAX_GROWTH, ("int",)
    if kind in {"bytes", "fixed"} and name == "decimal":
        precision, scale = shape.get("precision"), shape.get("scale", 0)
        is_usual = isinstance(precision, int) and isinstance(scale, int) and 0 < precision <= MAX_DIGITS
        if is_usual and 0 <= scale <= precision:
            return _Type(write=partial(_decimal, precision, scale), excess=90 - MAX_GROWTH, python=("bytes",))
    if kind == "fixed" and name == "uuid" and shape.get("size") == UUID_BYTES:
        return _Type(write=_uuid, excess=excess, python=("bytes",))
    if kind == "int" and name == "date":
        return _Type(write=date_json, excess=excess, python=python)
    write = {
        ("int", "time-millis"): partial(time_json, digits=3),
        ("long", "time-micros"): partial(time_json, digits=6),
        ("long", "timestamp-millis"): partial(timestamp_json, digits=3, zone="Z"),
        ("long", "timestamp-micros"): partial(timestamp_json, digits=6, zone="Z"),
        ("long", "timestamp-nanos"): partial(timestamp_json, digits=9, zone="Z"),
        ("long", "local-timestamp-millis"): partial(timestamp_json, digits=3, zone=""),
        ("long", "local-timestamp-micros"): partial(timestamp_json, digits=6, zone=""),
        ("long", "local-timestamp-nanos"): partial(timestamp_json, digits=9, zone=""),
    }.get((kind, name))
    return None if write is None else _Type(write=write, excess=excess, python=python)


def _with_place(write: Write, where: str) -> Write:
    """Return a writer that adds the name of the field to errors."""

    def write_field(value: object) -> str:
        try:
            return write(value)
        except InvalidInput as error:
            raise error if error.where else InvalidInput(where=f"field {where}", text=error.text) from error

    return write_field


def _null(_: object) -> str:
    return "null"


def _decimal(precision: int, scale: int, value: bytes) -> str:
    return decimal_json(int.from_bytes(value, "big", signed=True), precision, scale)


def _uuid(value: bytes) -> str:
    digits = value.hex()
    return f'"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"'


def _record_json(parts: Sequence[tuple[str, str, Write]], value: Any) -> str:  # noqa: ANN401 - as it was read
    record = value[1] if isinstance(value, tuple) else value
    return object_json([key + write(record[name]) for key, name, write in parts])


def _union_json(writes: Mapping[str, Write], value: object) -> str:
    name = f"record {value[0]}" if isinstance(value, tuple) else type(value).__name__
    return writes["null" if value is None else name](value)


def _array_json(write: Write, value: Sequence[object]) -> str:
    return array_json([write(item) for item in value])


def _map_json(write: Write, value: Mapping[str, object]) -> str:
    return object_json([f"{text_json(key)}:{write(item)}" for key, item in value.items()])


SINGLE: Final = frozenset({"null", "bool", "int", "float", "str", "bytes"})  # classes of values
PRIMITIVES: Final = {
    "null": _Type(write=_null, excess=4, python=("null",)),
    "boolean": _Type(write=boolean_json, excess=5 - MAX_GROWTH, python=("bool",)),
    "int": _Type(write=integer_json, excess=20 - MAX_GROWTH, python=("int",)),
    "long": _Type(write=integer_json, excess=20 - MAX_GROWTH, python=("int",)),
    "float": _Type(write=floating_json, excess=24 - MAX_GROWTH, python=("float",)),
    "double": _Type(write=floating_json, excess=24 - MAX_GROWTH, python=("float",)),
    "string": _Type(write=text_json, excess=2 - MAX_GROWTH, python=("str",)),
    "bytes": _Type(write=bytes_json, excess=2 - MAX_GROWTH, python=("bytes",)),
}
