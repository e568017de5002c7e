"""The outcome of a batch: committed and reported, abandoned, or skipped; without threads."""

import errno
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from odf_testing.builders import a_dataset, a_query
from odf_testing.ingest_batches import a_message_batch
from prometheus_client import REGISTRY

from odf_common.errors import InvalidInput, StorageUnavailable, Unavailable
from odf_common.metadata.events import (
    MergeStrategyChangelogStream,
    MergeStrategyLedger,
    ReadStepNdJson,
    SqlQueryStep,
)
from odf_common.ports.clock import Backoff
from odf_common.service.consumer import retry
from odf_ingest.commit.committer import Pools, position_of
from odf_ingest.errors import AwaitingCorrection, PositionChanged, TopicGone, TopicReplaced
from odf_ingest.prepare.batch import MessageBatch, SkipSearch
from odf_ingest.prepare.plan import plan_of
from odf_ingest.push.batches.batch_worker import BatchWorker
from odf_ingest.push.batches.source import BatchLimits, PushSource, Trouble
from odf_ingest.push.source_topics import as_of
from odf_ingest.registry import Registries
from odf_ingest.source_settings import BadRecords, SourceSettings, save_settings

from .in_memory_broker import Broker
from .test_messages import JUNK, message

TOPIC = "topic"
FULL = StorageUnavailable(file="data/x", why="the disk is full")


class AtOnce(Executor):
    """Runs a task when it is submitted, or keeps it while `is_held`."""

    def __init__(self) -> None:
        self.is_held = False
        self.tasks: list[Callable[[], None]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        future: Future[Any] = Future()

        def task() -> None:
            try:
                future.set_result(fn(*args, **kwargs))
            except Exception as error:  # noqa: BLE001 - raised by `result`
                future.set_exception(error)

        self.tasks.append(task)
        self.run()
        return future

    def run(self) -> None:
        while self.tasks and not self.is_held:
            self.tasks.pop(0)()


class Work:
    """A worker of one source, and the failures of its batches."""

    def __init__(self, bench: Any) -> None:
        self.bench, self.broker, self.pool = bench, Broker(), AtOnce()
        self.failures: list[tuple[Exception, MessageBatch]] = []
        self.chains: list[object] = []
        self.broker.make(TOPIC)
        self.broker.ids[TOPIC] = "one"
        bench.queues.pools = Pools.with_one_pool(self.pool)
        self.worker = BatchWorker(
            queues=bench.queues,
            preparer=bench.preparer,
            topics=self.broker,  # type: ignore[arg-type]
            bus=bench.coordinator,
            rejecting=bench.rejecting,
            registries=Registries(),
            readers=self.pool,
            failed=self.fail,
        )
        self.source = PushSource(
            dataset=bench.dataset,
            alias="a",
            plan=plan_of(bench.state, bench.state.push_sources["default"]),
            topic=TOPIC,
            topic_id="one",
            positions={0: 0},
            beginning={0: 0},
            limits=BatchLimits(size=1000, delay=1.0),
        )

    def fail(self, _: PushSource, error: Exception, batch: MessageBatch, chain: object) -> None:
        self.failures.append((error, batch))
        self.chains.append(chain)

    def begin(self, batch: MessageBatch) -> None:
        self.worker.begin(self.source, batch)

    @property
    def failure(self) -> Exception:
        """Return the only failure; no batch of the source is in flight, and later ones are dropped."""
        ((error, _),) = self.failures
        assert (self.source.in_flight.count, self.source.in_flight.is_stale) == (0, True)
        return error

    @property
    def ids(self) -> list[object]:
        return [row["id"] for row in self.bench.rows()]

    @property
    def progress(self) -> list[tuple[int, int]]:
        """Return what was sent: the lag and the number of records."""
        sent = [one for _, one in self.bench.coordinator.sent if one.HasField("ingest_progress")]
        return [(one.ingest_progress.lag, one.ingest_progress.records) for one in sent]


@pytest.fixture
def make_work(make_bench: Any) -> Callable[..., Work]:
    return lambda *steps: Work(make_bench(*steps))


@pytest.fixture
def work(make_work: Callable[..., Work]) -> Work:
    return make_work()


def refuse(work: Work, *errors: Exception) -> None:
    """Have the next commits fail."""
    commit, left = work.bench.queues.commit_indexed, list(errors)

    def committed(*arguments: Any) -> Any:
        assert work.source.in_flight.committing_since is not None
        if left:
            raise left.pop(0)
        return commit(*arguments)

    work.bench.queues.commit_indexed = committed


def test_a_batch_is_committed_and_reported_with_the_remaining_lag(work: Work) -> None:
    work.source.offsets.high = {0: 5}
    work.bench.queues.name_of = lambda _: "counted"
    work.source.alias = "counted"
    work.begin(a_message_batch({0: [message(1), message(2)]}))
    assert (work.ids, work.progress, work.failures) == ([1, 2], [(3, 2)], [])
    assert (counted("records_total"), counted("lag")) == (2, 3)
    in_flight = work.source.in_flight
    assert (in_flight.begun, in_flight.settled, in_flight.last_lag) == (1, 1, 3)
    assert (in_flight.committing_since, in_flight.trouble, in_flight.is_stale) == (None, None, False)
    assert work.worker.settled.is_set()


def counted(metric: str) -> float | None:
    return REGISTRY.get_sample_value(f"odf_ingest_{metric}", {"dataset": "counted", "source": "default"})


def test_a_batch_without_keys_waits_for_no_index_and_no_query(work: Work) -> None:
    def refused(*_: object) -> None:
        raise AssertionError

    work.bench.queues.catch_up = refused
    work.pool.is_held = True
    work.begin(a_message_batch({0: [message(1)]}))
    assert work.source.in_flight.querying_since is None
    work.pool.is_held = False
    work.pool.run()
    assert work.ids == [1]


def test_the_lag_counts_messages_of_the_sources_other_topics(work: Work) -> None:
    other = SimpleNamespace(in_flight=SimpleNamespace(last_lag=7))
    work.source.siblings = frozenset({work.source.key._replace(topic="other")})
    work.source.readers = {next(iter(work.source.siblings)): other}  # type: ignore[dict-item]
    work.source.offsets.high = {0: 2}
    work.begin(a_message_batch({0: [message(1)]}))
    assert work.progress == [(8, 1)]


def test_a_batch_that_a_reopened_source_left_behind_is_dropped(work: Work) -> None:
    work.pool.is_held = True
    work.begin(a_message_batch({0: [message(1)]}))
    work.source.in_flight.is_stale = True
    work.pool.is_held = False
    work.pool.run()
    assert (work.ids, work.failures, work.source.in_flight.count) == ([], [], 0)


def test_no_index_is_built_for_a_batch_that_is_dropped(make_work: Callable[..., Work]) -> None:
    work, indexed = make_work(MergeStrategyLedger(primary_key=("id",))), list[object]()
    work.bench.queues.catch_up = lambda *some: indexed.append(some)
    work.pool.is_held = True
    work.begin(a_message_batch({0: [message(1)]}))
    work.source.in_flight.is_stale = True
    work.pool.is_held = False
    work.pool.run()
    assert (indexed, work.source.in_flight.count) == ([], 0)


@pytest.mark.parametrize(("topic_id", "error"), [("two", TopicReplaced), (None, TopicGone)])
def test_messages_of_a_topic_that_was_replaced_while_they_were_read_are_not_committed(
    work: Work, topic_id: str | None, error: type[Exception]
) -> None:
    work.broker.drop(TOPIC)
    if topic_id is not None:
        work.broker.ids[TOPIC] = topic_id
    work.begin(a_message_batch({0: [message(1)]}))
    assert isinstance(work.failure, error)
    assert work.ids == []


@pytest.mark.parametrize("error", [FULL, ZeroDivisionError(), InvalidInput(text="beyond help")])
def test_batches_after_one_that_cannot_be_committed_are_dropped(work: Work, error: Exception) -> None:
    refuse(work, error)
    work.begin(a_message_batch({0: [message(1)]}))
    assert work.failure is error
    work.begin(a_message_batch({0: [message(2)]}, start={0: 1}))
    assert (work.ids, len(work.failures), work.source.in_flight.count) == ([], 1, 0)


def test_a_bug_outside_the_commit_stops_the_source_too(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    def bug(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(work.worker, "_commit", bug)
    work.begin(a_message_batch({0: [message(1)]}))
    assert isinstance(work.failure, ZeroDivisionError)


def test_a_lost_coordinator_is_waited_for_and_named_meanwhile(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "UNAVAILABLE_BACKOFF", Backoff(first=0.0, most=0.0))
    troubles: list[Trouble | None] = []
    commit = work.bench.queues.commit_indexed

    def committed(*arguments: Any) -> Any:
        troubles.append(work.source.in_flight.trouble)
        if len(troubles) < 3:
            raise Unavailable(what="the coordinator", why="no answer")
        return commit(*arguments)

    work.bench.queues.commit_indexed = committed
    work.begin(a_message_batch({0: [message(1)]}))
    assert [trouble and trouble.tries for trouble in troubles] == [None, 1, 2]
    assert (work.ids, work.source.in_flight.trouble) == ([1], None)


@pytest.mark.parametrize(
    "error", [RuntimeError("can't start new thread"), OSError(errno.EMFILE, "Too many open files")]
)
def test_messages_are_read_again_if_the_process_lacked_something(
    work: Work, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    read, failures = work.worker._read, [error]

    def fail_once(*arguments: Any) -> Any:
        if failures:
            raise failures.pop()
        return read(*arguments)

    monkeypatch.setattr(work.worker, "_read", fail_once)
    work.begin(a_message_batch({0: [message(1)]}))
    assert (work.ids, work.failures) == ([1], [])


def test_lost_dead_letters_are_written_by_the_retry_and_no_message_is_read_again(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "UNAVAILABLE_BACKOFF", Backoff(first=0.0, most=0.0))
    work.bench.coordinator.lost_flushes = 2
    work.begin(a_message_batch({0: [b"junk", message(1)]}))
    assert (work.ids, work.failures) == ([1], [])
    assert [letter.offset for letter in work.bench.coordinator.letters] == [0]
    assert position_of(work.bench.state, "default").rejected == 1


def test_a_service_that_stops_waits_for_no_coordinator(work: Work) -> None:
    work.worker.end()
    refuse(work, Unavailable(what="the coordinator", why="no answer"))
    work.begin(a_message_batch({0: [message(1)]}))
    assert (work.ids, work.progress, work.failures, work.source.in_flight.count) == ([], [], [], 0)


def test_the_rest_of_a_batch_that_was_committed_in_part_is_read_again(work: Work) -> None:
    work.bench.set(bad_records=BadRecords.STOP)
    work.source.offsets.high = {0: 4}
    work.begin(a_message_batch({0: JUNK}))
    assert isinstance(work.failure, PositionChanged)
    assert (work.ids, work.progress) == ([1], [(3, 1)])


def test_the_lag_is_reported_for_a_source_that_lacks_the_rest_of_a_correction(
    make_work: Callable[..., Work],
) -> None:
    step = ReadStepNdJson(ddl_schema=("op INT", "id BIGINT", "event_time TIMESTAMP"))
    work = make_work(MergeStrategyChangelogStream(primary_key=("id",)), step)
    work.source.offsets.high = {0: 3}
    work.begin(a_message_batch({0: [b'{"op":2,"id":1,"event_time":"2020-01-01T00:00:00Z"}']}))
    assert isinstance(work.failure, AwaitingCorrection)
    assert work.progress == [(3, 0)]


def a_search() -> SkipSearch:
    return SkipSearch(count=1, until={0: 2}, why="beyond help")


def test_the_message_that_a_user_skips_becomes_a_dead_letter_and_the_rest_is_read_after_it(
    work: Work,
) -> None:
    search = a_search()
    refuse(work, InvalidInput(text="beyond help"))
    work.begin(replace(a_message_batch({0: [message(1)]}), search=search))
    assert isinstance(work.failure, PositionChanged)
    assert position_of(work.bench.state, "default").topics[TOPIC].next == {0: 1}
    assert [(one.offset, one.value, one.reason) for one in work.bench.coordinator.letters] == [
        (0, message(1), "skipped by command: beyond help")
    ]
    assert search.found.result(0) == (0, 0)
    assert work.ids == []


def test_an_invalid_message_is_skipped_if_the_source_stops_at_those(work: Work) -> None:
    work.bench.set(bad_records=BadRecords.STOP)
    work.source.offsets.high = {0: 3}
    work.begin(replace(a_message_batch({0: [b"junk"]}), search=a_search()))
    assert isinstance(work.failure, PositionChanged)
    assert [one.reason for one in work.bench.coordinator.letters] == [
        "skipped by command: expected one JSON object"
    ]
    assert work.progress == [(2, 0)]


def test_a_skip_that_cannot_be_committed_is_retried_with_the_source(work: Work) -> None:
    search = a_search()
    refuse(work, InvalidInput(text="beyond help"), FULL)
    batch = replace(a_message_batch({0: [message(1)]}), search=search)
    work.begin(batch)
    assert work.failure is FULL
    assert not search.found.done()
    assert work.failures[0][1].search is None, "its failure is the source's, and not a message's"


def test_a_search_is_over_although_the_rest_of_its_last_batch_fails(work: Work) -> None:
    stop = SourceSettings(bad_records=BadRecords.STOP)
    save_settings(work.bench.blobs, work.bench.dataset, "default", stop)
    search = replace(a_search(), count=2, until={0: 1})
    work.begin(replace(a_message_batch({0: [message(1), b"junk"]}), search=search))
    assert isinstance(work.failure, PositionChanged)
    assert work.ids == [1]
    assert search.found.result(0) is None, "nobody asked to skip what comes after it"


def a_query_source(work: Work) -> None:
    source = replace(work.source.plan.source, preprocess=a_query(SqlQueryStep(query="SELECT * FROM input")))
    work.source.plan = replace(work.source.plan, source=source)


def test_a_cancelled_query_does_not_start(work: Work) -> None:
    queried: list[object] = []
    work.bench.preparer.messages = lambda _, batch: queried.append(batch)
    a_query_source(work)
    work.pool.is_held = True
    work.begin(a_message_batch({0: [message(1)]}))
    assert work.source.in_flight.querying_since is not None
    work.source.in_flight.is_stale = True
    work.pool.is_held = False
    work.pool.run()
    assert (queried, work.failures, work.source.in_flight.count) == ([], [], 0)


def test_a_failure_is_reported_with_what_its_batch_met_of_the_chain(work: Work) -> None:
    met = as_of(work.bench.state, work.source.key)

    def beyond_help(*_: object) -> None:
        raise InvalidInput(text="beyond help")

    work.bench.preparer.messages = beyond_help
    work.begin(a_message_batch({0: [message(1)]}))
    work.source.dataset = a_dataset("gone")
    work.source.in_flight.is_stale = False
    work.begin(a_message_batch({0: [message(1)]}))
    assert work.chains == [met, None]


def test_a_batch_takes_its_place_once_its_index_is_ready(make_work: Callable[..., Work]) -> None:
    work = make_work(MergeStrategyLedger(primary_key=("id",)))
    order: list[str] = []

    def noted(name: str) -> None:
        usual = getattr(work.bench.queues, name)

        def call(*arguments: Any) -> Any:
            order.append(name)
            return usual(*arguments)

        setattr(work.bench.queues, name, call)

    noted("catch_up")
    noted("commit_indexed")
    work.begin(a_message_batch({0: [message(1), message(1)]}))
    assert (order, work.ids) == (["catch_up", "commit_indexed"], [1])


def test_an_index_that_cannot_be_stored_fails_its_batch(make_work: Callable[..., Work]) -> None:
    def full(*_: object) -> None:
        raise FULL

    work = make_work(MergeStrategyLedger(primary_key=("id",)))
    work.bench.queues.catch_up = full
    work.begin(a_message_batch({0: [message(1)]}))
    assert work.failure is FULL
    assert work.ids == []
