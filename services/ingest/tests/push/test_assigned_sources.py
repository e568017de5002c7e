"""Which sources are read, reopened, retried or stopped after each event; without threads, with the test's clock."""

from dataclasses import replace
from typing import Any

import pytest
from odf_testing.builders import a_dataset, a_push_source
from odf_testing.ingest_batches import a_message_batch, commit_messages
from prometheus_client import REGISTRY

from odf_common.errors import InvalidInput, StorageUnavailable, Unavailable
from odf_common.metadata.events import DisablePushSource
from odf_common.ports.store import CatalogEntry
from odf_ingest import metrics
from odf_ingest.errors import NoMessageToSkip
from odf_ingest.prepare.batch import SkipSearch
from odf_ingest.push.batches import source as source_module
from odf_ingest.push.batches.source import BATCH_BACKOFF, SAME_TROUBLE_SECONDS, Wait
from odf_ingest.push.lifecycle import inspector
from odf_ingest.push.lifecycle.assigned_sources import BUSY_RECHECK_SECONDS, SILENT_SECONDS
from odf_ingest.push.lifecycle.inspector import PATROL_SECONDS, Inspection
from odf_ingest.push.lifecycle.source_record import Phase
from odf_ingest.push.source_topics import Key, SourceTopic
from odf_ingest.source_settings import SourceSettings, TopicNames, save_settings

from .assigned_world import OTHER, UNREADABLE, World
from .in_memory_broker import TOPIC
from .test_messages import message
from .test_source import a_chunk


@pytest.fixture
def world(make_bench: Any, monkeypatch: pytest.MonkeyPatch) -> World:
    made = World(make_bench(None, None, a_push_source("other")))
    made.enter()
    for module in (inspector, source_module):
        monkeypatch.setattr(module, "time", made)
    return made


def commit_of_another_writer(world: World) -> None:
    batch = a_message_batch({0: [message(1)]}, topic_id=world.broker.ids[TOPIC])
    commit_messages(world.bench, replace(batch, topic=TOPIC))


def test_a_dataset_of_another_instance_is_not_looked_up(world: World) -> None:
    world.own()
    world.catalog.looked_up.clear()
    world.owned.inspect(a_dataset("of another instance"))
    assert world.catalog.looked_up == []


def test_a_dataset_that_is_assigned_to_another_instance_is_closed_and_stays_closed(world: World) -> None:
    world.own()
    world.owned.own(frozenset({1, 2}))
    assert world.reading.sources == {}
    assert (world.owned.phase(world.key), world.owned.record(world.key)) == (Phase.CLOSED, None)
    world.pass_time(PATROL_SECONDS)
    world.look()
    assert world.reading.sources == {}


def test_a_retry_of_a_dataset_that_was_assigned_to_another_instance_is_cancelled(world: World) -> None:
    world.owned.retry_later(world.own(), UNREADABLE)
    world.owned.own(frozenset({1, 2}))
    world.catalog.looked_up.clear()
    world.pass_time(BATCH_BACKOFF.most)
    assert world.catalog.looked_up == []


def test_an_inspection_that_ends_after_its_dataset_was_reassigned_opens_nothing(world: World) -> None:
    world.held = []
    world.owned.own(frozenset({3}))
    world.look()
    world.owned.own(frozenset({1, 2}))
    for task in world.held:
        task()
    assert world.reading.sources == {}


def test_a_change_during_a_commit_is_applied_after_it(world: World) -> None:
    source = world.own()
    source.in_flight.begun += 1
    world.bench.propose(DisablePushSource(source_name="default"), a_push_source())
    world.look()
    for _ in range(2):  # it is inspected until the source is idle
        world.pass_time(BUSY_RECHECK_SECONDS)
        assert world.source is source
    source.in_flight.settled += 1
    world.pass_time(BUSY_RECHECK_SECONDS)
    assert world.source is not source
    assert world.source.is_as_defined(world.bench.state)


def test_an_unchanged_dataset_is_not_reopened_during_a_commit(world: World) -> None:
    source = world.own()
    world.look()
    source.in_flight.begun += 1
    world.pass_time(PATROL_SECONDS)
    world.catalog.looked_up.clear()
    world.pass_time(BUSY_RECHECK_SECONDS)
    assert world.catalog.looked_up == []


def test_a_query_is_interrupted_only_by_another_definition_of_its_source(world: World) -> None:
    source = world.own()
    source.in_flight.begun += 1
    source.in_flight.querying_since = world.now
    world.look()
    assert world.source is source
    world.bench.propose(DisablePushSource(source_name="default"), a_push_source(date_format="yyyy"))
    world.look()
    assert world.source is not source


def test_a_dataset_whose_name_follows_its_blocks_is_found(world: World) -> None:
    world.catalog.remove("a")
    world.owned.own(frozenset({3}))
    world.look()
    assert world.reading.sources == {}
    world.enter()
    world.pass_time(BATCH_BACKOFF.first)
    assert world.reading.sources.keys() == {world.key}


@pytest.mark.parametrize("is_named", [False, True])
def test_a_dataset_without_sources_is_not_looked_up_forever(world: World, *, is_named: bool) -> None:
    world.catalog.remove("a")
    if is_named:
        world.catalog.add(CatalogEntry(alias="a", dataset_id=world.dataset))
    world.owned.own(frozenset({3}))
    world.look()
    for _ in range(4):
        world.pass_time(BATCH_BACKOFF.first)
    assert len(world.catalog.looked_up) == (1 if is_named else 2)


def test_a_dataset_without_blocks_is_skipped_and_is_no_problem(world: World) -> None:
    world.own()
    entry = CatalogEntry(alias="a", dataset_id=world.dataset, push_topics={"default": TOPIC})
    world.owned.apply_inspections([Inspection(dataset=world.dataset, entry=entry)])
    assert (world.reading.sources, world.owned.stuck()) == ({}, {})


def test_a_source_that_the_clients_cannot_open_is_opened_later(world: World) -> None:
    world.reading.is_away = True
    world.owned.own(frozenset({3}))
    assert world.record.phase is Phase.RETRYING
    world.reading.is_away = False
    world.pass_time(BATCH_BACKOFF.first)
    assert (world.record.phase, world.record.source) == (Phase.READING, world.source)


def test_a_source_whose_topic_does_not_exist_yet_is_opened_later(world: World) -> None:
    world.broker.drop(TOPIC)
    world.owned.own(frozenset({3}))
    assert (world.record.phase, world.reading.sources) == (Phase.RETRYING, {})
    world.broker.make(TOPIC)
    world.pass_time(BATCH_BACKOFF.first)
    assert world.record.phase is Phase.READING


def test_a_source_whose_topic_has_lost_messages_is_not_opened(world: World) -> None:
    commit_of_another_writer(world)
    world.owned.own(frozenset({3}))
    reason = world.owned.reason(world.key)
    assert reason is not None
    assert (reason.source, reason.reason) == ("default", "PositionBeyondEnd")
    assert world.reading.sources == {}


def test_stale_reports_of_a_reopened_source_change_nothing(world: World) -> None:
    before = world.own()
    world.owned.reopen(before)
    source, record = world.source, world.record
    assert source is not before
    world.owned.reopen(before)
    world.owned.retry_later(before, UNREADABLE)
    world.owned.stop(before, InvalidInput(text="beyond help"), None)
    assert (world.source, world.record) == (source, record)


def test_a_source_that_fails_after_every_few_messages_is_retried_less_often(world: World) -> None:
    world.own()
    for tries in (1, 2, 3):
        world.owned.retry_later(world.source, UNREADABLE)
        trouble = world.record.trouble
        assert trouble is not None
        assert trouble.tries == tries
        assert world.reading.sources == {}
        world.pass_time(trouble.delay)
        world.owned.readable(world.key)
        assert world.record.trouble is None
    world.now += BATCH_BACKOFF.pause(3) + SAME_TROUBLE_SECONDS + 1
    world.owned.retry_later(world.source, UNREADABLE)
    assert world.record.trouble is not None
    assert world.record.trouble.tries == 1, "another trouble"


def test_only_a_commit_ends_a_problem_that_is_not_the_topics(world: World) -> None:
    source = world.own()
    world.owned.retry_later(source, StorageUnavailable(file="data/x", why="the disk is full"))
    world.pass_time(BATCH_BACKOFF.first)
    world.owned.readable(world.key)
    assert world.record.trouble is not None
    assert world.record.trouble.advice == "check the disk and its mount; work then continues automatically"
    world.owned.end_trouble(world.key)
    assert world.record.trouble is None


def test_a_search_for_a_message_continues_after_a_failure(world: World) -> None:
    search = SkipSearch(count=1, until={0: 1}, why="beyond help")
    world.own()
    world.owned.reopen(world.source, search=search)
    world.owned.retry_later(world.source, UNREADABLE)
    world.pass_time(BATCH_BACKOFF.first)
    assert world.source.search is search
    world.owned.reopen(world.source)
    assert world.source.search is search


def test_a_search_that_is_over_when_its_source_is_opened_ends_without_a_message(world: World) -> None:
    search = SkipSearch(count=1, until={0: 1}, why="beyond help")
    world.broker.logs[TOPIC, 0] += [message(1), message(2)]
    commit_of_another_writer(world)
    world.owned.reopen(world.own(), search=search)
    assert search.found.result(0) is None
    world.source.add(a_chunk([1]))
    world.source.cut()
    assert [batch.search for batch in world.source.ready] == [None]


def test_a_search_ends_when_its_source_is_no_longer_read(world: World) -> None:
    search = SkipSearch(count=1, until={0: 1}, why="beyond help")
    world.owned.reopen(world.own(), search=search)
    world.owned.own(frozenset())
    assert isinstance(search.found.exception(0), NoMessageToSkip)


def test_the_second_of_two_commands_to_skip_is_told_so(world: World) -> None:
    world.own()
    world.stop()
    first, second = (SkipSearch(count=1, until={0: 1}, why="beyond help") for _ in range(2))
    world.owned.resume(world.key, first)
    world.owned.resume(world.key, second)
    assert isinstance(second.found.exception(0), NoMessageToSkip)
    assert world.source.search is first


def test_a_retry_that_a_user_requests_does_not_wait(world: World) -> None:
    world.owned.retry_later(world.own(), UNREADABLE)
    assert world.reading.sources == {}
    world.owned.resume(world.key)
    assert world.record.phase is Phase.READING


def test_a_stopped_source_stays_stopped_until_the_chain_changes(world: World) -> None:
    world.own()
    world.broker.logs[TOPIC, 0] += [message(1), message(2)]
    assert world.owned.reason(world.key) is None
    world.stop()
    since, world.now = world.record.since, world.now + 1
    for look in (world.look, lambda: world.pass_time(PATROL_SECONDS)):
        look()
        assert (world.record.phase, world.reading.sources) == (Phase.STOPPED, {})
    assert world.waiting == [(world.key, 2)] * 2
    assert world.owned.stuck() == {world.key: world.owned.reason(world.key)}
    assert world.owned.stuck_since(world.key) == int(since * 1e9)
    world.bench.propose(DisablePushSource(source_name="default"), a_push_source())
    world.look()
    assert world.record.phase is Phase.READING
    assert world.owned.stuck() == {}
    assert len(world.waiting) == 3, "those that wait are reported when it is opened"
    world.owned.reopen(world.source)
    assert len(world.waiting) == 3, "and once: its batches report the rest"


def test_a_stopped_source_is_resumed_with_the_search_for_the_message_to_skip(world: World) -> None:
    world.own()
    world.stop()
    search = SkipSearch(count=1, until={0: 1}, why="beyond help")
    world.owned.resume(world.key, search)
    assert world.source.search is search


def test_a_search_ends_with_the_reason_why_its_source_stops(world: World) -> None:
    search = SkipSearch(count=1, until={0: 1}, why="beyond help")
    world.owned.reopen(world.own(), search=search)
    world.source.add(a_chunk([1, 2]))
    assert [batch.count for batch in world.source.ready] == [1, 1]
    assert world.source.ready[-1].search is None, "it is after the search"
    assert world.source.search is search, "its messages are all in flight, and may yet fail"
    world.stop()
    assert search.found.exception() is world.owned.reason(world.key)


def test_a_waiting_source_is_read_again_to_skip_its_message(world: World) -> None:
    world.owned.reopen(world.own(), Wait(end={0: 1}, tries=1, why="half"))
    waiting = world.source
    assert world.record.phase is Phase.WAITING
    world.owned.resume(world.key, waiting.wait.search if waiting.wait else None)
    assert world.source is not waiting
    assert world.source.search == SkipSearch(count=1, until={0: 1}, why="half", half_in=0)


def test_messages_that_another_writer_has_committed_are_not_read_again(world: World) -> None:
    source = world.own()
    commit_of_another_writer(world)
    world.broker.logs[TOPIC, 0] += [message(1)]
    world.look()
    assert world.source is not source
    assert world.source.offsets.next == {0: 1}


def test_an_inspection_that_is_older_than_the_sources_own_commit_reopens_nothing(world: World) -> None:
    before = world.bench.state
    commit_of_another_writer(world)
    world.broker.logs[TOPIC, 0] += [message(1)]
    source = world.own()
    topics = [SourceTopic(source="default", name=TOPIC, described=world.broker.described(TOPIC))]
    entry = world.catalog.by_alias("a")
    world.owned.apply_inspections(
        [Inspection(dataset=world.dataset, entry=entry, state=before, topics=topics)]
    )
    assert world.source is source


@pytest.mark.parametrize("is_away", [False, True])
def test_a_source_that_is_silent_although_its_topic_has_messages_is_read_by_a_new_client(
    world: World, *, is_away: bool
) -> None:
    source = world.own()
    world.look()
    world.pass_time(SILENT_SECONDS + 1)
    world.broker.logs[TOPIC, 0] += [message(1)]
    world.look()
    world.now += SILENT_SECONDS
    world.look()
    assert (world.source, world.reading.renewed) == (source, 0), "not longer than that"
    world.now += 1
    world.reading.is_away = is_away
    world.look()
    assert (world.reading.renewed, world.reading.sources) == (1, {})
    assert "that Kafka's client does not deliver" in str(world.record.trouble)
    world.reading.is_away = False
    world.pass_time(BATCH_BACKOFF.first)
    assert world.record.phase is Phase.READING


def test_a_source_has_the_new_name_of_its_dataset_and_its_counts_begin_again(world: World) -> None:
    world.enter("before")
    world.own()
    metrics.RECORDS.labels("before", "default").inc()
    world.look()
    assert counted("before") == 1
    world.enter("after")
    world.look()
    assert (world.source.alias, world.record.alias, counted("before")) == ("after", "after", None)
    world.owned.retry_later(world.source, UNREADABLE)
    world.enter("afterwards")
    world.pass_time(BATCH_BACKOFF.first)
    assert (world.source.alias, world.record.alias) == ("afterwards", "afterwards")
    metrics.RECORDS.labels("afterwards", "default").inc()
    world.owned.remove(world.dataset)
    assert counted("afterwards") is None


def test_topics_at_which_a_source_is_stopped_are_counted(world: World) -> None:
    world.own()
    world.stop()
    assert counted("a", "stopped") == 1
    world.owned.resume(world.key)
    assert counted("a", "stopped") == 0


def counted(alias: str, metric: str = "records_total") -> float | None:
    return REGISTRY.get_sample_value(f"odf_ingest_{metric}", {"dataset": alias, "source": "default"})


def test_sources_that_the_dataset_no_longer_has_are_closed_and_others_are_kept(world: World) -> None:
    world.enter(default=TOPIC, other=OTHER)
    source, other = world.own(), Key(world.dataset, "other")
    assert world.reading.sources.keys() == {world.key, other}
    world.enter(default=TOPIC)
    world.look()
    assert world.reading.sources == {world.key: source}
    assert world.owned.phase(other) is Phase.CLOSED
    queue = world.bench.queues.queue(world.dataset)
    world.catalog.remove("a")
    world.look()
    assert world.reading.sources == {}
    assert world.bench.queues.queue(world.dataset) is not queue
    world.enter()
    world.pass_time(1.0)
    assert world.reading.sources == {}, "nothing is planned for a dataset that was removed"


def test_topics_of_one_source_know_of_each_other_while_they_exist(world: World) -> None:
    topics = [Key(world.dataset, "default", name) for name in ("shop.a", "shop.b")]
    for key in topics:
        world.broker.make(key.topic)
    world.enter(default=TOPIC, other=OTHER)
    names = TopicNames.parse("shop.a,shop.b,shop.none")
    save_settings(world.bench.blobs, world.dataset, "default", SourceSettings(topics=names))
    world.owned.own(frozenset({3}))
    siblings = {key: source.siblings for key, source in world.reading.sources.items()}
    assert siblings == {
        topics[0]: {topics[1]},
        topics[1]: {topics[0]},
        Key(world.dataset, "other"): frozenset(),
    }
    world.broker.drop("shop.b")
    world.look()
    assert world.reading.sources[topics[0]].siblings == frozenset()


def test_a_dataset_that_cannot_be_read_is_reported_and_retried_while_its_source_is_read(world: World) -> None:
    source, since, dataset = world.own(), world.now, Key(world.dataset, "")
    world.catalog.fault = Unavailable(what="its folder", why="Permission denied")
    world.catalog.looked_up.clear()
    world.look()
    for tries in (1, 2, 3):
        assert "Permission denied" in str(world.owned.stuck()[dataset])
        assert world.owned.stuck_since(dataset) == int(since * 1e9)
        assert len(world.catalog.looked_up) == tries
        world.pass_time(BATCH_BACKOFF.pause(tries))
    assert world.reading.sources == {world.key: source}
    for tries in range(4, 12):
        world.pass_time(BATCH_BACKOFF.pause(tries))
    world.catalog.fault = None
    world.pass_time(5.0)  # the longest pause, after an outage of any length
    assert (world.owned.stuck(), world.owned.stuck_since(dataset)) == ({}, None)
