"""Sources whose dataset is reset: after what they have read, after they stopped, and while they stop."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from odf_testing.builders import a_source_state
from structlog.testing import capture_logs

from odf_common.dataset.open_rejects import KIND
from odf_common.errors import InvalidInput, OdfError
from odf_common.metadata.events import AddData, ReadStepNdJson, SetVocab, SourceState
from odf_ingest.push.source_topics import Key

from .in_memory_broker import LEDGER, TOPIC, Broker, Running, message, running
from .test_continuing import a_source, push


def of_garbage(bench: Any) -> None:
    """Commit a source state that cannot be read, as an earlier release may have accepted from a push."""
    state = bench.state
    bench.propose(
        AddData(
            prev_offset=state.last_offset, new_watermark=state.watermark, new_source_state=a_source_state("x")
        )
    )


def with_other_columns(bench: Any) -> None:
    bench.propose(SetVocab(event_time_column="id"))


@pytest.mark.parametrize("spoil", [of_garbage, with_other_columns])
def test_a_reset_between_the_failure_of_a_batch_and_its_stop_resumes_the_source(
    make_bench: Any, broker: Broker, monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Any], None]
) -> None:
    bench, failures = make_bench(), list[OdfError]()
    commit = bench.queues.committer.commit

    def interrupted(*arguments: object) -> object:
        if bench.rows() != [] and not failures:
            good = bench.state.head
            spoil(bench)
            bad = bench.state.head
            try:
                return commit(*arguments)
            except OdfError as error:
                failures.append(error)
                bench.refs.compare_and_set(bench.dataset, expected=bad, new=good)
                raise
        return commit(*arguments)

    monkeypatch.setattr(bench.queues.committer, "commit", interrupted)
    with running(bench, broker) as node:
        broker.logs[TOPIC, 0].append(message(1))
        node.drain()
        broker.logs[TOPIC, 0].append(message(2))
        node.wait(lambda: len(node.ids) == 2)
        assert (node.ids, len(failures)) == ([1, 2], 1)
        node.wait(lambda: node.owned.reason(Key(bench.dataset, "default")) is None)


def test_a_reset_between_the_failure_of_an_index_and_its_stop_resumes_the_source(
    make_bench: Any, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, failures = make_bench(LEDGER), list[OdfError]()
    catch_up = bench.queues.catch_up

    def interrupted(*arguments: object) -> None:
        catch_up(*arguments)
        if bench.rows() != [] and not failures:
            failures.append(InvalidInput(text="the index of a spoilt chain"))
            bench.refs.compare_and_set(bench.dataset, expected=bench.state.head, new=good)
            raise failures[0]

    monkeypatch.setattr(bench.queues, "catch_up", interrupted)
    with running(bench, broker) as node:
        good = bench.state.head
        broker.logs[TOPIC, 0].append(message(1))
        node.drain()
        broker.logs[TOPIC, 0].append(message(2))
        node.wait(lambda: len(node.ids) == 2)
        assert (node.ids, len(failures)) == ([1, 2], 1)


def test_a_source_whose_chain_has_not_changed_stays_stopped(
    make_bench: Any, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, attempts = make_bench(), list[object]()

    def refused(*arguments: object, **_: object) -> None:
        attempts.append(arguments)
        raise InvalidInput(text="beyond help")

    monkeypatch.setattr(bench.queues.committer.drafter, "draft", refused)
    with running(bench, broker) as node:
        broker.logs[TOPIC, 0].append(message(1))
        key = Key(bench.dataset, "default")
        node.wait(lambda: node.owned.reason(key) is not None)
        for _ in range(3):
            node.ask(lambda: node.owned.inspect(bench.dataset, "a"))
            node.ask(lambda: None)
        assert node.owned.reason(key) is not None
        assert len(attempts) == 1


def test_messages_rolled_back_by_a_reset_are_read_again(node: Running, bench: Any) -> None:
    node.ingest([message(1)])
    before = bench.state.head
    node.ingest([message(2)])
    bench.refs.compare_and_set(bench.dataset, expected=bench.state.head, new=before)
    node.ask(lambda: node.owned.inspect(bench.dataset, "a"))
    node.wait(lambda: node.ids == [1, 2])


@pytest.mark.parametrize("value", ["999999", "", "{}", '{"v":2}', '{"v":1,"topics":{"t":3}}', "[" * 9999])
def test_a_source_whose_state_is_garbage_stops_once_and_continues_after_a_reset(
    bench: Any, broker: Broker, value: str
) -> None:
    broker.logs[TOPIC, 0] += [message(1), message(2)]
    good = bench.state
    bench.propose(AddData(new_source_state=SourceState(source_name="default", kind=KIND, value=value)))
    with capture_logs() as logs, running(bench, broker) as node:
        node.wait(lambda: node.owned.reason(Key(bench.dataset, "default")) is not None)
        why = node.owned.reason(Key(bench.dataset, "default"))
        assert why is not None
        assert why.reason == "SourceStateUnreadable"
        assert f"`odf reset {why.dataset} BLOCK` goes back to the block before it" in why.advice()
        node.ask(lambda: node.owned.inspect(bench.dataset))
        node.wait(lambda: not node.owned._unchecked)
        bench.refs.compare_and_set(bench.dataset, expected=bench.state.head, new=good.head)
        node.ask(lambda: node.owned.inspect(bench.dataset))
        node.wait(lambda: node.ids == [1, 2])
    said = [one["event"] for one in logs if one["log_level"] == "error"]
    assert said == ["source stopped"]


def test_a_source_that_stopped_since_columns_were_renamed_continues_after_a_reset(
    bench: Any, broker: Broker
) -> None:
    broker.logs[TOPIC, 0] += [message(1)]
    with running(bench, broker) as node, capture_logs():
        node.drain()
        good = bench.state
        bench.propose(SetVocab(event_time_column="v"))
        broker.logs[TOPIC, 0] += [message(2)]
        node.wait(lambda: node.owned.reason(Key(bench.dataset, "default")) is not None)
        bench.refs.compare_and_set(bench.dataset, expected=bench.state.head, new=good.head)
        node.ask(lambda: node.owned.inspect(bench.dataset))
        node.wait(lambda: node.ids == [1, 2])


def test_a_source_that_does_not_fit_the_columns_of_another_continues_after_they_are_reset(
    make_bench: Any, broker: Broker, tmp_path: Path
) -> None:
    step = ReadStepNdJson(ddl_schema=("id BIGINT", "v STRING", "event_time TIMESTAMP"))
    bench = make_bench(None, step, a_source("other", "id BIGINT", "v BIGINT", "event_time TIMESTAMP"))
    good = bench.state.head
    push(bench, tmp_path, '{"id":9,"v":9,"event_time":"2020-01-01T00:00:00Z"}', source="other")
    key = Key(bench.dataset, "default")
    with running(bench, broker) as node:
        broker.logs[TOPIC, 0].append(message(1))
        node.wait(lambda: node.owned.reason(key) is not None)
        assert "column v" in str(node.owned.reason(key))
        bench.refs.compare_and_set(bench.dataset, expected=bench.state.head, new=good)
        node.ask(lambda: node.owned.inspect(bench.dataset))
        node.wait(lambda: node.ids == [1])
