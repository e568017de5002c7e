"""JSON Schemas of the types of resources, derived from the model: one document for each `$id` (RFC-018).

A type such as Dataset has three documents: that of its manifest, that of its spec as it is written, with the suffix
SpecInput, and `DatasetSpec` with handles in place of references. Parts that contain references have both forms too.
All objects are closed, and the members of a union are selected by `kind`.
"""

from collections.abc import Callable, Iterator, Mapping
from enum import IntEnum
from functools import cache
from types import MappingProxyType
from typing import Final

from odf_common.codec.json_schema import DIALECT, Schema, closed_object, first_paragraph, leaf_schema
from odf_common.codec.model_schema import (
    EVENTS,
    Bytes,
    EnumShape,
    Field,
    Integer,
    MapOf,
    OneOf,
    Shape,
    Spelled,
    TableShape,
    TimestampShape,
    Vector,
    fields_of,
)
from odf_common.codec.plain_values import BARE_UNIONS, EXTENSION, EXTRA_KEY, camel, formerly_schema, tag_of
from odf_common.hashing.multihash import Multihash
from odf_common.identity.dataset_refs import DatasetId
from odf_common.metadata.scalars import ExtraAttributes
from odf_common.resources.field_descriptions import describe_field
from odf_common.resources.references import ReferenceField
from odf_common.resources.registry import CORE_TYPES, ResourceType
from odf_common.resources.schema_parts import SHARED_SCHEMAS, describe, schema_uri
from odf_common.resources.specs import BLOCK_DEFAULTS, DatasetSpec, RelationsSpec

# Contexts of parts; those of others are in `dataset`.
_CONTEXTS: Final = {
    name: context
    for context, names in {
        "auth": "AccountType Relation Attribute",
        "config": "Secret Secrets Variable Variables ValueRef ValueRefs ValueHandle ValueHandles",
        "data": "DataSchema DataField DataType TimeUnit ExtraAttributes",
        "event": "EventFilter",
        "flow": "FlowTrigger TaskSpec",
        "legacy": "FetchStep",
        "resource": "ResourceRef ResourceHandle ResourceSelector",
        "source": "ReadStep MergeStrategy EventTimeSource SourceCaching PrepStep RequestHeader EnvVar MqttQos "
        "MqttTopicSubscription CompressionFormat SourceOrdering SourceState Ingress IngressBuffer IngestParams "
        "OverflowPolicy",
        "storage": "VolumeCapacity AwsCredentials PersistentVolumeRef",
    }.items()
    for name in names.split()
} | {kind.uri.name + "Spec": kind.uri.context for kind in CORE_TYPES}
_TYPE_NAMES: Final = frozenset(kind.uri.name for kind in CORE_TYPES)
# Fields that the node fills in before a spec is stored.
_STORED_FIELDS: Final[Mapping[type, frozenset[str]]] = {
    DatasetSpec: frozenset({"did"}),
    RelationsSpec: frozenset({"relations", "attributes"}),
}
_INPUT: Final = "Input"
_SCALARS: Final[Mapping[str, Schema]] = {
    "uint64": {"type": "integer", "format": "uint64", "minimum": 0, "maximum": 2**64 - 1},
    "byte-size": {"type": ["string", "integer"], "format": "byte-size"},
    "json": {},
}


@cache
def resource_schemas() -> Mapping[str, Schema]:
    """Return the schemas of all types of the specification, and of their parts, by `$id`."""
    documents = _Documents()
    for kind in CORE_TYPES:
        documents.add_type(kind)
    documents.add_shared()
    return MappingProxyType(dict(sorted(documents.by_id.items())))


@cache
def schemas_by_name() -> Mapping[str, Schema]:
    """Return the same schemas by the end of their `$id`, such as `dataset/v1alpha1/Dataset`."""
    return MappingProxyType(dict(sorted((schema_name(uri), one) for uri, one in resource_schemas().items())))


def schema_name(uri: str) -> str:
    """Return context, version and name of a schema."""
    return "/".join(uri.rsplit("/", maxsplit=3)[1:])


class _Documents:
    """The documents that were generated, and those that they refer to."""

    def __init__(self) -> None:
        self.by_id: dict[str, Schema] = {}

    def add_type(self, kind: ResourceType) -> None:
        assert kind.spec is not None
        self._shape(kind.spec, "")
        properties = {
            "$schema": _const(str(kind.uri), "URI of the type."),
            "headers": describe(
                {"$ref": schema_uri("resource", "ResourceHeadersInput")}, "Identity and ownership."
            ),
            "spec": describe(self._shape(kind.spec, _INPUT), "Desired state."),
        }
        self._add(str(kind.uri), lambda: describe(closed_object(properties, properties), kind.about))

    def add_shared(self) -> None:
        for uri, schema in SHARED_SCHEMAS.items():
            self._add(uri, lambda schema=schema: schema)  # type: ignore[misc]

    def _add(self, uri: str, make: Callable[[], Schema]) -> Schema:
        """Add a document unless it exists; return a reference to it."""
        if uri not in self.by_id:
            self.by_id[uri] = {}  # a part may contain itself
            self.by_id[uri] = {"$id": uri, "$schema": DIALECT, **make()}
        return {"$ref": uri}

    def _shape(self, shape: Shape, form: str) -> Schema:
        match shape:
            case Spelled():
                return self._spelled_schema(shape, form)
            case TableShape(of=of):
                return self._part(of.__name__, shape, form, lambda form: self._table(of, form))
            case OneOf():
                return self._part(_union_name(shape), shape, form, lambda form: self._union(shape, form))
            case EnumShape(of=of):
                return self._part(of.__name__, shape, form, lambda _: _enum(of))
            case Vector(of=inner):
                return {"type": "array", "items": self._shape(inner, form)}
            case MapOf(of=Spelled(name=name) as inner):
                item = self._spelled_schema(inner, form)
                return self._add(item["$ref"] + "s", lambda: describe(_map(item), f"{name}s by name."))
            case MapOf(of=inner):
                return _map(self._shape(inner, form))
            case _:
                return _scalar(shape)

    def _part(self, name: str, shape: Shape, form: str, make: Callable[[str], Schema]) -> Schema:
        has_forms = name.removesuffix("Spec") in _TYPE_NAMES or _has_references(shape)
        uri = schema_uri(_CONTEXTS.get(name, "dataset"), name)
        if not has_forms or not form:
            return self._add(uri, lambda: make(""))
        return self._add(uri + form, lambda: {"canonicalType": uri, **make(form)})

    def _spelled_schema(self, shape: Spelled, form: str) -> Schema:
        if shape.name in _SCALARS:
            return dict(_SCALARS[shape.name])
        if shape.name.islower():
            return {"type": "string", "format": shape.name}
        name = shape.name
        if isinstance(shape.detail, ReferenceField) and not form:
            name = "ValueHandle" if shape.detail.has_path else "ResourceHandle"
        return {"$ref": schema_uri(_CONTEXTS.get(name, "dataset"), name)}

    def _table(self, cls: type, form: str) -> Schema:
        if cls is ExtraAttributes:
            named: Schema = {f"^{EXTRA_KEY}$": {}}
            closed = {"type": "object", "patternProperties": named, "additionalProperties": False}
            return describe(closed, "Attributes that the node keeps and does not interpret.")
        return describe(self._object(cls, form, {}), first_paragraph(cls))

    def _object(self, cls: type, form: str, tags: Mapping[str, Schema]) -> Schema:
        stored = frozenset() if form else _STORED_FIELDS.get(cls, frozenset())
        properties = dict(tags)
        required = [*tags]
        for field in fields_of(cls):
            key = camel(field.name)
            schema = self._shape(field.shape, form) | _default(cls, field)
            if field == formerly_schema(cls):
                schema["deprecated"] = True
            properties[key] = describe(schema, describe_field(cls, key))
            if not field.is_optional or field.name in stored:
                required.append(key)
        return closed_object(properties, required)

    def _union(self, union: OneOf, form: str) -> Schema:
        choices: list[Schema] = []
        bare = [tag_of(cls, union) for cls in union.members if _stands_alone(cls)]
        if union.prefix in BARE_UNIONS and bare:
            choices.append({"type": "string", "enum": bare})
        members: dict[str, Schema] = {}
        for cls in union.members:
            tag = tag_of(cls, union)
            members[tag] = self._member(cls, form, {"kind": _const(tag, "Kind of the part.")})
            choices.append({"$ref": f"#/$defs/{tag}"})
        choices += [self._extension(uri, cls, form) for uri, cls in union.extensions]
        return describe({"oneOf": choices, "$defs": members}, _union_text(union))

    def _extension(self, uri: str, cls: type, form: str) -> Schema:
        tags: dict[str, Schema] = {
            "kind": _const(EXTENSION, "Kind of the part."),
            "$schema": _const(uri, "URI of the kind."),
        }
        return self._add(uri, lambda: self._member(cls, form, tags))

    def _member(self, cls: type, form: str, tags: Mapping[str, Schema]) -> Schema:
        return describe(self._object(cls, form, tags), first_paragraph(cls))


_UNION_TEXTS: Final = {
    "MetadataEvent": "One of the metadata events of a dataset.",
    "ReadStep": "The format of data, and how it is read.",
    "Transform": "A query.",
    "MergeStrategy": "How new records are compared with those that are stored.",
    "EventTimeSource": "Where the event time of what is fetched comes from.",
    "SourceCaching": "Whether what was fetched is fetched again.",
    "FetchStep": "Where data is fetched.",
    "PrepStep": "A step that unpacks what is fetched.",
    "Attachments": "Files of a dataset.",
    "DataType": "The type of a column.",
    "IngressBuffer": "A buffer of records.",
    "Ingress": "Where data comes from.",
    "FlowTrigger": "What starts a flow.",
    "TaskSpec": "A task of a flow.",
    "PersistentVolumeSpec": "A place where datasets are stored.",
}


def _union_name(union: OneOf) -> str:
    if union is EVENTS:
        return "MetadataEvent"
    return union.prefix + "Spec" if union.prefix in _TYPE_NAMES else union.prefix


def _union_text(union: OneOf) -> str:
    return _UNION_TEXTS[_union_name(union)]


def _enum(of: type[IntEnum]) -> Schema:
    return describe({"type": "string", "enum": [choice.name for choice in of]}, first_paragraph(of))


def _const(text: str, about: str) -> Schema:
    return describe({"type": "string", "const": text}, about)


def _map(item: Schema) -> Schema:
    return {"type": "object", "additionalProperties": item}


def _scalar(shape: Shape) -> Schema:
    match shape:
        case Integer(width=width):
            return {**leaf_schema(shape), "format": f"{'' if width.signed else 'u'}int{8 * width.size}"}
        case Bytes(of=of):
            formats = {Multihash: "multihash", DatasetId: "dataset-id"}
            return {**leaf_schema(shape), **({"format": formats[of]} if of in formats else {})}
        case TimestampShape():
            return {"type": "string", "format": "date-time"}
        case _:
            return leaf_schema(shape)  # type: ignore[arg-type]  # all others have a case of their own


def _default(cls: type, field: Field) -> Schema:
    owner = next((base for base in cls.__mro__ if base in BLOCK_DEFAULTS), cls)
    default = BLOCK_DEFAULTS.get(owner, {}).get(field.name, field.default)
    if default is None or default == ():
        return {}
    return {"default": default.name if isinstance(default, IntEnum) else default}


def _stands_alone(cls: type) -> bool:
    return all(field.is_optional for field in fields_of(cls))


@cache
def _has_references(shape: Shape) -> bool:
    """Return whether a shape contains a reference, which is stored as a handle."""
    seen: set[Shape] = set()
    waiting = [shape]
    while waiting:
        one = waiting.pop()
        if one in seen:
            continue
        seen.add(one)
        if isinstance(one, Spelled) and isinstance(one.detail, ReferenceField):
            return True
        waiting.extend(_inner(one))
    return False


def _inner(shape: Shape) -> Iterator[Shape]:
    match shape:
        case TableShape(of=of) if of is not ExtraAttributes:
            yield from (field.shape for field in fields_of(of))
        case OneOf(members=members):
            yield from (field.shape for cls in members for field in fields_of(cls))
        case Vector(of=of) | MapOf(of=of):
            yield of
        case _:
            pass
