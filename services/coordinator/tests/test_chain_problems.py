"""Chains with a block that would not be accepted today: `odf status` names it, and a reset goes back to before it."""

import time
from collections.abc import Callable
from functools import partial
from typing import cast

import grpc
import pytest
from odf_testing.builders import a_block, a_push_source, a_source_state
from odf_testing.coordinator import Coordinator, forget, imported, stored
from odf_testing.guarded import GuardedDict
from structlog.testing import capture_logs

from odf_common.chain.build_blocks import ClockBehind, add_data_event
from odf_common.chain.state import ChainState
from odf_common.codec.flatbuffers import block_hash, encode_block
from odf_common.errors import StorageUnavailable, Unavailable
from odf_common.hashing.multihash import Multihash
from odf_common.identity.dataset_refs import HEAD, DatasetId
from odf_common.metadata.engine_messages import TransformRequest, TransformResponseSuccess
from odf_common.metadata.events import KnownEvent, SetInfo, SetVocab
from odf_common.metadata.scalars import CLOCK_TOLERANCE_MS, Timestamp
from odf_common.ports.bus import PARTITIONS
from odf_common.ports.engine import OnProgress
from odf_common.ports.store import DatasetUnknown, ObjectKind
from odf_common.proto.odf.node.v1 import coordinator_pb2 as wire
from odf_common.proto.odf.node.v1.coordinator_pb2 import DatasetSummary, ListRequest
from odf_coordinator.api.grpc_servicer import Servicer
from odf_coordinator.catalog import chain_problems
from odf_coordinator.catalog.datasets import Activity, DatasetHandle, Stalls
from odf_coordinator.catalog.partitions import PartitionOwnership
from odf_coordinator.commit.committer import Refusal

CONTEXT = cast("grpc.ServicerContext", None)
DAY_NS = 86_400 * 10**9
Odf = Callable[..., int]


@pytest.fixture
def cities(node: Coordinator, root: str, derivative: str) -> DatasetHandle:
    node.add(root, derivative)
    known = node.push("cities", "Oslo")
    node.work()
    return known


def add(node: Coordinator, past: ChainState, event: KnownEvent, *, later_by: int = 0) -> None:
    """Move a head to a block that was accepted by an earlier release."""
    raw = encode_block(a_block(past, event, system_time=Timestamp(past.system_time.ns + later_by)))
    node.blobs.put(past.dataset_id, ObjectKind.BLOCK, block_hash(raw), raw)
    node.refs.compare_and_set(past.dataset_id, expected=past.head, new=block_hash(raw))


def listed(node: Coordinator, alias: str) -> wire.DatasetSummary:
    everything = Servicer(node.parts).List(wire.ListRequest(), CONTEXT).datasets
    return next(one for one in everything if one.alias == alias)


@pytest.mark.parametrize("name", ["cities", "cities.copy"])
def test_a_head_from_the_future_is_named_with_the_block_to_go_back_to(
    node: Coordinator, cities: DatasetHandle, name: str
) -> None:
    good = node.find(name).state
    assert not listed(node, name).problem
    add(node, good, SetInfo(description="first"), later_by=DAY_NS)
    add(node, node.find(name).state, SetInfo(description="second"), later_by=1)

    summary = listed(node, name)
    assert summary.problem.startswith("nothing can be committed: its last block is from the future, 20")
    assert summary.remedy.startswith("if the clock of this machine is wrong, set it")
    force = " --force" if name == "cities" else ""  # cities.copy may have read it
    assert f"`odf reset {name} {good.head}{force}`" in summary.remedy
    with pytest.raises(ClockBehind, match="the last block is from"):
        node.editor.commit_event(name, SetInfo(description="x"))

    node.editor.reset(name, good.head)
    assert not listed(node, name).problem
    node.editor.commit_event(name, SetInfo(description="x"))


def test_a_derivative_whose_head_is_from_the_future_waits_and_says_so(
    node: Coordinator, cities: DatasetHandle
) -> None:
    copy = node.find("cities.copy")
    add(node, copy.state, SetInfo(description="x"), later_by=DAY_NS)
    with capture_logs():
        node.push("cities", "Rome", minute=1)
        node.work()
        stall = node.scheduler.stall_of(copy.id)
        assert stall is not None
        assert "the clock of this machine says" in stall.reason
        assert "`odf reset DATASET BLOCK`" in stall.remedy
        node.editor.reset("cities.copy", copy.state.head)
        node.now += 10
        node.work()
    assert node.scheduler.stall_of(copy.id) is None
    assert node.find("cities.copy").state.last_offset == 1


def test_a_dataset_that_is_from_the_future_as_a_whole_can_only_be_deleted(
    node: Coordinator, cities: DatasetHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node.committer, "latest_time", lambda: Timestamp(0))
    assert "`odf delete cities`: all of its blocks" in listed(node, "cities").remedy
    node.names.delete("cities.copy")
    node.names.delete("cities")
    with pytest.raises(DatasetUnknown):
        node.find("cities")


def test_columns_that_were_renamed_after_data_are_named_with_the_block_to_go_back_to(
    node: Coordinator, cities: DatasetHandle
) -> None:
    add(node, cities.state, SetVocab(event_time_column="city"))
    add(node, node.find("cities").state, SetInfo(description="x"))

    summary = listed(node, "cities")
    assert (
        summary.problem == "its system columns were renamed after records were written, which no longer fit"
    )
    assert summary.remedy.startswith(f"`odf reset cities {cities.state.head} --force` drops the blocks")

    node.editor.reset("cities", cities.state.head)
    assert not listed(node, "cities").problem
    node.push("cities", "Rome", minute=1)


def test_a_watermark_in_the_future_is_named_once_records_follow_with_the_block_to_go_back_to(
    node: Coordinator, cities: DatasetHandle
) -> None:
    good, far = cities.state, Timestamp(cities.state.system_time.ns + 3 * DAY_NS)
    event = add_data_event(good, new_data=None, watermark=far, source_state=good.last_source_state)
    add(node, good, event)
    add(node, node.find("cities").state, SetInfo(description="x"))
    assert not listed(node, "cities").problem, "the end of the data, or a forecast"

    node.push("cities", "Rome", minute=1)
    summary = listed(node, "cities")
    assert summary.problem.startswith(f"its watermark is in the future, {far} since block ")
    assert f"`odf reset cities {good.head} --force`" in summary.remedy
    assert "`odf pull --reset-derivatives cities`" in summary.remedy
    assert summary.remedy.startswith(
        "if such times are meant, as in forecasts: the next records raise it again, once "
        "`odf source show cities` says maxFuture=none; if that time is wrong: "
    )
    assert not listed(node, "cities.copy").problem

    state = node.find("cities").state
    further = Timestamp(far.ns + 1)
    add(
        node,
        state,
        add_data_event(state, new_data=None, watermark=further, source_state=state.last_source_state),
    )
    assert not listed(node, "cities").problem, "raised again"

    node.editor.reset("cities", good.head, is_forced=True)
    node.push("cities", "Rome", minute=1)
    assert not listed(node, "cities").problem


def test_a_dataset_without_derivatives_goes_back_without_force(node: Coordinator, root: str) -> None:
    node.add(root)
    good = node.push("cities", "Oslo").state
    far = Timestamp(good.system_time.ns + 3 * DAY_NS)
    add(node, good, add_data_event(good, new_data=None, watermark=far, source_state=good.last_source_state))
    node.push("cities", "Rome", minute=1)
    remedy = listed(node, "cities").remedy
    assert f"`odf reset cities {good.head}` drops" in remedy
    assert "derivatives" not in remedy
    node.editor.reset("cities", good.head)
    assert not listed(node, "cities").problem


def test_a_watermark_that_was_raised_long_ago_is_named_without_its_block(
    node: Coordinator, cities: DatasetHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chain_problems, "MAX_BLOCKS", 1)
    far = Timestamp(cities.state.system_time.ns + 3 * DAY_NS)
    add(node, cities.state, add_data_event(cities.state, new_data=None, watermark=far, source_state=None))
    node.push("cities", "Rome", minute=1)
    assert "`odf log cities` shows which BLOCK" in listed(node, "cities").remedy


def test_a_copy_has_no_such_problem(node: Coordinator, cities: DatasetHandle) -> None:
    add(node, cities.state, SetVocab(event_time_column="city"), later_by=DAY_NS)
    assert listed(node, "cities").problem
    node.keys.remove(cities.id)
    assert not listed(node, "cities").problem


def test_no_block_is_committed_or_pulled_that_is_later_than_clocks_may_differ(
    node: Coordinator, cities: DatasetHandle
) -> None:
    latest = node.clock.now().ms + CLOCK_TOLERANCE_MS
    late = Timestamp.from_ms(latest + 60_000)
    outcome = node.propose(cities, [SetInfo(description="x")], system_time=late)
    assert isinstance(outcome, Refusal)
    assert outcome.code == "TimeInFuture"
    assert outcome.text.startswith("a block is from the future: 20")
    assert not isinstance(
        node.propose(cities, [SetInfo(description="x")], system_time=Timestamp.from_ms(latest)), Refusal
    )
    head = node.find("cities").state
    forget(node, cities)
    outcome = imported(node, cities.id, None, head.head, "copy")
    assert not isinstance(outcome, Refusal), "within the tolerance"
    later = Timestamp.from_ms(late.ms + 60_000)
    raw = encode_block(a_block(head, SetInfo(description="y"), system_time=later))
    node.blobs.put(cities.id, ObjectKind.BLOCK, block_hash(raw), raw)
    for ref in ("head", "theirs"):
        outcome = node.importer.import_chain(
            cities.id,
            expected_head=head.head if ref == "head" else None,
            new_head=block_hash(raw),
            alias="",
            ref=ref,
        )
        assert isinstance(outcome, Refusal)
        assert outcome.code == "TimeInFuture"
        assert "ODF_CLOCK_TOLERANCE_MS" in outcome.text


def test_an_owner_who_takes_over_a_chain_is_shown_what_changes(
    node: Coordinator, odf: Odf, capsys: pytest.CaptureFixture[str]
) -> None:
    """The datasets are those of the fixture `odf`."""
    past = node.push("cities", "Oslo").state
    position = a_source_state('{"v":1}')
    event = add_data_event(
        past, new_data=None, watermark=Timestamp.parse("2030-01-01T00:00:00Z"), source_state=position
    )
    theirs = stored(node, past, SetInfo(description="x"), event, a_push_source("second"))
    assert odf("ref", "set", "cities@theirs", str(theirs.head)) == 0
    capsys.readouterr()
    assert odf("ref", "fast-forward", "cities@theirs") == 0
    assert capsys.readouterr().err.splitlines() == [
        "changed in cities: the push sources",
        'changed in cities: the state of source default: none → odf/kafka {"v":1}',
        f"changed in cities: the watermark: {past.watermark} → 2030-01-01T00:00:00Z",
    ]
    assert node.find("cities").state == theirs
    assert odf("ref", "fast-forward", "cities@theirs") == 0
    assert capsys.readouterr().err == "", "nothing changes"


ONE = DatasetId.of_key(bytes(32))


@pytest.fixture
def pair(node: Coordinator, root: str, derivative: str) -> Coordinator:
    node.add(root, derivative, root.replace("name: cities", "name: towns"))
    return node


def listed_datasets(node: Coordinator) -> dict[str, DatasetSummary]:
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
    first, second = listed_datasets(pair), listed_datasets(pair)

    assert why in first["towns"].problem
    assert remedy in first["towns"].remedy
    assert 0 < first["towns"].since == second["towns"].since
    assert [one for one in second if not second[one].problem] == ["cities", "cities.copy"]
    assert [one.alias for one in pair.datasets.dependants(pair.find("cities").id)] == ["cities.copy"]

    monkeypatch.setattr(pair.refs, "head", head)
    assert listed_datasets(pair)["towns"].problem == ""
    assert not pair.datasets.stalls


def test_a_dataset_that_cannot_be_summed_up_hides_no_other(
    pair: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> str:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(pair.blobs, "note", failing)
    found = listed_datasets(pair)
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
    found = listed_datasets(pair)["cities.copy"]
    assert found.problem.startswith("a bug in the node: ZeroDivisionError")
    assert "traceback from the coordinator" in found.remedy

    monkeypatch.setattr(pair.engine, "execute_transform", run)
    pair.now += 1
    pair.work()
    assert listed_datasets(pair)["cities.copy"].problem == ""
    assert pair.datasets.find(str(copy)).state.last_offset == 0


def test_a_derivative_that_waits_for_the_engine_says_so(
    pair: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(request: TransformRequest, on_progress: OnProgress | None = None) -> TransformResponseSuccess:
        raise Unavailable(what="the engine", why="no heartbeat for 120 s")

    monkeypatch.setattr(pair.engine, "execute_transform", failing)
    pair.push("cities", "Oslo")
    pair.work()
    found = listed_datasets(pair)["cities.copy"]
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
    listed_datasets(pair)
    asked: list[tuple[str, DatasetId]] = []
    for name in ("read", "has", "size", "open", "names", "local_path", "local_copy", "note"):
        method = getattr(pair.blobs, name)

        def counted(
            dataset: DatasetId, *rest: object, name: str = name, method: Callable[..., object] = method
        ) -> object:
            asked.append((name, dataset))
            return method(dataset, *rest)

        monkeypatch.setattr(pair.blobs, name, counted)

    assert len(listed_datasets(pair)) == 3
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
        listed_datasets(pair)
        listed_datasets(pair)
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
