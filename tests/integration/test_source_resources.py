"""Source resources: one waits for its secret and is polled with it; others take pushes, or read topics, for flows."""

import json
import time
from collections.abc import Iterable, Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
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
    began, resources = time.time(), Resources(node)
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
    assert_absent("swordfish, plain", node.home, since=began)


ORDERS = "/source/v1alpha1/source/orders/ingest"
PUSHED = """
$schema: Source
headers: {name: orders}
spec:
  ingress: {kind: RestEndpoint, buffer: {kind: Memory, bufferSize: 100}}
  read: {kind: NdJson, ddlSchema: [id BIGINT]}
"""
TOPIC = """
$schema: Source
headers: {name: orders.topic}
spec:
  ingress:
    kind: Ext
    $schema: https://node.odf.example/schemas/source/v1alpha1/KafkaTopic
    topics: [shop.orders]
  read: {kind: NdJson, ddlSchema: [id BIGINT]}
"""
ROOT = "{$schema: Dataset, headers: {name: %s}, spec: {kind: Root, metadata: []}}"


def a_flow(name: str, source: str, target: str, least: int = 10) -> str:
    return f"""
$schema: Flow
headers: {{name: {name}}}
spec:
  target: Dataset:{target}
  triggers: [{{kind: Source, source: {source}, minRecordsToAwait: {least}, maxAwaitInterval: 3s}}]
  tasks: [{{kind: Ingest, source: {source}}}]
"""


def post(node: EmbeddedNode, path: str, ids: Iterable[int], key: str = "") -> tuple[int, Any, Any]:
    connection = HTTPConnection(str(node.node.http).removeprefix("http://"), timeout=PATIENCE)
    headers = {"Content-Type": "application/x-ndjson", **({"Idempotency-Key": key} if key else {})}
    body = b"".join(b'{"id": %d}\n' % id_ for id_ in ids)
    try:
        connection.request("POST", path, body, headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read() or b"{}"), answer.headers
    finally:
        connection.close()


def ids_of(node: EmbeddedNode, dataset: str) -> list[int]:
    return sorted(row["id"] for row in node.run(f"tail {dataset} -n 1000 -o json"))


def commits_of(node: EmbeddedNode, dataset: str) -> int:
    return json.dumps(node.run(f"log {dataset} -o json")).count('"AddData"')


def test_pushes_to_a_source_are_committed_by_a_flow_once(node: EmbeddedNode) -> None:
    resources = Resources(node)
    resources.apply(PUSHED + "---\n" + ROOT % "orders.raw", "--wait 60s")
    assert post(node, "/source/v1alpha1/source/nowhere/ingest", [1])[0] == 404
    status, receipt, _ = post(node, ORDERS, range(100), "first")
    assert (status, receipt["state"], receipt["records"], receipt["source"]) == (
        202,
        "accepted",
        100,
        "orders",
    )
    status, refused, headers = post(node, ORDERS, [100])
    assert (status, refused["code"], headers["Retry-After"]) == (429, "BufferFull", "1")

    node.await_restart("ingest", node.kill("ingest"))
    assert post(node, ORDERS, range(100), "first")[1]["receipt"] == receipt["receipt"]
    resources.apply(a_flow("orders.flow", "orders", "orders.raw"))
    node.eventually(lambda: ids_of(node, "orders.raw") == [*range(100)])
    assert commits_of(node, "orders.raw") == 1

    for id_ in range(100, 104):
        assert post(node, ORDERS, [id_])[0] == 202
    node.eventually(lambda: ids_of(node, "orders.raw") == [*range(104)])
    assert commits_of(node, "orders.raw") == 2, "four pushes that waited together are one commit"
    assert node.run("flow runs orders.flow -o json")[0]["trigger"] == "Source"
    assert "AddPushSource" not in json.dumps(node.run("log orders.raw -o json"))

    resources.delete("Source", "orders")
    assert post(node, ORDERS, [1])[0] == 410
    node.eventually(lambda: "orders" not in json.dumps(node.run("get Source -o json")))
    assert post(node, ORDERS, [1])[0] == 410


def test_a_source_reads_topics_of_others_for_a_flow(node: EmbeddedNode) -> None:
    resources = Resources(node)
    admin = AdminClient(node.clients)
    admin.create_topics([NewTopic("shop.orders", 2)])["shop.orders"].result(PATIENCE)
    node.produce("shop.orders", [b'{"id": %d}' % id_ for id_ in range(5)])
    resources.apply(TOPIC + "---\n" + ROOT % "shop.raw", "--wait 60s")
    resources.apply(a_flow("shop.flow", "orders.topic", "shop.raw", least=5))
    node.eventually(lambda: ids_of(node, "shop.raw") == [*range(5)])
    node.produce("shop.orders", [b'{"id": 5}'])
    node.eventually(lambda: ids_of(node, "shop.raw") == [*range(6)])
    assert commits_of(node, "shop.raw") == 2
    (shown,) = node.run("source show shop.raw -o json")
    assert (shown["source"], shown["settings"]["topics"]) == (
        node.run("get Source orders.topic -o json")["headers"]["id"],
        "shop.orders",
    )
    refused = node.fails("source set shop.raw topicStart=latest")
    assert "change spec.ingress.start in its manifest" in refused
    resources.delete("Flow", "shop.flow")
