"""Queries with state, while the parts that compute them are killed: each record, window, session and version counts once."""

import os
import pty
import random
import signal
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import pytest
import yaml
from odf_testing.embedded import EmbeddedNode
from odf_testing.engine_changes import standing
from odf_testing.kills import ENGINE, JVM, disturbed, is_java, jvm, settle
from odf_testing.manifests import derivative, root
from odf_testing.rows import at_once, changes, line, moment
from odf_testing.story import Row, Story, chunks
from tests.integration import folding_queries as folding
from tests.integration import waiting_queries as waiting

from odf_common.embedded.node_file import is_running
from odf_common.embedded.orphans import leftovers
from odf_engine_spark.operators.changes import APPEND

VICTIMS = (JVM, ENGINE, "coordinator", "ingest")
SEED = 20
FEW, ONE = (root(name, ("event_time TIMESTAMP(3)", "id BIGINT")) for name in ("few", "one"))
EACH = "LATERAL VIEW explode(sequence(1, 100000)) AS"
ENDLESS = f"SELECT event_time, id FROM one {EACH} x {EACH} y WHERE x + y = 0"
# The first test has the starts of the node, and of each part that was killed.
pytestmark = pytest.mark.timeout(600)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """What every root was sent, and the node that has it; to the rows of waiting queries `seen` is added."""

    story: Story
    folding: Mapping[str, Sequence[Row]]
    waiting: Mapping[str, Sequence[Row]]


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedNode]:
    """A node whose logs show which part is at work; ends without any process."""
    made = EmbeddedNode(tmp_path_factory.mktemp("killed"), {"ODF_LOG_LEVEL": "debug"})
    made.up()
    yield made
    made.down()


@pytest.fixture(scope="module")
def sent(own: EmbeddedNode) -> Sent:
    """All is sent and derived; in each round a part was killed at some point of a pull.

    Waiting queries get records in the rounds in which the engine or its JVM is killed.
    """
    source, story = random.Random(SEED), Story(own)
    files = [folding.EXAMPLES / f"{name}.yaml" for name in folding.MANIFESTS]
    files += [waiting.TRADING / f"{name}.yaml" for name in ("trades", "positions")]
    derived = [derivative(name, {"clicks": "clicks"}, query) for name, query in waiting.DERIVED.items()]
    snapshots = [yaml.safe_load(file.read_text()) for file in files]
    story.add(waiting.CLICKS, waiting.PRICES, *snapshots, *folding.DERIVED, *derived)
    victims = source.sample(VICTIMS, len(VICTIMS))
    folded, waited = folding.inputs(source), waiting.inputs(source)
    parts = {name: chunks([line(one) for one in rows], len(victims)) for name, rows in folded.items()}
    rounds = iter(range(waiting.ROUNDS))
    for number, victim in enumerate(victims):
        by_file = {"shipments", source.choice(("bids", "orders"))}
        from_files = {name: parts[name][number] for name in sorted(by_file)}
        from_topics = {name: each[number] for name, each in parts.items() if name not in by_file}
        if victim in (JVM, ENGINE):
            turn = next(rounds)
            from_files |= {name: [line(one) for one in each[turn]] for name, each in waited.items()}
            from_topics["trades"] = from_files.pop("trades")
        disturbed(story, victim, source, files=from_files, topics=from_topics)
    settle(story)
    for names, hours in (
        ("orders shipments", 48 * folding.DAYS),
        ("clicks prices trades", 9 * waiting.HOURS),
    ):
        story.pull(f"{names} --set-watermark {moment(hours=hours).isoformat()}")
    settle(story)
    return Sent(
        story=story,
        folding=folded,
        waiting={name: waiting.with_seen(each) for name, each in waited.items()},
    )


def test_every_root_has_each_record_once(sent: Sent) -> None:
    for name, rows in sent.folding.items():
        found = sent.story.chain(name).rows()
        taken = Counter(line({column: row[column] for column in rows[0]}) for row in found)
        assert taken == Counter(line(row) for row in rows), name


@pytest.mark.parametrize("name", folding.AT_ONCE)
def test_a_derivative_is_what_duckdb_says_of_everything_at_once(sent: Sent, name: str) -> None:
    found = changes(sent.story.chain(name))
    expected = at_once(sent.folding, folding.AT_ONCE[name])
    assert expected
    assert standing(found) == Counter(expected)
    assert name in folding.CHANGING or {row[0] for row in found} == {APPEND}


@pytest.mark.parametrize("name", waiting.AT_ONCE)
def test_a_derivative_is_what_duckdb_says_of_all_that_was_in_time(sent: Sent, name: str) -> None:
    found = changes(sent.story.chain(name))
    expected = at_once(sent.waiting, f"WITH taken AS ({waiting.of_root(name)}) {waiting.AT_ONCE[name]}")
    assert expected
    assert standing(found) == Counter(expected)
    assert ({one[0] for one in found} == {APPEND}) is (name != "clicks.corrected")


@pytest.mark.parametrize("name", waiting.AT_ONCE)
def test_what_was_late_is_counted_once(sent: Sent, name: str) -> None:
    ((late,),) = at_once(sent.waiting, f"SELECT count(*) FROM ({waiting.of_root(name, is_late=True)})")
    assert sent.story.summary(name)["late"] == late
    assert late


def test_every_transform_replays_to_the_same(sent: Sent) -> None:
    verdicts = sent.story.verify("--all")
    assert {(one["verdict"], *one["problems"]) for one in verdicts} == {("valid",)}
    assert sum(one["transforms"] > 0 for one in verdicts) == len(folding.AT_ONCE) + len(waiting.AT_ONCE)


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
