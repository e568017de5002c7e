"""The Protobuf files that every schema may import although its references do not list them.

Those of Protobuf come with its runtime; those of Confluent are built into the registry and its clients. Their options
do not change how a message is read, so the extensions that `confluent/meta.proto` declares are left out.
"""

from typing import Final

from google.protobuf import (
    any_pb2,
    api_pb2,
    descriptor_pb2,
    descriptor_pool,
    duration_pb2,
    empty_pb2,
    field_mask_pb2,
    source_context_pb2,
    struct_pb2,
    timestamp_pb2,
    type_pb2,
    wrappers_pb2,
)
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    MessageOptions,
)

from odf_common.errors import InvalidInput

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
    """Return whether a file is built in; a reference of this name is not needed."""
    return name in _FILES


def add_imports(pool: descriptor_pool.DescriptorPool, file: FileDescriptorProto) -> None:
    """Add the well-known files that a file imports; raises `InvalidInput` for other ones that the pool lacks."""
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
