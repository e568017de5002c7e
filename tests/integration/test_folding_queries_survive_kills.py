"""Queries that keep a state, while the parts that compute them are killed: each counts every record once."""

import os
import pty
import random
import signal
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import cast

import pytest
import yaml
from odf_testing.embedded import EmbeddedNode
from odf_testing.engine_changes import standing
from odf_testing.engine_nexmark import START as FIRST
from odf_testing.engine_nexmark import nexmark
from odf_testing.kills import ENGINE, JVM, disturbed, is_java, jvm, settle
from odf_testing.manifests import derivative, root
from odf_testing.rows import at_once, changes, line, moment, row
from odf_testing.story import Row, Story, chunks

from odf_common.embedded.node_file import is_running
from odf_common.embedded.orphans import leftovers
from odf_engine_spark.operators.changes import APPEND

EXAMPLES = Path(__file__).parents[2] / "examples"
MANIFESTS = (
    "shipments/orders", "shipments/shipments", "shipments/orders.daily",
    "leaderboard/match.scores", "leaderboard/leaderboard", "nexmark/bids", "nexmark/q17",
)  # fmt: skip
WEEKLY = """
    SELECT window.start AS event_time, sum(orders) AS n, sum(amount) AS amount FROM daily
    GROUP BY window(event_time, '7 days')
"""
SPENT = """
    SELECT event_time, id, customer, sum(amount) OVER (PARTITION BY customer ORDER BY event_time) AS total FROM orders
"""
PLAYERS = """
    SELECT max(event_time) AS event_time, player_name, count(*) AS places, sum(score) AS score
    FROM leaderboard GROUP BY player_name
"""
DERIVED = (
    derivative("orders.weekly", {"daily": "orders.daily"}, WEEKLY),
    derivative("orders.spent", {"orders": "orders"}, SPENT),
    derivative("players", {"leaderboard": "leaderboard"}, PLAYERS),
)
DAILY = """
    SELECT o.event_time // 86400000 * 86400000 AS event_time, count(*) AS orders, count(s.order_id), sum(amount) AS amount
    FROM orders o LEFT JOIN shipments s
      ON s.order_id = o.id AND s.event_time BETWEEN o.event_time AND o.event_time + 3 * 86400000 GROUP BY ALL
"""
BEST = """
    SELECT match_time AS event_time, row_number() OVER (ORDER BY score DESC, match_id) AS place, player_name, score
    FROM match_scores QUALIFY place <= 2
"""
AT_ONCE: Mapping[str, str] = {
    "orders.daily": DAILY,
    "orders.weekly": f"""
        SELECT event_time // 604800000 * 604800000 AS week, sum(orders), sum(amount) FROM ({DAILY}) GROUP BY week
    """,
    "orders.spent": SPENT,
    "leaderboard": BEST,
    "players": f"SELECT max(event_time), player_name, count(*), sum(score) FROM ({BEST}) GROUP BY player_name",
    "nexmark.q17": (EXAMPLES / "nexmark" / "duckdb" / "q17.sql").read_text(),
}
CHANGING = {"leaderboard", "players", "nexmark.q17"}
VICTIMS = (JVM, ENGINE, "coordinator", "ingest")
SEED = 20
DAYS = 28
AFTER = (0, 0.5, 1, 3, 3.01, 9)  # that something leaves the house
FEW, ONE = (root(name, ("event_time TIMESTAMP(3)", "id BIGINT")) for name in ("few", "one"))
EACH = "LATERAL VIEW explode(sequence(1, 100000)) AS"
ENDLESS = f"SELECT event_time, id FROM one {EACH} x {EACH} y WHERE x + y = 0"
# The first test has the starts of the node, and of each part that was killed.
pytestmark = pytest.mark.timeout(600)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """What every root was sent, in the order of event time, and the node that has it."""

    story: Story
    rows: Mapping[str, Sequence[Row]]


@pytest.fixture(scope="module")
def sent(own: EmbeddedNode) -> Sent:
    """All is sent and derived; in each round a part was killed at some moment of a pull."""
    source = random.Random(SEED)
    made = Sent(story=Story(own), rows=inputs(source))
    snapshots = [yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text()) for name in MANIFESTS]
    made.story.add(*snapshots, *DERIVED)
    victims = source.sample(VICTIMS, len(VICTIMS))
    parts = {name: chunks([line(one) for one in rows], len(victims)) for name, rows in made.rows.items()}
    for number, victim in enumerate(victims):
        by_file = {"shipments", source.choice(("bids", "orders"))}
        disturbed(
            made.story,
            victim,
            source,
            files={name: parts[name][number] for name in sorted(by_file)},
            topics={name: each[number] for name, each in parts.items() if name not in by_file},
        )
    settle(made.story)
    made.story.pull(f"orders shipments --set-watermark {moment(days=2 * DAYS).isoformat()}")
    settle(made.story)
    return made


def test_every_root_has_each_record_once(sent: Sent) -> None:
    for name, rows in sent.rows.items():
        found = sent.story.chain(name).rows()
        taken = Counter(line({column: row[column] for column in rows[0]}) for row in found)
        assert taken == Counter(line(row) for row in rows), name


@pytest.mark.parametrize("name", AT_ONCE)
def test_a_derivative_is_what_duckdb_says_of_everything_at_once(sent: Sent, name: str) -> None:
    found = changes(sent.story.chain(name))
    expected = at_once(sent.rows, AT_ONCE[name])
    assert expected
    assert standing(found) == Counter(expected)
    assert name in CHANGING or {row[0] for row in found} == {APPEND}


def test_every_transform_replays_to_the_same(sent: Sent) -> None:
    verdicts = sent.story.verify("--all")
    assert {(one["verdict"], *one["problems"]) for one in verdicts} == {("valid",)}
    assert sum(one["transforms"] > 0 for one in verdicts) == len(AT_ONCE)


def test_ctrl_c_ends_a_pull_and_the_next_one_goes_on(sent: Sent) -> None:
    story, node = sent.story, sent.story.node
    story.add(FEW, derivative("slow", {"few": "few"}, "SELECT event_time, id FROM few"))
    at_work = jvm(node.pid(ENGINE))
    os.kill(at_work, signal.SIGSTOP)  # the pull is not done before it is ended
    try:
        story.ingest("few", [line({"event_time": moment(), "id": number}) for number in (1, 2, 3)])
        signal.signal(signal.SIGINT, signal.default_int_handler)  # children in the background ignore it else
        terminal, screen = pty.openpty()
        pulling = node.start("pull slow", stderr=screen)
        os.close(screen)
        shown = b""
        while b"slow" not in shown:
            shown += os.read(terminal, 1000)
        pulling.send_signal(signal.SIGINT)
        assert (pulling.communicate()[0], pulling.returncode) == (b"", 130)
        shown += os.read(terminal, 1_000_000)
        os.close(terminal)
        assert b"aborted" in shown
        assert b"Traceback" not in shown
    finally:
        with suppress(ProcessLookupError):  # on a busy machine the engine has given it up
            os.kill(at_work, signal.SIGCONT)
    story.pull("slow")
    assert sorted(story.chain("slow").column("id")) == [1, 2, 3]
    assert {one["verdict"] for one in story.verify("slow")} == {"valid"}


def test_a_killed_supervisor_leaves_no_jvm_that_is_at_work(own: EmbeddedNode) -> None:
    story = Story(own)
    story.add(ONE, derivative("endless", {"one": "one"}, ENDLESS))
    story.ingest("one", [line({"event_time": moment(), "id": 1})])
    own.eventually(lambda: any(row.get("stage") for row in own.run("status -o json")["datasets"]))
    parts = tuple(leftovers(own.home))
    assert sum(is_java(pid) for pid in parts) > 1, "Kafka's and Spark's"
    os.kill(own.node.pid, signal.SIGKILL)
    own.eventually(lambda: not any(is_running(pid) for pid in parts))


def inputs(source: random.Random) -> dict[str, list[Row]]:
    """Return rows of every root, by event time; some have the same."""
    placed = [moment(hours=hour) for hour in sorted(source.choices(range(DAYS * 24), k=480))]
    orders = [
        row("event_time id customer amount", at, id_, source.choice("abcde"), Decimal(id_) / 100)
        for id_, at in enumerate(placed)
    ]
    left = [
        row("event_time order_id carrier", at + timedelta(days=source.choice(AFTER)), id_, "post")
        for id_, at in enumerate(placed)
        if source.random() < 0.8
    ]
    points = [source.randrange(99) for _ in range(160)]
    scores = [
        row("match_time match_id player_name score", moment(hours=id_), id_, source.choice("ABCD"), score)
        for id_, score in enumerate(points)
    ]
    bids = [
        row("event_time auction bidder price channel url extra", moment(milliseconds=at - FIRST), *values)
        for block in nexmark(4000, seed=SEED, blocks=1).blocks["bids"]
        for _, at, *values in cast("list[tuple[int, ...]]", block.rows)
    ]
    shipments = sorted(left, key=lambda one: str(one["event_time"]))
    return {"orders": orders, "shipments": shipments, "match.scores": scores, "bids": bids}
