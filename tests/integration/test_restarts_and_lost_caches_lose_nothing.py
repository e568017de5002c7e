import json
import os
import signal
from contextlib import closing

import pytest
from odf_testing.embedded import EmbeddedNode
from odf_testing.kills import is_java
from odf_testing.story import Row, Sender, Story, derivative, ledger, root

from odf_cli.embedded.node_file import is_running
from odf_cli.embedded.orphans import leftovers

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
        if first in (120, 360) and node.pid("redis") is not None:
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
