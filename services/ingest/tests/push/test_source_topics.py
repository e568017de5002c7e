"""Which topics a dataset's sources read, through which client, and which changes resolve the reason of a stop."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from odf_testing.builders import a_chain, a_dataset, a_push_source, a_seed

from odf_common.adapters.kafka.quiet_partitions import Partition
from odf_common.chain.state import ChainState
from odf_common.dataset.open_rejects import KIND
from odf_common.errors import InvalidInput, NotFound, OdfError, Unavailable
from odf_common.metadata.events import SourceState
from odf_common.ports.bus import TopicInfo
from odf_common.ports.store import CatalogEntry
from odf_ingest.commit.position import SourcePosition, TopicPosition
from odf_ingest.push.batches.source import PartitionOffsets, PushSource
from odf_ingest.push.reader import KafkaClients
from odf_ingest.push.source_topics import (
    STARTS,
    Key,
    SourceTopic,
    SourceTopics,
    TopicOffsets,
    as_of,
    existing,
    load_starts,
)
from odf_ingest.source_settings import (
    EARLIEST,
    LATEST,
    NOTE,
    SourceSettings,
    TopicNames,
    TopicStart,
    save_settings,
)

from .in_memory_broker import TOPIC, Broker, message

OTHER = "odf.push.a.other"
NOON = TopicStart.parse("2020-01-01T12:00:00Z")


class Cluster(Broker):
    """Topics of which the second message is from noon; `is_away`: the cluster does not respond."""

    is_away = False
    listings = 0

    def offsets_at(self, name: str, ms: int) -> Mapping[int, int]:
        assert ms == NOON.ms
        return dict.fromkeys(range(self.partitions(name)), 1)

    def list_names(self) -> list[str]:
        self.listings += 1
        return super().list_names()

    def describe(self, names: Iterable[str]) -> Mapping[str, TopicInfo | OdfError]:
        if self.is_away:
            raise Unavailable(what="Kafka", why="no answer in time")
        return super().describe(names)


class Sources:
    """A dataset with the sources `default` and `other`, and external topics: `shop` and `street`."""

    def __init__(self, make_bench: Any) -> None:
        self.bench = make_bench(None, None, a_push_source("other"))
        self.cluster = Cluster()
        for topic in (TOPIC, OTHER, "shop", "street"):
            self.cluster.make(topic)
            self.cluster.logs[topic, 0] += [message(1), message(2), message(3)]
        self.topics = SourceTopics(self.cluster, self.bench.blobs)  # type: ignore[arg-type]
        self.entry = CatalogEntry(
            alias="a", dataset_id=self.bench.dataset, push_topics={"default": TOPIC, "other": OTHER}
        )

    def choose(self, source: str, topics: str, start: TopicStart) -> None:
        names = TopicNames.parse(topics)
        self.topics.choose_start(self.entry, self.bench.state, source, names, start)
        save_settings(self.bench.blobs, self.bench.dataset, source, SourceSettings(topics=names))

    def of(self) -> dict[tuple[str, str], SourceTopic]:
        return {(one.source, one.name): one for one in self.topics.topics_of(self.entry, self.bench.state)}

    @property
    def starts(self) -> dict[str, dict[str, Mapping[int, int]]]:
        loaded = load_starts(self.bench.blobs, self.bench.dataset)
        return {source: {name: at.next for name, at in starts.items()} for source, starts in loaded.items()}


@pytest.fixture
def sources(make_bench: Any) -> Sources:
    return Sources(make_bench)


def test_each_source_reads_its_own_topic_unless_it_has_others(sources: Sources) -> None:
    assert {key: one.is_own for key, one in sources.of().items()} == {
        ("default", TOPIC): True,
        ("other", OTHER): True,
    }
    sources.choose("other", "street,s*p", EARLIEST)
    assert {key: one.is_own for key, one in sources.of().items()} == {
        ("default", TOPIC): True,
        ("other", "shop"): False,
        ("other", "street"): False,
    }
    keys = {one.key(sources.bench.dataset)[1:] for one in sources.of().values()}
    assert keys == {("default", ""), ("other", "shop"), ("other", "street")}


def test_a_source_that_the_chain_does_not_have_is_not_read(sources: Sources) -> None:
    sources.entry.push_topics["gone"] = "shop"  # type: ignore[index]
    assert {source for source, _ in sources.of()} == {"default", "other"}


def test_each_source_has_a_separate_start_until_it_starts_at_the_beginning(sources: Sources) -> None:
    sources.choose("default", "shop", LATEST)
    sources.choose("other", "shop,street", NOON)
    assert sources.starts == {"default": {"shop": {0: 3}}, "other": {"shop": {0: 1}, "street": {0: 1}}}
    sources.choose("default", "street", LATEST)
    assert sources.starts == {"default": {"street": {0: 3}}, "other": {"shop": {0: 1}, "street": {0: 1}}}
    at = {key: one.start.next for key, one in sources.of().items() if one.start is not None}
    assert at == {("default", "street"): {0: 3}, ("other", "shop"): {0: 1}, ("other", "street"): {0: 1}}
    for source in ("default", "other"):
        sources.choose(source, "shop", EARLIEST)
    assert sources.bench.blobs.note(sources.bench.dataset, STARTS) is None
    assert all(one.start is None for one in sources.of().values())


def test_a_start_that_cannot_be_set_leaves_the_old_one(sources: Sources) -> None:
    sources.choose("default", "shop", LATEST)
    sources.cluster.denied = {"street"}
    with pytest.raises(Unavailable):
        sources.choose("default", "shop,street", NOON)
    with pytest.raises(InvalidInput, match="topic alley does not exist"):
        sources.choose("default", "shop,alley", NOON)
    assert sources.starts == {"default": {"shop": {0: 3}}}


def test_a_chosen_start_holds_for_its_topic_and_partitions_only(sources: Sources) -> None:
    described = TopicInfo(topic_id="one", low={0: 2, 1: 4}, high={0: 9, 1: 9})
    topic = SourceTopic(source="default", name="shop", described=described)
    assert topic.starts(described) == {0: 2, 1: 4}
    for topic_id, expected in (("one", {0: 7, 1: 4}), ("another", {0: 2, 1: 4})):
        start = TopicOffsets(topic_id=topic_id, next={0: 7})
        topic = SourceTopic(source="default", name="shop", described=described, start=start)
        assert topic.starts(described) == expected


@pytest.mark.parametrize("note", ["junk", "[]", '{"default": {"shop": {"id": "x"}}}', '{"default": 1}'])
def test_damaged_starts_are_named_and_not_treated_as_the_beginning(sources: Sources, note: str) -> None:
    sources.choose("default", "shop", LATEST)
    sources.bench.blobs.set_note(sources.bench.dataset, STARTS, note)
    with pytest.raises(InvalidInput, match="starts of the topics"):
        sources.of()


def test_a_dataset_that_cannot_be_read_hides_no_other(sources: Sources, make_bench: Any) -> None:
    sources.choose("default", "s*", LATEST)
    sources.bench.blobs.set_note(sources.bench.dataset, STARTS, "junk")
    other = CatalogEntry(alias="b", dataset_id=sources.bench.dataset, push_topics={"other": OTHER})
    asked = [(sources.entry, sources.bench.state), (other, sources.bench.state)]
    before = sources.cluster.listings
    damaged, read = sources.topics.of_many([*asked, asked[0]])[:2]
    assert isinstance(damaged, InvalidInput)
    assert not isinstance(read, OdfError)
    assert [one.name for one in read] == [OTHER]
    assert sources.cluster.listings == before + 1, "topics are listed once for all"


def test_topics_that_cannot_be_described_may_exist_and_missing_ones_do_not(sources: Sources) -> None:
    sources.choose("other", "shop", EARLIEST)
    sources.cluster.drop("shop")
    found = sources.of()
    assert isinstance(found["other", "shop"].described, NotFound)
    assert [one.name for one in existing(found.values())] == [TOPIC]
    sources.cluster.is_away = True
    found = sources.of()
    assert all(isinstance(one.described, Unavailable) for one in found.values())
    assert len(existing(found.values())) == 2


def test_damaged_settings_affect_their_source_only(sources: Sources) -> None:
    sources.choose("default", "shop", EARLIEST)
    note = json.loads(sources.bench.blobs.note(sources.bench.dataset, NOTE))
    note["other"] = {"badRecords": "nonsense"}
    sources.bench.blobs.set_note(sources.bench.dataset, NOTE, json.dumps(note))
    found = sources.of()
    assert isinstance(found["default", "shop"].described, TopicInfo)
    assert isinstance(found["other", OTHER].described, InvalidInput)


class Client:
    """Records its calls; returns `chunks`, or fails."""

    def __init__(self, name: str, log: list[tuple[str, object]]) -> None:
        self.name, self._log = name, log
        self.chunks: tuple[object, ...] = ()
        self.ends: dict[Partition, int] = {}
        self.faults: dict[Partition, str] = {}
        self.fails = False

    def assign(self, positions: Mapping[Partition, int]) -> None:
        self._log.append((self.name, dict(positions)))

    def take(self, count: int, timeout: float) -> Any:
        self._log.append((self.name, (count, timeout)))
        if self.fails:
            raise Unavailable(what="Kafka", why="down")
        return SimpleNamespace(chunks=self.chunks, ends=self.ends, faults=self.faults)

    def close(self) -> None:
        self._log.append((self.name, "close"))

    def renew(self) -> None:
        self._log.append((self.name, "renew"))

    def pause(self, partitions: Iterable[Partition]) -> None:
        self._log.append((self.name, ("pause", *partitions)))

    def resume(self, partitions: Iterable[Partition]) -> None:
        self._log.append((self.name, ("resume", *partitions)))

    def unassign(self, partitions: Iterable[Partition]) -> None:
        self._log.append((self.name, ("unassign", *partitions)))


def source(topic: str, *positions: int) -> PushSource:
    next_ = dict(enumerate(positions))
    partitions = tuple((topic, number) for number in next_)
    return cast(
        "PushSource", SimpleNamespace(topic=topic, offsets=PartitionOffsets(next_), partitions=partitions)
    )


class Bench:
    """As many clients as sources of one topic."""

    def __init__(self, count: int) -> None:
        self.log: list[tuple[str, object]] = []
        self.clients = [Client(name, self.log) for name in "abcd"[:count]]
        others = iter(self.clients[1:])
        self.kafka_clients = KafkaClients(cast("Any", self.clients[0]), lambda: cast("Any", next(others)))
        self.sources = [source("shared", 7) for _ in range(count)]
        self.kafka_clients.open(self.sources)
        self.opened = list(self.log)
        self.log.clear()

    def turns(self) -> str:
        """Return the clients in the order in which they were polled in one round."""
        self.log.clear()
        self.kafka_clients.take(10, 6.0)
        return "".join(name for name, _ in self.log)


def test_sources_of_one_topic_have_separate_clients_and_others_share_the_first() -> None:
    bench = Bench(2)
    assert bench.opened == [("a", {("shared", 0): 7}), ("b", {("shared", 0): 7})]
    bench.kafka_clients.open([source("other", 1, 2), source("third", 3)])
    assert bench.log == [("a", {("other", 0): 1, ("other", 1): 2, ("third", 0): 3})]
    bench.log.clear()
    bench.kafka_clients.close(bench.sources[0])
    assert bench.log == [("a", ("unassign", ("shared", 0)))]
    bench.kafka_clients.open([source("shared", 9)])
    assert bench.log[1:] == [("a", {("shared", 0): 9})], "the first client is free for it"


def test_a_source_is_paused_and_resumed_in_its_own_client() -> None:
    bench = Bench(2)
    bench.kafka_clients.pause(bench.sources[1])
    bench.kafka_clients.resume(bench.sources[1])
    assert bench.log == [("b", ("pause", ("shared", 0))), ("b", ("resume", ("shared", 0)))]
    bench.log.clear()
    bench.kafka_clients.close(bench.sources[0])
    bench.log.clear()
    bench.kafka_clients.pause(bench.sources[0])
    bench.kafka_clients.resume(bench.sources[0])
    assert bench.log == [], "it is no longer read"


def test_closing_a_source_that_is_not_read_has_no_effect() -> None:
    bench = Bench(1)
    bench.kafka_clients.close(source("other", 1))
    assert bench.log == []


def test_each_client_is_the_first_in_its_turn() -> None:
    assert [Bench(1).turns() for _ in range(2)] == ["a", "a"]
    bench = Bench(3)
    assert [bench.turns() for _ in range(4)] == ["abc", "bca", "cab", "abc"]


def test_the_wait_is_shared_unless_the_last_round_brought_messages() -> None:
    bench = Bench(2)
    bench.kafka_clients.take(10, 6.0)
    assert {timeout for _, (_, timeout) in cast("Any", bench.log)} == {3.0}
    bench.clients[0].chunks = ("message",)
    bench.kafka_clients.take(10, 6.0)
    bench.log.clear()
    bench.kafka_clients.take(10, 6.0)
    assert [asked for _, asked in bench.log] == [(10, 0.0)] * 2
    alone = Bench(1)
    alone.clients[0].chunks = ("message",)
    for _ in range(2):
        alone.kafka_clients.take(10, 6.0)
    assert [asked for _, asked in alone.log] == [(10, 6.0)] * 2, "no other client is kept waiting"


def test_messages_of_other_clients_are_not_lost_with_one_that_fails() -> None:
    bench = Bench(2)
    bench.clients[1].fails = True
    with pytest.raises(Unavailable):
        bench.kafka_clients.take(10, 6.0)
    bench.clients[0].chunks = ("message",)
    with pytest.raises(Unavailable):
        bench.kafka_clients.take(10, 6.0)  # it is the first in this round
    found = bench.kafka_clients.take(10, 6.0)
    assert [cast("Any", taken).chunks for _, taken in found] == [("message",)]


@pytest.mark.parametrize("news", ["ends", "faults"])
def test_an_end_or_a_fault_that_another_client_reports_once_is_not_lost_either(news: str) -> None:
    bench = Bench(2)
    bench.clients[1].fails = True
    setattr(bench.clients[0], news, {("shared", 0): 7})
    ((client, taken),) = bench.kafka_clients.take(10, 6.0)
    assert client.records is cast("Any", bench.clients[0])
    assert getattr(taken, news) == {("shared", 0): 7}


def test_all_clients_are_replaced_and_closed() -> None:
    bench = Bench(2)
    bench.kafka_clients.renew()
    bench.kafka_clients.close_all()
    assert bench.log == [("a", "renew"), ("b", "renew"), ("a", "close"), ("b", "close")]


READ = TopicPosition(topic_id="id", next={0: 5})
MORE = TopicPosition(topic_id="id", next={0: 6})


def chain(
    *receipts: str, source: str = "default", defined: str = "default", **topics: TopicPosition
) -> ChainState:
    """Return the state of a chain that defines a push source, and has the positions of one."""
    position = SourcePosition(topics=topics, receipts=receipts)
    known = SourceState(source_name=source, kind=KIND, value=position.text())
    state = a_chain(a_seed(), a_push_source(defined)).state
    return replace(state, source_states={source: known})


@pytest.mark.parametrize(
    ("after", "is_ended"),
    [
        (chain(own=READ, theirs=READ), False),
        (chain(own=MORE, theirs=READ), False),
        (chain(own=READ, theirs=MORE), True),
        (chain("file-0", own=READ, theirs=READ), True),
        (chain(defined="other", own=READ, theirs=READ), True),
    ],
    ids=["nothing", "own topic", "this topic", "pushed file", "definition"],
)
def test_the_stop_of_an_external_topic_ends_with_its_own_position_and_definition(
    after: ChainState, is_ended: bool
) -> None:
    key = Key(a_dataset(), "default", "theirs")
    assert (as_of(after, key) != as_of(chain(own=READ, theirs=READ), key)) == is_ended


@pytest.mark.parametrize(
    ("after", "is_ended"),
    [
        (chain(own=READ), False),
        (chain(own=READ, source="other"), True),
        (chain(own=MORE), True),
        (chain(defined="other", own=READ), True),
    ],
    ids=["nothing", "position gone", "position", "definition"],
)
def test_the_stop_of_a_source_ends_with_its_position_and_definition(
    after: ChainState, is_ended: bool
) -> None:
    key = Key(a_dataset(), "default")
    assert (as_of(after, key) != as_of(chain(own=READ), key)) == is_ended
