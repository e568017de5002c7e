"""What remains of datasets whose creation, import or removal failed: everything that a name refers to, nothing else."""

import gc
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import cast

import grpc
import pytest
from odf_testing.builders import a_hash
from odf_testing.coordinator import Coordinator
from odf_testing.memory_store import MemoryCatalog
from odf_testing.redis import MemoryLocks
from structlog.testing import capture_logs

from odf_common.errors import AlreadyExists, DatasetInUse, NotFound, Unavailable
from odf_common.hashing.multihash import Multihash
from odf_common.identity.dataset_refs import HEAD, DatasetId
from odf_common.ports.bus import NOTIFICATIONS
from odf_common.ports.store import CatalogEntry, ObjectKind
from odf_common.proto.odf.node.v1.coordinator_pb2 import DescribeRequest, ListRequest
from odf_coordinator import lifecycle
from odf_coordinator.api.grpc_servicer import Servicer
from odf_coordinator.commit.committer import Committed, Refusal
from odf_coordinator.commit.dataset_locks import DatasetBusy
from odf_coordinator.lifecycle import DIGEST_DIGITS, POLL_SECONDS, WAIT_SECONDS, topic_name
from odf_coordinator.transforms.runner import LATE, count_late

OTHER = DatasetId.of_key(bytes([7]) * 32)


def abandon(node: Coordinator, alias: str, *topics: str, dataset: DatasetId = OTHER) -> None:
    """Leave the claim of a process that was killed while it created another dataset of this name."""
    claim = node.catalog.claim(dataset)
    assert claim is not None
    push_topics = {topic: topic for topic in topics}
    claim.write(CatalogEntry(alias=alias, dataset_id=dataset, push_topics=push_topics))
    claim.release()
    for topic in topics:
        node.topics.create_push_topic(topic)
    node.blobs.put(dataset, ObjectKind.BLOCK, a_hash("block"), b"")


def settle(node: Coordinator) -> None:
    with capture_logs():
        node.collector.settle()


def test_an_unfinished_dataset_whose_name_is_taken_is_removed(node: Coordinator, root: str) -> None:
    node.add(root)
    cities = node.find("cities")
    abandon(node, "cities", "odf.push.cities.default-1")

    settle(node)

    assert set(node.blobs.datasets()) == {cities.id}
    assert set(node.topics.names) == {*cities.entry.push_topics.values()}
    assert node.find("cities") == cities


def test_a_claim_is_settled_only_once_its_topics_are_deleted(node: Coordinator) -> None:
    abandon(node, "cities", "odf.push.cities.default")

    node.topics.is_lost = True
    settle(node)
    assert [entry.dataset_id for entry in node.catalog.claims()] == [OTHER]

    node.topics.is_lost = False
    settle(node)
    assert node.catalog.claims() == ()
    assert set(node.topics.names) == set()


def test_a_topic_that_a_killed_process_has_reserved_is_given_to_no_other_dataset(
    node: Coordinator, root: str
) -> None:
    abandon(node, "cities", "odf.push.cities.default")
    node.add(root)
    topic = node.find("cities").entry.push_topics["default"]
    assert topic != "odf.push.cities.default"

    settle(node)

    assert set(node.topics.names) == {topic}


def test_a_removal_that_is_refused_holds_no_claim(node: Coordinator, root: str) -> None:
    node.add(root)
    impatient = replace(node.claims, wait_seconds=0.0)

    def refuse(entry: CatalogEntry) -> None:
        raise DatasetInUse(text=entry.alias)

    for _ in range(2):
        with pytest.raises(DatasetInUse):
            impatient.remove(node.find("cities").id, refuse)
        assert node.catalog.claims() == ()


@pytest.mark.parametrize("ref", ["Cities", str(OTHER)], ids=["name", "id"])
def test_a_repeated_deletion_finishes_that_dataset_and_no_other(node: Coordinator, ref: str) -> None:
    third = DatasetId.of_key(bytes([8]) * 32)
    abandon(node, "cities")
    abandon(node, "towns", dataset=third)

    with capture_logs():
        node.names.delete(ref)

    assert [entry.alias for entry in node.catalog.claims()] == ["towns"]
    assert list(node.blobs.datasets()) == [third]
    with pytest.raises(NotFound, match=f"{ref} does not exist"):
        node.names.delete(ref)


def lost_head(node: Coordinator, root: str) -> tuple[DatasetId, Multihash]:
    """Return a dataset without a name, and a head that is not stored."""
    node.add(root)
    known = node.find("cities")
    node.catalog.remove(known.alias)
    node.refs.remove(known.id, HEAD, expected=None)
    return known.id, a_hash("lost")


def test_an_import_that_fails_keeps_objects_and_key_and_reports_no_removal(
    node: Coordinator, root: str
) -> None:
    dataset, head = lost_head(node, root)
    blocks = set(node.blobs.names(dataset, ObjectKind.BLOCK))
    node.bus.sent.clear()

    outcome = node.importer.import_chain(dataset, expected_head=None, new_head=head, alias="copy")

    assert isinstance(outcome, Refusal)
    assert set(node.blobs.names(dataset, ObjectKind.BLOCK)) == blocks
    assert node.keys.has(dataset)
    assert node.bus.sent == []


def test_a_name_that_was_taken_meanwhile_costs_no_topic_and_no_download(node: Coordinator, root: str) -> None:
    node.add(root)
    before = set(node.topics.names)

    for claimed in (node.claims.creating(OTHER, "Cities", ["more"]), node.claims.importing(OTHER, "Cities")):
        with pytest.raises(AlreadyExists):
            claimed.__enter__()
        assert set(node.topics.names) == before
        assert node.catalog.claims() == ()


def test_a_dataset_that_was_imported_meanwhile_keeps_its_head_and_name(node: Coordinator, root: str) -> None:
    node.add(root)
    known = node.find("cities")
    with pytest.raises(AlreadyExists), node.claims.importing(known.id, "other"):
        pytest.fail("it is claimed")
    assert node.refs.head(known.id) == known.state.head
    assert node.catalog.by_alias("other") is None


def test_a_copy_is_recorded_while_it_is_imported_and_leaves_no_head_without_a_name(
    node: Coordinator, root: str
) -> None:
    dataset, head = lost_head(node, root)
    with node.claims.importing(dataset, "copy"):
        assert [(one.dataset_id, one.alias) for one in node.catalog.claims()] == [(dataset, "copy")]
        node.refs.compare_and_set(dataset, expected=None, new=head)

    assert node.refs.head(dataset) is None
    assert node.catalog.claims() == ()


def test_what_is_recorded_and_removed_is_decided_under_the_catalogs_lock(
    node: Coordinator, root: str
) -> None:
    node.add(root)
    abandon(node, "towns")
    was_locked: list[bool] = []

    def require_removable(_: CatalogEntry) -> None:
        assert isinstance(node.catalog, MemoryCatalog)
        was_locked.append(node.catalog._lock.locked())

    def is_due(entry: CatalogEntry) -> bool:
        require_removable(entry)
        return True

    node.claims.remove(node.find("cities").id, require_removable)
    assert node.claims.settle(OTHER, is_due)

    assert was_locked == [True, True]


def test_what_cannot_be_removed_at_once_is_recorded(
    node: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: DatasetId) -> None:
        raise Unavailable(what="the store")

    monkeypatch.setattr(node.blobs, "delete_dataset", fail)
    with capture_logs():
        assert node.claims.settle(OTHER, lambda _: True)

    assert [one.dataset_id for one in node.catalog.claims()] == [OTHER]


def test_a_dataset_that_has_the_recorded_name_is_kept(
    node: Coordinator, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if a search by its id would find no name."""
    node.add(root)
    known = node.find("cities")
    claim = node.catalog.claim(known.id)
    assert claim is not None
    claim.write(known.entry)
    claim.release()

    with monkeypatch.context() as patch:
        patch.setattr(node.catalog, "by_id", lambda _: None)
        node.claims.settle(known.id, lambda _: True)

    assert node.find("cities") == known
    assert set(node.topics.names) == {*known.entry.push_topics.values()}


def test_a_dataset_is_locked_while_it_is_removed(
    tmp_path: Path, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    locks = MemoryLocks(lambda: 0.0)
    node = Coordinator(home=tmp_path, locks=locks)
    node.add(root)
    dataset, was_held = node.find("cities").id, list[bool]()
    delete = node.blobs.delete_dataset

    def noted(one: DatasetId) -> None:
        was_held.append(one in locks.held)
        delete(one)

    monkeypatch.setattr(node.blobs, "delete_dataset", noted)
    node.names.delete("cities")

    assert (was_held, locks.held) == ([True], {})
    assert dataset not in set(node.blobs.datasets())


class Clock:
    """Replaces `time`: each sleep takes a second, and then calls `act`."""

    def __init__(self, act: Callable[[float], None]) -> None:
        self.now = 0.0
        self.sleeps: list[float] = []
        self._act = act

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.now += 1.0
        self._act(self.now)


@pytest.mark.parametrize(("free_after", "sleeps"), [(3.0, 3), (16.0, 15)])
def test_a_claim_that_another_operation_holds_is_waited_for_fifteen_seconds(
    node: Coordinator, monkeypatch: pytest.MonkeyPatch, free_after: float, sleeps: int
) -> None:
    theirs = node.catalog.claim(OTHER)
    assert theirs is not None
    clock = Clock(lambda now: theirs.release() if now >= free_after else None)
    monkeypatch.setattr(lifecycle, "time", clock)

    if sleeps < WAIT_SECONDS:
        assert node.claims.settle(OTHER, lambda _: True) is False
        with node.claims.importing(OTHER, "copy"):
            pass
    else:
        with pytest.raises(DatasetBusy, match="for 15 s"), node.claims.importing(OTHER, "copy"):
            pytest.fail("it is held")

    assert clock.sleeps == [POLL_SECONDS] * sleeps


def test_a_removed_dataset_has_no_state_in_memory(node: Coordinator, root: str) -> None:
    node.add(root)
    assert len(node.states) == 1
    node.names.delete("cities")
    assert len(node.states) == 0


def test_a_source_that_has_a_topic_keeps_it_when_another_one_gets_its_own(
    node: Coordinator, root: str
) -> None:
    more = "    - {kind: AddPushSource, sourceName: more, read: {kind: NdJson}, merge: {kind: Append}}\n"
    node.add(root + more)
    entry = node.find("cities").entry
    node.catalog.replace(replace(entry, push_topics={"default": entry.push_topics["default"]}))

    node.creator.create_missing_topics(node.find("cities"))

    assert node.find("cities").entry.push_topics == entry.push_topics


def test_a_removal_that_could_not_be_recorded_removes_no_name(
    tmp_path: Path, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Coordinator(home=tmp_path, is_durable=True)
    node.add(root)
    cities = node.find("cities")

    def fail(_: object, __: object) -> None:
        raise DatasetInUse(text="the record")

    monkeypatch.setattr("odf_common.adapters.local.claims.LocalClaim.write", fail)
    with pytest.raises(DatasetInUse, match="the record"):
        node.claims.remove(cities.id, lambda _: None)

    assert node.find("cities").entry == cities.entry
    assert isinstance(node.propose(cities, node.ingest_events(cities, ["Oslo"], 1)), Committed)


def test_each_taken_topic_name_is_followed_by_a_distinct_one() -> None:
    """The names are part of what is recorded: they stay the same in later versions."""
    taken: list[str] = []
    for salt in (None, "", "\n2", "\n3"):
        name = topic_name("cities", "default", taken)
        digest = (
            ""
            if salt is None
            else "-" + sha256(f"cities\ndefault{salt}".encode()).hexdigest()[:DIGEST_DIGITS]
        )
        assert name == f"odf.push.cities.default{digest}"
        taken.append(name)


PAIRS = 30
CONTEXT = cast("grpc.ServicerContext", None)  # neither `List` nor `Describe` looks at it


def test_datasets_that_were_deleted_are_in_no_map(node: Coordinator, root: str, derivative: str) -> None:
    node.committer.listen(node.publisher.announce)
    servicer = Servicer(node.parts)
    with capture_logs():
        for number in range(PAIRS):
            cities, copy = f"cities.{number}", f"copy.{number}"
            named = derivative.replace("name: cities.copy", f"name: {copy}").replace("Cities", cities)
            node.add(root.replace("name: cities", f"name: {cities}"), named)
            node.push(cities, "Oslo")
            count_late(node.blobs, node.find(copy), 1)
        node.work()
        ids = {known.id for known in node.datasets.all()}
        assert len(ids) == 2 * PAIRS
        assert len(servicer.List(ListRequest(), CONTEXT).datasets) == 2 * PAIRS
        for dataset in ids:
            servicer.Describe(DescribeRequest(ref=str(dataset)), CONTEXT)
        assert len(held(ids)) > 5

        for number in range(PAIRS):
            node.names.delete(f"copy.{number}")
            node.names.delete(f"cities.{number}")
        for topic, message in node.bus.sent:
            if topic == NOTIFICATIONS:
                list(node.notifications.handle(message))
        node.work()

    assert held(ids) == []
    assert set(node.topics.names) == set()
    assert len(node.committer.locks) == 0
    counted = {sample.labels["dataset"] for metric in LATE.collect() for sample in metric.samples}
    assert counted.isdisjoint(
        f"copy.{number}" for number in range(PAIRS)
    )  # tests before this one may have counted


def held(ids: set[DatasetId]) -> list[object]:
    """Return the mappings and sets of this process that have one of these datasets among their keys."""
    gc.collect()
    found = []
    for one in gc.get_objects():
        if isinstance(one, dict | set | frozenset) and one is not ids:
            try:
                if any(type(key) is DatasetId and key in ids for key in tuple(one)):
                    found.append(one)
            except RuntimeError:  # it changes meanwhile, in another thread
                continue
    return [type(one).__name__ + str(len(cast("set[object]", one))) for one in found]
