"""Conversion of DatasetSnapshot manifests to resources and back (RFC-018, "Migration").

A source in a snapshot becomes a Source and a Flow that binds it to the dataset. Variables of the environment become
values of a SecretSet with the name of the dataset, which the user creates.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from odf_common.codec.plain_values import from_plain, to_plain
from odf_common.errors import InvalidInput
from odf_common.metadata.events import DatasetSnapshot

Json = dict[str, Any]
CHAIN_NAME: Final = "legacySourceName"
"""The annotation with the name of a source in chains, if that is not its id."""
_DEFAULT: Final = "default"  # in chains, the source without a name
_POLLED: Final = {
    **{kind: kind for kind in ("Url", "FilesGlob", "Container", "Mqtt")},
    "EvmLogs": "EthereumLogs",
}
_INGRESS: Final = {fetch: ingress for ingress, fetch in _POLLED.items()}
_SOURCES: Final = ("SetPollingSource", "AddPushSource", "DisablePollingSource", "DisablePushSource")
_TEMPLATE: Final = re.compile(r"\$\{\{.*?\}\}", re.DOTALL)
_VARIABLE: Final = {root: re.compile(rf"\b{root}\.([A-Za-z_][A-Za-z0-9_-]*)") for root in ("env", "config")}
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9.-]+")


@dataclass(slots=True, kw_only=True)
class Converted:
    """The result of a conversion."""

    manifests: list[Json] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Steps that are left to the user, and resources that are left out."""


def to_resources(snapshots: Iterable[DatasetSnapshot]) -> Converted:
    """Return a Dataset for each snapshot, with a Source and a Flow for each of its sources."""
    converted = Converted()
    for snapshot in snapshots:
        plain = to_plain(snapshot)
        account, _, name = plain["name"].rpartition("/")
        headers = {"name": name, **({"account": account} if account else {})}
        sources = [event for event in plain["metadata"] if event["kind"] in _SOURCES]
        spec = {"kind": plain["kind"], "metadata": [one for one in plain["metadata"] if one not in sources]}
        converted.manifests.append({"$schema": "Dataset", "headers": headers, "spec": spec})
        for event in sources:
            if event["kind"].startswith("Disable"):
                text = f"{plain['name']}: leave out the source that {event['kind']} disables"
                raise InvalidInput(text=text)
            converted.manifests += _source_and_flow(event, headers, plain["name"], converted.notes)
    return converted


def _source_and_flow(event: Json, headers: Json, alias: str, notes: list[str]) -> list[Json]:
    chain_name = event.get("sourceName", _DEFAULT)
    suffix = "" if chain_name == _DEFAULT else f".{_NOT_IN_NAMES.sub('-', chain_name).strip('.-')}"
    named = {**headers, "name": headers["name"] + suffix}
    spec: Json = {key: event[key] for key in ("prepare", "read", "preprocess", "merge") if key in event}
    trigger: list[Json] = []
    if event["kind"] == "SetPollingSource":
        spec = {**_convert_fetch(event["fetch"], headers["name"], alias, notes), **spec}
        notes.append(
            f"{alias}: add a trigger to the flow {named['name']}, such as {{kind: Schedule, cron: '@hourly'}}"
        )
    else:
        spec = {"ingress": {"kind": "RestEndpoint"}, **spec}
        trigger = [{"kind": "Source", "source": named["name"]}]
    flow = {
        "target": f"Dataset:{alias}",
        "triggers": trigger,
        "tasks": [{"kind": "Ingest", "source": named["name"]}],
    }
    annotated = {**named, "annotations": {CHAIN_NAME: chain_name}}
    return [
        {"$schema": "Source", "headers": annotated, "spec": spec},
        {"$schema": "Flow", "headers": named, "spec": flow},
    ]


def _convert_fetch(fetch: Json, dataset: str, alias: str, notes: list[str]) -> Json:
    """Return ingress and config of a Source that fetches."""
    names: set[str] = set()
    ingress = _with_variables(fetch, "env", "config", names)
    ingress["kind"] = _INGRESS[fetch["kind"]]
    for entry in ingress.get("env", ()):
        if "value" not in entry:
            names.add(entry["name"])
            entry["value"] = f"${{{{ config.{entry['name']} }}}}"
    if not names:
        return {"ingress": ingress}
    listed = ", ".join(sorted(names))
    notes.append(
        f"{alias}: create the SecretSet {dataset} with {listed}, which were variables of the environment"
    )
    return {"config": {name: f"SecretSet:{dataset}#{name}" for name in sorted(names)}, "ingress": ingress}


def _with_variables(value: Any, old: str, new: str, names: set[str]) -> Any:
    """Return plain values whose templates have another root; the names of variables are added to `names`."""
    match value:
        case str():

            def replace(template: re.Match[str]) -> str:
                names.update(_VARIABLE[old].findall(template[0]))
                return _VARIABLE[old].sub(rf"{new}.\1", template[0])

            return _TEMPLATE.sub(replace, value)
        case list():
            return [_with_variables(item, old, new, names) for item in value]
        case dict():
            return {key: _with_variables(item, old, new, names) for key, item in value.items()}
        case _:
            return value


def to_snapshots(resources: Sequence[Mapping[str, Any]]) -> Converted:
    """Return a DatasetSnapshot for each Dataset; raises `InvalidInput` for what a snapshot cannot express.

    Sources are those that flows with the task `Ingest` bind to a dataset by its name.
    """
    converted = Converted()
    by_type: dict[str, list[Mapping[str, Any]]] = {}
    for one in resources:
        by_type.setdefault(str(one.get("$schema", "")).rpartition("/")[2], []).append(one)
    sources = {_key(one["headers"]): one for one in by_type.get("Source", ())}
    bound: dict[str, list[str]] = {}
    for flow in by_type.get("Flow", ()):
        for target, source in _bindings(flow):
            bound.setdefault(target, []).append(source)
    for dataset in by_type.get("Dataset", ()):
        key = _key(dataset["headers"])
        found = [sources[source] for source in dict.fromkeys(bound.get(key, ())) if source in sources]
        converted.manifests.append(_snapshot(dataset, found, converted.notes))
    for kind in by_type.keys() - {"Dataset", "Source", "Flow"}:
        names = ", ".join(str(one["headers"]["name"]) for one in by_type[kind])
        converted.notes.append(f"left out, as snapshots have no {kind}: {names}")
    return converted


def _snapshot(dataset: Mapping[str, Any], sources: Iterable[Mapping[str, Any]], notes: list[str]) -> Json:
    headers, spec = dataset["headers"], dataset["spec"]
    alias = "/".join(part for part in (_account(headers), headers["name"]) if part)
    notes += [f"{alias}: left out `spec.{key}`" for key in ("did", "volume") if key in spec]
    events = [_source_event(one, alias, notes) for one in sources]
    if len(events) > 1 and any(event["kind"] == "SetPollingSource" for event in events):
        raise InvalidInput(text=f"{alias} has several sources, one of which polls; a snapshot has one then")
    content = {"name": alias, "kind": spec["kind"], "metadata": [*spec.get("metadata", ()), *events]}
    from_plain(DatasetSnapshot, content)
    return {"kind": "DatasetSnapshot", "version": 1, "content": content}


def _source_event(source: Mapping[str, Any], alias: str, notes: list[str]) -> Json:
    """Return the event that defines a source in a chain."""
    headers, spec = source["headers"], source["spec"]
    ingress = spec.get("ingress") or {"kind": "RestEndpoint"}
    event: Json = {key: spec[key] for key in ("prepare", "read", "preprocess") if key in spec}
    event["merge"] = spec.get("merge") or {"kind": "Append"}
    if "vocab" in spec:
        raise InvalidInput(text=f"Source {headers['name']}: write `vocab` as SetVocab of the dataset {alias}")
    if ingress["kind"] in _POLLED:
        names: set[str] = set()
        fetch = {**_with_variables(ingress, "config", "env", names), "kind": _POLLED[ingress["kind"]]}
        notes += [
            f"{alias}: set the variable {name} in the environment of the node" for name in sorted(names)
        ]
        return {"kind": "SetPollingSource", "fetch": fetch, **event}
    if ingress["kind"] != "RestEndpoint":
        raise InvalidInput(text=f"Source {headers['name']}: a snapshot has no ingress {ingress['kind']}")
    if "prepare" in event:
        raise InvalidInput(text=f"Source {headers['name']}: a source that is pushed to has no `prepare`")
    name = headers.get("annotations", {}).get(CHAIN_NAME, headers["name"])
    return {"kind": "AddPushSource", "sourceName": name, **event}


def _bindings(flow: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the dataset and source of each task of a flow that ingests, if its target is one dataset by name."""
    own, target = _account(flow["headers"]), flow["spec"]["target"]
    for task in flow["spec"].get("tasks", ()):
        if task["kind"] == "Ingest":
            yield _reference(target, own), _reference(task["source"], own)


def _reference(plain: str | Mapping[str, Any], own: str) -> str:
    """Return the key of what a reference by name means."""
    if isinstance(plain, str):
        account, _, name = plain.rpartition(":")[2].rpartition("/")
        return f"{account or own}/{name}".lower()
    return _key({"account": own, **plain})


def _key(headers: Mapping[str, Any]) -> str:
    return f"{_account(headers)}/{headers.get('name', '')}".lower()


def _account(headers: Mapping[str, Any]) -> str:
    """Return the name of an account; empty for that of the node, which aliases do not have."""
    account = headers.get("account") or ""
    name = account if isinstance(account, str) else str(account.get("name", ""))
    return "" if name.lower() == "odf" else name
