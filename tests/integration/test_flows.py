"""Flows refresh and verify a derivative: on updates, by hand, not while paused, once over kills; deleting one ends its runs."""

import signal
from typing import Any

import pytest
from odf_testing.embedded import PATIENCE, EmbeddedNode

from odf_common.proto.odf.node.v1 import resources_pb2 as pb
from odf_common.proto.odf.node.v1.resources_pb2_grpc import ResourcesStub

OWN = "https://node.odf.example/schemas/flow/v1alpha1"
DATASETS = """
$schema: Dataset
headers: {name: flows.raw}
spec:
  kind: Root
  metadata:
    - kind: AddPushSource
      sourceName: default
      read: {kind: NdJson, ddlSchema: [city STRING]}
      merge: {kind: Append}
---
$schema: Dataset
headers: {name: flows.copy}
spec:
  kind: Derivative
  metadata:
    - kind: SetTransform
      inputs: [{datasetRef: flows.raw, alias: raw}]
      transform: {kind: Sql, engine: spark, query: "SELECT event_time, city FROM raw"}
"""
TRANSFORM = f"{{kind: Ext, $schema: {OWN}/Transform}}"
VERIFY = f"{{kind: Ext, $schema: {OWN}/Verify}}"


def a_flow(name: str, triggers: str = "", annotations: str = "") -> str:
    return f"""
$schema: Flow
headers: {{name: {name}, annotations: {{{annotations}}}}}
spec:
  target: {{type: Dataset, name: 'flows.%', labels: {{datasetKind: Derivative}}}}
  triggers: [{triggers}]
  tasks: [{TRANSFORM}, {VERIFY}]
"""


class Flows:
    """Commands on flows of a node."""

    def __init__(self, node: EmbeddedNode) -> None:
        self.node = node

    def apply(self, text: str) -> None:
        self.node.run("apply -f - --wait 60s", stdin=text.encode())

    def runs(self, flow: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.node.run(f"flow runs {flow} -o json")
        return found

    def states(self, flow: str) -> list[str]:
        return [run["state"] for run in reversed(self.runs(flow))]

    def await_states(self, flow: str, *states: str) -> None:
        self.node.eventually(lambda: self.states(flow) == [*states])

    def await_verifying(self, flow: str) -> None:
        """Return once the second task of the newest run runs, which a frozen verifier keeps from ending."""
        self.node.eventually(
            lambda: [task["state"] for task in self.runs(flow)[0]["tasks"]][1:] == ["Running"]
        )

    def delete(self, flow: str) -> None:
        stub = ResourcesStub(self.node.grpc_channel("coordinator"))
        resource = pb.GetResourceRequest(type="Flow", ref=flow)
        stub.DeleteResource(pb.DeleteResourceRequest(resource=resource), timeout=PATIENCE)

    def tasks(self, flow: str) -> list[str]:
        found = self.node.run("get Task -o json")
        names = [task["headers"]["name"] for task in found]
        return [name for name in names if name.startswith(f"{flow}.")]


@pytest.fixture(scope="module")
def flows(node: EmbeddedNode) -> Flows:
    made = Flows(node)
    made.apply(DATASETS)
    return made


def test_an_update_of_the_input_refreshes_and_verifies_the_derivative(flows: Flows) -> None:
    node = flows.node
    flows.apply(a_flow("refresh", "{kind: Dataset, dataset: flows.raw}"))
    node.run("ingest flows.raw -", stdin=b'{"city": "Oslo"}\n')
    flows.await_states("refresh", "Succeeded")
    (run,) = flows.runs("refresh")
    assert (run["trigger"], run["target"]["name"]) == ("Dataset", "flows.copy")
    assert [task["kind"] for task in run["tasks"]] == ["Transform", "Verify"]
    assert [row["city"] for row in node.run("tail flows.copy -o json")] == ["Oslo"]

    (manual,) = node.run("flow run refresh --target flows.copy -o json")
    assert (manual["run"], manual["trigger"]) == (2, "Manual")
    flows.await_states("refresh", "Succeeded", "Succeeded")
    refused = node.fails("flow run refresh --target flows.raw")
    assert "refresh has no target flows.raw" in refused

    paused = "'https://opendatafabric.org/schemas/flow/v1alpha1/Paused': true"
    flows.apply(a_flow("refresh", "{kind: Dataset, dataset: flows.raw}", paused))
    node.run("ingest flows.raw -", stdin=b'{"city": "Rome"}\n')
    node.eventually(lambda: len(node.run("tail flows.copy -o json")) == 2)
    assert len(flows.runs("refresh")) == 2
    flows.apply(a_flow("refresh", "{kind: Dataset, dataset: flows.raw}"))
    flows.await_states("refresh", *["Succeeded"] * 3)
    flows.delete("refresh")


def test_a_run_that_kill_9_cuts_is_finished_once(flows: Flows) -> None:
    node = flows.node
    flows.apply(a_flow("cut"))
    node.kill("verifier", signal.SIGSTOP)
    try:
        node.run("flow run cut")
        flows.await_verifying("cut")
        before = flows.runs("cut")[0]["tasks"][0]
        node.await_restart("coordinator", node.kill("coordinator"))
    finally:
        node.kill("verifier", signal.SIGCONT)
    flows.await_states("cut", "Succeeded")
    (run,) = flows.runs("cut")
    assert run["tasks"][0] == before, "what had been done was done again"
    assert node.run("get Flow cut -o json")["status"]["phase"] == "Ready"
    flows.delete("cut")


def test_a_deleted_flow_ends_its_running_task_and_leaves_nothing(flows: Flows) -> None:
    node = flows.node
    flows.apply(a_flow("gone"))
    node.kill("verifier", signal.SIGSTOP)
    try:
        node.run("flow run gone")
        flows.await_verifying("gone")
        flows.delete("gone")
        node.eventually(lambda: "does not exist" in node.attempt("flow runs gone").stderr.decode())
    finally:
        node.kill("verifier", signal.SIGCONT)
    assert flows.tasks("gone") == []
