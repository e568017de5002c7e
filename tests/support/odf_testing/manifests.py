"""Manifests for stories: small roots and derivatives, and those of a folder under other names."""

import copy
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

Manifest = dict[str, Any]
APPEND: Final = {"kind": "Append"}

# A polling source, as it stands in the metadata of a manifest.
POLLING = """
    - kind: SetPollingSource
      fetch: {kind: Url, url: "http://example.org"}
      read: {kind: NdJson}
      merge: {kind: Append}
"""


def ledger(*key: str) -> Manifest:
    """Return the merge strategy that accepts each key once."""
    return {"kind": "Ledger", "primaryKey": list(key)}


def root(
    name: str,
    columns: Sequence[str],
    *,
    merge: Mapping[str, Any] = APPEND,
    event_time: str | None = None,
    sources: Sequence[str] = ("default",),
) -> Manifest:
    """Return a root that takes JSON objects; `columns` are DDL."""
    events: list[Manifest] = [
        {
            "kind": "AddPushSource",
            "sourceName": source,
            "read": {"kind": "NdJson", "schema": list(columns)},
            "merge": dict(merge),
        }
        for source in sources
    ]
    if event_time is not None:
        events.append({"kind": "SetVocab", "eventTimeColumn": event_time})
    return _snapshot(name, "Root", events)


def derivative(name: str, inputs: Mapping[str, str], query: str) -> Manifest:
    """Return a derivative of one query; `inputs` are datasets by their names in the query."""
    transform = {"kind": "Sql", "engine": "spark", "query": query}
    refs = [{"datasetRef": ref, "alias": alias} for alias, ref in inputs.items()]
    return _snapshot(name, "Derivative", [{"kind": "SetTransform", "inputs": refs, "transform": transform}])


def renamed(folder: Path, prefix: str, *, merge: Mapping[str, Any] | None = None) -> list[Manifest]:
    """Return a folder's manifests with `prefix` added to each name; queries keep the old names as aliases."""
    manifests = [prefixed(yaml.safe_load(file.read_text()), prefix) for file in sorted(folder.glob("*.yaml"))]
    for manifest in manifests:
        for event in manifest["content"]["metadata"]:
            if merge is not None and event["kind"] == "AddPushSource":
                event["merge"] = dict(merge)
    return manifests


def prefixed(manifest: Manifest, prefix: str) -> Manifest:
    """Return a manifest with `prefix` added to its name and to those of its inputs; its query keeps the old ones."""
    prefixed = copy.deepcopy(manifest)
    content = prefixed["content"]
    content["name"] = f"{prefix}.{content['name']}"
    for event in content["metadata"]:
        for one in event.get("inputs", ()):
            one.setdefault("alias", one["datasetRef"])
            one["datasetRef"] = f"{prefix}.{one['datasetRef']}"
    return prefixed


def as_text(*manifests: Manifest) -> bytes:
    """Return a single YAML text with several documents; JSON is YAML without anchors."""
    return "\n---\n".join(json.dumps(manifest) for manifest in manifests).encode()


def _snapshot(name: str, kind: str, events: list[Manifest]) -> Manifest:
    content = {"name": name, "kind": kind, "metadata": events}
    return {"kind": "DatasetSnapshot", "version": 1, "content": content}
