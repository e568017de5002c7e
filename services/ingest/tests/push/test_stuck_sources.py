"""A source or dataset that cannot be read does not delay others, is reported, and continues once its cause is fixed."""

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from odf_testing.builders import a_dataset, a_push_source, a_query, a_source_state, some_data
from structlog.testing import capture_logs

from odf_common.codec.envelopes import body_of
from odf_common.errors import InvalidInput, StorageUnavailable, Unavailable
from odf_common.identity.dataset_refs import DatasetId
from odf_common.metadata.events import ReadStepNdJson, SqlQueryStep
from odf_common.ports.bus import NOTIFICATIONS
from odf_common.ports.engine import QueryNotWanted, QueryTooSlow
from odf_common.ports.store import CatalogEntry
from odf_common.proto.odf.bus.v1.bus_pb2 import IngestProgress
from odf_ingest.control import source_control
from odf_ingest.errors import StillSearching
from odf_ingest.prepare.batch import SkipSearch
from odf_ingest.push.lifecycle import inspector, start_position
from odf_ingest.push.lifecycle.inspector import Inspection
from odf_ingest.push.lifecycle.source_record import Phase
from odf_ingest.push.source_topics import Key, SourceTopic
from odf_ingest.source_settings import BadRecords

from .in_memory_broker import TOPIC, Broker, Running, message, running
from .test_control import control, resume, skip, stop

COLUMNS = ("id BIGINT NOT NULL", "v STRING", "event_time TIMESTAMP")
OTHER = "odf.push.a.other"


@pytest.fixture
def broker(broker: Broker) -> Broker:
    broker.make(OTHER)
    return broker


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_position, "REPORT_RETRIES_AFTER_SECONDS", 0.0)
    monkeypatch.setattr(start_position, "STALLED_AFTER_SECONDS", 0.05)


def two_sources(make_bench: Any, **changes: Any) -> Any:
    """Return a dataset with the sources `default` and `other`, of which the second is unusual."""
    step = ReadStepNdJson(ddl_schema=COLUMNS)
    return make_bench(None, step, replace(a_push_source("other"), read=step, **changes))


def why(node: Running, source: str) -> str:
    return str(node.owned.stuck().get(Key(node.bench.dataset, source), ""))


def has_tried(node: Running, times: int) -> bool:
    record = node.owned.record(Key(node.bench.dataset, "other"))
    return record is not None and record.trouble is not None and record.trouble.tries == times


def test_a_topic_that_cannot_be_described_does_not_delay_others(make_bench: Any, broker: Broker) -> None:
    bench = two_sources(make_bench)
    broker.denied = {OTHER}
    broker.logs[OTHER, 0] += [message(2)]
    with running(bench, broker, other=OTHER) as node:
        broker.logs[TOPIC, 0] += [message(1)]
        node.wait(lambda: node.ids == [1])
        node.wait(lambda: "Topic authorization failed" in why(node, "other"))
        assert node.owned.phase(Key(bench.dataset, "other")) in {Phase.RETRYING, Phase.OPENING}
        broker.denied = set()
        node.wait(lambda: node.ids == [1, 2])
        node.wait(lambda: node.owned.stuck() == {})


def test_a_topic_that_may_be_described_and_not_read_is_retried_less_and_less_often(
    make_bench: Any, broker: Broker
) -> None:
    bench = two_sources(make_bench)
    with running(bench, broker, other=OTHER) as node:
        for tries in range(1, 4):
            node.wait(lambda: Key(bench.dataset, "other") in node.reader.sources)
            broker.mute = {(OTHER, 0)}
            broker.faults = {(OTHER, 0): "not authorized"}
            node.wait(partial(has_tried, node, tries))
        assert "not authorized" in why(node, "other")
        broker.mute = set()
        broker.logs[OTHER, 0] += [message(2)]
        broker.logs[TOPIC, 0] += [message(1)]
        node.wait(lambda: set(node.ids) == {1, 2})
        assert node.owned.stuck() == {}


def test_a_slow_query_does_not_delay_sources_without_one(make_bench: Any, broker: Broker) -> None:
    bench = two_sources(make_bench, preprocess=a_query(SqlQueryStep(query="SELECT * FROM input")))
    release, usual = threading.Event(), bench.preparer.messages

    def slow(plan: Any, batch: Any) -> Any:
        if plan.source.preprocess is None:
            return usual(plan, batch)
        release.wait(10)
        return usual(replace(plan, source=replace(plan.source, preprocess=None)), batch)

    bench.preparer.messages = slow
    broker.logs[OTHER, 0] += [message(number) for number in range(100, 300)]
    with running(bench, broker, other=OTHER) as node:
        broker.logs[TOPIC, 0] += [message(number) for number in range(100)]
        node.wait(lambda: len(node.ids) == 100)
        node.wait(lambda: "its query over a batch has not ended yet" in why(node, "other"))
        assert (
            "faster query with `odf commit DATASET FILE`"
            in node.owned.stuck()[Key(bench.dataset, "other")].advice()
        )
        release.set()
        node.wait(lambda: set(node.ids) == set(range(300)))


def test_a_source_whose_query_runs_gets_another_query_at_once(make_bench: Any, broker: Broker) -> None:
    source = replace(a_push_source("other"), read=ReadStepNdJson(ddl_schema=COLUMNS))
    bench = two_sources(make_bench, preprocess=a_query(SqlQueryStep(query="SELECT * FROM input")))
    usual, queries = bench.preparer.messages, []

    def endless(plan: Any, batch: Any) -> Any:
        if plan.source.preprocess is None:
            return usual(plan, batch)
        queries.append(batch)
        while plan.is_wanted():
            time.sleep(0.005)
        raise QueryNotWanted

    bench.preparer.messages = endless
    broker.logs[OTHER, 0] += [message(number) for number in range(100)]
    with running(bench, broker, other=OTHER) as node:
        node.wait(lambda: "its query over a batch has not ended yet" in why(node, "other"))
        bench.propose(source)
        node.ask(lambda: node.owned.inspect(bench.dataset, "a"))
        node.wait(lambda: node.ids == list(range(100)))
        assert node.owned.stuck() == {}
    assert len(queries) == 1


def test_a_source_whose_query_takes_too_long_stops_until_it_has_another(
    make_bench: Any, broker: Broker
) -> None:
    source = replace(a_push_source("other"), read=ReadStepNdJson(ddl_schema=COLUMNS))
    bench = two_sources(make_bench, preprocess=a_query(SqlQueryStep(query="SELECT * FROM input")))
    usual = bench.preparer.messages

    def slow(plan: Any, batch: Any) -> Any:
        if plan.source.preprocess is not None:
            raise QueryTooSlow(text="the query did not finish within 300 s")
        return usual(plan, batch)

    bench.preparer.messages = slow
    broker.logs[OTHER, 0] += [message(1)]
    with running(bench, broker, other=OTHER) as node:
        node.wait(lambda: "did not finish within 300 s" in why(node, "other"))
        assert "`odf commit DATASET FILE`" in node.owned.stuck()[Key(bench.dataset, "other")].advice()
        bench.propose(source)
        node.ask(lambda: node.owned.inspect(bench.dataset, "a"))
        node.wait(lambda: node.ids == [1])


def test_a_full_disk_is_named_until_a_commit_succeeds_and_the_lag_is_counted(
    bench: Any, broker: Broker
) -> None:
    is_full, usual = threading.Event(), bench.queues.commit_indexed
    is_full.set()

    def full(*arguments: Any) -> Any:
        if is_full.is_set():
            raise StorageUnavailable(file="datasets/fed01/data/x", why="the disk is full")
        return usual(*arguments)

    bench.queues.commit_indexed = full
    with running(bench, broker) as node:
        broker.logs[TOPIC, 0] += [message(1), message(2)]
        node.wait(lambda: "the disk is full" in why(node, "default"))
        for number in range(3, 30):
            broker.logs[TOPIC, 0] += [message(number)]
            node.ask(lambda: None)
            assert "the disk is full" in why(node, "default")
        node.wait(lambda: lags(node) != [] and lags(node)[-1] > 0)
        is_full.clear()
        node.wait(lambda: node.ids == list(range(1, 30)))
        node.wait(lambda: node.owned.stuck() == {})
        assert lags(node)[-1] == 0


def lags(node: Running) -> list[int]:
    """Return the lag in each progress report."""
    sent = node.bench.coordinator.sent
    messages = [body_of(one) for topic, one in sent if topic == NOTIFICATIONS]
    return [one.lag for one in messages if isinstance(one, IngestProgress)]


def test_a_bug_in_one_dataset_is_named_and_ends_nothing(
    bench: Any, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bug(*_: object, **__: object) -> None:
        raise KeyError

    with running(bench, broker) as node:
        node.wait(lambda: len(node.reader.sources) == 1)
        with monkeypatch.context() as patch:
            patch.setattr(node.owned, "_source_to_reopen", bug)
            node.ask(lambda: node.owned.inspect(bench.dataset))
            node.wait(lambda: "KeyError" in why(node, ""))
        node.wait(lambda: node.owned.stuck() == {})
        broker.logs[TOPIC, 0] += [message(1)]
        node.wait(lambda: node.ids == [1])


def test_a_dataset_that_was_never_announced_is_found(
    make_bench: Any, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspector, "RESCAN_SECONDS", 0.05)
    with running(make_bench(), broker) as node:
        node.wait(lambda: bool(node.reader.sources))
        other = CatalogEntry(
            alias="b", dataset_id=a_dataset(2), push_topics={"default": "odf.push.b.default"}
        )
        asked: set[DatasetId] = set()
        monkeypatch.setattr(node.owned._inspector, "ask", lambda datasets, *_: asked.update(datasets))
        node.catalog.add(other)
        node.wait(lambda: other.dataset_id in asked)


def test_a_source_state_that_cannot_be_read_stops_only_its_dataset(make_bench: Any, broker: Broker) -> None:
    bench, other = make_bench(), a_dataset("other")
    with running(bench, broker) as node:
        broker.logs[TOPIC, 0] += [message(1)]
        node.wait(lambda: node.ids == [1] and node.reader.sources[Key(bench.dataset, "default")].is_idle)
        before = bench.state.head
        odd = replace(some_data(bench.state), new_data=None, new_source_state=a_source_state("garbage"))
        bench.propose(odd)
        entry, topics = (
            node.catalog.by_alias("a"),
            [SourceTopic(source="default", name=TOPIC, described=broker.described(TOPIC))],
        )
        found = [
            Inspection(dataset=bench.dataset, entry=entry, state=bench.state, topics=topics),
            Inspection(dataset=other, error=Unavailable(what="its folder", why="Permission denied")),
        ]
        node.ask(lambda: node.owned.apply_inspections(found))
        assert "source state: cannot be read: 'garbage'" in why(node, "")
        assert Key(other, "") in node.owned.stuck()
        bench.refs.compare_and_set(bench.dataset, expected=bench.state.head, new=before)
        broker.logs[TOPIC, 0] += [message(2)]
        node.wait(lambda: node.ids == [1, 2])
        node.wait(lambda: why(node, "") == "")


def resumed(node: Running, search: SkipSearch | None = None) -> None:
    node.ask(lambda: node.owned.resume(Key(node.bench.dataset, "default"), search))


def is_stopped(node: Running) -> Callable[[], bool]:
    return lambda: node.owned.reason(Key(node.bench.dataset, "default")) is not None


def bad(number: int) -> Callable[[Any, Any], None]:
    """Return a function that raises for a batch with the message of this number."""

    def check(_: Any, batch: Any) -> None:
        for part in batch.parts:
            if any(value == message(number) for value in part.values):
                raise InvalidInput(text=f"message {number} is beyond help")

    return check


def break_at(bench: Any, *numbers: int) -> None:
    usual = bench.preparer.messages
    checks = [bad(number) for number in numbers]

    def messages(plan: Any, batch: Any) -> Any:
        for check in checks:
            check(plan, batch)
        return usual(plan, batch)

    bench.preparer.messages = messages
    bench.mend = checks.clear


def test_a_source_whose_cause_was_fixed_continues_when_it_is_resumed(bench: Any, broker: Broker) -> None:
    break_at(bench, 5)
    broker.logs[TOPIC, 0] += [message(number) for number in range(10)]
    with running(bench, broker) as node:
        node.wait(is_stopped(node))
        reason = node.owned.reason(Key(bench.dataset, "default"))
        assert reason is not None
        assert "odf source resume a --source default" in reason.advice()
        assert "odf source skip a --source default" in reason.advice()
        resumed(node)
        node.wait(is_stopped(node))
        bench.mend()
        resumed(node)
        node.wait(lambda: node.ids == list(range(10)))
        assert node.owned.stuck() == {}
    assert bench.coordinator.letters == []


def test_only_the_message_that_cannot_be_committed_is_found_and_skipped(bench: Any, broker: Broker) -> None:
    break_at(bench, 137, 300)
    broker.logs[TOPIC, 0] += [message(number) for number in range(400)]
    # Each attempt prints a traceback, which is slow.
    with capture_logs(), running(bench, broker, size=100_000) as node:
        for _ in range(2):
            node.wait(is_stopped(node))
            record = node.owned.record(Key(bench.dataset, "default"))
            assert record is not None
            assert record.stop is not None
            search = record.stop.search
            assert search is not None
            resumed(node, search)
        node.wait(lambda: len(node.ids) == 398)
        assert node.ids == [number for number in range(400) if number not in {137, 300}]
    assert [letter.offset for letter in bench.coordinator.letters] == [137, 300]
    assert all("skipped by command" in letter.reason for letter in bench.coordinator.letters)


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_one_command_skips_a_message_however_many_were_read_with_it(
    bench: Any, broker: Broker, count: int
) -> None:
    break_at(bench, 0)
    broker.logs[TOPIC, 0] += [message(number) for number in range(count)]
    with capture_logs(), running(bench, broker) as node:
        stop(node)
        assert skip(node) == ("default", (0, 0))
        node.wait(lambda: node.ids == list(range(1, count)))


def test_a_stopped_source_whose_topic_cannot_be_described_stays_stopped(
    node: Running, bench: Any, broker: Broker
) -> None:
    node.ingest([message(1)])
    head = bench.state.head
    broker.make(TOPIC)
    stop(node)
    broker.denied = {TOPIC}
    with pytest.raises(Unavailable, match="Topic authorization failed"):
        resume(node, "earliest")
    assert (stop(node).reason, bench.state.head) == ("TopicReplaced", head)


def test_a_search_that_takes_too_long_is_reported_and_continues(
    bench: Any, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.set(bad_records=BadRecords.STOP)
    with running(bench, broker) as node:
        broker.logs[TOPIC, 0] += [b"junk", message(1)]
        stop(node)
        later: list[Callable[[], None]] = []
        busy, entry = control(node), node.catalog.by_alias("a")
        assert entry is not None
        with monkeypatch.context() as short:
            short.setattr(source_control, "SEARCH_TIMEOUT_SECONDS", 0.01)
            short.setattr(source_control, "ACTION_TIMEOUT_SECONDS", 0.01)
            short.setattr(busy, "request", later.append)
            with pytest.raises(StillSearching, match="is still searching for the message"):
                busy.skip(entry, "")
        node.reader.request(later[0])
        node.wait(lambda: node.ids == [1])
