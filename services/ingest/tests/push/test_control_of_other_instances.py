"""Commands for a source that another instance reads, and what is reported of it."""

from typing import Any

import pytest

from odf_common.codec.envelopes import envelope
from odf_common.errors import InvalidInput, Refused, Unavailable
from odf_common.proto.odf.bus.v1.bus_pb2 import Propose
from odf_ingest.control import source_commands as commands
from odf_ingest.control.source_control import SEARCH_TIMEOUT_SECONDS, ResumeResult

from .in_memory_broker import TOPIC, Broker, message, running
from .test_control import instances, stop


def test_a_source_that_another_instance_reads_is_resumed_by_that_instance(
    make_bench: Any, broker: Broker
) -> None:
    bench = make_bench()
    with running(bench, broker) as node:
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
    make_bench: Any, broker: Broker, is_here: bool
) -> None:
    bench = make_bench()
    with running(bench, broker) as node:
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
    make_bench: Any, broker: Broker
) -> None:
    bench = make_bench()
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
