"""Dataset resources over a coordinator in memory: created, changed, renamed, deleted, and what waits for what."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest
from odf_testing.coordinator import Coordinator

from odf_common.chain.walk import iterate
from odf_common.errors import OdfError
from odf_common.metadata.events import AddPushSource, Seed, SetInfo
from odf_common.resources.conditions import CHAIN_STATE, NOTICE, RECONCILIATION_ERROR
from odf_common.resources.resource_manifests import InvalidManifests, Problem, written_resources
from odf_coordinator.resources.callers import Subject
from odf_coordinator.resources.changes import Outcome
from odf_coordinator.resources.documents import Json
from odf_coordinator.resources.store import StoredResource
from odf_coordinator.resources.use_cases import Batch, ResourceRef
from odf_coordinator.resources.wiring import NodeResources, build_resources

NODE = Subject()
SECONDS = 20.0
T = TypeVar("T")
INFO = "{kind: SetInfo, description: %s}"
SOURCE = (
    "{kind: AddPushSource, sourceName: default, read: {kind: NdJson, schema: {fields: [{name: event_time, type: "
    "{kind: Timestamp, timezone: UTC}}, {name: city, type: String}]}}, merge: {kind: Append}}"
)


def root(name: str, *events: str, kind: str = "Root", headers: str = "", spec: str = "") -> str:
    return (
        f"{{$schema: Dataset, headers: {{name: {name}{headers}}}, "
        f"spec: {{kind: {kind}, metadata: [{', '.join(events)}]{spec}}}}}"
    )


def derivative(name: str, ref: str, query: str = "SELECT event_time, city FROM x") -> str:
    transform = f"{{kind: Sql, engine: spark, query: '{query}'}}"
    return root(
        name,
        f"{{kind: SetTransform, inputs: [{{datasetRef: {ref}, alias: x}}], transform: {transform}}}",
        kind="Derivative",
    )


class Bench:
    """The resources of a coordinator in memory, whose controllers run."""

    def __init__(self, node: Coordinator) -> None:
        self.node = node
        self.parts: NodeResources = build_resources(node.home, node.creator, node.names)
        self.resources = self.parts.resources

    def apply(self, *texts: str) -> tuple[Outcome, ...]:
        return self.resources.apply(NODE, Batch(written=written_resources("\n---\n".join(texts).encode())))

    def problem(self, *texts: str) -> Problem:
        with pytest.raises(InvalidManifests) as refused:
            self.apply(*texts)
        return refused.value.problems[0]

    def get(self, name: str) -> StoredResource:
        return self.resources.get(NODE, ResourceRef(type="Dataset", ref=name))

    def delete(self, name: str, *, is_forced: bool = False) -> None:
        self.resources.delete(NODE, ResourceRef(type="Dataset", ref=name), is_forced=is_forced)

    def settled(self, name: str, phase: str = "Ready") -> Json:
        """Return the conditions of a resource once it has been carried out; they are kept by the name of their type."""

        def look() -> StoredResource | None:
            found = self.get(name)
            is_observed = found.document["status"].get("observedGeneration") == found.generation
            return found if is_observed and found.phase == phase else None

        conditions = wait_for(look).document["status"]["conditions"]
        return {key.rpartition("/")[2]: condition for key, condition in conditions.items()}

    def gone(self, name: str) -> None:
        """Wait until a resource is removed."""
        wait_for(lambda: self._is_gone(name) or None)

    def _is_gone(self, name: str) -> bool:
        wanted = ResourceRef(type="Dataset", ref=name)
        try:
            self.resources.get(NODE, wanted, is_deleted_too=True)
        except OdfError:
            return True
        return False

    def events(self, name: str) -> list[type]:
        """Return the kinds of the events in a chain, oldest first."""
        handle = self.node.find(name)
        links = iterate(self.node.datasets.reader(handle.id), handle.state.head)
        return [type(decoded.block.event) for _, decoded, _ in links][::-1]


def wait_for(look: Callable[[], T | None]) -> T:
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        if (found := look()) is not None:
            return found
        time.sleep(0.02)
    raise AssertionError("it has not come so far")


@pytest.fixture
def bench(node: Coordinator) -> Iterator[Bench]:
    bench, stop = Bench(node), threading.Event()
    thread = threading.Thread(target=bench.parts.loop.run, args=(stop,))
    thread.start()
    yield bench
    stop.set()
    thread.join()


def test_a_resource_becomes_a_dataset_whose_did_it_has(bench: Bench) -> None:
    (outcome,) = bench.apply(root("cities", INFO % "all", SOURCE))
    conditions = bench.settled("cities")
    handle = bench.node.find("cities")
    assert str(handle.id) == outcome.resource.did == outcome.resource.document["spec"]["did"]
    assert bench.node.keys.has(handle.id)
    assert bench.events("cities") == [Seed, SetInfo, AddPushSource]
    assert conditions[CHAIN_STATE.name]["details"]["head"] == str(handle.state.head)


def test_only_what_differs_is_appended(bench: Bench) -> None:
    bench.apply(root("cities", INFO % "all", SOURCE))
    bench.settled("cities")
    bench.apply(root("cities", INFO % "some", SOURCE))
    bench.settled("cities")
    assert bench.events("cities") == [Seed, SetInfo, AddPushSource, SetInfo]
    bench.apply(root("cities", SOURCE, INFO % "some", headers=", labels: {env: prod}"))
    bench.settled("cities")
    assert bench.events("cities") == [Seed, SetInfo, AddPushSource, SetInfo]


def test_an_event_that_the_manifest_has_no_more_is_kept_and_noticed(bench: Bench) -> None:
    bench.apply(root("cities", INFO % "all", SOURCE))
    bench.settled("cities")
    bench.apply(root("cities", SOURCE))
    notice = bench.settled("cities")[NOTICE.name]
    assert notice["code"] == "metadata-not-removable"
    assert "SetInfo" in notice["message"]
    bench.apply(root("cities", SOURCE, INFO % "all"))
    assert NOTICE.name not in bench.settled("cities")
    assert bench.events("cities") == [Seed, SetInfo, AddPushSource]


def test_a_late_input_makes_a_derivative_ready_without_a_generation(bench: Bench) -> None:
    bench.apply(derivative("copy", "cities"))
    failed = bench.settled("copy", "Failed")[RECONCILIATION_ERROR.name]
    assert (failed["code"], failed["message"]) == ("unresolved-reference", "the input cities does not exist")
    bench.apply(root("cities", SOURCE))
    bench.settled("cities")
    bench.parts.status.update()
    assert RECONCILIATION_ERROR.name not in bench.settled("copy")
    transform = bench.node.find("copy").state.transform
    assert transform is not None
    (input_,) = transform.inputs
    assert (input_.dataset_ref, input_.alias) == (str(bench.node.find("cities").id), "x")
    assert bench.get("copy").generation == 1
