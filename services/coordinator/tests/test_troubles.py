"""A problem of one dataset leaves all others unaffected."""

import time
from collections.abc import Callable
from functools import partial
from typing import cast

import grpc
import pytest
from odf_testing.coordinator import Coordinator
from odf_testing.guarded import GuardedDict
from structlog.testing import capture_logs

from odf_common.errors import StorageUnavailable, Unavailable
from odf_common.hashing.multihash import Multihash
from odf_common.identity.dataset_refs import HEAD, DatasetId
from odf_common.metadata.engine_messages import TransformRequest, TransformResponseSuccess
from odf_common.ports.bus import PARTITIONS
from odf_common.ports.engine import OnProgress
from odf_common.proto.odf.node.v1.coordinator_pb2 import DatasetSummary, ListRequest
from odf_coordinator.api.grpc_servicer import Servicer
from odf_coordinator.catalog.datasets import Activity, Stalls
from odf_coordinator.catalog.partitions import PartitionOwnership

ONE = DatasetId.of_key(bytes(32))
CONTEXT = cast("grpc.ServicerContext", None)  # `List` does not use it


@pytest.fixture
def pair(node: Coordinator, root: str, derivative: str) -> Coordinator:
    node.add(root, derivative, root.replace("name: cities", "name: towns"))
    return node


def listed(node: Coordinator) -> dict[str, DatasetSummary]:
    parts = node.parts
    return {one.alias: one for one in Servicer(parts).List(ListRequest(), CONTEXT).datasets}


@pytest.mark.parametrize(
    ("error", "why", "remedy"),
    [
        (Unavailable(what="the disk", why="EIO"), "the disk cannot be reached: EIO", "it is retried"),
        (
            StorageUnavailable(file="refs/head", why="EIO"),
            "EIO: refs/head",
            "; work then continues automatically",
        ),
        (OSError(5, "Input/output error"), "OSError: [Errno 5] Input/output error", "`odf verify towns`"),
        (ZeroDivisionError(), "ZeroDivisionError", "`odf verify towns`"),
    ],
)
def test_a_dataset_that_cannot_be_read_is_listed_with_since_when_and_what_to_do(
    pair: Coordinator, monkeypatch: pytest.MonkeyPatch, error: Exception, why: str, remedy: str
) -> None:
    towns, head = pair.find("towns").id, pair.refs.head

    def failing(dataset: DatasetId, ref: str = HEAD) -> Multihash | None:
        if dataset == towns:
            raise error
        return head(dataset, ref)

    monkeypatch.setattr(pair.refs, "head", failing)
    first, second = listed(pair), listed(pair)

    assert why in first["towns"].problem
    assert remedy in first["towns"].remedy
    assert 0 < first["towns"].since == second["towns"].since
    assert [one for one in second if not second[one].problem] == ["cities", "cities.copy"]
    assert [one.alias for one in pair.datasets.dependants(pair.find("cities").id)] == ["cities.copy"]

    monkeypatch.setattr(pair.refs, "head", head)
    assert listed(pair)["towns"].problem == ""
    assert not pair.datasets.stalls


def test_a_dataset_that_cannot_be_summed_up_hides_no_other(
    pair: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> str:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(pair.blobs, "note", failing)
    found = listed(pair)
    assert "Input/output error" in found["cities.copy"].problem
    assert found["towns"].problem == ""


def test_a_bug_in_one_transform_is_reported_as_its_problem_and_retried(
    pair: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.push("cities", "Oslo")
    copy = pair.find("cities.copy").id
    run = pair.engine.execute_transform

    def failing(request: TransformRequest, on_progress: OnProgress | None = None) -> TransformResponseSuccess:
        raise ZeroDivisionError

    monkeypatch.setattr(pair.engine, "execute_transform", failing)
    pair.work()
    found = listed(pair)["cities.copy"]
    assert found.problem.startswith("a bug in the node: ZeroDivisionError")
    assert "traceback from the coordinator" in found.remedy

    monkeypatch.setattr(pair.engine, "execute_transform", run)
    pair.now += 1
    pair.work()
    assert listed(pair)["cities.copy"].problem == ""
    assert pair.datasets.find(str(copy)).state.last_offset == 0


def test_a_derivative_that_waits_for_the_engine_says_so(
    pair: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(request: TransformRequest, on_progress: OnProgress | None = None) -> TransformResponseSuccess:
        raise Unavailable(what="the engine", why="no heartbeat for 120 s")

    monkeypatch.setattr(pair.engine, "execute_transform", failing)
    pair.push("cities", "Oslo")
    pair.work()
    found = listed(pair)["cities.copy"]
    assert found.problem == "the engine cannot be reached: no heartbeat for 120 s"
    assert found.remedy.startswith("it is retried automatically")
    assert found.since > 0


def test_a_dataset_that_could_not_be_read_at_the_start_is_announced_once_it_can(
    pair: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    announced: list[DatasetId] = []
    monkeypatch.setattr("odf_coordinator.catalog.partitions.READ_AGAIN_SECONDS", 0.0)
    ownership = PartitionOwnership(
        datasets=pair.datasets, keys=pair.keys, announce=lambda state: announced.append(state.dataset_id)
    )
    towns, head = pair.find("towns").id, pair.refs.head

    def failing(dataset: DatasetId, ref: str = HEAD) -> Multihash | None:
        if dataset == towns:
            raise Unavailable(what="the disk")
        return head(dataset, ref)

    monkeypatch.setattr(pair.refs, "head", failing)
    ownership.on_assigned(frozenset(range(PARTITIONS)))
    ownership.step()
    ownership.step()
    assert set(announced) == {pair.find("cities").id, pair.find("cities.copy").id}

    monkeypatch.setattr(pair.refs, "head", head)
    ownership.step()
    assert announced[-1] == towns


def test_a_listing_of_what_is_known_reads_no_object_and_no_note_of_a_root_and_only_asks_for_its_newest_block(
    pair: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.push("cities", "Oslo")
    pair.work()
    listed(pair)
    asked: list[tuple[str, DatasetId]] = []
    for name in ("read", "has", "size", "open", "names", "local_path", "local_copy", "note"):
        method = getattr(pair.blobs, name)

        def counted(
            dataset: DatasetId, *rest: object, name: str = name, method: Callable[..., object] = method
        ) -> object:
            asked.append((name, dataset))
            return method(dataset, *rest)

        monkeypatch.setattr(pair.blobs, name, counted)

    assert len(listed(pair)) == 3
    copy = pair.find("cities.copy").id
    assert {name for name, dataset in asked if dataset == copy} == {"has", "note"}
    assert [name for name, dataset in asked if dataset == pair.find("cities").id] == ["has"]


def test_a_stall_is_new_when_its_reason_its_remedy_or_its_cause_is() -> None:
    stalls = Stalls()
    record = partial(stalls.record, ONE, Activity.COMMIT)
    assert record("it is down")
    since = stalls.get(ONE, Activity.COMMIT)
    assert not record("it is down")
    assert stalls.get(ONE, Activity.COMMIT) is since
    assert record("it is down", remedy="wait")
    assert record("it is down", remedy="wait", cause=1)
    assert not record("it is down", remedy="wait", cause=1)
    assert record("it is full", remedy="wait", cause=1)


def test_each_activity_of_a_dataset_stalls_on_its_own() -> None:
    stalls = Stalls()
    stalls.record(ONE, Activity.DEPENDENCY, "it is down")
    stalls.record(ONE, Activity.TRANSFORM, "no")
    assert stalls.get(ONE, Activity.READ, Activity.COMMIT) is None
    found = stalls.get(ONE, Activity.TRANSFORM, Activity.DEPENDENCY)
    assert found is not None
    assert found.reason == "no"
    stalls.clear(ONE, Activity.TRANSFORM)
    assert stalls.get(ONE, Activity.TRANSFORM) is None
    assert stalls.get(ONE, Activity.DEPENDENCY) is not None
    stalls.clear(ONE)
    assert len(stalls) == 0


def test_a_stall_that_was_not_recorded_again_for_long_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    stalls, now = Stalls(), 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    assert stalls.recent(ONE, Activity.COMMIT, 60.0) is None
    stalls.record(ONE, Activity.COMMIT, "it is down")
    now = 30.0
    stalls.record(ONE, Activity.COMMIT, "it is down")
    now = 90.0
    assert stalls.recent(ONE, Activity.COMMIT, 60.0) == stalls.get(ONE, Activity.COMMIT) is not None
    now = 91.0
    assert stalls.recent(ONE, Activity.COMMIT, 60.0) is None
    assert stalls.get(ONE, Activity.COMMIT) is None


def test_a_reason_why_a_dataset_cannot_be_read_is_logged_once(
    pair: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> None:
        raise Unavailable(what="the disk")

    monkeypatch.setattr(pair.refs, "head", failing)
    with capture_logs() as logs:
        listed(pair)
        listed(pair)
    assert [one["dataset"] for one in logs] == ["cities", "cities.copy", "towns"]


def test_stalls_are_recorded_and_cleared_by_one_thread_at_a_time() -> None:
    other, stalls = DatasetId.of_key(bytes(31) + bytes([2])), Stalls()
    stalls._stalls = GuardedDict(stalls._lock)

    assert stalls.record(ONE, Activity.READ, "it is down")
    assert stalls.record(other, Activity.READ, "it is down")
    assert stalls.recent(ONE, Activity.READ, 60.0) == stalls.get(ONE, Activity.READ) is not None
    stalls.keep([ONE])
    assert len(stalls) == 1
    stalls.clear(ONE)
    assert len(stalls) == 0
