"""Protobuf messages as JSON. The protobuf runtime parses them; fields keep the names of the schema.

An unset field without presence has its default (0, "", false, []); an unset field with presence is null. Timestamps,
durations and wrappers are single values, as in Protobuf's own JSON; 64-bit integers are numbers.

Some files may be imported without being listed in the references of a schema: those of Protobuf, which are part of its
runtime, and those of Confluent, which are part of the registry and its clients. The extensions that
`confluent/meta.proto` declares are left out, because options do not change how a message is read.
"""

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from google.protobuf import (
    any_pb2,
    api_pb2,
    descriptor_pb2,
    descriptor_pool,
    duration_pb2,
    empty_pb2,
    field_mask_pb2,
    json_format,
    message_factory,
    source_context_pb2,
    struct_pb2,
    timestamp_pb2,
    type_pb2,
    wrappers_pb2,
)
from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    MessageOptions,
)
from google.protobuf.message import DecodeError, Message

from odf_common.errors import InvalidInput
from odf_ingest.registry.client import Schema
from odf_ingest.registry.json_text import (
    MAX_DIGITS,
    array_json,
    boolean_json,
    bytes_json,
    decimal_json,
    floating_json,
    integer_json,
    object_json,
    text_json,
    timestamp_json,
)

_TEXT: Final = FieldDescriptorProto.TYPE_STRING
_ONE: Final = FieldDescriptorProto.LABEL_OPTIONAL
_MANY: Final = FieldDescriptorProto.LABEL_REPEATED


def _field(
    name: str,
    number: int,
    type_: "FieldDescriptorProto.Type.ValueType",
    *,
    is_repeated: bool = False,
    of: str = "",
) -> FieldDescriptorProto:
    label = _MANY if is_repeated else _ONE
    return FieldDescriptorProto(name=name, number=number, type=type_, label=label, type_name=of or None)


_DECIMAL: Final = FileDescriptorProto(
    name="confluent/type/decimal.proto",
    package="confluent.type",
    syntax="proto3",
    message_type=[
        DescriptorProto(
            name="Decimal",
            field=[
                _field("value", 1, FieldDescriptorProto.TYPE_BYTES),
                _field("precision", 2, FieldDescriptorProto.TYPE_UINT32),
                _field("scale", 3, FieldDescriptorProto.TYPE_INT32),
            ],
        )
    ],
)
_PARAMS: Final = DescriptorProto(
    name="ParamsEntry",
    field=[_field("key", 1, _TEXT), _field("value", 2, _TEXT)],
    options=MessageOptions(map_entry=True),
)
_META: Final = FileDescriptorProto(
    name="confluent/meta.proto",
    package="confluent",
    syntax="proto3",
    dependency=[descriptor_pb2.DESCRIPTOR.name],
    message_type=[
        DescriptorProto(
            name="Meta",
            nested_type=[_PARAMS],
            field=[
                _field("doc", 1, _TEXT),
                _field(
                    "params",
                    2,
                    FieldDescriptorProto.TYPE_MESSAGE,
                    is_repeated=True,
                    of=".confluent.Meta.ParamsEntry",
                ),
                _field("tags", 3, _TEXT, is_repeated=True),
            ],
        )
    ],
)
_RUNTIME: Final = (
    any_pb2, api_pb2, descriptor_pb2, duration_pb2, empty_pb2, field_mask_pb2, source_context_pb2, struct_pb2,
    timestamp_pb2, type_pb2, wrappers_pb2,
)  # fmt: skip
_FILES: Final = {
    **{module.DESCRIPTOR.name: module.DESCRIPTOR.serialized_pb for module in _RUNTIME},
    **{file.name: file.SerializeToString() for file in (_DECIMAL, _META)},
}


def is_well_known(name: str) -> bool:
    """Return whether a file is built in, so that a reference with this name is not needed."""
    return name in _FILES


def add_imports(pool: descriptor_pool.DescriptorPool, file: FileDescriptorProto) -> None:
    """Add the well-known files that a file imports; raises `InvalidInput` for other imports that the pool lacks."""
    for name in file.dependency:
        if name in _FILES:
            add_imports(pool, FileDescriptorProto.FromString(_FILES[name]))
            pool.AddSerializedFile(_FILES[name])
            continue
        try:
            pool.FindFileByName(name)
        except KeyError as error:
            why = "is neither among the schema's references nor built in; register it, and add it to the references"
            raise InvalidInput(text=f"imports {name}, which {why}") from error


MAX_JSON_CHARACTERS: Final = 64 * 1024 * 1024  # of one message
MAX_LEVELS: Final = 64  # of nested message types
MAX_VARINT_BYTES: Final = 10
NANOS: Final = 10**9
DIGITS_OF_NANOS: Final = 9
# What a descriptor that no compiler wrote may lead to, such as a map without values.
PROTOBUF_FAULTS: Final = (json_format.Error, AttributeError, KeyError, RecursionError, TypeError, ValueError)
UNNAMED: Final = "odf-schema.proto"
WRAPPERS: Final = frozenset(
    message.full_name for message in wrappers_pb2.DESCRIPTOR.message_types_by_name.values()
)

Write: TypeAlias = Callable[[Any], str]
Member: TypeAlias = Any  # a field's descriptor, whose class depends on the runtime


class ProtobufDecoder:
    """Decodes messages of one schema; thread-safe."""

    def __init__(self, schema: Schema) -> None:
        """Raise `InvalidInput` unless the schema and its references are complete, compiled descriptors."""
        pool = descriptor_pool.DescriptorPool()
        for name, text in schema.references.items():
            if not is_well_known(name):  # a pool has one file of a name
                _add(pool, name, text)
        self._file = _add(pool, "", schema.text)
        self._types: dict[tuple[int, ...], type[Message]] = {}

    def __call__(self, payload: bytes) -> str:
        """Return a message as JSON; `payload` begins with the message's indexes. Raises `InvalidInput`."""
        indexes, start = message_indexes(payload)
        type_ = self._types.get(indexes)
        if type_ is None:
            type_ = message_factory.GetMessageClass(_message_type(self._file, indexes))
            self._types[indexes] = type_
        try:
            message = type_.FromString(payload[start:])
        except DecodeError as error:
            name = type_.DESCRIPTOR.full_name
            raise InvalidInput(text=f"the payload is not a message {name}, or ends too early") from error
        try:
            return _Writer().message(message)
        except PROTOBUF_FAULTS as error:
            raise InvalidInput(text=f"the message cannot be written as JSON: {error!r}") from error


def message_indexes(payload: bytes) -> tuple[tuple[int, ...], int]:
    """Return the indexes of the message's type in its file, by nesting level, and the offset of the message.

    Raises `InvalidInput`. A single zero byte stands for the first type.
    """
    count, position = _varint(payload, 0)
    if not 0 <= count <= MAX_LEVELS:
        raise InvalidInput(text="has malformed message indexes")
    indexes = []
    for _ in range(count):
        index, position = _varint(payload, position)
        indexes.append(index)
    return tuple(indexes) or (0,), position


def _varint(payload: bytes, position: int) -> tuple[int, int]:
    """Return a zigzag-encoded number and the position after it; raises `InvalidInput`."""
    value = 0
    for number, byte in enumerate(payload[position : position + MAX_VARINT_BYTES]):
        value |= (byte & 0x7F) << (7 * number)
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), position + number + 1
    raise InvalidInput(text="ends within its message indexes")


def _add(pool: descriptor_pool.DescriptorPool, name: str, text: str) -> FileDescriptor:
    """Add a file to the pool, and the well-known files that it imports; raises `InvalidInput`."""
    try:
        file = FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    except (ValueError, DecodeError) as error:
        why = "the registry did not give it as a compiled descriptor (format=serialized)"
        raise InvalidInput(text=f"cannot be used: {why}") from error
    file.name = name or UNNAMED
    try:
        add_imports(pool, file)
        pool.AddSerializedFile(file.SerializeToString())
        return pool.FindFileByName(file.name)
    except (TypeError, KeyError, ValueError) as error:
        raise InvalidInput(text=f"is not complete or not valid: {error}") from error


def _message_type(file: FileDescriptor, indexes: Sequence[int]) -> Descriptor:
    types = list(file.message_types_by_name.values())
    descriptor = None
    for index in indexes:
        if not 0 <= index < len(types):
            raise InvalidInput(text=f"has no message at the indexes {list(indexes)}")
        descriptor = types[index]
        types = list(descriptor.nested_types)
    assert descriptor is not None
    return descriptor


class _Writer:
    """Writes one message as JSON. Raises `InvalidInput` if it is too large: defaults need no bytes in a message."""

    def __init__(self) -> None:
        self._left = MAX_JSON_CHARACTERS

    def message(self, message: Message) -> str:
        """Return a message as JSON."""
        descriptor = message.DESCRIPTOR
        special = SPECIAL.get(descriptor.full_name)
        if special is not None:
            return special(message)
        if descriptor.full_name in WRAPPERS:
            return self._scalar(descriptor.fields[0], getattr(message, "value"))  # noqa: B009 - untyped
        text = object_json(
            [f"{text_json(field.name)}:{self._member(message, field)}" for field in descriptor.fields]
        )
        self._left -= len(text)
        if self._left < 0:
            raise InvalidInput(text=f"the message has more than {MAX_JSON_CHARACTERS >> 20} MiB as JSON")
        return text

    def _member(self, message: Message, member: Member) -> str:
        try:
            return self._value(message, member)
        except InvalidInput as error:
            raise (
                error if error.where else InvalidInput(where=f"field {member.full_name}", text=error.text)
            ) from error

    def _value(self, message: Message, member: Member) -> str:
        if member.has_presence and not message.HasField(member.name):
            return "null"
        value = getattr(message, member.name)
        if not member.is_repeated:
            return self._single(member, value)
        if member.message_type is None or not member.message_type.GetOptions().map_entry:
            return array_json([self._single(member, item) for item in value])
        inner = member.message_type.fields_by_name["value"]
        # Keys are strings, integers or booleans; a map has no order.
        pairs = sorted((_key(key), self._single(inner, value[key])) for key in value)
        return object_json([f"{text_json(key)}:{item}" for key, item in pairs])

    def _single(self, member: Member, value: Any) -> str:  # noqa: ANN401 - as it was parsed
        return self._scalar(member, value) if member.message_type is None else self.message(value)

    def _scalar(self, member: Member, value: Any) -> str:  # noqa: ANN401 - as it was parsed
        if member.enum_type is None:
            return SCALARS.get(member.type, integer_json)(value)
        named = member.enum_type.values_by_number.get(value)
        if named is None:
            raise InvalidInput(text=f"the enum {member.enum_type.full_name} has no value {value}")
        return text_json(named.name)


def _key(key: str | int) -> str:
    return boolean_json(key) if isinstance(key, bool) else str(key)


def _timestamp(value: timestamp_pb2.Timestamp) -> str:
    if not 0 <= value.nanos < NANOS:
        raise InvalidInput(text=f"a timestamp has {value.nanos} nanoseconds")
    return timestamp_json(value.seconds * NANOS + value.nanos, DIGITS_OF_NANOS, "Z")


def _decimal(value: Any) -> str:  # noqa: ANN401 - as it was parsed
    """Return a decimal in Confluent's message type, whose precision may be unset."""
    if abs(value.scale) > MAX_DIGITS:
        raise InvalidInput(text=f"a decimal has the scale {value.scale}")
    unscaled = int.from_bytes(value.value, "big", signed=True)
    return decimal_json(unscaled, min(value.precision or MAX_DIGITS, MAX_DIGITS), value.scale)


def _free_form(value: Message) -> str:
    return json.dumps(json_format.MessageToDict(value), allow_nan=False)


def _wrap(value: Any) -> str:  # noqa: ANN401 - as it was parsed
    return text_json(value.ToJsonString())


SCALARS: Final[Mapping[int, Write]] = {
    FieldDescriptor.TYPE_BOOL: boolean_json,
    FieldDescriptor.TYPE_BYTES: bytes_json,
    FieldDescriptor.TYPE_DOUBLE: floating_json,
    FieldDescriptor.TYPE_FLOAT: floating_json,
    FieldDescriptor.TYPE_STRING: text_json,
}
SPECIAL: Final[Mapping[str, Write]] = {
    "confluent.type.Decimal": _decimal,
    "google.protobuf.Timestamp": _timestamp,
    "google.protobuf.Duration": _wrap,
    "google.protobuf.FieldMask": _wrap,
    "google.protobuf.Any": _free_form,
    "google.protobuf.ListValue": _free_form,
    "google.protobuf.Struct": _free_form,
    "google.protobuf.Value": _free_form,
}
