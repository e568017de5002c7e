"""The registry's view of datasets that appear or disappear, and which objects a block needs."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import cast

import grpc
import pytest
from odf_testing.builders import a_checkpoint, a_dataset
from odf_testing.bus import MemoryBus, MemoryTopics
from odf_testing.coordinator import Coordinator
from odf_testing.memory_store import MemoryBlobStore, MemoryRefStore
from structlog.testing import capture_logs

from odf_common.adapters.local import durable, stores
from odf_common.chain.state import ChainState
from odf_common.codec.envelopes import decode, envelope
from odf_common.codec.flatbuffers import encode_event
from odf_common.codec.times import time_message
from odf_common.identity.dataset_refs import DatasetId
from odf_common.metadata.events import ExecuteTransform, SetInfo
from odf_common.ports.bus import COORDINATOR_COMMANDS, COORDINATOR_REPLIES
from odf_common.ports.store import CatalogEntry, DatasetUnknown, ObjectKind
from odf_common.proto.odf.bus.v1 import bus_pb2 as bus
from odf_common.proto.odf.node.v1.coordinator_pb2 import ListRequest
from odf_common.service.consumer.consumer_loop import Reader, Subscription
from odf_coordinator.api.bus_handlers import Commands
from odf_coordinator.api.grpc_servicer import Servicer
from odf_coordinator.catalog.datasets import Activity, DatasetHandle, HeadMissing, ReferenceUnknown
from odf_coordinator.storage import ObjectMissing, require_objects


def test_a_dataset_that_was_named_just_after_its_head_was_looked_for_is_found(
    node: Coordinator, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.add(root)
    current, misses = node.states.current, [None]

    def late(dataset: DatasetId) -> ChainState | None:
        return misses.pop() if misses else current(dataset)

    monkeypatch.setattr(node.states, "current", late)
    assert node.find("cities").state == current(node.find("cities").id)


def test_a_dataset_that_is_deleted_while_it_is_looked_up_is_unknown(
    node: Coordinator, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.add(root)
    known = node.find("cities")

    def gone(_: DatasetId) -> None:
        node.catalog.remove("cities")

    monkeypatch.setattr(node.states, "current", gone)
    with pytest.raises(DatasetUnknown, match="cities"):
        node.datasets.find("cities")
    assert node.datasets.read(known.entry) is None


def test_a_name_that_was_given_to_another_dataset_is_not_that_of_the_old_one(
    node: Coordinator, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.add(root)
    old = CatalogEntry(alias="cities", dataset_id=a_dataset("old"))
    monkeypatch.setattr(node.states, "current", lambda _: None)
    assert node.datasets.open(old) is None
    with pytest.raises(HeadMissing, match="refs/head"):
        node.find("cities")


def test_the_nearest_name_is_offered_for_one_that_does_not_exist(node: Coordinator, root: str) -> None:
    node.add(root)
    for ask in (node.datasets.find, node.datasets.open_at, node.datasets.entry):
        with pytest.raises(DatasetUnknown, match=r"citis does not exist; did you mean cities\?"):
            ask("citis")
    with pytest.raises(DatasetUnknown, match=r"does not exist$"):
        node.find("zzz")
    with pytest.raises(ReferenceUnknown, match="reference staged of cities"):
        node.datasets.open_at("cities@staged")


def test_nothing_is_remembered_of_a_deleted_dataset(node: Coordinator, root: str) -> None:
    node.add(root)
    cities = node.find("cities").id
    list(node.datasets.dependants(cities))
    node.record_reader.slices.all(node.find("cities"))
    node.datasets.stalls.record(cities, Activity.COMMIT, "x")
    node.datasets.stalls.record(cities, Activity.READ, "x")
    node.datasets.forget(cities)
    node.record_reader.slices.forget(cities)
    known = (node.datasets.stalls, node.datasets.roots, node.record_reader.slices)
    assert [len(one) for one in known] == [0, 0, 0]
    assert len(node.states) == 0


def test_a_dataset_that_another_process_deleted_is_not_listed_and_has_no_problem(
    node: Coordinator, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.add(root)
    known, gone = node.find("cities"), CatalogEntry(alias="gone", dataset_id=a_dataset("gone"))
    node.datasets.stalls.record(a_dataset("long ago"), Activity.READ, "x")
    node.datasets.stalls.record(gone.dataset_id, Activity.READ, "x")
    monkeypatch.setattr(node.catalog, "entries", lambda: (gone, known.entry))

    assert list(node.datasets.scan()) == [known]
    assert len(node.datasets.stalls) == 0


def test_a_dataset_that_is_renamed_while_all_are_listed_is_not_left_out(
    node: Coordinator, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.add(root)
    before = node.datasets.entry("cities")
    node.names.rename("cities", "towns")
    monkeypatch.setattr(node.catalog, "entries", lambda: (before,))

    assert list(node.datasets.scan()) == [replace(node.find("towns"), entry=before)]


def test_known_roots_are_those_of_this_node_and_no_derivatives(
    node: Coordinator, root: str, derivative: str
) -> None:
    node.add(root, derivative)
    cities = node.find("cities").id
    for _ in range(2):
        assert [one.alias for one in node.datasets.dependants(cities)] == ["cities.copy"]
        assert node.datasets.roots == {cities}

    node.catalog.remove("cities")  # by another process
    node.datasets.dependants(cities)
    assert node.datasets.roots == set()


def test_the_inputs_of_a_dataset_are_looked_up_once(
    node: Coordinator, root: str, derivative: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = (derivative.replace("name: cities.copy", f"name: {name}") for name in ("one", "other"))
    both = derivative.replace("{datasetRef: Cities}", "{datasetRef: one}, {datasetRef: other}")
    node.add(root, one, other, both.replace("FROM cities", "FROM one"))
    asked, by_id = list[DatasetId](), node.catalog.by_id

    def noted(dataset: DatasetId) -> CatalogEntry | None:
        asked.append(dataset)
        return by_id(dataset)

    last = node.find("cities.copy").id
    monkeypatch.setattr(node.catalog, "by_id", noted)

    assert not node.datasets.is_derived_from(last, a_dataset("elsewhere"))
    assert len(asked) == len(set(asked)) == 4
    assert node.datasets.is_derived_from(last, node.find("cities").id)


@pytest.mark.parametrize("content", [None, b"", b"x" * 99])
def test_a_checkpoint_that_a_block_declares_has_to_exist_with_its_size(content: bytes | None) -> None:
    blobs, checkpoint = MemoryBlobStore(MemoryRefStore()), a_checkpoint()
    event = ExecuteTransform(query_inputs=(), new_checkpoint=checkpoint)
    if content is not None:
        blobs.put(a_dataset(), ObjectKind.CHECKPOINT, checkpoint.physical_hash, content)
    with pytest.raises(ObjectMissing) as caught:
        require_objects(blobs, a_dataset(), event)
    assert (caught.value.size, caught.value.found) == (100, None if content is None else len(content))


def test_a_checkpoint_of_the_declared_size_is_enough() -> None:
    blobs, checkpoint = MemoryBlobStore(MemoryRefStore()), a_checkpoint()
    blobs.put(a_dataset(), ObjectKind.CHECKPOINT, checkpoint.physical_hash, bytes(checkpoint.size))
    require_objects(blobs, a_dataset(), ExecuteTransform(query_inputs=(), new_checkpoint=checkpoint))


@contextmanager
def running(node: Coordinator, messages: MemoryBus) -> Iterator[None]:
    """Handle commands as the service does."""
    handler = Commands(committer=node.committer, importer=node.importer).handle
    subscription = Subscription(topic=COORDINATOR_COMMANDS, handler=handler, threads=4)
    reader = Reader(subscription, group="odf.coordinator", bus=messages, topics=MemoryTopics())
    stop = threading.Event()
    thread = threading.Thread(target=reader.run, args=(stop,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def until(claim: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not claim() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert claim()


def propose(node: Coordinator, messages: MemoryBus, known: DatasetHandle) -> None:
    event = encode_event(SetInfo(description="x"))
    body = bus.Propose(
        expected_head=known.state.head.raw, system_time=time_message(node.clock.now()), events=[event]
    )
    messages.send(COORDINATOR_COMMANDS, envelope(known.id, body))


def test_a_lock_that_stays_held_blocks_only_its_dataset(tmp_path: Path, root: str) -> None:
    node, messages = Coordinator(home=tmp_path, is_durable=True), MemoryBus()
    node.add(root, root.replace("name: cities", "name: towns"))
    cities, towns = node.find("cities"), node.find("towns")

    def answered() -> list[str]:
        return [decode(*one).dataset_id for one in messages.topics[COORDINATOR_REPLIES]]

    def problems() -> dict[str, str]:
        found = Servicer(node.parts).List(ListRequest(), cast("grpc.ServicerContext", None)).datasets
        return {one.alias: one.problem for one in found}

    with capture_logs(), running(node, messages):
        with durable.lock_file(stores.lock_file(tmp_path, cities.id)):
            propose(node, messages, cities)
            propose(node, messages, towns)
            until(lambda: answered() == [str(towns.id)])
            propose(node, messages, node.find("towns"))
            until(lambda: len(answered()) == 2)
            assert node.find("cities").state == cities.state
            until(lambda: "commits are waiting" in problems()["cities"])
            assert problems()["towns"] == ""
        until(lambda: str(cities.id) in answered())
    assert node.find("cities").state.info is not None
    assert problems() == {"cities": "", "towns": ""}
