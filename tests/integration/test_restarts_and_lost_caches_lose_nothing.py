import json
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from odf_testing import nycflights as data
from odf_testing.chains import StoredChain
from odf_testing.embedded import EmbeddedNode
from odf_testing.kills import Work, is_java, killed_while_busy, paused
from odf_testing.story import APPEND, Row, Sender, Story, chunks, derivative, ledger, renamed, root

from odf_cli.embedded.node_file import is_running
from odf_cli.embedded.orphans import leftovers
from odf_common.metadata.events import AddData
from odf_common.metadata.scalars import Timestamp

COLUMNS = ("id BIGINT", "place STRING", "at TIMESTAMP(3)")
EACH = "LATERAL VIEW explode(sequence(1, 100000)) AS"
MINUTELY = "SELECT window.start AS event_time, count(*) AS n FROM visits GROUP BY window(at, '1 minute')"


def some(first: int, count: int) -> list[Row]:
    """Records with these ids, a second apart."""
    return [
        {
            "id": id_,
            "place": f"p{id_ % 3}",
            "at": f"2026-01-01T{id_ // 3600:02}:{id_ // 60 % 60:02}:{id_ % 60:02}Z",
        }
        for id_ in range(first, first + count)
    ]


def kept(name: str) -> tuple[dict[str, object], ...]:
    """An append root, a ledger root, and a row-wise and a windowed derivative of the first."""
    return (
        root(name, COLUMNS, event_time="at"),
        root(f"{name}.ledger", COLUMNS, merge=ledger("id"), event_time="at"),
        derivative(f"{name}.third", {"d": name}, "SELECT at AS event_time, id FROM d WHERE id % 3 = 0"),
        derivative(f"{name}.minutely", {"visits": name}, MINUTELY),
    )


def assert_all_there(story: Story, name: str, count: int) -> None:
    """All of `count` records are committed once, and their derivatives are correct."""
    story.await_records({name: count, f"{name}.ledger": count, f"{name}.third": (count + 2) // 3})
    story.pull(f"{name} --set-watermark 2026-01-01T23:00:00Z")
    story.pull(f"{name}.minutely")
    assert story.chain(name).column("id") == list(range(count))
    assert story.chain(f"{name}.ledger").column("id") == list(range(count))
    assert story.chain(f"{name}.third").column("id") == list(range(0, count, 3))
    assert story.chain(f"{name}.minutely").column("n") == [60] * (count // 60)
    verdicts = story.verify(f"{name} {name}.ledger {name}.third {name}.minutely")
    assert {one["verdict"] for one in verdicts} == {"valid"}


def forget_all(story: Story) -> None:
    """Remove all locks and cached states from Redis, as if it were empty."""
    ids = [row["id"] for row in story.node.run("list --output json")]
    with closing(story.node.redis().client) as client:
        client.delete(*(f"odf:{kind}:{dataset}" for dataset in ids for kind in ("lock", "state")))


def kill_while_busy(story: Story, node: EmbeddedNode) -> None:
    """Kill the supervisor while the engine computes a query that does not end; no process is left."""
    query = f"SELECT at AS event_time, id FROM one {EACH} x {EACH} y WHERE x + y = 0"
    story.add(root("one", COLUMNS, event_time="at"), derivative("endless", {"one": "one"}, query))
    story.ingest("one", some(0, 1))
    node.eventually(lambda: any(row.get("stage") for row in node.run("status -o json")["datasets"]))
    parts = tuple(leftovers(node.home))
    assert sum(is_java(pid) for pid in parts) > 1, "Kafka's and Spark's"
    os.kill(node.node.pid, signal.SIGKILL)
    node.eventually(lambda: not any(is_running(pid) for pid in parts))


@pytest.mark.parametrize("how", ["killed", pytest.param("down", marks=pytest.mark.soak)])
def test_a_restart_of_the_whole_node_continues_where_it_was(
    story: Story, node: EmbeddedNode, how: str
) -> None:
    name = f"restarted.{how}"
    roots = (name, f"{name}.ledger")
    story.add(*kept(name))
    for one in roots:
        story.publish(one, some(0, 600))
    story.pull(" ".join(roots))
    before = {row["alias"]: row["head"] for row in node.run("list --output json")}
    # Some of these may be in flight when the node goes down, some not read at all.
    for one in roots:
        story.publish(one, some(600, 600))
    if how == "killed":
        kill_while_busy(story, node)
        (node.home / "names" / "endless").unlink()  # otherwise the query would be repeated
        node.up()
    else:
        node.down()
        node.up()
    after = {row["alias"]: row["head"] for row in node.run("list --output json")}
    moved = {one for one in before if not one.startswith(name) and before[one] != after[one]}
    assert moved == set(), "datasets with nothing to do changed"
    for one in roots:
        story.publish(one, some(1200, 600))
    story.publish(f"{name}.ledger", some(0, 600))
    assert_all_there(story, name, 1800)


def test_a_flushed_redis_changes_nothing(story: Story, node: EmbeddedNode) -> None:
    story.add(*kept("flushed"))
    topics, sender = [story.topic(name) for name in ("flushed", "flushed.ledger")], Sender(node)
    for first in range(0, 600, 60):
        for topic in topics:
            sender.send(topic, [json.dumps(row).encode() for row in some(first, 60)])
        forget_all(story)
    assert_all_there(story, "flushed", 600)


def test_a_killed_redis_changes_nothing(story: Story, node: EmbeddedNode) -> None:
    story.add(*kept("killed.redis"))
    topics = [story.topic(name) for name in ("killed.redis", "killed.redis.ledger")]
    old, sender = None, Sender(node)
    for first in range(0, 600, 60):
        if first in (120, 360) and node.pid("redis") not in (None, old):
            old = node.kill("redis")
        for topic in topics:
            sender.send(topic, [json.dumps(row).encode() for row in some(first, 60)])
    assert old is not None
    node.await_restart("redis", old)
    assert_all_there(story, "killed.redis", 600)


def test_a_coordinator_that_restarts_with_an_empty_redis_folds_the_chains_again(
    story: Story, node: EmbeddedNode
) -> None:
    story.add(*kept("emptied"))
    for name in ("emptied", "emptied.ledger"):
        story.publish(name, some(0, 300))
    story.pull("emptied emptied.ledger")
    forget_all(story)
    old = {part: node.kill(part) for part in ("coordinator", "ingest")}
    for part, pid in old.items():
        node.await_restart(part, pid)
    for name in ("emptied", "emptied.ledger"):
        story.publish(name, some(300, 300))
    story.publish("emptied.ledger", some(0, 300))
    assert_all_there(story, "emptied", 600)


EXAMPLE = Path(__file__).parents[2] / "examples" / "nycflights"
PARTS = ("ingest", "coordinator", "engine-spark", "kafka")
DERIVED = ("flights.late", "flights.delays.hourly")
ROOTS = ("flights", "weather")
ROUNDS = 8
PAUSE = 0.25  # seconds between rounds
CLOSING = "2013-01-10T00:00:00Z"
DRAINED = 90.0  # seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """All four chains after completion, by their names in the example."""

    chains: dict[str, StoredChain]


@pytest.fixture(scope="module")
def days() -> dict[str, list[bytes]]:
    """Messages of two days."""
    wanted = data.days(2)
    return {
        "flights": data.as_messages(data.of_days(data.flights(), wanted)),
        "weather": data.as_messages(data.of_days(data.weather(), wanted)),
    }


@pytest.fixture(scope="module")
def calm(node: EmbeddedNode, days: dict[str, list[bytes]]) -> Outcome:
    """The result without any kills."""
    story = Story(node)
    for _ in streamed(story, "calm", days, rounds=1):
        pass
    return outcome(story, "calm", days)


# The engine is killed in the middle of transforms by the stories of stateful queries too.
@pytest.mark.parametrize(
    "parts",
    [
        ("ingest", "coordinator", "kafka"),
        *(pytest.param((part, part), marks=pytest.mark.soak) for part in PARTS),
    ],
    ids="+".join,
)
def test_parts_killed_one_after_the_other_and_then_all_at_once_change_nothing(
    story: Story, calm: Outcome, days: dict[str, list[bytes]], parts: tuple[str, ...]
) -> None:
    prefix = f"killed.{'.'.join(parts)}"
    victims = {number: (part,) for number, part in zip((1, 3, 5), parts, strict=False)} | {ROUNDS - 1: PARTS}
    killed: dict[str, int] = {}
    killing: Future[int] | None = None
    kills = 0
    with ThreadPoolExecutor(1) as pool, ExitStack() as reading:
        for number in streamed(story, prefix, days):
            if number in victims:
                first, *others = victims[number]
                if killing is not None:  # in the middle of its work, of a transform perhaps
                    killed = {first: killing.result()}
                else:
                    assert committed(story, prefix) < sent(days, number), f"{first} had nothing to do"
                    reading.close()
                    killed = {first: story.node.kill(first)}
                killed |= {part: story.node.kill(part) for part in others}
                kills += len(killed)
            if number + 1 in victims:  # all parts have to run when the next messages arrive
                await_restarts(story, killed)
                (first, *_) = victims[number + 1]
                # Looked at while messages are sent: their commit may be over when all have been.
                killing = None if first == "kafka" else pool.submit(kill_at_work, story, first)
                if first == "kafka":  # whose log does not show its work: ingest leaves it some
                    reading.enter_context(paused(story.node, "ingest"))
    assert kills == len(parts) + len(PARTS)
    await_restarts(story, killed)
    assert_same(outcome(story, prefix, days), calm, days)


def kill_at_work(story: Story, part: str) -> int:
    """Kill a part in the middle of the work that comes next, by its log; return its pid."""
    return killed_while_busy(story.node, part, Work(story.node, part))


def committed(story: Story, prefix: str) -> int:
    return sum(len(story.chain(f"{prefix}.{name}").records()) for name in ROOTS)


def sent(days: dict[str, list[bytes]], number: int) -> int:
    """Return how many messages have been sent after a round."""
    return sum(len(part) for name in ROOTS for part in chunks(days[name], ROUNDS)[: number + 1])


def await_restarts(story: Story, killed: dict[str, int]) -> None:
    for part, old in killed.items():
        story.node.await_restart(part, old)


def streamed(story: Story, prefix: str, days: dict[str, list[bytes]], rounds: int = ROUNDS) -> Iterator[int]:
    """Add the example and publish its days round by round; yields the number of each round after it was sent."""
    story.add(*renamed(EXAMPLE, prefix, merge=APPEND))
    topics = {name: story.topic(f"{prefix}.{name}") for name in ROOTS}
    sender = Sender(story.node)
    for number, parts in enumerate(zip(*(chunks(days[name], rounds) for name in ROOTS), strict=True)):
        for name, messages in zip(ROOTS, parts, strict=True):
            assert sender.send(topics[name], messages) == len(messages)
        yield number
        time.sleep(PAUSE)


def outcome(story: Story, prefix: str, days: dict[str, list[bytes]]) -> Outcome:
    """Wait until all topics have drained, close the windows, and read all chains."""
    story.await_records({f"{prefix}.{name}": len(days[name]) for name in ROOTS}, DRAINED)
    story.pull(" ".join(f"{prefix}.{name}" for name in ROOTS) + f" --set-watermark {CLOSING}")
    names = [f"{prefix}.{name}" for name in (*ROOTS, *DERIVED)]
    story.pull(" ".join(names))
    again = story.pull(" ".join(names))
    assert {row["state"] for row in again.values()} == {"up-to-date"}
    for name in ROOTS:
        assert_position_is_end(story, f"{prefix}.{name}")
    assert {verdict["verdict"] for verdict in story.verify(" ".join(names))} == {"valid"}
    return Outcome(chains={name: story.chain(f"{prefix}.{name}") for name in (*ROOTS, *DERIVED)})


def assert_position_is_end(story: Story, dataset: str) -> None:
    """The chain's position is the end of its topic."""
    events = [block.event for _, block in story.chain(dataset).blocks]
    states = [one.new_source_state for one in events if isinstance(one, AddData) and one.new_source_state]
    ends = story.node.topics().ends(story.topic(dataset))
    (position,) = json.loads(states[-1].value)["topics"].values()
    assert position["next"] == {str(partition): end for partition, end in ends.items()}


def assert_same(seen: Outcome, calm: Outcome, days: dict[str, list[bytes]]) -> None:
    """Each message is committed once, in order; derived records and watermarks are those of the run without kills."""
    sent = [json.loads(message)["id"] for message in days["flights"]]
    assert seen.chains["flights"].column("id") == sent
    for name, chain in seen.chains.items():
        assert len(chain.records()) == len(calm.chains[name].records()), name
        assert chain.records() == calm.chains[name].records(), name
        assert chain.watermark == calm.chains[name].watermark, name
    assert seen.chains["flights"].watermark == Timestamp.parse(CLOSING)
    assert len(calm.chains["flights.delays.hourly"].records()) > 0
