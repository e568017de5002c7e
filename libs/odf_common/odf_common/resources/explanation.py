"""Explanations of fields of resources, from the schemas of their types: `odf explain Source.spec.read`.

A path leads through lists and maps to their items. In a part that has several kinds it may name the kind, or a field of
any of them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Self

from odf_common.codec.json_schema import Schema
from odf_common.errors import InvalidInput, nearest
from odf_common.resources.schema_parts import schema_uri

_SYSTEM: Final = {
    "headers": {"$ref": schema_uri("resource", "ResourceHeaders"), "description": "Identity and ownership."},
    "status": {
        "$ref": schema_uri("resource", "ResourceStatus"),
        "description": "Observed state.",
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldExplanation:
    """The facts that a schema has on a field."""

    name: str
    """The key, or the path for the field that was asked for."""
    type: str
    about: str
    is_required: bool = False
    default: object = None
    """None: it has none."""
    choices: tuple[str, ...] = ()
    """Allowed strings."""
    kinds: tuple[str, ...] = ()
    """Kinds that have the field, if its part has others too."""
    fields: tuple["FieldExplanation", ...] = ()
    """The fields below."""

    def plain(self) -> dict[str, object]:
        """Return the object that is printed as JSON, without what is empty."""
        plain = {
            "name": self.name,
            "type": self.type,
            "required": self.is_required,
            "default": self.default,
            "choices": [*self.choices],
            "kinds": [*self.kinds],
            "about": self.about,
            "fields": [field.plain() for field in self.fields],
        }
        return {key: value for key, value in plain.items() if value not in (None, [])}


def explain_field(schemas: Mapping[str, Schema], type: str, path: Sequence[str]) -> FieldExplanation:
    """Return the explanation of a path in resources of a type; raises `InvalidInput` for one that does not exist.

    `schemas` has them by `$id`, `type` is that of the type.
    """
    root = schemas[type]
    properties = {**root.get("properties", {}), **_SYSTEM}
    node = _Node(schemas, {**root, "properties": properties}, root)
    name, field = type.rpartition("/")[2], _Field(node, is_required=True, kinds=())
    for key in path:
        field = _step(field.node, key, name)
        name += f".{key}"
    return field.explanation(name, with_fields=True)


def explain_part(schemas: Mapping[str, Schema], uri: str) -> tuple[FieldExplanation, ...]:
    """Return the explanation of a schema; of each kind, if it has several."""
    part = _Node(schemas, {"$ref": uri}, {})
    kinds = [(tag, member) for tag, member in part.target().members() if tag]
    return tuple(
        _Field(node, is_required=False, kinds=()).explanation(name, with_fields=True)
        for name, node in kinds or [(_title(schemas[uri]), part)]
    )


class _Field(NamedTuple):
    """A schema where it is used."""

    node: "_Node"
    is_required: bool
    kinds: tuple[str, ...]

    def explanation(self, name: str, *, with_fields: bool = False) -> FieldExplanation:
        use, target = self.node.use, self.node.target()
        below = target.item()
        return FieldExplanation(
            name=name,
            type=self.node.type_text(),
            about=use.get("description") or target.use.get("description", ""),
            is_required=self.is_required,
            default=use.get("default"),
            choices=tuple(str(choice) for choice in below.target().choices()),
            kinds=self.kinds,
            fields=tuple(one.explanation(key) for key, one in below.fields()) if with_fields else (),
        )


@dataclass(frozen=True, slots=True)
class _Node:
    """A schema, in the document that it is part of."""

    schemas: Mapping[str, Schema]
    use: Schema
    document: Schema

    def target(self) -> Self:
        """Return the schema that this one refers to; itself if it refers to none."""
        ref = self.use.get("$ref")
        if not isinstance(ref, str):
            return self
        if not ref.startswith("#"):
            document = self.schemas.get(ref, {})
            return type(self)(self.schemas, document, document).target()
        found: Any = self.document
        for part in ref.split("/")[1:]:
            found = found.get(part, {})
        return self.at(found).target()

    def at(self, schema: Any) -> Self:
        """Return a part of the same document."""
        return type(self)(self.schemas, schema if isinstance(schema, dict) else {}, self.document)

    def item(self) -> Self:
        """Return the schema of what lists and maps contain, however deep; itself for others."""
        target = self.target()
        if "items" in target.use:
            return target.at(target.use["items"]).item()
        if (
            isinstance(values := target.use.get("additionalProperties"), dict)
            and "properties" not in target.use
        ):
            return target.at(values).item()
        return self

    def choices(self) -> list[object]:
        """Return the allowed values."""
        if "const" in self.use:
            return [self.use["const"]]
        members = [member for _, member in self.members()]
        kinds = [member.use["properties"].get("kind", {}).get("const") for member in members]
        return list(dict.fromkeys(filter(None, kinds))) or list(self.use.get("enum", ()))

    def members(self) -> Iterator[tuple[str, Self]]:
        """Yield the kinds of a union and their schemas; without a kind: the object in place of a string."""
        for key in ("oneOf", "anyOf"):
            for choice in self.use.get(key, ()):
                member = self.at(choice).target()
                properties = member.use.get("properties", {})
                if properties:
                    tags = [properties.get(name, {}).get("const", "") for name in ("$schema", "kind")]
                    yield next((tag for tag in tags if tag), "").rpartition("/")[2], member

    def fields(self) -> Iterator[tuple[str, _Field]]:
        """Yield the fields of an object, or of all kinds of a union."""
        target = self.target()
        found: dict[str, list[tuple[str, _Field]]] = {}
        members = list(target.members())
        for tag, member in members or [("", target)]:
            for key, value in member.use.get("properties", {}).items():
                one = _Field(member.at(value), key in member.use.get("required", ()), ())
                found.setdefault(key, []).append((tag, one))
        for key, uses in found.items():
            tags = tuple(tag for tag, _ in uses if tag)
            is_kind = key == "kind" and bool(tags)
            node = uses[0][1].node
            if is_kind:
                node = target.at({"enum": target.choices(), "description": "Kind of the part."})
            elif key == "$schema" and tags:
                choices = [one.node.use["const"] for _, one in uses]
                node = target.at({"enum": choices, "description": "URI of the kind."})
            is_partial = len(uses) < len(members) and bool(tags)
            required = is_kind or (not is_partial and all(one.is_required for _, one in uses))
            yield key, _Field(node, required, tags if is_partial else ())

    def type_text(self) -> str:
        """Return the type for people, such as `list of string`."""
        target = self.target()
        schema = target.use
        if "items" in schema:
            return f"list of {target.at(schema['items']).type_text()}"
        if isinstance(values := schema.get("additionalProperties"), dict) and "properties" not in schema:
            return f"map of {target.at(values).type_text()}"
        if "oneOf" in schema or "anyOf" in schema:
            named = _title(schema)
            return (
                f"{named} or string"
                if any(one.get("type") == "string" for one in schema.get("oneOf", ()))
                else named
            )
        if "enum" in schema or "const" in schema:
            return "string"
        if "properties" in schema and "$id" in schema:
            return _title(schema)
        kind = schema.get("type", "any")
        return str(schema.get("format") or (" or ".join(kind) if isinstance(kind, list) else kind))


def _title(schema: Schema) -> str:
    """Return the name of a schema, whether it is as written or as stored."""
    return str(schema.get("canonicalType") or schema.get("$id", "object")).rpartition("/")[2]


def _step(node: _Node, key: str, path: str) -> _Field:
    below = node.item().target()
    fields = dict(below.fields())
    if key in fields:
        return fields[key]
    members = {tag: member for tag, member in below.members() if tag}
    if key in members:
        return _Field(members[key], is_required=False, kinds=())
    names = [*fields, *members]
    near = nearest(key, names)
    hint = (
        f"did you mean {near}?"
        if near
        else f"choose from {', '.join(names)}"
        if names
        else "it has no fields"
    )
    raise InvalidInput(text=f"{path} has no field {key!r}; {hint}")
