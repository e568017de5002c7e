"""JSON Schemas (draft 2020-12) of manifests, generated from the same model as the codecs.

A schema accepts the same texts as `codec/manifests.py`: manifests, and events and blocks without a manifest; tags in
three spellings, bare tags, null for absent fields, and the meaning that `schema` had before 0.37. It cannot distinguish
1.0 from 1. Of hashes and times it checks only the syntax; their values are checked by the decoder.
"""

import inspect
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from odf_common.codec.flatbuffers import VERSIONS
from odf_common.codec.model_schema import (
    EVENTS,
    Boolean,
    Bytes,
    EnumShape,
    Field,
    Integer,
    Leaf,
    MapOf,
    OneOf,
    Shape,
    Spelled,
    TableShape,
    Text,
    TimestampShape,
    Vector,
    fields_of,
    union_with,
)
from odf_common.codec.plain_values import camel, formerly_schema, tag_of, tag_spellings
from odf_common.hashing.multibase import FINAL, MAX_MULTIBASE_CHARACTERS
from odf_common.hashing.multihash import Multihash
from odf_common.identity.dataset_refs import PREFIX, DatasetId
from odf_common.metadata.events import DatasetSnapshot, MetadataBlock
from odf_common.metadata.scalars import RFC3339_TIME, ExtraAttributes

Schema = dict[str, Any]

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_NULL: Final[Schema] = {"type": "null"}
# Base16 has pairs of digits; other bases are matched by their letter only.
_MULTIBASE: Final = f"(?:[fF](?:[0-9a-fA-F]{{2}})+|[{''.join(FINAL).replace('fF', '')}][0-9A-Za-z+/_=-]+)"
_BASE64: Final = "^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"
_MANIFESTS: Final = ("DatasetSnapshot", "MetadataEvent", "MetadataBlock")
_EVENTS: Final[Mapping[str, type]] = {tag_of(member, EVENTS): member for member in EVENTS.members}
NAMES: Final = (*_MANIFESTS, *_EVENTS)


def schema_of(name: str) -> Schema:
    """Return the JSON Schema for a kind of manifest or for a single event; `name` is one of `NAMES`."""
    match name:
        case "DatasetSnapshot":
            content: Shape = TableShape(DatasetSnapshot)
            accepted = [_manifest(name, (1,), content)]
        case "MetadataBlock":
            content = TableShape(MetadataBlock)
            accepted = [_manifest(name, VERSIONS, content), _shape(content)]
        case "MetadataEvent":
            content = EVENTS
            accepted = [_manifest(name, (1,), content), _shape(content)]
        case _:
            content = TableShape(_EVENTS[name])
            accepted = [_manifest("MetadataEvent", (1,), content), *_in_union((_EVENTS[name],))]
    body = accepted[0] if len(accepted) == 1 else {"anyOf": accepted}
    return {
        "$schema": DIALECT,
        "title": name,
        "description": about(name),
        **body,
        "$defs": _definitions(content),
    }


def text_of(name: str) -> str:
    """Return a schema as the content of its file."""
    return schema_text(schema_of(name))


def schema_text(schema: Schema) -> str:
    """Return the content of a schema's file: indented JSON."""
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def about(name: str) -> str:
    """Return a sentence that says what the schema describes."""
    match name:
        case "DatasetSnapshot":
            return first_paragraph(DatasetSnapshot)
        case "MetadataBlock":
            return first_paragraph(MetadataBlock)
        case "MetadataEvent":
            return "The content of a block: one of the metadata events."
        case _:
            return first_paragraph(_EVENTS[name])


def _manifest(kind: str, versions: tuple[int, ...], content: Shape) -> Schema:
    shape = _shape(content)
    if isinstance(content, TableShape) and union_with(content.of):
        shape = {"anyOf": _in_union((content.of,))}
    properties = {"kind": {"const": kind}, "version": {"enum": list(versions)}, "content": shape}
    return closed_object(properties, properties)


def closed_object(properties: Mapping[str, Any], required: Iterable[str]) -> Schema:
    """Return the schema of an object that has no other properties."""
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(required),
        "additionalProperties": False,
    }


def _definitions(content: Shape) -> dict[str, Schema]:
    """Return the definitions of all tables that a shape refers to, by name."""
    tables: dict[str, type] = {}
    waiting = list(_classes(content))
    while waiting:
        cls = waiting.pop()
        if cls.__name__ not in tables:
            tables[cls.__name__] = cls
            waiting.extend(inner for field in _fields(cls) for inner in _classes(field.shape))
    return {name: _table(tables[name]) for name in sorted(tables)}


def _classes(shape: Shape) -> Iterator[type]:
    match shape:
        case TableShape(of=of):
            yield of
        case OneOf(members=members):
            yield from members
        case Vector(of=inner):
            yield from _classes(inner)
        case _:
            pass


def _fields(cls: type) -> tuple[Field, ...]:
    return () if cls is ExtraAttributes else fields_of(cls)


def _table(cls: type) -> Schema:
    described: Schema = {"title": cls.__name__, "description": first_paragraph(cls)}
    if cls is ExtraAttributes:
        return described | {"type": "object"}
    union = union_with(cls)
    properties = {"kind": _tags([tag_of(cls, union)])} if union else {}
    properties |= {camel(field.name): _field(cls, field) for field in fields_of(cls)}
    optional = {camel(field.name) for field in fields_of(cls) if field.is_optional}
    required = [key for key in properties if key not in optional]
    return described | closed_object(properties, required) | _not_said_twice(cls)


def _field(cls: type, field: Field) -> Schema:
    accepted = [_shape(field.shape)]
    if field.name == "schema" and (former := formerly_schema(cls)):
        accepted.append(_shape(former.shape))
    if field.is_optional:
        return _or_null(accepted)
    return accepted[0] if len(accepted) == 1 else {"anyOf": accepted}


def _not_said_twice(cls: type) -> Schema:
    """Return a schema that refuses `schema` in its meaning before 0.37 together with the key that has replaced it."""
    former = formerly_schema(cls)
    if former is None:
        return {}
    kind = {"type": _shape(former.shape)["type"]}
    both = ("schema", camel(former.name))
    return {"not": {"properties": dict.fromkeys(both, kind), "required": list(both)}}


def _or_null(accepted: list[Schema]) -> Schema:
    match accepted:
        case [{"type": kind, **others}] if "enum" not in others:
            return {"type": [kind, "null"], **others}
        case [{"anyOf": members}]:
            return {"anyOf": [*members, _NULL]}
        case _:
            return {"anyOf": [*accepted, _NULL]}


def _shape(shape: Shape) -> Schema:
    match shape:
        case EnumShape(of=of):
            return _tags(choice.name for choice in of)
        case TableShape(of=of):
            return {"$ref": f"#/$defs/{of.__name__}"}
        case OneOf(members=members):
            return {"anyOf": _in_union(members)}
        case Vector(of=inner):
            return {"type": "array", "items": _shape(inner)}
        case MapOf():
            raise TypeError(shape)  # only in resources
        case _:
            return leaf_schema(shape)


def leaf_schema(shape: Leaf) -> Schema:
    """Return the schema of a scalar that events may have."""
    match shape:
        case Integer(width=width):
            bits = 8 * width.size
            low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if width.signed else (0, (1 << bits) - 1)
            return {"type": "integer", "minimum": low, "maximum": high}
        case Boolean():
            return {"type": "boolean"}
        case Text():
            return {"type": "string"}
        case Bytes(of=of):
            return _octets(of)
        case TimestampShape():
            # No `format`: its checkers refuse some times that RFC 3339 and the decoder allow.
            return {"type": "string", "pattern": f"^{RFC3339_TIME.pattern}$"}
        case Spelled():
            raise TypeError(shape)  # only in resources


def _octets(of: type) -> Schema:
    if of is Multihash:
        return {"type": "string", "pattern": f"^{_MULTIBASE}$", "maxLength": MAX_MULTIBASE_CHARACTERS}
    if of is DatasetId:
        pattern = f"^{PREFIX}{_MULTIBASE}$"
        return {"type": "string", "pattern": pattern, "maxLength": len(PREFIX) + MAX_MULTIBASE_CHARACTERS}
    return {"type": "string", "contentEncoding": "base64", "pattern": _BASE64}


def _in_union(members: Iterable[type]) -> list[Schema]:
    """Return the schemas for a union: each member, and bare tags for members without required fields."""
    members = tuple(members)
    bare = [
        tag_of(member, union_with(member))
        for member in members
        if all(field.is_optional for field in fields_of(member))
    ]
    return [*(_shape(TableShape(member)) for member in members), *([_tags(bare)] if bare else [])]


def _tags(tags: Iterable[str]) -> Schema:
    return {"type": "string", "enum": list(dict.fromkeys(way for tag in tags for way in tag_spellings(tag)))}


def first_paragraph(cls: type) -> str:
    """Return the first paragraph of a docstring as one line."""
    return (inspect.getdoc(cls) or "").split("\n\n")[0].replace("\n", " ")
