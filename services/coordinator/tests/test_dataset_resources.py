"""Dataset resources over a coordinator in memory: created, changed, renamed, deleted, and what waits for what."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest
from odf_testing.coordinator import Coordinator
from odf_testing.flow_bench import FakeTasks

from odf_common.chain.walk import iterate
from odf_common.codec.manifests import event_from_text
from odf_common.errors import AlreadyExists, OdfError, Refused
from odf_common.identity.dataset_refs import DatasetId
from odf_common.metadata.events import AddPushSource, Seed, SetDataSchema, SetInfo
from odf_common.ports.store import CatalogEntry
from odf_common.resources.conditions import CHAIN_STATE, NOTICE, RECONCILIATION_ERROR
from odf_common.resources.resource_manifests import InvalidManifests, Problem, written_resources
from odf_coordinator.resources.callers import Subject
from odf_coordinator.resources.changes import Outcome
from odf_coordinator.resources.documents import Json
from odf_coordinator.resources.flows.flow_wiring import FlowPorts
from odf_coordinator.resources.store import StoredResource
from odf_coordinator.resources.use_cases import Batch, ResourceInUse, ResourceRef
from odf_coordinator.resources.wiring import DatasetPorts, NodeResources, build_resources

NODE = Subject()
SECONDS = 20.0
T = TypeVar("T")
INFO = "{kind: SetInfo, description: %s}"
SOURCE = (
    "{kind: AddPushSource, sourceName: default, read: {kind: NdJson, schema: {fields: [{name: event_time, type: "
    "{kind: Timestamp, timezone: UTC}}, {name: city, type: String}]}}, merge: {kind: Append}}"
)


def dataset(name: str, *events: str, kind: str = "Root", headers: str = "", spec: str = "") -> str:
    return (
        f"{{$schema: Dataset, headers: {{name: {name}{headers}}}, "
        f"spec: {{kind: {kind}, metadata: [{', '.join(events)}]{spec}}}}}"
    )


def data_schema(*fields: str) -> str:
    system = (
        "offset, type: UInt64",
        "op, type: Int32",
        "system_time, type: Timestamp",
        "event_time, type: Timestamp",
    )
    columns = ", ".join((*(f"{{name: {one}}}" for one in system), *fields))
    return f"{{kind: SetDataSchema, schema: {{fields: [{columns}]}}}}"


def derivative(name: str, ref: str, query: str = "SELECT event_time, city FROM x") -> str:
    transform = f"{{kind: Sql, engine: spark, query: '{query}'}}"
    return dataset(
        name,
        f"{{kind: SetTransform, inputs: [{{datasetRef: {ref}, alias: x}}], transform: {transform}}}",
        kind="Derivative",
    )


class Bench:
    """The resources of a coordinator in memory, whose controllers run."""

    def __init__(self, node: Coordinator) -> None:
        self.node = node
        flow_ports = FlowPorts(tasks=FakeTasks(), datasets=node.datasets)
        datasets = DatasetPorts(creator=node.creator, names=node.names, reader=node.record_reader)
        self.parts: NodeResources = build_resources(node.home, datasets, flow_ports)
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
            self.parts.status.update()
            found = self.get(name)
            is_observed = found.document["status"].get("observedGeneration") == found.generation
            return found if is_observed and found.phase == phase else None

        conditions = wait_for(look).document["status"]["conditions"]
        return {key.rpartition("/")[2]: condition for key, condition in conditions.items()}

    def await_dataset(self, alias: str) -> None:
        def look() -> CatalogEntry | None:
            self.parts.status.update()
            return self.node.catalog.by_alias(alias)

        wait_for(look)

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
    (outcome,) = bench.apply(dataset("cities", INFO % "all", SOURCE))
    conditions = bench.settled("cities")
    handle = bench.node.find("cities")
    assert str(handle.id) == outcome.resource.did == outcome.resource.document["spec"]["did"]
    assert bench.node.keys.has(handle.id)
    assert bench.events("cities") == [Seed, SetInfo, AddPushSource]
    assert conditions[CHAIN_STATE.name]["details"]["head"] == str(handle.state.head)


def test_only_what_differs_is_appended(bench: Bench) -> None:
    bench.apply(dataset("cities", INFO % "all", SOURCE))
    bench.settled("cities")
    bench.apply(dataset("cities", INFO % "some", SOURCE))
    bench.settled("cities")
    assert bench.events("cities") == [Seed, SetInfo, AddPushSource, SetInfo]
    bench.apply(dataset("cities", SOURCE, INFO % "some", headers=", labels: {env: prod}"))
    bench.settled("cities")
    assert bench.events("cities") == [Seed, SetInfo, AddPushSource, SetInfo]


def test_an_event_that_the_manifest_has_no_more_is_kept_and_noticed(bench: Bench) -> None:
    bench.apply(dataset("cities", INFO % "all", SOURCE))
    bench.settled("cities")
    bench.apply(dataset("cities", SOURCE))
    notice = bench.settled("cities")[NOTICE.name]
    assert notice["code"] == "metadata-not-removable"
    assert "SetInfo" in notice["message"]
    bench.apply(dataset("cities", SOURCE, INFO % "all"))
    assert NOTICE.name not in bench.settled("cities")
    assert bench.events("cities") == [Seed, SetInfo, AddPushSource]


def test_a_late_input_makes_a_derivative_ready_without_a_generation(bench: Bench) -> None:
    bench.apply(derivative("copy", "cities"))
    failed = bench.settled("copy", "Failed")[RECONCILIATION_ERROR.name]
    assert (failed["code"], failed["message"]) == ("unresolved-reference", "the input cities does not exist")
    bench.apply(dataset("cities", SOURCE))
    bench.settled("cities")
    assert RECONCILIATION_ERROR.name not in bench.settled("copy")
    transform = bench.node.find("copy").state.transform
    assert transform is not None
    (input_,) = transform.inputs
    assert (input_.dataset_ref, input_.alias) == (str(bench.node.find("cities").id), "x")
    assert bench.get("copy").generation == 1


def test_a_renamed_resource_renames_its_dataset_and_no_block_is_written(bench: Bench) -> None:
    bench.apply(dataset("cities", SOURCE))
    bench.settled("cities")
    head = bench.node.find("cities").state.head
    bench.resources.rename(NODE, ResourceRef(type="Dataset", ref="cities"), "towns")
    bench.settled("towns")
    assert bench.node.find("towns").state.head == head
    assert bench.node.catalog.by_alias("cities") is None


def test_datasets_swap_their_names_in_one_batch(bench: Bench) -> None:
    one, two = bench.apply(dataset("one", INFO % "first"), dataset("two", INFO % "second"))
    bench.settled("one")
    bench.settled("two")
    bench.apply(
        dataset("two", INFO % "first", headers=f", id: {one.resource.id}"),
        dataset("one", INFO % "second", headers=f", id: {two.resource.id}"),
    )
    for alias, made in (("one", two), ("two", one)):
        bench.settled(alias)
        assert str(bench.node.find(alias).id) == bench.get(alias).did == made.resource.did
    assert {entry.alias for entry in bench.node.catalog.entries()} == {"one", "two"}


def test_a_renamed_dataset_renames_its_resource(bench: Bench) -> None:
    bench.apply(dataset("cities", SOURCE))
    bench.settled("cities")
    bench.node.names.rename("cities", "towns")
    assert bench.get("towns").generation == 2
    bench.settled("towns")
    assert bench.node.find("towns").alias == "towns"
    with pytest.raises(Refused, match="belongs to the account odf"):
        bench.node.names.rename("towns", "alice/towns")


def test_a_name_of_another_dataset_is_refused_before_anything_changes(bench: Bench, root: str) -> None:
    bench.node.add(root)
    (outcome,) = bench.apply(dataset("towns", SOURCE))
    bench.settled("towns")
    problem = bench.problem(dataset("cities", SOURCE, headers=f", id: {outcome.resource.id}"))
    assert (problem.path, problem.message) == ("headers.name", "the dataset cities exists")
    with pytest.raises(OdfError, match="the dataset cities exists"):
        bench.resources.rename(NODE, ResourceRef(type="Dataset", ref="towns"), "cities")
    with pytest.raises(AlreadyExists):
        bench.node.names.rename("towns", "cities")
    assert bench.get("towns").generation == 1


def test_an_existing_dataset_of_the_kind_is_adopted_by_its_name(bench: Bench, root: str) -> None:
    (added,) = bench.node.add(root)
    problem = bench.problem(derivative("Cities", "other"))
    assert (problem.path, problem.hint) == ("spec.kind", "write `kind: Root`, or choose another name")
    (outcome,) = bench.apply(dataset("Cities", INFO % "adopted"))
    notice = bench.settled("Cities")[NOTICE.name]
    assert outcome.resource.did == str(added.dataset_id)
    assert "AddPushSource" in notice["message"]
    assert bench.events("cities") == [Seed, AddPushSource, SetInfo]


def test_a_dataset_is_adopted_by_its_did_once(bench: Bench, root: str) -> None:
    (added,) = bench.node.add(root)
    unknown = bench.problem(dataset("x", spec=f", did: '{DatasetId.of_key(bytes(32))}'"))
    assert (unknown.path, unknown.hint) == (
        "spec.did",
        "remove `did` to create a dataset, or pull that one first",
    )
    bench.apply(dataset("towns", spec=f", did: '{added.dataset_id}'"))
    bench.settled("towns")
    assert bench.node.find("towns").id == added.dataset_id
    second = bench.problem(dataset("x", spec=f", did: '{added.dataset_id}'"))
    assert second.message == "Dataset:towns declares it already"
    twice = bench.problem(*[dataset(name, spec=f", did: '{added.dataset_id}'") for name in ("y", "z")])
    assert twice.path in {"spec.did", "headers.name"}


@pytest.mark.parametrize(
    ("text", "path", "message"),
    [
        (dataset("x", INFO % "a", INFO % "b"), "spec.metadata[1].kind", "at most one SetInfo"),
        (dataset("x", kind="Derivative"), "spec.metadata", "a derivative needs a SetTransform"),
        (
            dataset("x", "{kind: DisablePollingSource}"),
            "spec.metadata[0].kind",
            "cannot set DisablePollingSource",
        ),
        (dataset("x", spec=", volume: vault"), "spec.volume", "does not store datasets on volumes"),
        (
            dataset("x", data_schema("{name: a, type: {kind: Decimal, precision: 6, scale: 19}}")),
            "spec.metadata[0].schema.fields[4].type",
            "the scale 19 is larger than the precision 6",
        ),
        (
            dataset("x", SOURCE.replace("{kind: Append}", "{kind: Ledger, primaryKey: [town]}")),
            "spec.metadata[0].merge",
            "town",
        ),
    ],
)
def test_a_spec_that_cannot_become_a_dataset_is_refused_at_once(
    bench: Bench, text: str, path: str, message: str
) -> None:
    problem = bench.problem(text)
    assert problem.path.startswith(path)
    assert message in problem.message


def test_what_the_engine_refuses_fails_with_its_words_until_the_manifest_changes(bench: Bench) -> None:
    bench.apply(dataset("cities", SOURCE))
    bench.settled("cities")
    bench.apply(derivative("copy", "cities", "nonsense"))
    failed = bench.settled("copy", "Failed")[RECONCILIATION_ERROR.name]
    assert failed["code"] == "rejected"
    assert "spec.metadata[0].transform" in failed["message"]
    bench.apply(derivative("copy", "cities"))
    bench.settled("copy")


def test_a_creation_that_fails_is_repeated_with_the_same_key(bench: Bench) -> None:
    bench.node.topics.is_lost = True
    (outcome,) = bench.apply(dataset("cities", SOURCE))
    bench.settled("cities", "Failed")
    assert bench.node.catalog.by_alias("cities") is None
    bench.node.topics.is_lost = False
    bench.settled("cities")
    assert str(bench.node.find("cities").id) == outcome.resource.did


def test_a_deleted_resource_takes_its_dataset_and_key_with_it(bench: Bench) -> None:
    bench.apply(dataset("cities", SOURCE))
    bench.settled("cities")
    found = bench.node.find("cities").id
    bench.delete("cities")
    bench.gone("cities")
    assert bench.node.catalog.by_id(found) is None
    assert not bench.node.keys.has(found)
    assert bench.node.topics.names == {}


def test_a_resource_whose_dataset_was_never_created_takes_its_key_with_it(bench: Bench) -> None:
    (outcome,) = bench.apply(derivative("copy", "cities"))
    bench.settled("copy", "Failed")
    did = DatasetId.parse(str(outcome.resource.did))
    assert bench.node.keys.has(did)
    bench.delete("copy")
    bench.gone("copy")
    assert not bench.node.keys.has(did)


def test_a_retained_dataset_stays_and_can_be_adopted_again(bench: Bench) -> None:
    policy = ", annotations: {'https://opendatafabric.org/schemas/resource/v1alpha1/DeletionPolicy': Retain}"
    (first,) = bench.apply(dataset("cities", SOURCE, headers=policy))
    bench.settled("cities")
    bench.delete("cities")
    bench.gone("cities")
    assert bench.node.find("cities").alias == "cities"
    (second,) = bench.apply(dataset("cities", SOURCE))
    assert second.resource.did == first.resource.did
    assert second.resource.id != first.resource.id
    bench.settled("cities")


def test_a_dataset_that_a_derivative_reads_is_deleted_by_force_only(bench: Bench) -> None:
    bench.apply(dataset("cities", SOURCE), derivative("copy", "cities"))
    bench.settled("copy")
    with pytest.raises(ResourceInUse, match="Dataset:cities is needed by Dataset:copy"):
        bench.delete("cities")
    bench.delete("cities", is_forced=True)
    bench.gone("cities")
    assert bench.settled("copy", "Failed")[RECONCILIATION_ERROR.name]["code"] == "unresolved-reference"


def test_a_deleted_dataset_takes_its_resource_with_it(bench: Bench) -> None:
    bench.apply(dataset("cities", SOURCE), derivative("copy", "cities"))
    bench.settled("copy")
    with pytest.raises(Refused, match="is read by copy"):
        bench.node.names.delete("cities")
    assert bench.get("cities").deleted_ms is None
    bench.node.names.delete("copy")
    bench.gone("copy")
    bench.node.names.delete("cities")
    bench.gone("cities")


def test_a_lost_dataset_is_not_created_again_as_another_chain(bench: Bench) -> None:
    bench.apply(dataset("cities", SOURCE))
    bench.settled("cities")
    bench.node.catalog.remove("cities")
    bench.apply(dataset("cities", SOURCE, INFO % "new"))
    failed = bench.settled("cities", "Failed")[RECONCILIATION_ERROR.name]
    assert (failed["code"], failed["message"]) == ("rejected", "dataset cities is gone from this node")


def test_the_state_of_a_chain_follows_it_without_a_generation(bench: Bench) -> None:
    bench.apply(dataset("cities", SOURCE))
    bench.settled("cities")
    revision = bench.get("cities").revision
    for minute in range(3):
        bench.node.push("cities", "Oslo", minute=minute)
    bench.parts.status.update()
    bench.parts.status.update()
    found = bench.get("cities")
    details = found.document["status"]["conditions"][str(CHAIN_STATE)]["details"]
    assert (details["records"], details["watermark"]) == (3, "1970-01-01T00:02:00Z")
    assert (found.generation, found.revision) == (1, revision + 1)


def test_a_schema_that_the_chain_has_added_columns_to_is_no_drift(bench: Bench) -> None:
    schema = data_schema("{name: city, type: {kind: Option, inner: String}}")
    bench.apply(dataset("cities", schema))
    bench.settled("cities")
    wider = data_schema(
        *(f"{{name: {name}, type: {{kind: Option, inner: String}}}}" for name in ("city", "street"))
    )
    bench.node.editor.commit_event("cities", event_from_text(wider.encode(), "event"))
    before = bench.events("cities")
    assert before == [Seed, SetDataSchema, SetDataSchema]
    bench.apply(dataset("cities", schema, headers=", labels: {a: b}"))
    bench.settled("cities")
    assert bench.events("cities") == before


def test_a_drift_that_is_corrected_is_noticed(bench: Bench) -> None:
    bench.apply(dataset("cities", INFO % "mine"))
    bench.settled("cities")
    event = event_from_text(b"{kind: SetInfo, description: theirs}", "event")
    bench.node.editor.commit_event("cities", event)
    bench.parts.loop.request(bench.get("cities").id)
    notice = wait_for(lambda: bench.settled("cities").get(NOTICE.name))
    assert (notice["code"], notice["message"]) == (
        "drift-corrected",
        "the chain had another SetInfo than the manifest; it is as declared again",
    )
    assert bench.events("cities") == [Seed, SetInfo, SetInfo, SetInfo]
    bench.parts.loop.request(bench.get("cities").id)
    wait_for(lambda: NOTICE.name not in bench.settled("cities") or None)


def test_inputs_of_other_accounts_are_as_if_they_did_not_exist(bench: Bench) -> None:
    bench.apply(dataset("cities", SOURCE))
    bench.settled("cities")
    alice = Subject(name="alice", did="did:pkh:eip155:1:0x" + "a" * 40, is_admin=False)
    for ref in ("odf/cities", bench.get("cities").did):
        written = written_resources(derivative("copy", f"'{ref}'").encode())
        with pytest.raises(InvalidManifests, match="does not exist"):
            bench.resources.apply(alice, Batch(written=written))
    mine = written_resources(f"{dataset('cities', SOURCE)}\n---\n{derivative('copy', 'cities')}".encode())
    bench.resources.apply(alice, Batch(written=mine))
    bench.await_dataset("alice/copy")
    stolen = written_resources(dataset("x", spec=f", did: '{bench.get('cities').did}'").encode())
    with pytest.raises(InvalidManifests, match="this node has no dataset"):
        bench.resources.apply(alice, Batch(written=stolen))


def test_a_batch_that_closes_a_circle_with_a_stored_derivative_is_refused(bench: Bench) -> None:
    bench.apply(derivative("a", "b"))
    problem = bench.problem(derivative("b", "a"))
    assert problem.code == "ReferenceCycle"
    assert "Dataset:b → Dataset:a → Dataset:b" in problem.message
