"""Our schemas of resources say what the published ones say, field by field, but for the differences listed here."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from odf_testing.published_schemas import accepts, examples, needs_published_schemas, published_schemas

from odf_common.codec.json_schema import Schema
from odf_common.resources.resource_schemas import resource_schemas
from odf_common.resources.scalar_formats import CORE_BASE

pytestmark = needs_published_schemas
EXTENSIONS = "https://node.odf.example/schemas"
# Published schemas of other subjects, and the words of the reason.
NOT_OURS = {
    "metaschemas/": "dialects",
    "dataset/v1alpha1/MetadataBlock": "blocks",
    "dataset/v1alpha1/Watermark": "blocks",
    "data/v1alpha1/OperationType": "records",
    "legacy/v0/DatasetSnapshot": "manifests before resources",
    "legacy/v0/Manifest": "manifests before resources",
    **dict.fromkeys(
        [
            *(f"dataset/v1alpha1/{name}" for name in ("AddData", "ExecuteTransform", "Seed", "SetTransform")),
            *(f"dataset/v1alpha1/{name}" for name in ("SetVocab", "SetAttachments", "SetInfo", "SetLicense")),
            "dataset/v1alpha1/SetDataSchema",
            *(f"legacy/v0/{name}" for name in ("SetPollingSource", "AddPushSource")),
            *(f"legacy/v0/{name}" for name in ("DisablePushSource", "DisablePollingSource")),
        ],
        "members of MetadataEvent, which has them with their kind",
    ),
}
ADDED = {
    "config/v1alpha1/ValueHandles": "values of a source's config are stored as handles",
    "source/v1alpha1/OverflowPolicy": "written in place there",
    **dict.fromkeys(
        (
            "resource/v1alpha1/ReconciliationError",
            "resource/v1alpha1/DeletionBlocked",
            "resource/v1alpha1/Notice",
            "source/v1alpha1/SourceActivity",
            "dataset/v1alpha1/ChainState",
            "flow/v1alpha1/FlowActivity",
            "storage/v1alpha1/VolumeUsage",
            "dataset/v1alpha1/ProjectionState",
        ),
        "conditions of this node",
    ),
}
BYTES = "an integer is a number of bytes"
UNRESOLVED = "a handle without a target has no id, and perhaps no account"
TAG = "kinds of this node, under its domain"
# Reasons by schema and path, with what is published and what is ours.
DIFFERENCES: Mapping[str, Mapping[str, str]] = {
    "auth/v1alpha1/AccountHandle": {},
    "config/v1alpha1/Secret": {"contentEncoding": "encodings that the node accepts"},
    "config/v1alpha1/ValueHandle": {
        "account ref": UNRESOLVED,
        "account required": UNRESOLVED,
        "id required": UNRESOLVED,
        "name required": "a handle may have only a DID or an id",
    },
    "resource/v1alpha1/ResourceHandle": {
        "account ref": UNRESOLVED,
        "account required": UNRESOLVED,
        "id required": UNRESOLVED,
        "name required": "a handle may have only a DID or an id",
    },
    "resource/v1alpha1/ResourceHeaders": {"ownerReferences": "owners of resources of controllers"},
    "resource/v1alpha1/ResourceConditions": {"map": "conditions have one shape"},
    "sink/v1alpha1/WebhookTargetStatus": dict.fromkeys(
        ("code", "message", "observedGeneration", "lastTransitionTime", "retryAt", "details"),
        "conditions have one shape",
    ),
    "dataset/v1alpha1/DatasetSpec": {"volume required": "absent: the volume of the node"},
    "dataset/v1alpha1/CompactionParams": {"maxSliceSize type": BYTES},
    "storage/v1alpha1/VolumeCapacity": {"storage type": BYTES},
    "source/v1alpha1/SourceSpec": {"config ref": "values of the config are stored as handles"},
    "source/v1alpha1/Ingress": {"Ext": TAG},
    "source/v1alpha1/IngressBuffer": {
        "Memory.bufferSize default": "a buffer has a size",
        "Memory.overflowPolicy default": "a buffer has a policy",
    },
    "storage/v1alpha1/PersistentVolumeSpec": {"Ext": TAG},
    "storage/v1alpha1/PersistentVolumeSpecInput": {"Ext": TAG},
    "flow/v1alpha1/TaskSpec": {"Ext": TAG},
    "flow/v1alpha1/TaskSpecInput": {"Ext": TAG},
    "flow/v1alpha1/Task": {"spec required": "tasks are made by the node, with a spec"},
    "data/v1alpha1/DataType": {"bare": "kinds with required fields cannot stand alone"},
    "source/v1alpha1/EventTimeSource": {"bare": "kinds with required fields cannot stand alone"},
}


def short(uri: str) -> str:
    return uri.removeprefix(CORE_BASE + "/")


class Facts:
    """What a schema says, by path: `required`, `type`, `ref`, `enum`, `default`, the tags of a union."""

    def __init__(self, schemas: Mapping[str, Schema]) -> None:
        self.schemas = schemas
        self.defs: Mapping[str, Schema] = {}

    def of(self, uri: str) -> dict[str, Any]:
        schema = self.schemas[uri]
        return dict(self._document(schema, schema.get("$defs", {})))

    def _document(self, schema: Schema, defs: Mapping[str, Schema]) -> Iterator[tuple[str, Any]]:
        self.defs = defs
        if "oneOf" not in schema:
            yield from self._content(schema, "")
            return
        for choice in schema["oneOf"]:
            merged = self._merged(choice, defs)
            if merged.get("type") == "string":
                yield "bare", tuple(sorted(merged.get("enum", ("any",))))
                continue
            kind = merged["properties"].get("kind", {})
            tag = kind.get("const", "")
            if tag:
                merged["properties"] = {k: v for k, v in merged["properties"].items() if k != "kind"}
                yield tag, "kind"
            if tag != "Ext":
                yield from self._content(merged, tag + "." if tag else "")

    def _merged(self, choice: Schema, defs: Mapping[str, Schema]) -> Schema:
        """Return one schema for what refers to others, or has several that all hold."""
        if "$ref" in choice:
            name = choice["$ref"]
            target = defs[name.rsplit("/")[-1]] if name.startswith("#") else self.schemas[name]
            return {**target}
        if "allOf" in choice:
            parts = [self._merged(part, defs) for part in choice["allOf"]]
            merged: Schema = {"properties": {}, "required": []}
            for part in parts:
                merged["properties"] = {**merged["properties"], **part.get("properties", {})}
                merged["required"] = [*merged["required"], *part.get("required", ())]
            return {**merged, "type": "object"}
        return choice

    def _content(self, schema: Schema, where: str) -> Iterator[tuple[str, Any]]:
        if "enum" in schema:
            yield where + "enum", tuple(sorted(schema["enum"]))
        inner = schema.get("patternProperties", {}) or schema.get("additionalProperties", False)
        if inner == {".*": {}}:
            inner = True
        elif "patternProperties" in schema:
            inner = inner.get(".*") or {"keys": [key.replace("\\/", "/") for key in inner]}
        if "properties" not in schema and "$ref" not in schema and schema.get("type") == "object":
            yield where + "map", self._target(inner) if isinstance(inner, dict) else inner
        for key, value in schema.get("properties", {}).items():
            yield where + key, "field"
            if key in schema.get("required", ()):
                yield f"{where}{key} required", True
            yield from self._field(value, where + key)

    def _field(self, value: Schema, path: str) -> Iterator[tuple[str, Any]]:
        if "default" in value:
            yield path + " default", value["default"]
        if value.get("deprecated"):
            yield path + " deprecated", True
        depth = ""
        while value.get("type") == "array":
            value, depth = value["items"], depth + "[]"
        target = self._target(value)
        if "enum" in target:
            yield path + " enum", tuple(sorted(target["enum"]))
        elif "$ref" in target:
            yield path + " ref", depth + short(target["$ref"])
        elif "const" in target:
            yield path + " const", target["const"]
        elif "anyOf" in target:
            yield path + " ref", "several"
        else:
            yield path + " type", (depth, target.get("type", "any"))

    def _target(self, value: Schema) -> Schema:
        """Return an enum in place of a reference to it; other references as they are."""
        ref = value.get("$ref", "")
        target = self.defs[ref.rpartition("/")[2]] if ref.startswith("#") else self.schemas.get(ref, value)
        if target is not value and "enum" in target:
            return {"enum": target["enum"]}
        return {"$ref": value["$ref"]} if "$ref" in value else value


def ours() -> dict[str, Schema]:
    return {uri: schema for uri, schema in resource_schemas().items() if uri.startswith(CORE_BASE)}


def test_every_published_schema_of_resources_is_one_of_ours() -> None:
    published = {short(uri) for uri in published_schemas()}
    missing = {name for name in published if CORE_BASE + "/" + name not in ours()}
    assert {name for name in missing if not any(name.startswith(start) for start in NOT_OURS)} == set()
    assert {short(uri) for uri in ours()} - published == set(ADDED)


@pytest.mark.parametrize("uri", [uri for uri in resource_schemas() if uri.startswith(CORE_BASE)], ids=short)
def test_fields_marks_defaults_enums_and_tags_are_as_published(uri: str) -> None:
    if uri not in published_schemas():
        assert short(uri) in ADDED
        return
    theirs, mine = Facts(published_schemas()).of(uri), Facts(resource_schemas()).of(uri)

    differing = {path for path in theirs.keys() | mine.keys() if theirs.get(path) != mine.get(path)}

    listed = DIFFERENCES.get(short(uri), {})
    unlisted = {
        path: (theirs.get(path), mine.get(path))
        for path in differing
        if not any(is_below(path, one) for one in listed)
    }
    assert unlisted == {}
    assert [one for one in listed if not any(is_below(path, one) for path in differing)] == []


def test_the_published_canonical_example_is_a_resource() -> None:
    canonical = dict(examples())["sink-webhook-dataset-events/webhook-target-canonical.yaml"]
    schemas = dict(resource_schemas())
    assert accepts(schemas, f"{CORE_BASE}/resource/v1alpha1/Resource")(canonical)
    assert accepts(schemas, f"{CORE_BASE}/sink/v1alpha1/WebhookTargetSpec")(canonical["spec"])


def is_below(path: str, listed: str) -> bool:
    return path == listed or path.startswith((listed + " ", listed + "."))
