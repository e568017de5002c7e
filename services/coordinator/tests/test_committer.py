import errno
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest
from odf_testing.builders import a_checkpoint, a_hash
from odf_testing.coordinator import Coordinator
from structlog.testing import capture_logs

from odf_common.adapters.local import durable
from odf_common.chain.state import ChainState
from odf_common.errors import HeadMoved, StorageUnavailable, Unavailable
from odf_common.hashing.multihash import Multihash
from odf_common.identity.dataset_refs import HEAD, DatasetId
from odf_common.metadata.events import AddData, ExecuteTransform, KnownEvent, SetInfo
from odf_common.ports.store import ObjectKind, RefStore
from odf_coordinator.catalog.datasets import Activity, DatasetHandle
from odf_coordinator.commit.committer import SETTLE_ATTEMPTS, Committed, Outcome, Overtaken, Refusal
from odf_coordinator.transforms.scheduler import SchedulerLimits


@pytest.fixture
def cities(node: Coordinator, root: str) -> DatasetHandle:
    node.add(root)
    return node.find("cities")


def test_a_proposal_on_the_head_is_committed(node: Coordinator, cities: DatasetHandle) -> None:
    outcome = node.propose(cities, node.ingest_events(cities, ["Oslo", "Rome"], 1))

    assert isinstance(outcome, Committed)
    assert not outcome.already
    assert node.find("cities").state.last_offset == 1
    assert node.refs.head(cities.id) == outcome.state.head


def test_a_stale_proposal_is_answered_with_the_head_which_stays(
    node: Coordinator, cities: DatasetHandle
) -> None:
    now = node.push("cities", "Oslo")

    outcome = node.propose(cities, [SetInfo(description="late")])

    assert outcome == Overtaken(expected=cities.state.head, head=now.state.head)
    assert node.refs.head(cities.id) == now.state.head


def test_a_repeat_is_answered_already_also_when_others_have_committed_since(
    node: Coordinator, cities: DatasetHandle
) -> None:
    events, system_time = node.ingest_events(cities, ["Oslo"], 1), node.clock.now()
    node.propose(cities, events, system_time=system_time)
    node.push("cities", "Rome", minute=2)

    outcome = node.propose(cities, events, system_time=system_time)

    assert isinstance(outcome, Committed)
    assert outcome.already
    assert node.find("cities").state.last_offset == 1


def test_the_same_events_at_another_time_are_no_repeat(node: Coordinator, cities: DatasetHandle) -> None:
    node.propose(cities, [SetInfo(description="one")])

    assert isinstance(node.propose(cities, [SetInfo(description="one")]), Overtaken)


def data_of(events: Sequence[KnownEvent]) -> Multihash:
    event = events[-1]
    assert isinstance(event, AddData)
    assert event.new_data is not None
    return event.new_data.physical_hash


def test_a_block_whose_object_is_missing_is_refused(node: Coordinator, cities: DatasetHandle) -> None:
    events = node.ingest_events(cities, ["Oslo"], 1)
    node.blobs.remove(cities.id, ObjectKind.DATA, [data_of(events)])

    outcome = node.propose(cities, events)

    assert isinstance(outcome, Refusal)
    assert outcome.code == "ObjectMissing"
    assert node.refs.head(cities.id) == cities.state.head


@pytest.mark.parametrize("change", [lambda raw: raw[:-1], lambda raw: raw + b"\0"], ids=["shorter", "longer"])
def test_a_block_whose_object_has_another_size_is_refused(
    node: Coordinator, cities: DatasetHandle, change: Callable[[bytes], bytes]
) -> None:
    events = node.ingest_events(cities, ["Oslo"], 1)
    changed = change(node.blobs.read(cities.id, ObjectKind.DATA, data_of(events)))
    node.blobs.remove(cities.id, ObjectKind.DATA, [data_of(events)])
    node.blobs.put(cities.id, ObjectKind.DATA, data_of(events), changed)

    outcome = node.propose(cities, events)

    assert isinstance(outcome, Refusal)
    assert outcome.code == "ObjectMissing"
    assert node.refs.head(cities.id) == cities.state.head


def test_a_proposal_that_breaks_a_rule_is_refused_by_its_name(
    node: Coordinator, cities: DatasetHandle
) -> None:
    node.push("cities", "Oslo", minute=5)
    now = node.find("cities")

    with capture_logs() as logs:
        outcome = node.propose(now, node.ingest_events(cities, ["Rome"], 1)[-1:])

    assert isinstance(outcome, Refusal)
    assert outcome.code == "ChainRuleViolated"
    assert "previous_offset_is_carried" in outcome.text
    assert [(one["event"], one["rule"]) for one in logs] == [("commit refused", "previous_offset_is_carried")]


def test_an_empty_proposal_is_refused(node: Coordinator, cities: DatasetHandle) -> None:
    outcome = node.propose(cities, [])

    assert isinstance(outcome, Refusal)
    assert "no events" in outcome.text


def test_a_result_that_continues_from_a_dropped_checkpoint_is_refused_as_such(
    node: Coordinator, cities: DatasetHandle
) -> None:
    """Even if its own objects were dropped with it."""
    for new_checkpoint in (None, a_checkpoint()):
        event = ExecuteTransform(
            query_inputs=(), prev_checkpoint=a_hash("dropped"), new_checkpoint=new_checkpoint
        )

        outcome = node.propose(cities, [event])

        assert isinstance(outcome, Refusal)
        assert outcome.code == "CheckpointMissing"


class HeldLocks:
    """Another process holds every lock; counts the attempts."""

    def __init__(self) -> None:
        self.attempts = 0

    def acquire(self, dataset: DatasetId, ttl_ms: int) -> None:
        self.attempts += 1


def test_a_lock_that_another_process_holds_delays_but_does_not_decide(
    node: Coordinator, cities: DatasetHandle
) -> None:
    locks = HeldLocks()
    committer = node.new_committer(locks=locks, lock_ttl_ms=30)
    began = time.monotonic()

    with capture_logs() as logs:
        outcome = committer.commit(
            cities.id,
            expected_head=cities.state.head,
            events=[SetInfo(description="x")],
            system_time=node.clock.now(),
        )

    assert isinstance(outcome, Committed)
    assert time.monotonic() - began >= 0.03
    waits = [one for one in logs if one["event"] == "waited for another process"]
    assert [(one["is_held"], one["ms"] >= 30) for one in waits] == [(False, True)]
    assert locks.attempts <= 3, "the lock would have expired after 30 ms, and is asked for every 20 ms"


def test_of_many_writers_without_locks_exactly_one_wins_each_head(
    node: Coordinator, cities: DatasetHandle
) -> None:
    committers = [node.new_committer() for _ in range(4)]
    barrier = threading.Barrier(4)
    outcomes: list[Outcome] = []

    def write(number: int) -> None:
        barrier.wait()
        outcomes.append(
            committers[number].commit(
                cities.id,
                expected_head=cities.state.head,
                events=[SetInfo(description=f"writer {number}")],
                system_time=cities.state.system_time,
            )
        )

    threads = [threading.Thread(target=write, args=(number,), daemon=True) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(type(one).__name__ for one in outcomes) == ["Committed", *["Overtaken"] * 3]
    assert node.find("cities").state.sequence_number == cities.state.sequence_number + 1


class LateRefs:
    """A reference that another process moves between our reading it and our moving it."""

    def __init__(self, refs: RefStore, interfere: Callable[[], object]) -> None:
        self._refs, self._interfere = refs, interfere

    def head(self, dataset: DatasetId, ref: str = "head") -> Multihash | None:
        return self._refs.head(dataset, ref)

    def compare_and_set(
        self, dataset: DatasetId, *, expected: Multihash | None, new: Multihash, ref: str = "head"
    ) -> None:
        interfere, self._interfere = self._interfere, lambda: None
        interfere()
        self._refs.compare_and_set(dataset, expected=expected, new=new, ref=ref)

    def remove(self, dataset: DatasetId, ref: str, *, expected: Multihash | None) -> None:
        self._refs.remove(dataset, ref, expected=expected)

    def names(self, dataset: DatasetId) -> tuple[str, ...]:
        return self._refs.names(dataset)


def test_a_lock_that_was_outlived_meets_the_fence(node: Coordinator, cities: DatasetHandle) -> None:
    refs = LateRefs(node.refs, lambda: node.push("cities", "Oslo"))
    committer = node.new_committer(refs=refs)

    outcome = committer.commit(
        cities.id,
        expected_head=cities.state.head,
        events=[SetInfo(description="late")],
        system_time=node.clock.now(),
    )

    now = node.find("cities").state
    assert outcome == Overtaken(expected=cities.state.head, head=now.head)
    assert now.info is None


def test_a_dataset_whose_commits_wait_has_a_problem_until_one_is_done(
    node: Coordinator, cities: DatasetHandle
) -> None:
    def cut_off() -> None:
        raise Unavailable(what="the store")

    committer, stalls = node.new_committer(refs=LateRefs(node.refs, cut_off)), node.datasets.stalls
    commit = partial(
        committer.commit,
        cities.id,
        expected_head=cities.state.head,
        events=[SetInfo(description="x")],
        system_time=node.clock.now(),
    )

    with pytest.raises(Unavailable):
        commit()
    stall = stalls.get(cities.id, Activity.COMMIT)
    assert stall is not None
    assert stall.reason == "commits are waiting: the store cannot be reached"

    assert isinstance(commit(), Committed)
    assert stalls.get(cities.id, Activity.COMMIT) is None


def test_listeners_find_the_state_at_the_new_head_in_memory(node: Coordinator, cities: DatasetHandle) -> None:
    found: list[ChainState | None] = []
    node.committer.listen(lambda state: found.append(node.states._states.get(state.dataset_id)))

    outcome = node.propose(cities, [SetInfo(description="x")])

    assert isinstance(outcome, Committed)
    assert found == [outcome.state]


def test_a_chain_in_the_store_is_imported_with_its_name(
    node: Coordinator, cities: DatasetHandle, tmp_path: Path
) -> None:
    head = node.push("cities", "Oslo").state.head
    node.keys.remove(cities.id)
    node.catalog.remove("cities")
    node.refs.remove(cities.id, HEAD, expected=None)

    outcome = node.importer.import_chain(cities.id, expected_head=None, new_head=head, alias="copy")

    assert isinstance(outcome, Committed)
    assert node.find("copy").state.last_offset == 0
    again = node.importer.import_chain(cities.id, expected_head=None, new_head=head, alias="copy")
    assert isinstance(again, Committed)
    assert again.already


def test_moving_a_head_from_elsewhere_is_noticed(node: Coordinator, cities: DatasetHandle) -> None:
    state = node.push("cities", "Oslo").state

    with pytest.raises(HeadMoved):
        node.committer.move_ref(cities.id, expected=cities.state.head, state=state)


def test_what_fails_after_the_head_has_moved_does_not_fail_the_commit(
    node: Coordinator, cities: DatasetHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[ChainState] = []

    def fails(_: ChainState) -> None:
        raise OSError(5, "Input/output error")

    node.committer.listen(fails)
    node.committer.listen(heard.append)
    monkeypatch.setattr(node.states, "remember", fails)

    outcome = node.propose(cities, [SetInfo(description="x")])

    assert isinstance(outcome, Committed)
    assert heard == [outcome.state]
    assert node.find("cities").state == outcome.state


@pytest.fixture
def files(tmp_path: Path, root: str) -> Coordinator:
    """A coordinator over files."""
    node = Coordinator(home=tmp_path / "files", is_durable=True)
    node.add(root)
    return node


def fail_to_sync_references(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """Fail after heads were moved, before they are durable."""
    sync, left = durable.sync_folder, [OSError(errno.EMFILE, "Too many open files")] * times

    def failing(folder: Path) -> None:
        if folder.name == "refs" and left:
            raise left.pop()
        sync(folder)

    monkeypatch.setattr(durable, "sync_folder", failing)


def test_a_move_that_is_not_durable_at_once_is_made_so_and_listeners_hear_of_it(
    files: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[ChainState] = []
    files.committer.listen(heard.append)
    fail_to_sync_references(monkeypatch, 2)

    outcome = files.propose(files.find("cities"), [SetInfo(description="x")])

    assert isinstance(outcome, Committed)
    assert heard == [outcome.state]


def test_listeners_hear_of_a_move_by_the_repeat_of_a_commit_that_could_not_make_it_durable(
    files: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[ChainState] = []
    files.committer.listen(heard.append)
    cities, system_time = files.find("cities"), files.clock.now()
    fail_to_sync_references(monkeypatch, SETTLE_ATTEMPTS + 1)
    with pytest.raises(StorageUnavailable):
        files.propose(cities, [SetInfo(description="x")], system_time=system_time)
    assert heard == []

    outcome = files.propose(cities, [SetInfo(description="x")], system_time=system_time)

    assert isinstance(outcome, Committed)
    assert (outcome.already, heard) == (True, [outcome.state])


def test_listeners_hear_of_a_move_that_no_commit_repeats_once_it_is_durable(
    files: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[ChainState] = []
    files.committer.listen(heard.append)
    fail_to_sync_references(monkeypatch, 2 * SETTLE_ATTEMPTS + 1)
    with pytest.raises(StorageUnavailable):
        files.propose(files.find("cities"), [SetInfo(description="x")])

    files.committer.settle_moves()
    assert heard == []
    files.committer.settle_moves()

    assert heard == [files.find("cities").state]
    files.committer.settle_moves()
    assert len(heard) == 1


def test_derivatives_follow_a_derivative_whose_commit_was_not_durable_at_once(
    files: Coordinator, derivative: str, second: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.add(derivative, second)
    files.work()
    files.push("cities", "Oslo")
    fail_to_sync_references(monkeypatch, SETTLE_ATTEMPTS + 1)
    files.work()
    files.now += SchedulerLimits().unavailable_backoff.most
    files.work()
    assert files.find("cities.copy").state.last_offset == 0
    assert files.find("copy.copy").state.last_offset is None

    files.committer.settle_moves()
    files.work()

    assert files.find("copy.copy").state.last_offset == 0
