"""The reader of resources accepts what the published schemas accept, but for rules that have names, and no more.

Manifests with every field and every kind are built from the published schemas, then parts are removed, added, renamed and
given other types.
"""

import json
import re
from collections.abc import Iterator, Mapping
from copy import deepcopy
from functools import cache
from typing import Any

import pytest
from odf_testing.published_schemas import (
    accepts,
    examples,
    needs_published_schemas,
    published_schemas,
)

from odf_common.codec.json_schema import Schema
from odf_common.errors import InvalidInput
from odf_common.resources.registry import CORE_TYPES, TASK, ResourceType, Types
from odf_common.resources.resource_manifests import InvalidManifests, Problem, WrittenResource, manifests_of
from odf_common.resources.resource_schemas import resource_schemas

pytestmark = needs_published_schemas
TYPES = [kind for kind in CORE_TYPES if kind is not TASK]
CANONICAL = "sink-webhook-dataset-events/webhook-target-canonical.yaml"
SWAPPED = "the scale 19 is larger than the precision 6"
REFUSED = {
    CANONICAL: ("UnknownType", "unknown type"),  # a stored resource whose type is lost
    "sink-webhook-dataset-events/dataset.yaml": ("SchemaViolation", SWAPPED),
    "source-polling-url/dataset.yaml": ("SchemaViolation", SWAPPED),
    "source-polling-url/source.yaml": ("SchemaViolation", SWAPPED),
}
# Rules beyond the published schemas: a part of the message of each.
GRAMMARS = {
    "names": "is not a name; expected letters",
    "references": "expected (TYPE|\\[.*:\\]|SecretSet)|expected an id, a DID or a name|expected the id, did or name",
    "selectors": "is not a selector|the node knows no type|expected a name in which % matches|has an account",
    "times of schedules": "is not a schedule",
    "filters": "filter|unknown type of event|unknown field|expected an object|expected a list|expected true",
    "dates, durations, sizes": "expected a (duration|size in bytes)|expected an RFC 3339",
    "addresses": "expected an (email )?address",
    "ids": "is not the id of a resource|expected did:odf|multibase|base16",
    "hashes": "multihash|hash",
    "limits of integers": "is not between|expected an integer from",
    "encodings of secrets": "unknown encoding",
    "values of known labels": "expected one of Root, Derivative",
    "keys of labels": "does not name a type|is not the URI of a type|is the same key",
    "no null": "null is no value",
    "digits of decimals": "is larger than the precision",
    "base64": "expected base64",
    "kinds with required fields do not stand alone": "is missing",
}
TEXTS = {
    "resource-id": "0b9c1a52-5f0e-4d53-9a3e-6f1b2b7a9d10",
    "account-id": "did:odf:fed015c49de98efd1222f3dcf3e169d2340c97070c4e75b7ca407fd74ba4bc3e41c37",
    "dataset-id": "did:odf:fed015c49de98efd1222f3dcf3e169d2340c97070c4e75b7ca407fd74ba4bc3e41c37",
    "multihash": "f1620ae7551f01917a286daf2a6423d94b1fed7f0bc9fb0ff518369f4803aabb9c400",
    "date-time": "2026-03-01T12:00:00Z",
    "duration": "1h30m",
    "byte-size": "10Gi",
    "email": "alice@example.com",
    "uri": "https://example.com/x",
    "flatbuffers": "AAAA",
}
BY_KEY = {"cron": "@daily", "events": "dataset.created", "contentEncoding": "jwe"}
INTEGERS = {"precision": 10, "scale": 2}
LISTED: dict[str, list[Any]] = {
    "auth/v1alpha1/AccountRef": ["alice", {"name": "alice"}],
    "config/v1alpha1/ValueRef": ["SecretSet:x#y", {"type": "VariableSet", "name": "x", "path": "y"}],
    "storage/v1alpha1/PersistentVolumeRef": ["v", {"name": "v", "account": "alice"}],
    "resource/v1alpha1/ResourceSelector": ["Dataset:%", {"type": "Dataset", "labels": {"env": "prod"}}],
    "dataset/v1alpha1/DatasetSelector": ["x.%", {"name": "x.%", "kind": "Root", "account": "alice"}],
    "resource/v1alpha1/LabelFilter": [{"env": "prod"}],
    "event/v1alpha1/EventFilter": [{"type": "dataset.created"}],
    "resource/v1alpha1/ResourceLabels": [{"env": "prod", "datasetKind": "Root"}],
    "resource/v1alpha1/ResourceAnnotations": [{"note": ["x"]}],
    "data/v1alpha1/ExtraAttributes": [{"example.com/x": 1}],
}
TARGETS = {"source": "Source", "target": "WebhookTarget"}
OTHERS: tuple[object, ...] = (None, True, 1, -1, 1.5, "x", "", [], {}, ["x"], {"x": "y"})


class Samples:
    """Values that a published schema accepts: one with every field, and one for each other choice of a part."""

    def __init__(self) -> None:
        self.schemas = published_schemas()
        self.within: list[str] = []

    def of(self, schema: Schema, key: str, defs: Mapping[str, Schema]) -> list[Any]:
        if "$ref" in schema:
            return self._referred(schema["$ref"], key, defs)
        if "allOf" in schema:
            return [self._merged(parts) for parts in self._all(schema["allOf"], key, defs)]
        if "oneOf" in schema:
            return [one for choice in schema["oneOf"] for one in self._choice(choice, key, defs)]
        if "const" in schema:
            return [schema["const"]]
        if "enum" in schema:
            return list(schema["enum"])
        if "properties" in schema:
            return self._object(schema["properties"], defs)
        if "patternProperties" in schema:
            return [{"x": one} for one in self.of(schema["patternProperties"][".*"], "", defs)]
        if schema.get("type") == "array":
            return [[one] for one in self.of(schema["items"], key, defs)]
        return [self._scalar(schema, key)]

    def _scalar(self, schema: Schema, key: str) -> Any:
        match schema.get("type"):
            case "integer":
                return INTEGERS.get(key, 7)
            case "boolean":
                return True
            case "string":
                return BY_KEY.get(key) or TEXTS.get(schema.get("format", ""), "x")
            case "object":
                return {}
            case _:
                return {"any": ["value"]}

    def _choice(self, choice: Schema, key: str, defs: Mapping[str, Schema]) -> list[Any]:
        if choice.get("enum"):
            return [one for one in choice["enum"] if "required" not in defs[one] or not defs[one]["required"]]
        return self.of(choice, key, defs)

    def _referred(self, ref: str, key: str, defs: Mapping[str, Schema]) -> list[Any]:
        if ref.startswith("#"):
            return self.of(defs[ref.rpartition("/")[2]], key, defs)
        name = ref.partition("/schemas/")[2]
        if name == "resource/v1alpha1/ResourceRef":
            kind = TARGETS.get(key, "Dataset")
            return [f"{kind}:x", {"type": kind, "name": "x", "account": {"name": "alice"}}]
        if name in LISTED:
            return LISTED[name]
        if name in self.within:
            return ["String" if name.endswith("Type") else {"name": "x", "type": "String"}]
        self.within.append(name)
        try:
            return self.of(self.schemas[ref], key, self.schemas[ref].get("$defs", {}))
        finally:
            self.within.pop()

    def _all(self, parts: list[Schema], key: str, defs: Mapping[str, Schema]) -> Iterator[list[Any]]:
        each = [self.of(part, key, defs) for part in parts]
        for n in range(max(map(len, each))):
            yield [options[min(n, len(options) - 1)] for options in each]

    def _merged(self, parts: list[Any]) -> Any:
        return {key: value for part in parts for key, value in part.items()}

    def _object(self, properties: Mapping[str, Schema], defs: Mapping[str, Schema]) -> list[Any]:
        options = {key: self.of(value, key, defs) for key, value in properties.items()}
        former = [
            key for key, value in properties.items() if value.get("deprecated") and "schema" in properties
        ]
        full = {key: values[0] for key, values in options.items() if key not in former}
        others = [
            {**full, key: one} for key, values in options.items() if key not in former for one in values[1:]
        ]
        without = {key: value for key, value in full.items() if key != "schema"}
        return [full, *others, *({**without, key: options[key][0]} for key in former)]


@cache
def samples_of(kind: ResourceType) -> list[Any]:
    return Samples().of(published_schemas()[str(kind.uri)], "", {})


@cache
def published(kind: ResourceType) -> Any:
    return accepts(published_schemas(), str(kind.uri))


def problems_of(plain: Any) -> tuple[Problem, ...]:
    try:
        manifests_of([WrittenResource(plain=plain, number=1)], Types())
    except InvalidManifests as refused:
        return refused.problems
    except InvalidInput as refused:
        return (WrittenResource(plain=plain, number=1).problem(refused),)
    return ()


def test_published_examples_are_accepted_but_for_the_listed_ones() -> None:
    refused = {name: problems_of(plain) for name, plain in examples()}
    found = {name: (problems[0].code, problems[0].message) for name, problems in refused.items() if problems}
    assert len(refused) == 24
    assert found.keys() == REFUSED.keys()
    for name, (code, text) in REFUSED.items():
        assert (found[name][0], text in found[name][1]) == (code, True)


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.short_name)
def test_every_field_and_every_kind_is_accepted(kind: ResourceType) -> None:
    ours = accepts(dict(resource_schemas()), str(kind.uri))
    for plain in samples_of(kind):
        assert published(kind)(plain)
        assert problems_of(plain) == ()
        assert ours(plain)


def mutants(plain: Any, seen: set[str]) -> Iterator[Any]:
    """Yield changes of each part that was not seen in the same surroundings before."""
    for path, value, holder in list(parts(plain)):
        shape = sorted(value) if isinstance(value, dict) else len(value) if isinstance(value, list) else value
        context = json.dumps([path, shape, holder], sort_keys=True)
        if context not in seen:
            seen.add(context)
            for other in changes(value):
                changed = deepcopy(plain)
                target = changed
                for key in path[:-1]:
                    target = target[key]
                target[path[-1]] = other
                yield changed


def parts(
    value: Any, path: tuple[Any, ...] = (), holder: Any = None
) -> Iterator[tuple[tuple[Any, ...], Any, Any]]:
    if path:
        yield path, value, [*holder, holder.get("kind")] if isinstance(holder, dict) else None
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from parts(inner, (*path, key), value)


def changes(value: Any) -> Iterator[Any]:
    yield from (other for other in OTHERS if other != value or type(other) is not type(value))
    if isinstance(value, str):
        yield from {value.lower(), value.upper(), value[:1].lower() + value[1:], value + "x"} - {value}
    if isinstance(value, dict):
        yield {**value, "zzz": 1}
        for key in value:
            without = {name: one for name, one in value.items() if name != key}
            yield without
            yield from (
                {**without, name: value[key]} for name in {key.lower(), key.upper(), key + "x"} - {*value}
            )


def is_a_number_of_bytes(plain: Any) -> bool:
    """Return whether what the published schema refuses is an integer in place of a size."""
    sizes = r'"(?:maxSliceSize|storage)": 1\b'
    return re.search(sizes, json.dumps(plain)) is not None


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.short_name)
def test_both_refuse_the_same_changes_but_for_rules_with_names(kind: ResourceType) -> None:
    seen: set[str] = set()
    looser, stricter, count = [], [], 0
    rules = re.compile("|".join(GRAMMARS.values()))
    ours = accepts(dict(resource_schemas()), str(kind.uri))
    for plain in samples_of(kind):
        for changed in mutants(plain, seen):
            count += 1
            problems, is_valid = problems_of(changed), published(kind)(changed)
            if not problems and not is_valid and not is_a_number_of_bytes(changed):
                looser.append(changed)
            if is_valid and any(not rules.search(problem.message) for problem in problems):
                stricter.append((problems, changed))
            if not problems:
                assert ours(changed), changed
    assert count > 100
    assert looser == []
    assert stricter == []
