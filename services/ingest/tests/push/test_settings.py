"""Settings of push sources, shown and changed."""

from typing import Any

import pytest
from odf_testing.registry import framed, serving_registry
from odf_testing.schedule import NoSchedule

from odf_common.errors import InvalidInput
from odf_common.metadata.events import ReadStepCsv
from odf_ingest.push.source_topics import Key
from odf_ingest.source_settings import BadRecords, SourceSettings, load_settings

from .in_memory_broker import TOPIC, Broker, Running, message, running
from .test_control import control, instances


def test_settings_are_shown_and_changed(node: Running) -> None:
    node.ingest([message(1), message(2)])
    entry = node.entry
    made = control(node)
    assert made.change(entry, "", {"badRecords": "stop"}) == "default"
    (view,) = made.show(entry)
    assert (view.state, view.next, view.waiting, view.why) == ("reading", {0: 2}, 0, "")
    assert view.settings.plain()["badRecords"] == "stop"
    with pytest.raises(InvalidInput, match="badRecords"):
        made.change(entry, "", {"badRecord": "stop"})
    with pytest.raises(InvalidInput, match="pollInterval: a has no polling source"):
        made.change(entry, "", {"pollInterval": "1h"})
    with pytest.raises(InvalidInput, match="is not among the columns of the source"):
        made.change(entry, "", {"keyColumns": "absent"})
    (view,) = made.show(entry)
    assert view.settings.plain()["keyColumns"] == "none"


def test_partitions_and_retention_change_the_sources_own_topic(node: Running, broker: Broker) -> None:
    entry = node.entry
    made = control(node)
    made.change(entry, "", {"partitions": "3", "retention": "7d"})
    assert (broker.partitions(TOPIC), broker.kept) == (3, {TOPIC: 7 * 24 * 3_600_000})
    broker.logs[TOPIC, 2] += [message(1)]
    node.wait(lambda: node.ids == [1])
    made.change(entry, "", {"retention": "none"})
    assert broker.kept == {TOPIC: None}
    for wrong in ({"partitions": "2"}, {"partitions": "0"}, {"retention": "1s"}):
        with pytest.raises(InvalidInput, match=next(iter(wrong))):
            made.change(entry, "", wrong)
    (view,) = made.show(entry)
    assert (view.settings.partitions, view.settings.retention.is_limited) == (3, False)


def test_partitions_are_changed_without_retention_and_retention_without_partitions(
    make_bench: Any, broker: Broker
) -> None:
    broker.make(TOPIC, 2)  # by an administrator: the settings do not know it
    with running(make_bench(), broker) as node:
        entry = node.entry
        control(node).change(entry, "", {"retention": "7d"})
        assert (broker.partitions(TOPIC), broker.kept) == (2, {TOPIC: 7 * 24 * 3_600_000})
        broker.kept.clear()
        control(node).change(entry, "", {"partitions": "3"})
        assert (broker.partitions(TOPIC), broker.kept) == (3, {})


def test_a_setting_is_stored_before_the_schedule_reads_it_again(make_bench: Any, broker: Broker) -> None:
    bench, seen = make_bench(), list[SourceSettings]()

    class Schedule(NoSchedule):
        def rescan(self) -> None:
            seen.append(load_settings(bench.blobs, bench.dataset, "default"))

    with running(bench, broker) as node:
        entry, made = node.catalog.by_alias("a"), control(node, Schedule())
        assert entry is not None
        made.change(entry, "", {"badRecords": "stop"})
    assert [one.bad_records for one in seen] == [BadRecords.STOP]


def test_a_source_that_another_instance_reads_is_shown_with_its_position(node: Running) -> None:
    node.ingest([message(1)])
    entry, other = node.catalog.by_alias("a"), instances(node)[0].owned
    assert entry is not None
    (view,) = control(node, owned=other).show(entry)
    assert (view.state, view.topic, view.since, view.next, view.waiting) == (
        "elsewhere",
        TOPIC,
        "",
        {0: 1},
        0,
    )
    other.own(frozenset({3}))
    (view,) = control(node, owned=other).show(entry)
    assert view.state == "opening", "it is to be read there, and was not yet"


def test_a_source_whose_topic_cannot_be_described_says_why_and_is_not_read_elsewhere(
    node: Running, broker: Broker
) -> None:
    node.drain()
    broker.denied.add(TOPIC)
    found, other = node.catalog.by_alias("a"), instances(node)[0].owned
    assert found is not None
    (view,) = control(node, owned=other).show(found)
    assert (view.state, view.waiting) == ("retrying", None)
    assert view.why == f"topic {TOPIC} cannot be reached: Topic authorization failed"


def test_external_topics_keep_their_partitions_and_retention(node: Running, broker: Broker) -> None:
    entry = node.entry
    broker.make("shop")
    made = control(node)
    made.change(entry, "", {"topics": "shop"})
    for setting in ({"partitions": "3"}, {"retention": "1h"}):
        with pytest.raises(InvalidInput, match="has no topic of its own"):
            made.change(entry, "", setting)
    assert (broker.partitions("shop"), broker.partitions(TOPIC), broker.kept) == (1, 1, {})


def test_a_schema_registry_is_refused_for_a_source_that_could_not_be_read_with_it(
    make_bench: Any, broker: Broker
) -> None:
    with running(make_bench(None, ReadStepCsv(ddl_schema=("id BIGINT",))), broker) as node:
        entry = node.entry
        with pytest.raises(InvalidInput, match="this one has Csv"):
            control(node).change(entry, "", {"schemaRegistry": "http://registry"})


def test_a_changed_setting_takes_effect_at_once(bench: Any, broker: Broker) -> None:
    with serving_registry() as registry, running(bench, broker) as node:
        registry.add(1, "{}", kind="JSON")
        entry = node.entry
        made = control(node)
        made.change(entry, "", {"schemaRegistry": "http://127.0.0.1:1"})
        broker.logs[TOPIC, 0] += [framed(1, message(1))]
        node.wait(lambda: trouble(node) > 2)
        made.change(entry, "", {"schemaRegistry": registry.url})
        node.wait(lambda: node.ids == [1])


def trouble(node: Running) -> int:
    record = node.owned.record(Key(node.bench.dataset, "default"))
    return 0 if record is None or record.trouble is None else record.trouble.tries
