"""Which topics a dataset's sources read, and from which offsets, with the cluster and the notes in memory."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from odf_testing.builders import a_push_source

from odf_common.errors import InvalidInput, NotFound, OdfError, Unavailable
from odf_common.ports.bus import TopicInfo
from odf_common.ports.store import CatalogEntry
from odf_ingest.push.source_topics import (
    STARTS,
    SourceTopic,
    SourceTopics,
    TopicOffsets,
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
