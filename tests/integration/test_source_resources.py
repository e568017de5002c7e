"""A Source resource waits for its secret, is polled with it, and never binds itself to another set of the same name."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from odf_testing.absence import assert_absent
from odf_testing.embedded import PATIENCE, EmbeddedNode
from odf_testing.webserver import Page, PageServer, serving_pages

from odf_common.proto.odf.node.v1 import resources_pb2 as pb
from odf_common.proto.odf.node.v1.ingest_pb2 import PollRequest
from odf_common.proto.odf.node.v1.ingest_pb2_grpc import IngestStub
from odf_common.proto.odf.node.v1.resources_pb2_grpc import ResourcesStub

ERROR = "https://opendatafabric.org/schemas/resource/v1alpha1/ReconciliationError"
SECRETS = "{$schema: SecretSet, headers: {name: Bank}, spec: {secrets: {Token: 'swordfish, plain'}}}"
RATES = b"event_time,usd\n2020-01-01T00:00:00Z,1.5\n2020-01-02T00:00:00Z,1.6\n"
DATASET = "{kind: DatasetSnapshot, version: 1, content: {name: Rates, kind: Root, metadata: []}}"


@pytest.fixture(scope="module")
def server() -> Iterator[PageServer]:
    with serving_pages() as started:
        started.pages["/rates.csv"] = Page(body=RATES, etag='"a"')
        yield started


def a_source(url: str) -> str:
    return f"""
$schema: Source
headers: {{name: Rates}}
spec:
  config: {{token: 'SecretSet:bank#Token'}}
  ingress:
    kind: Url
    url: {url}/rates.csv
    headers: [{{name: Authorization, value: 'Bearer ${{{{ config.token }}}}'}}]
  read:
    kind: Csv
    header: true
    schema: {{fields: [{{name: event_time, type: Timestamp}}, {{name: usd, type: Float64}}]}}
  merge: {{kind: Ledger, primaryKey: [event_time]}}
"""


class Resources:
    """Commands on resources of a node."""

    def __init__(self, node: EmbeddedNode) -> None:
        self.node = node

    def apply(self, text: str, options: str = "") -> list[dict[str, Any]]:
        applied: list[dict[str, Any]] = self.node.run(f"apply -f - -o json {options}", stdin=text.encode())
        return applied

    def source(self) -> dict[str, Any]:
        found: dict[str, Any] = self.node.run("get Source rates -o json")
        return found

    def await_phase(self, phase: str, code: str | None = None) -> dict[str, Any]:
        def is_there() -> bool:
            status = self.source()["status"]
            return (status["phase"], status["conditions"].get(ERROR, {}).get("code")) == (phase, code)

        self.node.eventually(is_there)
        return self.source()

    def poll(self, source: dict[str, Any]) -> list[str]:
        stub = IngestStub(self.node.grpc_channel("ingest"))
        request = PollRequest(ref="Rates", source=json.dumps(source).encode())
        return [progress.stage for progress in stub.Poll(request, timeout=3 * PATIENCE)]

    def delete(self, kind: str, name: str) -> None:
        stub = ResourcesStub(self.node.grpc_channel("coordinator"))
        resource = pb.GetResourceRequest(type=kind, ref=name)
        stub.DeleteResource(pb.DeleteResourceRequest(resource=resource), timeout=PATIENCE)


def test_a_source_waits_is_polled_and_is_not_rebound(
    node: EmbeddedNode, server: PageServer, tmp_path: Path
) -> None:
    resources = Resources(node)
    manifest = tmp_path / "rates.yaml"
    manifest.write_text(DATASET)
    node.run(f"add {manifest}")
    (applied,) = resources.apply(a_source(server.url))
    assert [warning["code"] for warning in applied["warnings"]] == ["UnresolvedReference"]
    waiting = resources.await_phase("Failed", "unresolved-reference")
    assert "SecretSet bank does not exist" in waiting["status"]["conditions"][ERROR]["message"]
    assert waiting["status"]["observedGeneration"] == waiting["headers"]["generation"] == 1

    resources.apply(SECRETS)
    ready = resources.await_phase("Ready")
    assert ready["headers"]["generation"] == 1
    first = ready["spec"]["config"]["token"]["id"]
    resources.poll(ready)
    resources.poll(ready)
    records = node.run("tail rates -o json")
    assert [record["usd"] for record in records] == [1.5, 1.6]
    assert "SetPollingSource" not in json.dumps(node.run("log rates -o json"))
    asked = [headers.get("authorization") for headers in server.requests]
    assert asked == ["Bearer swordfish, plain"] * 2
    assert server.requests[1].get("if-none-match") == '"a"'

    resources.delete("SecretSet", "bank")
    resources.await_phase("Failed", "unresolved-reference")
    (again,) = resources.apply(SECRETS)
    assert again["outcome"] == "created"
    assert resources.source()["spec"]["config"]["token"]["id"] == first
    resources.await_phase("Failed", "unresolved-reference")
    (rebound,) = resources.apply(a_source(server.url))
    assert rebound["rebound"] == ["spec.config.token"]
    assert resources.await_phase("Ready")["spec"]["config"]["token"]["id"] == again["id"]
    assert_absent("swordfish, plain", node.home)
