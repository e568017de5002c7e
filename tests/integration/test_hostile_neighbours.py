"""One node, ten datasets that stream, and all kinds of faults: no fault stops more than its own dataset."""

import contextlib
import fcntl
import os
import signal
import time
from collections.abc import Generator, Iterator
from typing import Final

import grpc
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from odf_testing.embedded import EmbeddedNode
from odf_testing.kills import paused
from odf_testing.story import Manifest, derivative, root
from tests.integration.hostile_commands import (
    COMMANDS,
    queried_root,
    renamed_added_again_and_reset_while_they_stream,
)
from tests.integration.street import COLUMNS, Neighbour, Street, as_messages, opened, rows

from odf_common.errors import NotFound
from odf_common.identity.dataset_refs import DatasetId
from odf_common.proto.odf.node.v1.coordinator_pb2 import PullRequest
from odf_common.proto.odf.node.v1.coordinator_pb2_grpc import CoordinatorStub

FETCH_SECONDS: Final = 1.0  # longer than the broker holds a fetch of a source that is read
UPSERT: Final = {"kind": "UpsertStream", "primaryKey": ["id"]}
SNAPSHOT: Final = {"kind": "Snapshot", "primaryKey": ["id"]}


@pytest.fixture(scope="module")
def street(node: EmbeddedNode) -> Iterator[Street]:
    with opened(node) as street:
        yield street


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


def topic_recreated(street: Street) -> Generator[str | None, None, None]:
    name = street.add("topic.again")
    street.publish(name, rows(0, 5))
    street.await_committed(name, 5)
    topic, topics = street.story.topic(name), street.node.topics()
    topics.delete_topic(topic)
    street.node.eventually(lambda: not has_topic(street, topic))
    topics.create_push_topic(topic)
    street.story.forget()
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
    street.story.forget()
    street.publish(name, rows(5, 5))
    street.node.run(f"source resume {name} --from earliest")
    street.await_committed(name, 10)


def records_expired(street: Street) -> Generator[str | None, None, None]:
    name = street.add("records.expired")
    street.publish(name, rows(0, 5))
    street.await_committed(name, 5)
    street.node.run("status")
    topic = street.story.topic(name)
    with paused(street.node, "ingest"):
        time.sleep(FETCH_SECONDS)  # a fetch that the broker holds would return the published messages
        street.publish(name, rows(5, 5))
        admin = AdminClient(street.node.clients)
        for answer in admin.delete_records([TopicPartition(topic, 0, 8)]).values():
            answer.result(30)
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
    with contextlib.closing(street.node.redis().client) as client:
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
    with street.node.grpc_channel("coordinator") as channel:
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
        yield None  # a pause of a few seconds is not a fault yet
    finally:
        os.killpg(engine, signal.SIGCONT)
    for name in (*queried, derived):
        street.await_committed(name, 5)


def sentinel_times(street: Street) -> Generator[str | None, None, None]:
    name = street.add("times.sentinel")
    street.publish(name, rows(0, 1, "0001-01-01T00:00:00Z") + rows(1, 1, "9999-12-31T23:59:59.999Z"))
    street.await_committed(name, 2)
    street.publish(name, rows(2, 1, "9999-12-31T23:59:59-05:00"))  # the year 10000 in UTC
    listed = street.story.summary(name)
    assert listed["watermark"] == "0001-01-01T00:00:00Z", "a time far in the future raises none"
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


TOGETHER: Final[tuple[Neighbour, ...]] = (
    renamed_added_again_and_reset_while_they_stream,
    head_is_a_folder,
    head_is_a_loop,
    topic_recreated,
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
    """`odf status` reports the problem of the dataset, and what to do."""
    street.node.eventually(lambda: street.trouble(name)[0] != "")
    problem, remedy = street.trouble(name)
    assert remedy, f"{name}: {problem}: nothing says what to do"


# Those that are tried together anyway are tried alone in `make soak`.
ALONE: Final = [one for one in (*COMMANDS, records_expired) if one not in TOGETHER]


@pytest.mark.parametrize(
    "neighbour",
    [*(pytest.param(one, marks=pytest.mark.soak) for one in TOGETHER), *ALONE],
    ids=lambda one: one.__name__,
)
def test_an_odd_neighbour_affects_only_itself(street: Street, neighbour: Neighbour) -> None:
    street.prefix = "alone"
    with contextlib.closing(neighbour(street)) as one:
        name = next(one)
        street.require_healthy()
        if name is not None:
            require_named(street, name)
        assert next(one, None) is None


def test_all_odd_neighbours_together_affect_only_themselves(street: Street) -> None:
    street.prefix = "together"
    with contextlib.ExitStack() as stack:
        met = [stack.enter_context(contextlib.closing(neighbour(street))) for neighbour in TOGETHER]
        named = [next(one) for one in met]
        street.require_healthy()
        for name in named:
            if name is not None:
                require_named(street, name)
        for one in met:
            assert next(one, None) is None
    street.require_healthy()
