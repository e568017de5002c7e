"""One node, ten datasets that stream, and beside them everything odd: nothing odd stops more than itself.

A neighbour is a generator: it makes its trouble, yields the dataset that `odf status` has to name with a remedy
(or None where nobody is in trouble), and then applies the remedy and shows that the dataset continues.
"""

import contextlib
import fcntl
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

import grpc
import pytest
import redis
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from odf_common.adapters.local import LocalBlobStore, LocalRefStore
from odf_common.errors import NotFound
from odf_common.identity.did import DatasetId
from odf_common.proto.odf.node.v1.coordinator_pb2 import PullRequest
from odf_common.proto.odf.node.v1.coordinator_pb2_grpc import CoordinatorStub
from odf_common.runtime.states import ChainStates, NoStateCache
from odf_common.testing.embedded import EmbeddedNode
from odf_common.testing.manifests import Manifest, as_text, derivative, ledger, root
from odf_common.testing.story import QUIET, Sender, Story

COLUMNS: Final = ("id BIGINT", "amount DOUBLE", "at TIMESTAMP(3)")
HEALTHY: Final = tuple(f"healthy.{number}" for number in range(10))
UPSERT: Final = {"kind": "UpsertStream", "primaryKey": ["id"]}
SNAPSHOT: Final = {"kind": "Snapshot", "primaryKey": ["id"]}
STRATEGIES: Final[tuple[Mapping[str, Any], ...]] = ({"kind": "Append"}, ledger("id"), {"kind": "Append"})
BURST: Final = 50  # records to each dataset, once in `EVERY`
EVERY: Final = 1.0  # seconds
MEASURED: Final = 4.0  # seconds
KEPT: Final = 0.8  # share of the undisturbed rate
SERVICES: Final = ("ingest", "coordinator", "verifier", "sync")


def rows(first: int, count: int, at: str = "2026-01-01T00:00:00Z") -> list[dict[str, object]]:
    return [{"id": id_, "amount": id_ / 4, "at": at} for id_ in range(first, first + count)]


def as_messages(records: list[dict[str, object]]) -> list[bytes]:
    return [json.dumps(record).encode() for record in records]


def plain_root(name: str) -> Manifest:
    return root(name, COLUMNS, event_time="at")


class Stream:
    """Publishes to the healthy datasets at a steady rate that leaves the machine room, one after the other."""

    def __init__(self, story: Story) -> None:
        self.topics = [story.topic(name) for name in HEALTHY]
        self.sent = [0] * len(HEALTHY)
        self._producer = Producer({"bootstrap.servers": story.node.kafka}, logger=QUIET)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        assert self._producer.flush(60) == 0

    def _run(self) -> None:
        turn = 0
        while not self._stop.wait(EVERY / len(HEALTHY)):
            number = turn % len(HEALTHY)
            for message in as_messages(rows(self.sent[number], BURST)):
                self._producer.produce(self.topics[number], message, partition=0)
            self._producer.poll(0)
            self.sent[number] += BURST
            turn += 1


@dataclass(slots=True)
class Street:
    """A node on which healthy datasets stream."""

    story: Story
    stream: Stream
    pids: Mapping[str, int | None]
    committed: Callable[[str], int]
    made: dict[str, str] = field(default_factory=dict)
    prefix: str = ""

    @property
    def node(self) -> EmbeddedNode:
        return self.story.node

    def add(self, name: str, manifest: Callable[[str], Manifest] = plain_root) -> str:
        """Make a dataset, whose name is made unlike those of other tests; returns that name."""
        name = f"{self.prefix}.{name}"
        (added,) = self.node.run("add - --output json", stdin=as_text(manifest(name)))
        self.made[name] = added["id"]
        return name

    def publish(self, name: str, records: list[dict[str, object]] | list[bytes]) -> None:
        messages = [one if isinstance(one, bytes) else json.dumps(one).encode() for one in records]
        Sender(self.node).send(self.story.topic(name), messages)

    def await_committed(self, name: str, count: int) -> None:
        self.node.eventually(lambda: self.committed(name) == count)

    def folder(self, name: str) -> Path:
        return self.story.folder(name)

    def trouble(self, name: str) -> tuple[str, str]:
        """Return what `odf status` says is wrong with a dataset, and what to do."""
        status = self.node.run("status --output json")
        found = [one for one in status["problems"] if one["of"] == name]
        return (found[0]["problem"], found[0]["remedy"] or "") if found else ("", "")

    def rate(self) -> float:
        """Return the share of what was published in a while that was committed in the same while."""
        sent, committed = list(self.stream.sent), [self.committed(name) for name in HEALTHY]
        time.sleep(MEASURED)
        offered = [after - before for before, after in zip(sent, self.stream.sent, strict=True)]
        grown = [self.committed(name) - before for name, before in zip(HEALTHY, committed, strict=True)]
        standing = [name for name, count in zip(HEALTHY, grown, strict=True) if count == 0]
        assert standing == [], f"healthy datasets stand still: {standing}"
        return sum(grown) / sum(offered)

    def require_healthy(self) -> None:
        """Nothing was restarted, and the healthy datasets keep their rate."""
        share = max(self.rate(), self.rate()) if (first := self.rate()) < KEPT else first
        assert share >= KEPT, f"{share:.0%} of the undisturbed rate"
        assert {name: self.node.pid(name) for name in self.pids} == self.pids


@pytest.fixture(scope="module")
def street(own: EmbeddedNode) -> Iterator[Street]:
    story = Story(own)
    story.add(
        *(
            root(name, COLUMNS, merge=STRATEGIES[number % len(STRATEGIES)], event_time="at")
            for number, name in enumerate(HEALTHY)
        )
    )
    blobs, refs = LocalBlobStore(own.home), LocalRefStore(own.home)
    states = ChainStates(blobs, refs, NoStateCache())
    with Stream(story) as stream:
        street = Street(story, stream, {name: own.pid(name) for name in SERVICES}, lambda _: 0)

        def committed(name: str) -> int:
            if name not in street.made:
                street.made[name] = story.summary(name)["id"]
            state = states.current(DatasetId.parse(street.made[name]))
            return 0 if state is None else state.next_offset

        street.committed = committed
        own.eventually(lambda: all(committed(name) > 0 for name in HEALTHY))
        yield street
    for number, name in enumerate(HEALTHY):
        street.await_committed(name, stream.sent[number])
        assert story.chain(name).column("id") == list(range(stream.sent[number]))


Neighbour = Callable[[Street], Generator[str | None, None, None]]


def head_is_a_folder(street: Street) -> Generator[str | None, None, None]:
    name = street.add("damaged.head")
    street.publish(name, rows(0, 5))
    street.await_committed(name, 5)
    file = street.folder(name) / "refs" / "head"
    content = file.read_bytes()
    file.unlink()
    file.mkdir()
    street.publish(name, rows(5, 5))
    yield name
    file.rmdir()
    file.write_bytes(content)
    street.await_committed(name, 10)


def head_is_a_loop(street: Street) -> Generator[str | None, None, None]:
    name = street.add("damaged.loop")
    street.publish(name, rows(0, 5))
    street.await_committed(name, 5)
    file = street.folder(name) / "refs" / "head"
    content = file.read_bytes()
    file.unlink()
    file.symlink_to("head")
    street.publish(name, rows(5, 5))
    yield name
    file.unlink()
    file.write_bytes(content)
    street.await_committed(name, 10)


def has_topic(street: Street, topic: str) -> bool:
    try:
        street.node.topics().topic_id(topic)
    except NotFound:
        return False
    return True


def topic_made_again(street: Street) -> Generator[str | None, None, None]:
    name = street.add("topic.again")
    street.publish(name, rows(0, 5))
    street.await_committed(name, 5)
    topic, topics = street.story.topic(name), street.node.topics()
    topics.delete_topic(topic)
    street.node.eventually(lambda: not has_topic(street, topic))
    topics.create_push_topic(topic)
    street.publish(name, rows(5, 5))
    yield name
    street.node.run(f"source resume {name} --from earliest")
    street.await_committed(name, 10)


def topic_deleted(street: Street) -> Generator[str | None, None, None]:
    name = street.add("topic.gone")
    street.publish(name, rows(0, 5))
    street.await_committed(name, 5)
    topic, topics = street.story.topic(name), street.node.topics()
    topics.delete_topic(topic)
    street.node.eventually(lambda: not has_topic(street, topic))
    yield name
    topics.create_push_topic(topic)
    street.publish(name, rows(5, 5))
    street.node.run(f"source resume {name} --from earliest")
    street.await_committed(name, 10)


def records_expired(street: Street) -> Generator[str | None, None, None]:
    name = street.add("records.expired")
    street.publish(name, rows(0, 5))
    street.await_committed(name, 5)
    street.node.run("status")
    topic = street.story.topic(name)
    os.kill(street.node.pid("ingest") or 0, signal.SIGSTOP)
    try:
        street.publish(name, rows(5, 5))
        admin = AdminClient({"bootstrap.servers": street.node.kafka})
        for answer in admin.delete_records([TopicPartition(topic, 0, 8)]).values():
            answer.result(30)
    finally:
        os.kill(street.node.pid("ingest") or 0, signal.SIGCONT)
    yield name
    street.node.run(f"source resume {name} --from earliest")
    street.await_committed(name, 7)


def flock_held(street: Street) -> Generator[str | None, None, None]:
    name = street.add("lock.file")
    street.publish(name, rows(0, 5))
    street.await_committed(name, 5)
    file = street.node.home / "locks" / DatasetId.parse(street.made[name]).folder
    with file.open("r+b") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        street.publish(name, rows(5, 5))
        yield name
    street.await_committed(name, 10)


def redis_lock_left(street: Street) -> Generator[str | None, None, None]:
    name = street.add("lock.redis")
    street.publish(name, rows(0, 5))
    street.await_committed(name, 5)
    host, _, port = (street.node.node.redis or "").rpartition(":")
    with contextlib.closing(redis.Redis(host, int(port))) as client:
        client.set(f"odf:lock:{street.made[name]}", "of a process that was killed", px=600_000)
        street.publish(name, rows(5, 5))
        yield None  # only slower: the lock saves wasted work, and guards nothing
        street.await_committed(name, 10)
        client.delete(f"odf:lock:{street.made[name]}")


def half_corrections_and_waiting_pulls(street: Street) -> Generator[str | None, None, None]:
    changelog = {"kind": "ChangelogStream", "primaryKey": ["id"]}
    columns = ("op INT", *COLUMNS)
    name = street.add("pulls.waiting", lambda name: root(name, columns, merge=changelog, event_time="at"))
    half = {"op": 2, **rows(1, 1)[0]}
    street.publish(name, [{"op": 0, **rows(1, 1)[0]}, half])
    with grpc.insecure_channel(street.node.node.grpc["coordinator"]) as channel:
        pull = CoordinatorStub(channel).Pull
        calls = [pull(PullRequest(refs=[name]), timeout=60) for _ in range(24)]
        yield name
        street.publish(name, [{"op": 3, **rows(1, 1)[0], "amount": 9.0}])
        street.await_committed(name, 3)
        for call in calls:
            with contextlib.suppress(grpc.RpcError):
                list(call)


def frozen_engine(street: Street) -> Generator[str | None, None, None]:
    root_name = street.add("frozen.input")
    query = "SELECT at AS event_time, id FROM i"
    derived = street.add("frozen.derived", lambda name: derivative(name, {"i": root_name}, query))
    queried = [street.add(f"frozen.queried.{number}", queried_root) for number in range(3)]
    engine = street.node.pid("engine-spark") or 0
    os.killpg(engine, signal.SIGSTOP)
    try:
        for name in (root_name, *queried):
            street.publish(name, rows(0, 5))
        street.await_committed(root_name, 5)
        yield None  # a pause of some seconds is no fault yet
    finally:
        os.killpg(engine, signal.SIGCONT)
    for name in (*queried, derived):
        street.await_committed(name, 5)


def queried_root(name: str) -> Manifest:
    manifest = plain_root(name)
    preprocess = {"kind": "Sql", "engine": "spark", "query": "SELECT id, amount, at FROM input"}
    manifest["content"]["metadata"][0]["preprocess"] = preprocess
    return manifest


def sentinel_times(street: Street) -> Generator[str | None, None, None]:
    name = street.add("times.sentinel")
    street.publish(name, rows(0, 1, "0001-01-01T00:00:00Z") + rows(1, 1, "9999-12-31T23:59:59.999Z"))
    street.await_committed(name, 2)
    street.publish(name, rows(2, 1, "9999-12-31T23:59:59-05:00"))  # the year 10000 in UTC
    listed = street.story.summary(name)
    assert listed["watermark"] == "9999-12-31T23:59:59.999Z"
    yield name
    assert [row["at"] for row in street.story.tail(name)] == [
        "0001-01-01T00:00:00Z",
        "9999-12-31T23:59:59.999Z",
    ]
    street.node.run(f"rejected drop {name} --all")
    street.publish(name, rows(3, 1))
    street.await_committed(name, 3)


def bad_messages(street: Street) -> Generator[str | None, None, None]:
    name = street.add("messages.bad")
    bad = [
        b"",
        b"{",
        b"{}",
        b"null",
        b"\xff\xfe",
        b'{"id": 1039.5}',
        b'{"other": 1}',
        b'{"id": "' + b"9" * 900_000 + b'"}',
    ]
    street.publish(name, [*bad, *as_messages(rows(0, 5)), *bad])
    street.await_committed(name, 5)
    yield name
    listed = street.node.run(f"rejected list {name} --output json")
    assert len(listed) == 2 * len(bad)
    street.node.run(f"rejected drop {name} --all")
    street.publish(name, rows(5, 1))
    street.await_committed(name, 6)


def no_schema_and_odd_first_messages(street: Street) -> Generator[str | None, None, None]:
    name = street.add("schema.none", root_without_schema)
    street.publish(
        name, [b"{}", b'{"a": null}', b'{"a": 1}', b'{"a": "x"}', b'{"a": 2, "b": [1]}', b'{"b": {"c": 1}}']
    )
    street.node.eventually(lambda: street.committed(name) > 0)
    yield name
    street.node.run(f"rejected drop {name} --all")
    before = street.committed(name)
    street.publish(name, [b'{"a": 3}'])
    street.await_committed(name, before + 1)


def root_without_schema(name: str) -> Manifest:
    manifest = root(name, COLUMNS)
    del manifest["content"]["metadata"][0]["read"]["schema"]
    return manifest


def snapshot_that_retracts_most(street: Street) -> Generator[str | None, None, None]:
    name = street.add("snapshot.small", lambda name: root(name, COLUMNS, merge=SNAPSHOT, event_time="at"))
    street.publish(name, [b"\n".join(as_messages(rows(0, 300)))])
    street.await_committed(name, 300)
    street.publish(name, as_messages(rows(0, 1)))
    yield name
    street.node.run(f"source set {name} maxRetractedShare=1")
    street.node.run(f"source resume {name}")
    street.await_committed(name, 599)


def name_that_cannot_be_read(street: Street) -> Generator[str | None, None, None]:
    name = street.add("name.damaged")
    street.publish(name, rows(0, 5))
    street.await_committed(name, 5)
    file = street.node.home / "names" / name
    content = file.read_bytes()
    file.write_bytes(b"{")
    yield None
    file.write_bytes(content)
    street.publish(name, rows(5, 5))
    street.await_committed(name, 10)


def upsert_of_nothing_but_tombstones(street: Street) -> Generator[str | None, None, None]:
    name = street.add("upsert.gone", lambda name: root(name, COLUMNS, merge=UPSERT, event_time="at"))
    street.publish(name, [{"op": 1, **rows(7, 1)[0]}])
    yield None
    street.publish(name, rows(0, 5))
    street.node.eventually(lambda: street.committed(name) >= 5)


NEIGHBOURS: Final[tuple[Neighbour, ...]] = (
    head_is_a_folder,
    head_is_a_loop,
    topic_made_again,
    topic_deleted,
    flock_held,
    redis_lock_left,
    half_corrections_and_waiting_pulls,
    frozen_engine,
    sentinel_times,
    bad_messages,
    no_schema_and_odd_first_messages,
    snapshot_that_retracts_most,
    name_that_cannot_be_read,
    upsert_of_nothing_but_tombstones,
)


def require_named(street: Street, name: str) -> None:
    """`odf status` says what is wrong with the dataset, and what to do."""
    street.node.eventually(lambda: street.trouble(name)[0] != "")
    problem, remedy = street.trouble(name)
    assert remedy, f"{name}: {problem}: nothing says what to do"


@pytest.mark.parametrize("neighbour", [*NEIGHBOURS, records_expired], ids=lambda one: one.__name__)
def test_an_odd_neighbour_stops_nothing_but_itself(street: Street, neighbour: Neighbour) -> None:
    street.prefix = "alone"
    with contextlib.closing(neighbour(street)) as one:
        name = next(one)
        street.require_healthy()
        if name is not None:
            require_named(street, name)
        assert next(one, None) is None


def test_all_odd_neighbours_together_stop_nothing_but_themselves(street: Street) -> None:
    street.prefix = "together"
    with contextlib.ExitStack() as stack:
        met = [stack.enter_context(contextlib.closing(neighbour(street))) for neighbour in NEIGHBOURS]
        named = [next(one) for one in met]
        street.require_healthy()
        for name in named:
            if name is not None:
                require_named(street, name)
        for one in met:
            assert next(one, None) is None
    street.require_healthy()
