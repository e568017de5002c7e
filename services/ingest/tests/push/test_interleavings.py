"""Any events in any order: what is read is assigned and not paused, and each message is committed once."""

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from confluent_kafka import KafkaError, Message, TopicPartition
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from odf_testing.builders import a_push_source
from odf_testing.memory_store import MemoryCatalog
from odf_testing.profiles import examples

from odf_common.adapters.kafka import records
from odf_common.adapters.kafka.cluster import KafkaCluster
from odf_common.adapters.kafka.quiet_partitions import Partition
from odf_common.adapters.kafka.records import KafkaRecords
from odf_common.errors import InvalidInput
from odf_common.metadata.events import ReadStepNdJson
from odf_common.ports.clock import Backoff
from odf_common.ports.store import CatalogEntry
from odf_ingest.commit.committer import Pools
from odf_ingest.commit.rejects import RejectPolicy
from odf_ingest.push import reader
from odf_ingest.push.batches import source as source_module
from odf_ingest.push.batches.batch_worker import BatchWorker
from odf_ingest.push.batches.source import BatchLimits
from odf_ingest.push.lifecycle import assigned_sources as owned
from odf_ingest.push.lifecycle import inspector
from odf_ingest.push.lifecycle.assigned_sources import AssignedSources
from odf_ingest.push.lifecycle.source_record import LIVE, Phase
from odf_ingest.push.reader import PushReader
from odf_ingest.push.source_topics import Key, SourceTopics
from odf_ingest.registry import Registries

from .in_memory_broker import Broker, message

NAMES = ("default", "other")
OWNED = frozenset({3})
ACTS = (
    "produce",
    "step",
    "commit",
    "inspect",
    "disown",
    "own",
    "fault",
    "deny",
    "break",
    "repair",
    "look",
    "reopen",
)


class Client:
    """A consumer as librdkafka is: a paused partition stays paused when it is unassigned and assigned again."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.at: dict[Partition, int] = {}
        self.paused: set[Partition] = set()
        self.faults: set[Partition] = set()
        self.ended: dict[Partition, int] = {}

    def incremental_assign(self, places: list[TopicPartition]) -> None:
        for one in places:
            assert (one.topic, one.partition) not in self.at, "assigned twice"
            self.at[one.topic, one.partition] = one.offset
            self.ended.pop((one.topic, one.partition), None)

    def incremental_unassign(self, places: list[TopicPartition]) -> None:
        for one in places:
            del self.at[one.topic, one.partition]

    def offsets_for_times(self, places: list[TopicPartition], timeout: float) -> None:
        del places, timeout  # sent to have the leaders found

    def pause(self, places: list[TopicPartition]) -> None:
        self.paused |= {(one.topic, one.partition) for one in places}

    def resume(self, places: list[TopicPartition]) -> None:
        self.paused -= {(one.topic, one.partition) for one in places}

    def consume(self, count: int, timeout: float) -> list[Message]:
        found: list[Message] = []
        for place, start in list(self.at.items()):
            if place in self.faults:
                self.faults.discard(place)
                found.append(a_message(place, 0, b"", KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)))
                continue
            if place in self.paused:
                continue
            values = self.broker.logs[place][start : start + count]
            found += [a_message(place, start + number, value) for number, value in enumerate(values)]
            self.at[place] = end = start + len(values)
            if end == len(self.broker.logs[place]) and self.ended.get(place) != end:
                self.ended[place] = end
                found.append(a_message(place, end, b"", KafkaError(KafkaError._PARTITION_EOF)))
        return found

    def get_watermark_offsets(self, place: TopicPartition, *, cached: bool) -> tuple[int, int]:
        assert cached
        return 0, len(self.broker.logs[place.topic, place.partition])

    def close(self) -> None:
        self.at.clear()


def a_message(at: Partition, offset: int, value: bytes | None, news: KafkaError | None = None) -> Message:
    return Message(
        topic=at[0], partition=at[1], offset=offset, value=value, error=news, timestamp=(1, offset)
    )


class Deck(Executor):
    """Runs a task on demand."""

    def __init__(self) -> None:
        self.tasks: list[Callable[[], None]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        self.tasks.append(lambda: future.set_result(fn(*args, **kwargs)))
        return future

    def run_one(self) -> None:
        if self.tasks:
            self.tasks.pop(0)()


class AtOnce(Executor):
    """Runs a task when it is submitted."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except InvalidInput as error:
            future.set_exception(error)
        return future


@dataclass
class World:
    """An ingest whose every step is controlled by the test."""

    bench: Any
    broker: Broker
    client: Client
    reader: PushReader
    owned: AssignedSources
    commits: Deck
    inspections: Deck
    broken: list[bool]
    produced: dict[str, int] = field(default_factory=lambda: dict.fromkeys(NAMES, 0))
    stop: threading.Event = field(default_factory=threading.Event)

    def act(self, act: str, name: str) -> None:  # noqa: C901 - one case an act
        place, key = (f"t.{name}", 0), Key(self.bench.dataset, name)
        match act:
            case "produce":
                first = self.produced[name]
                self.broker.logs[place] += [message(self.id(name, first + n)) for n in range(7)]
                self.produced[name] += 7
            case "step":
                # Few messages are taken at once: after several steps a source is ahead of its commits.
                for _ in range(4):
                    self.reader.step(self.stop)
            case "commit":
                self.commits.run_one()
            case "inspect":
                self.inspections.run_one()
            case "disown" | "own":
                partitions = OWNED if act == "own" else frozenset[int]()
                self.reader.request(lambda: self.owned.own(partitions))
            case "fault":
                self.client.faults.add(place)
            case "deny":
                self.broker.denied ^= {place[0]}
            case "break" | "repair":
                self.broken[:] = [True] if act == "break" else []
                self.reader.request(lambda: self.owned.resume(key))
            case "look":
                self.reader.request(lambda: self.owned.inspect(self.bench.dataset, "a"))
            case _:
                source = self.reader.sources.get(key)
                if source is not None:
                    self.reader.request(lambda: self.owned.reopen(source))

    def id(self, name: str, number: int) -> int:
        return number + 1_000_000 * NAMES.index(name)

    def check(self) -> None:
        for name in NAMES:
            place, phase = (f"t.{name}", 0), self.owned.phase(Key(self.bench.dataset, name))
            assert (place in self.client.at) == (phase in LIVE)
            assert (place in self.client.paused) == (phase is Phase.PAUSED)

    def ids(self, name: str) -> list[int]:
        place = NAMES.index(name)
        return [row["id"] % 1_000_000 for row in self.bench.rows() if row["id"] // 1_000_000 == place]

    def settle(self) -> None:
        """Repair all faults, and run until all is committed."""
        self.broker.denied, self.client.faults = set(), set()
        self.act("own", "")
        for _ in range(400):
            # An earlier failure may stop its source only now.
            for name in NAMES:
                self.act("repair", name)
            for act in ("inspect", "step", "commit", "commit"):
                self.act(act, "")
                self.check()
            is_quiet = not (self.commits.tasks or self.inspections.tasks)
            if is_quiet and all(len(self.ids(name)) >= self.produced[name] for name in NAMES):
                return


@pytest.fixture
def world(make_bench: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[[], World]:
    monkeypatch.setattr(source_module, "BATCH_BACKOFF", Backoff(first=0.0, most=0.0))
    for module, name in (
        (owned, "BUSY_RECHECK_SECONDS"),
        (reader, "POLL_SECONDS"),
        (inspector, "PATROL_SECONDS"),
    ):
        monkeypatch.setattr(module, name, 0.0)

    def make() -> World:
        broker, broken = Broker(), list[bool]()
        client = Client(broker)
        monkeypatch.setattr(records, "new_consumer", lambda _: client)
        for name in NAMES:
            broker.make(f"t.{name}")
        step = ReadStepNdJson(ddl_schema=("id BIGINT NOT NULL", "v STRING", "event_time TIMESTAMP"))
        bench = make_bench(None, step, replace(a_push_source("other"), read=step))
        commits, inspections = Deck(), Deck()
        bench.queues.pools = Pools.with_one_pool(commits)
        catalog = MemoryCatalog()
        catalog.add(
            CatalogEntry(
                alias="a", dataset_id=bench.dataset, push_topics={name: f"t.{name}" for name in NAMES}
            )
        )
        usual = bench.preparer.messages

        def messages(plan: Any, batch: Any) -> Any:
            if broken:
                raise InvalidInput(text="broken")
            return usual(plan, batch)

        bench.preparer.messages = messages
        made = PushReader(KafkaRecords(KafkaCluster("none:1")), 200)
        sources = AssignedSources(
            reading=made,
            queues=bench.queues,
            catalog=catalog,
            topics=SourceTopics(broker, bench.blobs),  # type: ignore[arg-type]
            limits=BatchLimits(size=200, delay=0.0),
            partition_of=lambda _: 3,
            pool=inspections,
        )
        work = BatchWorker(
            queues=bench.queues,
            preparer=bench.preparer,
            topics=broker,  # type: ignore[arg-type]
            bus=bench.coordinator,
            rejecting=RejectPolicy(bench.coordinator, bench.blobs),
            registries=Registries(),
            readers=AtOnce(),
            failed=made.on_failure,
        )
        made.bind(sources, work)
        return World(bench, broker, client, made, sources, commits, inspections, broken)

    return make


STEPS = st.lists(st.tuples(st.sampled_from(ACTS), st.sampled_from(NAMES)), max_size=40)
OPEN = [("own", "default"), *[("step", "default"), ("inspect", "default")] * 3, ("step", "default")]
BEHIND = [("produce", "default")] * 4 + [("step", "default")] * 4


def test_a_source_that_gets_ahead_of_its_commits_is_paused(world: Callable[[], World]) -> None:
    made = world()
    for act, name in [*OPEN, *BEHIND]:
        made.act(act, name)
    assert made.owned.phase(Key(made.bench.dataset, "default")) is Phase.PAUSED


@settings(
    max_examples=examples(30),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(steps=STEPS)
@example(steps=[*BEHIND, ("reopen", "default")])
@example(steps=[*BEHIND, ("disown", "default"), ("step", "default"), ("own", "default")])
@example(steps=[*BEHIND, ("fault", "default"), ("step", "default")])
@example(steps=[*BEHIND, ("break", "default"), ("commit", "default"), ("step", "default")])
def test_sources_being_read_are_assigned_and_not_paused_and_all_is_committed_once(
    world: Callable[[], World], steps: list[tuple[str, str]]
) -> None:
    made = world()
    assert made.owned.phase(Key(made.bench.dataset, "default")) is Phase.CLOSED
    for act, name in [*OPEN, *steps]:
        made.act(act, name)
        made.check()
    made.settle()
    for name in NAMES:
        assert made.ids(name) == list(range(made.produced[name]))
        assert made.owned.phase(Key(made.bench.dataset, name)) in LIVE
    assert made.bench.coordinator.letters == []
