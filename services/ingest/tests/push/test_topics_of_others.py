"""Sources that read external topics."""

from typing import Any

import pytest

from odf_common.errors import InvalidInput, NotFound
from odf_ingest.errors import NoTopic, SourceStopped
from odf_ingest.push.lifecycle.source_record import Phase
from odf_ingest.push.source_topics import Key

from .in_memory_broker import Broker, Running, message, running
from .test_control import control


def numbers(node: Running) -> list[int]:
    return sorted(map(int, map(str, node.ids)))


def read(node: Running, topics: str, **settings: str) -> None:
    control(node).change(node.entry, "", {"topics": topics, **settings})


def fill(broker: Broker, topic: str, *numbers: int) -> None:
    if topic not in broker.ids:
        broker.make(topic)
    broker.logs[topic, 0] += [message(number) for number in numbers]


def shown(node: Running) -> dict[str, tuple[str, int | None]]:
    return {one.topic: (one.state, one.waiting) for one in control(node).show(node.entry)}


def test_external_topics_are_read_in_place_of_the_sources_own(node: Running, broker: Broker) -> None:
    fill(broker, "shop.a", 1, 2)
    fill(broker, "shop.b", 3)
    fill(broker, "street", 4)
    read(node, "shop.*,street")
    node.drain()
    assert numbers(node) == [1, 2, 3, 4]
    assert shown(node) == dict.fromkeys(("shop.a", "shop.b", "street"), ("reading", 0))


def test_a_topic_that_appears_later_is_read_if_it_matches(node: Running, broker: Broker) -> None:
    read(node, "shop.*", topicStart="latest")
    fill(broker, "shop.new", 1)
    fill(broker, "other", 2)
    node.wait(lambda: node.ids == [1])
    broker.logs["shop.new", 1] = [message(3)]
    node.drain()
    assert numbers(node) == [1, 3]


def test_a_source_without_existing_topics_is_shown_and_not_resumed(node: Running) -> None:
    read(node, "shop.*")
    (view,) = control(node).show(node.entry)
    assert (view.name, view.topic, view.state, view.next, view.waiting) == (
        "default",
        "",
        "no-topic",
        {},
        None,
    )
    assert "no topic matches shop.* yet" in view.why
    with pytest.raises(NoTopic) as caught:
        control(node).resume(node.entry, "", "earliest")
    assert caught.value.advice() == view.why, "a pull creates no topic of others"


def test_reading_continues_where_it_was_when_the_own_topic_is_read_again(
    node: Running, broker: Broker
) -> None:
    fill(broker, "shop", 1)
    read(node, "shop")
    node.drain()
    read(node, "none")
    fill(broker, "shop", 2)
    node.wait(lambda: {key.topic for key in node.reader.sources} == {""})
    assert node.ids == [1]
    read(node, "shop")
    node.drain()
    assert node.ids == [1, 2]


def test_a_start_is_chosen_once_and_survives_a_restart(bench: Any, broker: Broker) -> None:
    with running(bench, broker) as node:
        fill(broker, "shop", 1, 2)
        read(node, "shop", topicStart="latest")
        node.drain()
        assert node.ids == []
        node.wait(lambda: Key(bench.dataset, "default", "shop") in node.reader.sources)
    fill(broker, "shop", 3)
    with running(bench, broker) as node:
        node.drain()
        assert node.ids == [3]
        read(node, "shop", topicStart="earliest")
        node.drain()
        assert node.ids == [3], "the chain knows the position"


def test_messages_that_expire_before_the_chosen_start_is_read_stop_the_source(
    bench: Any, broker: Broker
) -> None:
    fill(broker, "shop", 1)
    with running(bench, broker) as node:
        read(node, "shop", topicStart="latest")
    fill(broker, "shop", 2, 3)
    broker.low["shop", 0] = 2
    with running(bench, broker) as node:
        node.wait(lambda: node.owned.reason(Key(bench.dataset, "default", "shop")) is not None)
        assert shown(node) == {"shop": ("stopped", 2)}


def test_a_deleted_topic_stops_only_itself_and_is_forgotten_by_resuming(
    node: Running, bench: Any, broker: Broker
) -> None:
    fill(broker, "shop.a", 1)
    fill(broker, "shop.b", 2)
    read(node, "shop.*")
    node.drain()
    broker.drop("shop.a")
    gone = Key(bench.dataset, "default", "shop.a")
    node.wait(lambda: node.owned.phase(gone) is Phase.STOPPED)
    fill(broker, "shop.b", 3)
    node.wait(lambda: numbers(node) == [1, 2, 3])
    why = node.owned.reason(gone)
    assert why is not None
    assert "odf source resume a --source default --topic shop.a --from earliest" in why.advice()
    with pytest.raises(SourceStopped, match=r"its topic is gone: shop\.a was deleted"):
        node.drain()
    (done,) = control(node).resume(node.entry, "", "earliest")
    assert (done.topic, done.next) == ("shop.a", {})
    node.drain()
    assert "shop.a" not in broker.ids, "a topic of others is never created"
    assert shown(node).keys() == {"shop.b"}


def test_an_external_topic_that_was_replaced_is_read_from_the_new_one_once_resumed(
    node: Running, bench: Any, broker: Broker
) -> None:
    for topic in ("shop.a", "shop.b"):
        fill(broker, topic, 1)
    read(node, "shop.*")
    node.drain()
    for topic in ("shop.a", "shop.b"):
        broker.make(topic)
        fill(broker, topic, 5)
    keys = [Key(bench.dataset, "default", topic) for topic in ("shop.a", "shop.b")]
    node.wait(lambda: all(node.owned.phase(key) is Phase.STOPPED for key in keys))
    with pytest.raises(InvalidInput, match=r"several topics; add --topic: shop\.a, shop\.b"):
        control(node).resume(node.entry, "", "0")
    with pytest.raises(NotFound, match=r"shop\.c"):
        control(node).resume(node.entry, "", "0", "shop.c")
    control(node).resume(node.entry, "", "0", "shop.a")
    node.wait(lambda: numbers(node) == [1, 1, 5])
    control(node).resume(node.entry, "", "earliest")
    node.drain()
    assert numbers(node) == [1, 1, 5, 5]


@pytest.mark.parametrize(
    ("topics", "why"),
    [
        ("shop", "topic shop does not exist"),
        ("__consumer_offsets", "internal topic of Kafka"),
        ("odf.notifications.v1", "a topic of this node"),
        ("odf.push.a.default", "a topic of this node"),
        ("north.odf.push.b.default", "a topic of another node"),
        ("a b", "expected names of topics"),
        ("", "expected names of topics"),
        ("a,,b", "expected names of topics"),
        ("a/b", "expected names of topics"),
        ("x" * 250, "expected names of topics"),
    ],
)
def test_a_topic_that_cannot_be_read_is_refused(
    make_bench: Any, broker: Broker, topics: str, why: str
) -> None:
    for name in (
        "__consumer_offsets",
        "odf.notifications.v1",
        "north.odf.node.v1",
        "north.odf.push.b.default",
    ):
        broker.make(name)
    with running(make_bench(), broker) as node:
        with pytest.raises(InvalidInput, match=why):
            read(node, topics)
        read(node, "*")
        assert shown(node) == {"": ("no-topic", None)}, "patterns match none of these"
        assert [one.why for one in control(node).show(node.entry)] == [
            "no topic matches * yet; one that appears is read from its beginning"
        ]


def test_an_invalid_start_is_refused(make_bench: Any, broker: Broker) -> None:
    with (
        running(make_bench(), broker) as node,
        pytest.raises(InvalidInput, match="expected earliest, latest"),
    ):
        read(node, "none", topicStart="yesterday")


def test_the_watermark_waits_for_every_topic(bench: Any, broker: Broker) -> None:
    late = b'{"id":%d,"v":"a","event_time":"2020-01-0%dT00:00:00Z"}'
    with running(bench, broker) as node:
        broker.make("shop.a")
        broker.make("shop.b")
        broker.logs["shop.a", 0].append(late % (1, 9))
        broker.logs["shop.b", 0].append(late % (2, 3))
        read(node, "shop.*")
        node.drain()
        assert str(bench.state.watermark) == "2020-01-03T00:00:00Z"
        broker.logs["shop.b", 0].append(late % (3, 5))
        node.drain()
        assert str(bench.state.watermark) == "2020-01-05T00:00:00Z"
