"""Types of resources that are registered while the node runs, by their JSON Schemas (RFC-018).

A batch has documents of JSON Schema 2020-12, each with the URI of a type as `$id`. One that describes manifests, with
`headers` and `spec`, is a type of resources; others are parts, and schemas of labels. References lead to documents of
the batch, of earlier ones or of the specification: nothing is fetched. Patterns are matched in linear time.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import jsonschema_rs

from odf_common.codec.json_schema import DIALECT, Schema
from odf_common.codec.yaml_syntax import child
from odf_common.errors import InvalidInput, count_of
from odf_common.resources.registry import CORE_TYPES, ResourceType, Types
from odf_common.resources.resource_schemas import resource_schemas
from odf_common.resources.scalar_formats import CORE_BASE, ShortTypeName, TypeUri
from odf_common.resources.spec_values import EXTENSIONS
from odf_coordinator.resources.store import RegisteredType

MAX_DOCUMENTS: Final = 100  # of a batch
MAX_SCHEMA_DEPTH: Final = 64  # of a document
MAX_STEPS: Final = 10_000  # of a validator at one place of a value
MAX_PATTERN_BYTES: Final = 1 << 20  # of memory for a compiled pattern
_DIALECTS: Final = (DIALECT, f"{CORE_BASE}/metaschemas/v1alpha1/ResourceInput")
# Keywords whose schemas are applied to the same value.
_IN_PLACE: Final = ("allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas")


class InvalidSchema(InvalidInput):
    """The JSON Schema cannot be registered."""

    ADVICE = "`odf schema Source` prints an example"


@dataclass(frozen=True, slots=True)
class _Documents:
    """All schemas that a node knows, by `$id`."""

    by_id: Mapping[str, Schema]

    def validator(self, uri: str) -> jsonschema_rs.Draft202012Validator:
        """Return a validator of a schema or a part of it; raises `InvalidSchema`."""
        try:
            registry = jsonschema_rs.Registry(
                list(self.by_id.items()), draft=jsonschema_rs.Draft202012, retriever=_refuse_remote
            )
            return jsonschema_rs.Draft202012Validator(
                {"$ref": uri},
                registry=registry,
                retriever=_refuse_remote,
                pattern_options=jsonschema_rs.RegexOptions(
                    size_limit=MAX_PATTERN_BYTES, dfa_size_limit=MAX_PATTERN_BYTES
                ),
            )
        except (jsonschema_rs.ValidationError, ValueError, jsonschema_rs.ReferencingError) as error:
            raise InvalidSchema(where=uri, text=_first_line(error)) from error


def _refuse_remote(uri: str) -> Schema:
    raise ValueError(f"{uri} is neither in the batch nor known to the node; schemas are not fetched")


def read_batch(
    documents: Sequence[Any], known: Sequence[RegisteredType], now_ms: int
) -> tuple[RegisteredType, ...]:
    """Return the types of a batch; raises `InvalidSchema`."""
    if not 1 <= len(documents) <= MAX_DOCUMENTS:
        raise InvalidSchema(text=f"expected 1 to {MAX_DOCUMENTS} schemas, got {len(documents)}")
    batch = {str(_uri(document)): _require_schema(document) for document in documents}
    if len(batch) < len(documents):
        raise InvalidSchema(text="two schemas of the batch have the same `$id`")
    every = _Documents({**resource_schemas(), **_known_documents(known), **batch})
    for uri in batch:
        _require_bounded(every.by_id, uri)
        every.validator(uri)
    types = tuple(
        RegisteredType(schema=uri, short_name=_short_name(document), schemas={uri: document}, added_ms=now_ms)
        for uri, document in batch.items()
    )
    _require_names(types, known)
    return types


def build_types(registered: Sequence[RegisteredType]) -> Types:
    """Return the types of a node that has registered some."""
    every = _Documents({**resource_schemas(), **_known_documents(registered)})
    return Types(
        [_resource_type(one, every) for one in registered if _is_resource(one.schemas[one.schema])],
        {
            TypeUri.parse(one.schema): _Check(every.validator(one.schema)).label
            for one in registered
            if not _is_resource(one.schemas[one.schema])
        },
    )


def _resource_type(registered: RegisteredType, every: _Documents) -> ResourceType:
    document = registered.schemas[registered.schema]
    return ResourceType(
        uri=TypeUri.parse(registered.schema),
        about=str(document.get("description", "")),
        check=_Check(every.validator(f"{registered.schema}#/properties/spec")).spec,
        short_name=registered.short_name,
    )


@dataclass(frozen=True, slots=True)
class _Check:
    """Finds the errors in values of a schema."""

    validator: jsonschema_rs.Draft202012Validator

    def spec(self, plain: Any, problems: list[InvalidInput]) -> None:
        problems.extend(self._errors(plain, "spec"))

    def label(self, value: Any) -> InvalidInput | None:
        return next(self._errors(value, ""), None)

    def _errors(self, plain: Any, where: str) -> Iterator[InvalidInput]:
        for error in self.validator.iter_errors(plain):
            place = where
            for key in error.instance_path:
                place = child(place, key)
            yield InvalidInput(where=place or None, text=error.message)


def _known_documents(registered: Iterable[RegisteredType]) -> dict[str, Schema]:
    return {uri: document for one in registered for uri, document in one.schemas.items()}


def _uri(document: Any) -> TypeUri:
    if not isinstance(document, Mapping):
        raise InvalidSchema(text="expected a JSON Schema, which is an object")
    try:
        uri = TypeUri.parse(str(document.get("$id", "")))
    except InvalidInput as error:
        raise InvalidSchema(where="$id", text=error.text) from error
    if uri.base in {CORE_BASE, EXTENSIONS}:
        raise InvalidSchema(
            where="$id", text=f"types below {uri.base} belong to the node; use a domain of yours"
        )
    return uri


def _require_schema(document: Any) -> Schema:
    uri = str(document["$id"])
    if document.get("$schema", DIALECT) not in _DIALECTS:
        raise InvalidSchema(where=uri, text=f"expected the dialect {DIALECT}, got {document['$schema']!r}")
    if _depth(document) > MAX_SCHEMA_DEPTH:
        raise InvalidSchema(where=uri, text=f"the schema is nested more than {MAX_SCHEMA_DEPTH} levels deep")
    plain = {**document, "$schema": DIALECT}
    try:
        jsonschema_rs.meta.validate(plain)
    except (jsonschema_rs.ValidationError, ValueError) as error:
        raise InvalidSchema(where=uri, text=_first_line(error)) from error
    if _is_resource(plain) and "spec" not in plain["properties"]:
        raise InvalidSchema(where=uri, text="a type of resources has the property `spec`")
    return plain


def _is_resource(document: Schema) -> bool:
    properties = document.get("properties")
    return isinstance(properties, Mapping) and {"$schema", "headers"} <= properties.keys()


def _short_name(document: Schema) -> str:
    return ShortTypeName.parse(str(document.get("shortName") or document["$id"].rpartition("/")[2]))


def _require_names(types: Iterable[RegisteredType], known: Iterable[RegisteredType]) -> None:
    """Raise `InvalidSchema` if a short name means two types; versions of one type share it."""
    taken = {kind.short_name.lower(): kind.uri.identity for kind in CORE_TYPES}
    for one in (*known, *types):
        identity = TypeUri.parse(one.schema).identity
        if taken.setdefault(one.short_name.lower(), identity) != identity:
            text = f"the short name {one.short_name} belongs to {taken[one.short_name.lower()]}"
            raise InvalidSchema(where=one.schema, text=text, hint="give another one as `shortName`")


def _require_bounded(documents: Mapping[str, Schema], uri: str) -> None:
    """Raise `InvalidSchema` if a value could keep a validator busy for long, or forever, at one place."""
    costs: dict[int, int] = {}

    def cost(schema: Any, document: Schema, within: tuple[int, ...]) -> int:
        if not isinstance(schema, Mapping):
            return 1
        if id(schema) in within:
            raise InvalidSchema(where=uri, text="the schema refers to itself for the same value")
        if id(schema) not in costs:
            inner = [*_subschemas_in_place(schema, document, documents)]
            total = 1 + sum(cost(one, of, (*within, id(schema))) for one, of in inner)
            if total > MAX_STEPS:
                text = f"one value would be checked by more than {count_of(MAX_STEPS, 'schema')}"
                raise InvalidSchema(where=uri, text=text)
            costs[id(schema)] = total
        return costs[id(schema)]

    for schema in _subschemas(documents[uri]):
        cost(schema, documents[uri], ())


def _subschemas_in_place(
    schema: Mapping[str, Any], document: Schema, documents: Mapping[str, Schema]
) -> Iterator[tuple[Any, Schema]]:
    """Yield the schemas that are applied to the same value, with their documents."""
    for key in _IN_PLACE:
        inner = schema.get(key, [])
        if key == "dependentSchemas" and isinstance(inner, Mapping):
            inner = [*inner.values()]
        several = inner if isinstance(inner, list) else [inner]
        yield from ((one, document) for one in several if isinstance(one, Mapping))
    ref = schema.get("$ref")
    if isinstance(ref, str):
        base, _, pointer = ref.partition("#")
        target: Any = documents.get(base, {}) if base else document
        root = target
        for part in filter(None, pointer.split("/")):
            target = (
                target.get(part.replace("~1", "/").replace("~0", "~"), {})
                if isinstance(target, Mapping)
                else {}
            )
        yield target, root


def _subschemas(value: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(value, Mapping):
        yield value
    for inner in value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ():
        yield from _subschemas(inner)


def _depth(value: Any) -> int:
    deepest, waiting = 0, [(value, 1)]
    while waiting:
        one, depth = waiting.pop()
        deepest = max(deepest, depth)
        inner = one.values() if isinstance(one, Mapping) else one if isinstance(one, list) else ()
        waiting += [(part, depth + 1) for part in inner]
    return deepest


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
