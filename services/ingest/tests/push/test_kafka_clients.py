"""Which client reads which source, in which order clients are polled, and what is kept when one of several fails."""

from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from odf_common.adapters.kafka.quiet_partitions import Partition
from odf_common.errors import Unavailable
from odf_ingest.push.batches.source import PartitionOffsets, PushSource
from odf_ingest.push.reader import KafkaClients


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
