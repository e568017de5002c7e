"""Datasets by their resources, over commands and HTTP: applied, changed, renamed, deleted, and settled once after kills."""

import json
import time
from http import HTTPStatus
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from odf_testing.embedded import PATIENCE, EmbeddedNode

SCHEMAS = "https://opendatafabric.org/schemas"
ERROR = f"{SCHEMAS}/resource/v1alpha1/ReconciliationError"
CHAIN = f"{SCHEMAS}/dataset/v1alpha1/ChainState"
SOURCE = (
    "{kind: AddPushSource, sourceName: default, read: {kind: NdJson, schema: {fields: [{name: event_time, type: "
    "{kind: Timestamp, timezone: UTC}}, {name: city, type: String}]}}, merge: {kind: Append}}"
)


def root(name: str, info: str = "first", more: str = "") -> str:
    events = f"{{kind: SetInfo, description: {info}}}, {SOURCE}"
    return (
        f"{{$schema: Dataset, headers: {{name: {name}{more}}}, spec: {{kind: Root, metadata: [{events}]}}}}"
    )


def derivative(name: str, ref: str, query: str = "SELECT event_time, city FROM x") -> str:
    transform = f"{{kind: Sql, engine: spark, query: '{query}'}}"
    event = f"{{kind: SetTransform, inputs: [{{datasetRef: {ref}, alias: x}}], transform: {transform}}}"
    return f"{{$schema: Dataset, headers: {{name: {name}}}, spec: {{kind: Derivative, metadata: [{event}]}}}}"


class Datasets:
    """Dataset resources of a node."""

    def __init__(self, node: EmbeddedNode) -> None:
        self.node = node

    def apply(self, *texts: str) -> list[dict[str, Any]]:
        applied: list[dict[str, Any]] = self.node.run(
            "apply -f - -o json", stdin="\n---\n".join(texts).encode()
        )
        return applied

    def http(self, method: str, ref: str, body: object = None, kind: str = "application/json") -> Any:
        url = f"{self.node.node.http}/dataset/v1alpha1/dataset/{ref}"
        content = None if body is None else json.dumps(body).encode()
        with urlopen(
            Request(url, content, {"Content-Type": kind}, method=method), timeout=PATIENCE
        ) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def settled(self, ref: str, phase: str = "Ready", timeout: float = PATIENCE) -> dict[str, Any]:
        """Return a resource once it is in a phase for its newest generation."""
        found: dict[str, Any] = {}

        def look() -> bool:
            try:
                found.update(self.http("GET", ref))
            except HTTPError as error:
                if error.code != HTTPStatus.SERVICE_UNAVAILABLE:
                    raise
                return False  # sync has not reached the restarted coordinator again
            status = found["status"]
            is_observed = status.get("observedGeneration") == found["headers"]["generation"]
            return bool(is_observed and status["phase"] == phase)

        self.node.eventually(look, timeout)
        return found

    def rejected(self, ref: str) -> str:
        """Return why a resource was rejected, after what it may have waited for."""
        error: dict[str, Any] = {}

        def look() -> bool:
            error.update(self.settled(ref, "Failed")["status"]["conditions"][ERROR])
            return bool(error["code"] == "rejected")

        self.node.eventually(look)
        return str(error["message"])

    def events(self, name: str) -> list[str]:
        """Return the kinds of the events of a chain, oldest first."""
        return [block["event"]["kind"] for block in self.node.run(f"log {name} -o json")][::-1]

    def names(self) -> set[str]:
        return {one["alias"] for one in self.node.run("list -o json")}


@pytest.fixture
def datasets(node: EmbeddedNode) -> Datasets:
    return Datasets(node)


def test_a_dataset_is_applied_changed_renamed_and_deleted(datasets: Datasets) -> None:
    node = datasets.node
    (created,) = datasets.apply(root("Harbours"))
    first = datasets.settled("harbours")
    did = first["spec"]["did"]
    assert created["outcome"] == "created"
    assert first["headers"]["labels"] == {"datasetKind": "Root", "did": did}
    assert datasets.events("harbours") == ["Seed", "SetInfo", "AddPushSource"]

    datasets.apply(root("Harbours", "second"))
    datasets.settled("harbours")
    assert datasets.events("harbours") == ["Seed", "SetInfo", "AddPushSource", "SetInfo"]

    node.run("ingest harbours -", stdin=b'{"event_time":"2020-01-01T00:00:00Z","city":"Bergen"}\n')
    node.eventually(
        lambda: datasets.http("GET", did)["status"]["conditions"][CHAIN]["details"]["records"] == 1
    )
    assert datasets.http("GET", did)["headers"]["generation"] == 2
    assert [row["city"] for row in node.run("sql 'SELECT city FROM harbours' -o json")] == ["Bergen"]

    datasets.http("PATCH", did, {"headers": {"name": "Ports"}}, "application/merge-patch+json")
    assert datasets.settled("ports")["spec"]["did"] == did
    node.eventually(lambda: "Ports" in datasets.names())
    node.run("rename ports piers")
    assert datasets.settled("piers")["headers"]["id"] == created["id"]
    node.run("rename Dataset:piers quays")
    datasets.settled("quays")
    assert {"Ports", "piers", "Harbours"} & datasets.names() == set()

    node.run("delete Dataset:quays --yes --wait")
    assert "quays" not in datasets.names()
    assert not (node.home / "keys" / did.removeprefix("did:odf:")).exists()


def test_a_late_input_makes_a_derivative_ready_and_its_loss_makes_it_fail(datasets: Datasets) -> None:
    node = datasets.node
    (waiting,) = datasets.apply(derivative("late.copy", "late"))
    assert [warning["code"] for warning in waiting["warnings"]] == ["UnresolvedReference"]
    failed = datasets.settled("late.copy", "Failed")
    assert failed["status"]["conditions"][ERROR]["code"] == "unresolved-reference"
    datasets.apply(root("late"))
    ready = datasets.settled("late.copy")
    assert ready["headers"]["generation"] == 1
    assert "is needed by Dataset:late.copy" in node.fails("delete Dataset:late --yes")
    node.run("delete Dataset:late --yes --force --wait")
    datasets.settled("late.copy", "Failed")
    node.run("delete late.copy --yes")
    assert "late.copy" not in json.dumps(node.run("get Dataset -o json"))


def test_what_is_refused_and_what_fails_says_why(datasets: Datasets) -> None:
    node = datasets.node
    circle = f"{derivative('circle.a', 'circle.b')}\n---\n{derivative('circle.b', 'circle.a')}".encode()
    refused = node.fails("apply -f -", stdin=circle)
    assert "Dataset:circle.a → Dataset:circle.b → Dataset:circle.a [ReferenceCycle]" in refused.replace(
        "\n", " "
    )
    assert "circle" not in json.dumps(node.run("get Dataset -o json"))
    datasets.apply(root("refusing"), derivative("refused", "refusing", "SELECT event_time, town FROM x"))
    assert "town" in datasets.rejected("refused")
    datasets.apply(derivative("refused", "refusing"))
    datasets.settled("refused")
    node.run("delete refused refusing --yes")


def test_a_projection_follows_its_input_and_is_a_table_of_sql(datasets: Datasets) -> None:
    node = datasets.node
    query = "SELECT city, count(*) AS visits FROM visits GROUP BY city"
    projection = (
        "{$schema: Projection, headers: {name: busiest}, spec: {inputs: [{datasetRef: visits}], "
        f"project: {{kind: Sql, engine: spark, query: '{query}'}}}}}}"
    )
    node.run("apply -f - -o json --wait", stdin=f"{projection}\n---\n{root('visits')}".encode())

    def project() -> object:
        return node.run("sql 'SELECT * FROM busiest' -o json")

    record = b'{"event_time":"2020-01-01T00:00:00Z","city":"Bergen"}\n'
    for visits in (1, 2):
        node.run("ingest visits -", stdin=record)
        node.eventually(lambda: project() == [{"city": "Bergen", "visits": visits}])  # noqa: B023
    node.run("delete Projection:busiest --yes --wait")
    node.run("delete Dataset:visits --yes --wait")


@pytest.mark.parametrize("delay", [0.0, 0.05, 0.2])
def test_a_coordinator_killed_after_an_apply_settles_it_once(datasets: Datasets, delay: float) -> None:
    node, name = datasets.node, f"killed.{int(delay * 1000)}"
    for number, info in enumerate(("first", "second"), 1):
        datasets.apply(root(name, info))
        time.sleep(delay)
        node.await_restart("coordinator", node.kill("coordinator"))
        found = datasets.settled(name, timeout=2 * PATIENCE)
        assert found["headers"]["generation"] == number
    assert datasets.events(name) == ["Seed", "SetInfo", "AddPushSource", "SetInfo"]
    node.run(f"delete Dataset:{name} --yes --wait")
