import threading
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from odf_testing.builders import a_chain, a_dataset, a_hash
from odf_testing.coordinator import Coordinator, FakeBus
from odf_testing.guarded import GuardedDict
from structlog.testing import capture_logs

from odf_common.codec.envelopes import Envelope, envelope
from odf_common.codec.flatbuffers import encode_event
from odf_common.codec.times import time_message
from odf_common.errors import Unavailable
from odf_common.identity.dataset_refs import HEAD, DatasetId
from odf_common.metadata.events import SetInfo
from odf_common.ports.bus import COORDINATOR_REPLIES, NOTIFICATIONS
from odf_common.ports.engine import EngineProgress
from odf_common.proto.odf.bus.v1 import bus_pb2 as bus
from odf_coordinator.api.bus_handlers import Commands
from odf_coordinator.catalog.datasets import Activity
from odf_coordinator.catalog.partitions import PartitionOwnership
from odf_coordinator.commit import head_publisher
from odf_coordinator.commit.committer import Refusal
from odf_coordinator.commit.head_publisher import BACKOFF, IDLE_SECONDS, Publisher
from odf_coordinator.operations.references import Importer


def proposal(node: Coordinator, events: list[bytes]) -> Envelope:
    known = node.find("cities")
    body = bus.Propose(
        expected_head=known.state.head.raw, system_time=time_message(node.clock.now()), events=events
    )
    return envelope(known.id, body, correlation_id="one")


def answer(node: Coordinator, message: Envelope) -> Envelope:
    commands = Commands(committer=node.committer, importer=node.importer)
    (only,) = commands.handle(message)
    assert only.topic == COORDINATOR_REPLIES
    return only.envelope


def test_a_proposal_is_answered_with_its_own_correlation(node: Coordinator, root: str) -> None:
    node.add(root)

    reply = answer(node, proposal(node, [encode_event(SetInfo(description="x"))]))

    assert reply.correlation_id == "one"
    assert reply.committed.head == node.find("cities").state.head.raw
    assert not reply.committed.already


def test_the_same_message_twice_is_answered_already(node: Coordinator, root: str) -> None:
    node.add(root)
    message = proposal(node, [encode_event(SetInfo(description="x"))])
    first = answer(node, message)

    second = answer(node, message)

    assert (second.committed.already, second.committed.head) == (True, first.committed.head)


def test_a_late_proposal_is_answered_with_the_head(node: Coordinator, root: str) -> None:
    node.add(root)
    message = proposal(node, [encode_event(SetInfo(description="x"))])
    node.push("cities", "Oslo")

    assert answer(node, message).head_moved.head == node.find("cities").state.head.raw


@pytest.mark.parametrize("raw", [b"", b"garbage", encode_event(SetInfo(description="x"))[:-9]])
def test_bytes_that_are_no_event_are_refused(node: Coordinator, root: str, raw: bytes) -> None:
    node.add(root)

    assert answer(node, proposal(node, [raw])).refused.code == "InvalidInput"


def test_a_foreign_command_is_refused(node: Coordinator, root: str) -> None:
    node.add(root)
    message = envelope(node.find("cities").id, bus.SourceCommand())

    assert "source_command" in answer(node, message).refused.text


@pytest.mark.parametrize("ref", ["", "staged"])
def test_an_import_is_asked_for_as_the_message_says(node: Coordinator, ref: str) -> None:
    asked: list[Any] = []

    def import_chain(*arguments: Any, **named: Any) -> Refusal:
        asked.append((*arguments, named))
        return Refusal(code="Diverged", text="it went its own way")

    importer = cast("Importer", SimpleNamespace(import_chain=import_chain))
    commands = Commands(committer=node.committer, importer=importer)
    dataset, old, new = a_dataset(), a_hash("old"), a_hash("new")
    for expected, forced in ((b"", False), (old.raw, True)):
        body = bus.ImportChain(
            expected_head=expected, new_head=new.raw, alias="a", ref=ref, is_forced=forced, creation="one"
        )
        (reply,) = commands.handle(envelope(dataset, body))
        assert reply.envelope.refused.code == "Diverged"
    common = {"new_head": new, "alias": "a", "ref": ref or HEAD, "creation": "one"}
    assert asked == [
        (dataset, {**common, "expected_head": None, "is_forced": False}),
        (dataset, {**common, "expected_head": old, "is_forced": True}),
    ]
    (reply,) = commands.handle(envelope(dataset, bus.ImportChain(new_head=new.raw, ref="../head")))
    assert reply.envelope.refused.code == "InvalidInput"
    assert len(asked) == 2


def test_commits_of_another_instance_wake_derivatives_of_this_one(
    node: Coordinator, root: str, derivative: str
) -> None:
    node.add(root, derivative)
    node.work()
    listeners, node.committer._listeners[:] = [*node.committer._listeners], []
    known = node.push("cities", "Oslo")
    node.committer._listeners[:] = listeners

    message = envelope(known.id, bus.Committed(head=known.state.head.raw))
    node.notifications.handle(message)
    node.work()

    assert node.find("cities.copy").state.last_offset == 0


def test_a_dataset_that_another_process_removed_is_forgotten(node: Coordinator, root: str) -> None:
    node.add(root)
    gone = node.find("cities").id
    list(node.datasets.dependants(gone))
    node.record_reader.slices.all(node.find("cities"))
    node.datasets.stalls.record(gone, Activity.READ, "x")
    assert node.notifications.handle(envelope(gone, bus.DatasetRemoved(alias="cities"))) == ()
    known = (node.datasets.stalls, node.datasets.roots, node.record_reader.slices, node.states)
    assert [len(one) for one in known] == [0, 0, 0, 0]


class LossyBus(FakeBus):
    """Cannot be flushed once, or `losses` times; `lose` is called then, `sent_all` is set afterwards."""

    def __init__(self, lose: Callable[[], None] = lambda: None, losses: int = 1) -> None:
        super().__init__()
        self.losses = losses
        self.flushed: list[int] = []  # how many were sent before each flush
        self.sent_all = threading.Event()
        self._lose = lose

    def flush(self, timeout: float = 10.0) -> None:
        self.flushed.append(len(self.sent))
        if self.losses:
            self.losses -= 1
            self.sent.clear()
            self._lose()
            raise Unavailable(what="Kafka")
        self.sent_all.set()


def announced(publisher: Publisher, bus: LossyBus) -> list[tuple[str, Envelope]]:
    """Return what is sent once the bus takes it."""
    stop = threading.Event()
    thread = threading.Thread(target=publisher.run, args=(stop,), daemon=True)
    thread.start()
    is_sent = bus.sent_all.wait(30)
    stop.set()
    thread.join()
    assert is_sent
    return bus.sent


def test_the_announcement_of_a_head_is_retried_and_only_the_latest_is_sent(
    node: Coordinator, root: str
) -> None:
    node.add(root)
    lossy = LossyBus()
    publisher = Publisher(bus=lossy, catalog=node.catalog)
    publisher.announce(node.find("cities").state)
    publisher.announce(node.push("cities", "Oslo").state)

    ((topic, message),) = announced(publisher, lossy)

    assert topic == NOTIFICATIONS
    assert message.committed.last_offset == 0
    assert message.committed.alias == "cities"


def test_a_head_that_could_not_be_announced_gives_way_to_a_newer_one(node: Coordinator, root: str) -> None:
    node.add(root)
    before, after = node.find("cities").state, node.push("cities", "Oslo").state
    lossy = LossyBus(lambda: publisher.announce(after))
    publisher = Publisher(bus=lossy, catalog=node.catalog)
    publisher.announce(before)

    ((_, message),) = announced(publisher, lossy)

    assert message.committed.head == after.head.raw


def test_an_announcement_describes_the_head_for_clients(
    node: Coordinator, root: str, derivative: str
) -> None:
    node.add(root, derivative)
    node.push("cities", "Oslo", minute=3)
    node.work()
    for name, is_derivative in (("cities", False), ("cities.copy", True)):
        lossy, known = LossyBus(losses=0), node.find(name)
        publisher = Publisher(bus=lossy, catalog=node.catalog)
        publisher.announce(known.state)

        ((_, message),) = announced(publisher, lossy)

        state, sent = known.state, message.committed
        assert (sent.head, sent.sequence_number) == (state.head.raw, state.sequence_number)
        assert (sent.last_offset, sent.alias, sent.is_derivative) == (0, name, is_derivative)
        assert state.watermark is not None
        assert sent.watermark == time_message(state.watermark)
        assert sent.system_time == time_message(state.system_time)


def test_a_head_that_cannot_be_put_into_a_message_delays_no_other(node: Coordinator, root: str) -> None:
    node.add(root, root.replace("name: cities", "name: rivers"))
    lossy = LossyBus(losses=0)
    publisher = Publisher(bus=lossy, catalog=node.catalog)
    publisher.announce(replace(node.find("cities").state, last_offset=-1))
    publisher.announce(node.find("rivers").state)

    with capture_logs() as entries:
        ((_, message),) = announced(publisher, lossy)

    assert message.committed.alias == "rivers"
    (cities,) = entries
    assert cities["dataset"] == "cities"
    assert cities["dataset_id"] == str(node.find("cities").id)


class Stop(threading.Event):
    """Is set after `rounds` checks; records the requested waits, and does not wait."""

    def __init__(self, rounds: int) -> None:
        super().__init__()
        self.waits: list[float | None] = []
        self.begin: Callable[[], object] = lambda: None  # of each round
        self._left = rounds

    def is_set(self) -> bool:
        self._left -= 1
        if self._left >= 0:
            self.begin()
        return self._left < 0

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.append(timeout)
        return False


def test_each_outage_of_the_bus_is_reported_once_and_pauses_are_longer_each_time(
    node: Coordinator, root: str
) -> None:
    node.add(root)
    state, losses = node.find("cities").state, iter((1, 0, 1, 1, 1, 0, 1, 1, 1, 0))
    lossy, stop = LossyBus(), Stop(10)
    publisher = Publisher(bus=lossy, catalog=node.catalog)
    publisher.announce(state)

    def begin() -> None:
        lossy.losses = next(losses)
        publisher.announce(state)

    stop.begin = begin
    with capture_logs() as entries:
        publisher.run(stop)

    assert [one["event"] for one in entries] == ["cannot announce heads, retrying"] * 3
    assert stop.waits == [BACKOFF.pause(failures) for failures in (1, 1, 2, 3, 1, 2, 3)]


def test_where_no_head_is_pending_nothing_is_sent(node: Coordinator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_publisher, "IDLE_SECONDS", 0.0)
    lossy, stop, rounds = LossyBus(losses=0), Stop(3), list[None]()
    stop.begin = lambda: rounds.append(None)

    Publisher(bus=lossy, catalog=node.catalog).run(stop)

    assert (lossy.flushed, len(rounds)) == ([], 3)


def test_a_head_of_a_dataset_without_a_name_is_not_announced_and_delays_no_other(
    node: Coordinator, root: str
) -> None:
    node.add(root)
    lossy = LossyBus(losses=0)
    publisher = Publisher(bus=lossy, catalog=node.catalog)
    publisher.announce(a_chain().state)
    publisher.announce(node.find("cities").state)

    publisher.run(Stop(1))

    assert [message.committed.alias for _, message in lossy.sent] == ["cities"]


class Counting(threading.Event):
    """Records whether it is checked more often than a waiting thread would."""

    def __init__(self) -> None:
        super().__init__()
        self._looks = 0
        self.is_busy = threading.Event()

    def is_set(self) -> bool:
        self._looks += 1
        if self._looks > 100:
            self.is_busy.set()
        return super().is_set()


def test_a_publisher_without_heads_waits_and_is_woken_by_the_next(
    node: Coordinator, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head_publisher, "IDLE_SECONDS", 60.0)
    node.add(root)
    lossy, stop = LossyBus(losses=0), Counting()
    publisher = Publisher(bus=lossy, catalog=node.catalog)
    thread = threading.Thread(target=publisher.run, args=(stop,), daemon=True)
    thread.start()
    is_busy = stop.is_busy.wait(0.05)
    publisher.announce(node.find("cities").state)
    is_sent = lossy.sent_all.wait(30)
    stop.set()
    publisher.announce(node.find("cities").state)  # wakes it
    thread.join(30)
    assert (is_busy, is_sent, thread.is_alive()) == (False, True, False)


def test_a_removal_that_did_not_reach_the_bus_is_an_error(node: Coordinator, root: str) -> None:
    node.add(root)
    known = node.find("cities")

    with pytest.raises(Unavailable):
        Publisher(bus=LossyBus(), catalog=node.catalog).announce_removal(known.id, known.alias)


def test_partitions_that_are_gained_have_their_datasets_announced(node: Coordinator, root: str) -> None:
    node.add(root)
    known = node.find("cities")
    announced: list[DatasetId] = []
    ownership = PartitionOwnership(
        datasets=node.datasets, keys=node.keys, announce=lambda state: announced.append(state.dataset_id)
    )
    assert not ownership.is_assigned(known.id)

    ownership.on_assigned(frozenset(range(8)))
    ownership._take_over(ownership._take_gained())

    assert ownership.is_assigned(known.id)
    assert announced == [known.id]
    ownership.on_assigned(frozenset())
    assert not ownership.is_assigned(known.id)


def test_only_where_no_head_is_pending_is_the_next_one_waited_for(
    node: Coordinator, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.add(root)
    state, waits = node.find("cities").state, list[float]()
    publisher = Publisher(bus=LossyBus(), catalog=node.catalog)
    monkeypatch.setattr(publisher._changed, "wait", waits.append)
    publisher.announce(state)
    assert (publisher._take(), waits) == ({state.dataset_id: state}, [])
    assert (publisher._take(), waits) == ({}, [IDLE_SECONDS])


def test_a_removed_dataset_is_announced_and_its_waiting_head_is_not(node: Coordinator, root: str) -> None:
    node.add(root)
    known, lossy = node.find("cities"), LossyBus(losses=0)
    publisher = Publisher(bus=lossy, catalog=node.catalog)
    publisher.announce(known.state)
    publisher.announce_removal(known.id, "cities")
    ((topic, message),) = lossy.sent
    assert (topic, message.dataset_removed.alias) == (NOTIFICATIONS, "cities")
    assert lossy.flushed == [1]
    assert publisher._waiting == {}


def test_the_progress_of_a_transform_may_be_ignored_and_fail(node: Coordinator, root: str) -> None:
    node.add(root)
    known, lossy = node.find("cities"), LossyBus()
    Publisher(bus=lossy, catalog=node.catalog).report_progress(
        known.id, EngineProgress(stage="read", rows=3, total=7)
    )
    ((topic, message),) = lossy.sent
    assert (topic, message.may_ignore) == (NOTIFICATIONS, True)
    body = message.transform_progress
    assert (body.stage, body.rows, body.total) == ("read", 3, 7)


class CutOffBus(FakeBus):
    """Takes nothing."""

    def send(self, topic: str, envelope: Envelope) -> None:
        raise Unavailable(what="Kafka")


def test_progress_that_cannot_be_sent_is_no_error(node: Coordinator) -> None:
    now = EngineProgress(stage="read", rows=3, total=7)
    Publisher(bus=CutOffBus(), catalog=node.catalog).report_progress(a_dataset(), now)


def test_pending_heads_are_changed_by_one_thread_at_a_time(node: Coordinator) -> None:
    publisher, lock, state = Publisher(bus=FakeBus(), catalog=node.catalog), threading.Lock(), a_chain().state
    publisher._changed = threading.Condition(lock)
    publisher._waiting = GuardedDict(lock)

    publisher.announce(state)
    publisher._put_back({a_dataset("other"): state})
    assert len(publisher._waiting) == 2
    publisher._waiting = GuardedDict(lock)
    publisher.announce_removal(state.dataset_id, "cities")
