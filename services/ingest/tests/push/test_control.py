"""Resuming a stopped source, leaving out a message, and settings; also of sources that another instance reads."""

from typing import Any

import pytest
from odf_testing.builders import a_dataset
from odf_testing.schedule import NoSchedule

from odf_common.codec.envelopes import Envelope, envelope
from odf_common.errors import InvalidInput, Refused, Unavailable
from odf_common.metadata.events import AddData, MergeStrategyChangelogStream, ReadStepNdJson
from odf_common.ports.bus import COORDINATOR_REPLIES, DeadLetter
from odf_common.proto.odf.bus.v1.bus_pb2 import Propose, SourceCommand
from odf_common.service.request_reply import Replies
from odf_ingest.commit.committer import position_of
from odf_ingest.control import source_commands as commands
from odf_ingest.control.source_commands import SourceCommands
from odf_ingest.control.source_control import SEARCH_TIMEOUT_SECONDS, ResumeResult, SourceControl
from odf_ingest.errors import SourceStopped
from odf_ingest.push.batches.source import BatchLimits
from odf_ingest.push.lifecycle.assigned_sources import AssignedSources
from odf_ingest.push.lifecycle.source_record import Phase
from odf_ingest.push.source_topics import Key, SourceTopics
from odf_ingest.source_settings import BadRecords

from .in_memory_broker import TOPIC, Broker, Running, message, running


def control(
    node: Running, schedule: NoSchedule | None = None, owned: AssignedSources | None = None
) -> SourceControl:
    return SourceControl(
        queues=node.bench.queues,
        topics=SourceTopics(node.broker, node.bench.blobs),  # type: ignore[arg-type]
        owned=owned or node.owned,
        blobs=node.bench.blobs,
        request=node.reader.request,
        schedule=schedule or NoSchedule(),  # type: ignore[arg-type]
    )


def stop(node: Running) -> SourceStopped:
    key = Key(node.bench.dataset, "default")
    node.wait(lambda: node.owned.reason(key) is not None)
    found = node.owned.reason(key)
    assert found is not None
    return found


def resume(node: Running, start: str = "") -> Any:
    return control(node).resume(node.entry, "", start)


def skip(node: Running) -> Any:
    done = control(node).skip(node.entry, "")
    return done.source, done.skipped


@pytest.mark.parametrize(
    ("start", "expected"),
    [("earliest", [1, 2, 7, 8, 9]), ("latest", [1, 2]), ("1", [1, 2, 8, 9]), ("keep", [1, 2, 9])],
)
def test_a_topic_that_was_replaced_is_accepted_from_the_given_position(
    bench: Any, broker: Broker, start: str, expected: list[int]
) -> None:
    with running(bench, broker) as node:
        node.ingest([message(1), message(2)])
        before = bench.state
        broker.make(TOPIC)
        broker.logs[TOPIC, 0] += [message(number) for number in (7, 8, 9)]
        why = stop(node)
        assert why.reason == "TopicReplaced"
        assert "odf source resume a --source default --from earliest" in why.advice()
        with pytest.raises(SourceStopped, match="TopicReplaced"):
            node.drain()
        resume(node, start)
        node.drain()
        assert node.ids == expected
        assert node.owned.stuck() == {}
        position = position_of(bench.state, "default").topics[TOPIC]
        assert (position.topic_id, position.next) == (broker.ids[TOPIC], {0: 3})
    (event,) = [one for one in bench.events() if isinstance(one, AddData)][1:2]
    assert event.new_data is None
    assert event.new_watermark == before.watermark
    assert event.prev_offset == 1


def test_messages_that_were_lost_are_accepted(bench: Any, broker: Broker) -> None:
    broker.logs[TOPIC, 0] += [message(number) for number in (1, 2, 3)]
    with running(bench, broker) as node:
        node.drain()
    broker.logs[TOPIC, 0] += [message(number) for number in (4, 5, 6)]
    broker.low[TOPIC, 0] = 4
    with running(bench, broker) as node:
        assert stop(node).reason == "RecordsExpired"
        with pytest.raises(InvalidInput, match="has offsets 4 to 6, not 3"):
            resume(node, "keep")
        resume(node, "earliest")
        node.drain()
        assert node.ids == [1, 2, 3, 5, 6]


def test_a_topic_that_ends_before_the_position_is_accepted(bench: Any, broker: Broker) -> None:
    broker.logs[TOPIC, 0] += [message(number) for number in (1, 2, 3)]
    with running(bench, broker) as node:
        node.drain()
    del broker.logs[TOPIC, 0][1:]
    with running(bench, broker) as node:
        assert stop(node).reason == "PositionBeyondEnd"
        resume(node, "latest")
        node.ingest([message(9)])
        assert node.ids == [1, 2, 3, 9]


def test_a_topic_that_was_deleted_is_created_again(node: Running, broker: Broker) -> None:
    node.ingest([message(1)])
    broker.drop(TOPIC)
    assert stop(node).reason == "TopicGone"
    resume(node, "earliest")
    node.ingest([message(2)])
    assert node.ids == [1, 2]


def test_a_cause_that_was_repaired_externally_needs_no_new_position(
    node: Running, bench: Any, broker: Broker
) -> None:
    node.ingest([message(1)])
    was, head = broker.ids.pop(TOPIC), bench.state.head
    assert stop(node).reason == "TopicGone"
    broker.ids[TOPIC] = was
    resume(node)
    node.ingest([message(2)])
    assert node.ids == [1, 2]
    assert [one for one in bench.events() if isinstance(one, AddData)][-1].prev_offset == 0
    assert bench.state.head != head


@pytest.mark.parametrize("is_gone", [False, True], ids=["replaced", "deleted"])
def test_a_topic_is_accepted_before_its_reader_has_noticed_that_it_changed(
    node: Running, bench: Any, broker: Broker, monkeypatch: pytest.MonkeyPatch, is_gone: bool
) -> None:
    node.ingest([message(1), message(2)])
    # No patrol inspects the topic in the meantime.
    monkeypatch.setattr(node.owned._schedule, "_patrol", lambda _: None)
    broker.drop(TOPIC) if is_gone else broker.make(TOPIC)
    with pytest.raises(SourceStopped, match="TopicGone" if is_gone else "TopicReplaced"):
        node.drain()
    assert node.owned.phase(Key(bench.dataset, "default")) is Phase.READING
    with pytest.raises(SourceStopped, match="TopicGone" if is_gone else "TopicReplaced"):
        resume(node)
    with pytest.raises(InvalidInput, match="got 'nonsense'"):
        resume(node, "nonsense")
    resume(node, "earliest")
    node.ingest([message(7)])
    assert node.ids == [1, 2, 7]


@pytest.mark.parametrize("start", ["soon", "-1", "1.5", "0x1"])
def test_an_invalid_start_is_refused(node: Running, bench: Any, broker: Broker, start: str) -> None:
    node.ingest([message(1)])
    broker.make(TOPIC)
    stop(node)
    with pytest.raises(InvalidInput, match="earliest, latest, keep or an offset"):
        resume(node, start)
    assert node.owned.phase(Key(bench.dataset, "default")) is Phase.STOPPED


def test_a_source_that_is_not_stopped_is_neither_resumed_nor_skipped(node: Running) -> None:
    node.ingest([message(1)])
    for start in ("", "earliest"):
        with pytest.raises(Refused, match="reading: there is nothing to resume"):
            resume(node, start)
    with pytest.raises(InvalidInput, match="expected earliest, latest, keep or an offset"):
        resume(node, "nonsense")
    with pytest.raises(Refused, match="not stopped"):
        skip(node)
    assert node.ids == [1]


def test_a_source_that_no_message_stops_has_none_to_be_skipped(node: Running, broker: Broker) -> None:
    node.ingest([message(1)])
    broker.make(TOPIC)
    stop(node)
    with pytest.raises(Refused, match="odf source resume a --source default"):
        skip(node)


def half(op: int, key: int) -> bytes:
    return b'{"op":%d,"id":%d,"v":"a","event_time":"2020-01-01T00:00:00Z"}' % (op, key)


@pytest.mark.parametrize(
    ("lonely", "others"),
    [
        (half(3, 5), [half(0, 1), half(2, 1), half(3, 1), half(0, 3), half(0, 4)]),  # a +C without a -C
        (half(2, 5), [half(0, 1), half(2, 1), half(3, 1), half(0, 3), half(0, 4)]),  # a -C without a +C
    ],
)
def test_a_half_whose_other_half_never_arrives_is_skipped(
    make_bench: Any, broker: Broker, lonely: bytes, others: list[bytes]
) -> None:
    columns = ("op INT", "id BIGINT", "v STRING", "event_time TIMESTAMP")
    bench = make_bench(MergeStrategyChangelogStream(primary_key=("id",)), ReadStepNdJson(ddl_schema=columns))
    broker.logs[TOPIC, 0] += [*others[:1], lonely, *others[1:]]
    with running(bench, broker, size=150, most=250) as node:
        assert stop(node).reason == "IncompleteCorrection"
        assert skip(node) == ("default", (0, 1))
        node.wait(lambda: len(node.ids) == len(others))
        node.drain()
    (letter,) = bench.coordinator.letters
    assert letter.offset == 1
    assert "skipped by command" in letter.reason


def test_a_half_that_waits_for_its_other_half_is_skipped_on_request(make_bench: Any, broker: Broker) -> None:
    columns = ("op INT", "id BIGINT", "v STRING", "event_time TIMESTAMP")
    bench = make_bench(MergeStrategyChangelogStream(primary_key=("id",)), ReadStepNdJson(ddl_schema=columns))
    broker.logs[TOPIC, 0] += [half(0, 1), half(2, 5), half(2, 1), half(3, 1)]
    with running(bench, broker) as node:
        node.wait(lambda: node.owned.stuck() != {})
        assert skip(node) == ("default", (0, 1))
        node.drain()
        assert bench.values("op", "id") == [(0, 1), (2, 1), (3, 1)]
    (letter,) = bench.coordinator.letters
    assert letter.reason == "skipped by command: record 1: a -C without a +C after it"


def test_both_halves_of_a_correction_that_does_not_fit_are_skipped_one_after_the_other(
    make_bench: Any, broker: Broker
) -> None:
    columns = ("op INT", "id BIGINT", "v STRING", "event_time TIMESTAMP")
    bench = make_bench(MergeStrategyChangelogStream(primary_key=("id",)), ReadStepNdJson(ddl_schema=columns))
    bench.set(bad_records=BadRecords.STOP)
    broker.logs[TOPIC, 0] += [half(0, 1), half(2, 5), half(3, 5), half(1, 1), half(0, 3)]
    with running(bench, broker) as node:
        why = stop(node)
        assert why.reason == "RecordRejected"
        assert "column id: id = 5 has no record that -C could take back; append it first (+A)" in why.text
        assert why.advice().endswith(
            "; the source stops again at the +C of this -C, which is skipped in the same way"
        )
        assert bench.values("op", "id") == [(0, 1)]
        assert skip(node) == ("default", (0, 1))
        assert stop(node).reason == "IncompleteCorrection"
        assert skip(node) == ("default", (0, 2))
        node.drain()
    assert bench.values("op", "id") == [(0, 1), (1, 1), (0, 3)]


def test_a_search_finds_nothing_when_the_cause_was_repaired(bench: Any, broker: Broker) -> None:
    usual, is_broken = bench.preparer.messages, [True]

    def messages(plan: Any, batch: Any) -> Any:
        if is_broken:
            raise InvalidInput(text="broken")
        return usual(plan, batch)

    bench.preparer.messages = messages
    broker.logs[TOPIC, 0] += [message(number) for number in range(20)]
    with running(bench, broker) as node:
        stop(node)
        is_broken.clear()
        assert skip(node) == ("default", None)
        node.wait(lambda: node.ids == list(range(20)))
    assert bench.coordinator.letters == []


def test_a_message_that_cannot_be_skipped_either_is_reported_at_once(
    node: Running, bench: Any, broker: Broker
) -> None:
    node.wait(lambda: bool(node.reader.sources))
    bench.blobs.set_note(bench.dataset, "sources", "junk")
    broker.logs[TOPIC, 0] += [message(1)]
    assert stop(node).reason == "InvalidInput"
    with pytest.raises(SourceStopped, match="settings of the sources"):
        skip(node)
    assert stop(node).reason == "InvalidInput"
    bench.blobs.set_note(bench.dataset, "sources", None)
    resume(node)
    node.drain()
    assert node.ids == [1]


def test_a_bug_in_skipping_a_message_stops_the_source_and_is_reported(bench: Any, broker: Broker) -> None:
    bench.set(bad_records=BadRecords.STOP)
    usual, is_broken = bench.coordinator.send_dead_letter, [True]

    def send(letter: DeadLetter) -> None:
        if is_broken:
            raise TypeError("broken")
        usual(letter)

    bench.coordinator.send_dead_letter = send
    broker.logs[TOPIC, 0] += [b"junk", message(1)]
    with running(bench, broker) as node:
        stop(node)
        with pytest.raises(SourceStopped, match="broken"):
            skip(node)
        assert stop(node).reason == "TypeError"
        is_broken.clear()
        assert skip(node) == ("default", (0, 0))
        node.drain()
        assert node.ids == [1]


@pytest.mark.parametrize("start", ["0:1,1:2", "1:2,0:1"])
def test_a_start_may_be_given_for_each_partition(bench: Any, broker: Broker, start: str) -> None:
    broker.make(TOPIC, 2)
    with running(bench, broker) as node:
        node.ingest([message(1)])
        broker.make(TOPIC, 2)
        broker.logs[TOPIC, 0] += [message(number) for number in (7, 8)]
        broker.logs[TOPIC, 1] += [message(number) for number in (10, 11, 12)]
        stop(node)
        for wrong in ("1", "0:1", "0:1,0:2", "0:1,1:2,2:0", "0:1,1:4"):
            with pytest.raises(InvalidInput, match=r"0:1200,1:1200|has offsets 0 to 3, not 4"):
                resume(node, wrong)
        resume(node, start)
        node.drain()
        assert sorted(map(str, node.ids)) == ["1", "12", "8"]


class Wire:
    """Port `Bus` between two instances: requests of one are answered by the other."""

    def __init__(self) -> None:
        self.owner: SourceCommands | None = None
        self.asking: Replies | None = None

    def send(self, topic: str, message: Envelope) -> None:
        assert self.asking is not None
        for out in self.owner.handle(message) if self.owner is not None else ():
            self.asking.handle(out.envelope)

    def flush(self, timeout: float = 10.0) -> None:
        pass


def instances(node: Running) -> tuple[SourceCommands, Wire]:
    """Return the commands of an instance that reads nothing, and its bus to the one that reads the source."""
    wire, bench = Wire(), node.bench
    replies = wire.asking = Replies(wire)  # type: ignore[arg-type]
    replies.on_assigned(frozenset())
    idle = AssignedSources(
        reading=node.reader,
        queues=bench.queues,
        catalog=node.catalog,
        topics=SourceTopics(node.broker, bench.blobs),  # type: ignore[arg-type]
        limits=BatchLimits(size=1, delay=0),
        partition_of=lambda _: 3,
        pool=bench.pool,
    )
    wire.owner = SourceCommands(
        control=control(node), owned=node.owned, catalog=node.catalog, replies=replies
    )
    return SourceCommands(control=control(node), owned=idle, catalog=node.catalog, replies=replies), wire


def test_a_command_for_a_deleted_dataset_is_refused(node: Running) -> None:
    owner = instances(node)[1].owner
    assert owner is not None
    (out,) = owner.handle(envelope(a_dataset("gone"), SourceCommand(source_name="default", skips=True)))
    assert (out.topic, out.envelope.refused.code) == (COORDINATOR_REPLIES, "NotFound")


def test_a_source_that_another_instance_reads_is_resumed_by_that_instance(
    node: Running, broker: Broker
) -> None:
    asked, _ = instances(node)
    entry = node.entry
    node.ingest([message(1)])
    with pytest.raises(Refused, match="is reading: there is nothing to resume"):
        asked.resume(entry, "", "earliest")
    broker.make(TOPIC)
    broker.logs[TOPIC, 0] += [message(number) for number in (7, 8)]
    stop(node)
    with pytest.raises(Refused, match="expected earliest, latest, keep or an offset"):
        asked.resume(entry, "", "soon")
    done = asked.resume(entry, "", "1")
    assert (done.source, done.next) == ("default", {0: 1})
    node.drain()
    assert node.ids == [1, 8]


@pytest.mark.parametrize("is_here", [True, False], ids=["here", "elsewhere"])
def test_a_resumed_source_is_reported_with_the_block_of_its_new_position(
    node: Running, bench: Any, broker: Broker, is_here: bool
) -> None:
    asked, wire = instances(node)
    if is_here:
        assert wire.owner is not None
        asked, wire.owner = wire.owner, None  # no instance is left to answer
    entry = node.entry
    node.ingest([message(1)])
    broker.make(TOPIC)
    broker.logs[TOPIC, 0] += [message(7)]
    stop(node)
    done = asked.resume(entry, "", "latest")
    assert done == ResumeResult(source="default", topic=TOPIC, head=bench.state.head, next={0: 1})


def test_a_message_at_which_another_instance_is_stopped_is_skipped_by_that_instance(
    bench: Any, broker: Broker
) -> None:
    usual = bench.preparer.messages

    def messages(plan: Any, batch: Any) -> Any:
        if any(value == message(5) for part in batch.parts for value in part.values):
            raise InvalidInput(text="beyond help")
        return usual(plan, batch)

    bench.preparer.messages = messages
    broker.logs[TOPIC, 0] += [message(number) for number in range(10)]
    with running(bench, broker) as node:
        asked, _ = instances(node)
        entry = node.entry
        stop(node)
        assert asked.skip(entry, "") == ResumeResult(source="default", topic=TOPIC, skipped=(0, 5))
        node.wait(lambda: len(node.ids) == 9)


def test_an_instance_that_does_not_answer_is_reported_as_unreachable(
    make_bench: Any, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "COMMAND_REPLY_SECONDS", 0.01)
    with running(make_bench(), broker) as node:
        asked, wire = instances(node)
        owner, wire.owner = wire.owner, None
        entry = node.entry
        assert owner is not None
        with pytest.raises(Unavailable, match="the instance of ingest that reads the source"):
            asked.resume(entry, "", "")
        waits: list[float] = []
        monkeypatch.setattr(wire.asking, "request", lambda *_, timeout: waits.append(timeout))
        for command in (asked.skip, asked.resume):
            with pytest.raises(Unavailable):
                command(entry, "", *[""] * (command == asked.resume))
        assert waits == [0.01 + SEARCH_TIMEOUT_SECONDS, 0.01], "a search for the message takes longer"
        with pytest.raises(InvalidInput, match="unknown command propose"):
            owner.handle(envelope(entry.dataset_id, Propose()))
