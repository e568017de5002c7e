"""Manifests of datasets become resources and those become the same manifests; what has no counterpart is said."""

from typing import Any

import pytest

from odf_common.codec.manifests import snapshots_from_text
from odf_common.codec.yaml_syntax import write
from odf_common.errors import InvalidInput
from odf_common.resources.conversion import to_resources, to_snapshots
from odf_common.resources.registry import Types
from odf_common.resources.resource_manifests import manifests_of, written_resources

READ = "read: {kind: NdJson, ddlSchema: [event_time TIMESTAMP, city STRING]}"
MERGE = "merge: {kind: Ledger, primaryKey: [city]}"
POLLED = f"""
- kind: SetInfo
  description: Cities
- kind: SetPollingSource
  fetch:
    kind: Url
    url: 'https://data.example/${{{{ env.YEAR || ''2020'' }}}}.ndjson'
    headers: [{{name: Authorization, value: 'Bearer ${{{{ env.TOKEN }}}}'}}]
  prepare: [{{kind: Decompress, format: Gzip}}]
  {READ}
  preprocess: {{kind: Sql, engine: spark, query: SELECT * FROM input}}
  {MERGE}
"""
CONTAINER = f"""
- kind: SetPollingSource
  fetch: {{kind: Container, image: 'fetcher:1', env: [{{name: TOKEN}}, {{name: MODE, value: full}}]}}
  {READ}
  {MERGE}
"""
LOGS = f"""
- kind: SetPollingSource
  fetch: {{kind: EthereumLogs, chainId: 1, filter: "address = '0x00'"}}
  {READ}
  {MERGE}
"""
PUSHED = f"""
- {{kind: AddPushSource, sourceName: default, {READ}, {MERGE}}}
- {{kind: AddPushSource, sourceName: other_one, {READ}, merge: {{kind: Append}}}}
"""
DERIVED = """
- kind: SetTransform
  inputs: [{datasetRef: cities, alias: c}]
  transform: {kind: Sql, engine: spark, query: 'SELECT event_time, city FROM c'}
"""


def snapshots(name: str, events: str, kind: str = "Root") -> Any:
    indented = events.strip().replace("\n", "\n  ")
    text = f"kind: DatasetSnapshot\nversion: 1\ncontent:\n  name: {name}\n  kind: {kind}\n  metadata:\n  {indented}\n"
    return snapshots_from_text(text.encode(), "test")


def resource(kind: str, name: str, spec: Any, **headers: Any) -> dict[str, Any]:
    return {"$schema": kind, "headers": {"name": name, **headers}, "spec": spec}


@pytest.mark.parametrize("name", ["cities", "bob/cities"])
@pytest.mark.parametrize("events", [POLLED, LOGS, PUSHED, DERIVED])
def test_a_snapshot_becomes_resources_that_become_the_snapshot(name: str, events: str) -> None:
    given = snapshots(name, events, "Derivative" if events is DERIVED else "Root")
    resources = to_resources(given).manifests
    text = "---\n".join(map(write, resources)).encode()
    assert len(manifests_of(written_resources(text), Types())) == len(resources)
    (back,) = to_snapshots([one.plain for one in written_resources(text)]).manifests
    assert snapshots_from_text(write(back).encode(), "test") == given


def test_variables_of_the_environment_become_values_of_a_set() -> None:
    converted = to_resources(snapshots("bob/cities", POLLED))
    _, source, flow = converted.manifests
    assert source["spec"]["config"] == {"TOKEN": "SecretSet:cities#TOKEN", "YEAR": "SecretSet:cities#YEAR"}
    assert source["spec"]["ingress"]["url"] == "https://data.example/${{ config.YEAR || '2020' }}.ndjson"
    assert source["headers"]["annotations"] == {"legacySourceName": "default"}
    assert flow["spec"] == {
        "target": "Dataset:bob/cities",
        "triggers": [],
        "tasks": [{"kind": "Ingest", "source": "cities"}],
    }
    assert "create the SecretSet cities with TOKEN, YEAR" in converted.notes[0]
    assert "add a trigger to the flow cities" in converted.notes[1]


def test_a_variable_that_a_container_inherits_gets_a_value() -> None:
    converted = to_resources(snapshots("cities", CONTAINER))
    ingress = converted.manifests[1]["spec"]["ingress"]
    assert ingress["env"] == [
        {"name": "TOKEN", "value": "${{ config.TOKEN }}"},
        {"name": "MODE", "value": "full"},
    ]
    (back,) = to_snapshots(converted.manifests).manifests
    entries = back["content"]["metadata"][0]["fetch"]["env"]
    assert entries[0] == {"name": "TOKEN", "value": "${{ env.TOKEN }}"}


def test_what_the_node_prints_of_resources_becomes_a_snapshot() -> None:
    """References are handles then, and types have their addresses."""
    base = "https://opendatafabric.org/schemas"
    account = {"id": "9b2c3d4e-0000-4000-8000-000000000000", "did": "did:odf:x", "name": "bob"}
    printed = to_resources(snapshots("bob/cities", PUSHED)).manifests
    for one in printed:
        context = {"Dataset": "dataset", "Source": "source", "Flow": "flow"}[one["$schema"]]
        one["$schema"] = f"{base}/{context}/v1alpha1/{one['$schema']}"
        one["headers"]["account"] = account
        if context == "flow":
            one["spec"]["target"] = {"type": "Dataset", "account": account, "name": "Cities"}
            source = one["spec"]["tasks"][0]["source"]
            one["spec"]["tasks"][0]["source"] = {"id": "x", "name": source, "account": account}
    (back,) = to_snapshots(printed).manifests
    assert snapshots_from_text(write(back).encode(), "test") == snapshots("bob/cities", PUSHED)


def test_what_snapshots_do_not_have_is_said() -> None:
    dataset = resource("Dataset", "cities", {"kind": "Root", "metadata": [], "did": "did:odf:x"})
    converted = to_snapshots([dataset, resource("WebhookTarget", "chat", {"url": "https://chat.example"})])
    assert [one["content"]["name"] for one in converted.manifests] == ["cities"]
    assert converted.notes == [
        "cities: left out `spec.did`",
        "left out, as snapshots have no WebhookTarget: chat",
    ]


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ({"ingress": {"kind": "Ext"}}, "a snapshot has no ingress Ext"),
        ({"prepare": [{"kind": "Pipe", "command": ["x"]}]}, "has no `prepare`"),
        ({"vocab": {"offsetColumn": "o"}}, "write `vocab` as SetVocab"),
    ],
)
def test_a_source_that_no_snapshot_can_have_is_refused(spec: dict[str, Any], text: str) -> None:
    flow = {"target": "Dataset:cities", "tasks": [{"kind": "Ingest", "source": "Source:cities"}]}
    resources = [
        resource("Dataset", "cities", {"kind": "Root", "metadata": []}),
        resource("Source", "cities", {"read": {"kind": "Parquet"}, **spec}),
        resource("Flow", "cities", flow),
    ]
    with pytest.raises(InvalidInput, match=text):
        to_snapshots(resources)


def test_a_polled_source_beside_another_is_refused() -> None:
    resources = [
        *to_resources(snapshots("cities", LOGS)).manifests,
        *to_resources(snapshots("cities", PUSHED)).manifests[3:],
    ]
    with pytest.raises(InvalidInput, match="several sources, one of which polls"):
        to_snapshots(resources)
