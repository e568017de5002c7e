"""Queries with state, while the parts that compute them are killed: each record, window, session and version counts once."""

import os
import pty
import random
import signal
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import pytest
import yaml
from odf_testing.chains import StoredChain
from odf_testing.embedded import EmbeddedNode
from odf_testing.engine_changes import standing
from odf_testing.kills import ENGINE, JVM, disturbed, jvm, settle
from odf_testing.story import (
    Manifest,
    Row,
    Story,
    at_once,
    changes,
    chunks,
    derivative,
    line,
    prefixed,
    root,
    timestamp,
)
from tests.integration import folding_queries as folding
from tests.integration import waiting_queries as waiting

from odf_engine_spark.operators.changes import APPEND

VICTIMS = (JVM, "coordinator")  # who computes, and who starts that
WAITING = VICTIMS  # of the rounds in which waiting queries get records
SEED = 20
FEW = root("killed.few", ("event_time TIMESTAMP(3)", "id BIGINT"))
# The time of the first test includes the starts of the node, and of each killed part.
pytestmark = pytest.mark.timeout(600)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """The input of every root, and its node; the rows of waiting queries have `seen` in addition."""

    story: Story
    prefix: str
    names: Sequence[str]
    folding: Mapping[str, Sequence[Row]]
    waiting: Mapping[str, Sequence[Row]]

    def chain(self, name: str) -> StoredChain:
        return self.story.chain(f"{self.prefix}.{name}")


@pytest.fixture(
    scope="module",
    params=[VICTIMS, pytest.param((*VICTIMS, "ingest", ENGINE), marks=pytest.mark.soak)],
    ids=len,
)
def sent(node: EmbeddedNode, request: pytest.FixtureRequest) -> Sent:
    """All records are sent and derived; in each round a part was killed during a pull."""
    source, story = random.Random(SEED), Story(node)
    victims = source.sample(request.param, len(request.param))
    prefix = f"killed.{len(victims)}"
    manifests = [prefixed(one, prefix) for one in snapshots()]
    story.add(*manifests)
    names = [one["content"]["name"] for one in manifests]
    folded, waited = folding.inputs(source), waiting.inputs(source)
    parts = {name: chunks([line(one) for one in rows], len(victims)) for name, rows in folded.items()}
    rounds = iter(range(waiting.ROUNDS))
    for number, victim in enumerate(victims):
        by_file = {"shipments", source.choice(("bids", "orders"))}
        from_files = {name: parts[name][number] for name in sorted(by_file)}
        from_topics = {name: each[number] for name, each in parts.items() if name not in by_file}
        if victim in WAITING:
            turn = next(rounds)
            from_files |= {name: [line(one) for one in each[turn]] for name, each in waited.items()}
            from_topics["trades"] = from_files.pop("trades")
        files, topics = (
            {f"{prefix}.{name}": each for name, each in some.items()} for some in (from_files, from_topics)
        )
        disturbed(story, victim, source, files=files, topics=topics, pulled=" ".join(names))
    settle(story, " ".join(names))
    for roots, hours in (
        (("orders", "shipments"), 48 * folding.DAYS),
        (("clicks", "prices", "trades"), 9 * waiting.HOURS),
    ):
        some = " ".join(f"{prefix}.{name}" for name in roots)
        story.pull(f"{some} --set-watermark {timestamp(hours=hours).isoformat()}")
    settle(story, " ".join(names))
    return Sent(
        story=story,
        prefix=prefix,
        names=names,
        folding=folded,
        waiting={name: waiting.with_seen(each) for name, each in waited.items()},
    )


def snapshots() -> list[Manifest]:
    files = [folding.EXAMPLES / f"{name}.yaml" for name in folding.MANIFESTS]
    files += [waiting.TRADING / f"{name}.yaml" for name in ("prices", "trades", "positions")]
    derived = [derivative(name, {"clicks": "clicks"}, query) for name, query in waiting.DERIVED.items()]
    examples = [yaml.safe_load(file.read_text()) for file in files]
    return [waiting.CLICKS, *examples, *folding.DERIVED, *derived]


def test_every_root_has_each_record_once(sent: Sent) -> None:
    for name, rows in sent.folding.items():
        found = sent.chain(name).rows()
        taken = Counter(line({column: row[column] for column in rows[0]}) for row in found)
        assert taken == Counter(line(row) for row in rows), name


@pytest.mark.parametrize("name", folding.AT_ONCE)
def test_a_derivative_equals_the_result_of_duckdb_over_all_records(sent: Sent, name: str) -> None:
    found = changes(sent.chain(name))
    expected = at_once(sent.folding, folding.AT_ONCE[name])
    assert expected
    assert standing(found) == Counter(expected)
    assert name in folding.CHANGING or {row[0] for row in found} == {APPEND}


@pytest.mark.parametrize("name", waiting.AT_ONCE)
def test_a_derivative_equals_the_result_of_duckdb_over_all_records_in_time(sent: Sent, name: str) -> None:
    found = changes(sent.chain(name))
    expected = at_once(sent.waiting, f"WITH taken AS ({waiting.of_root(name)}) {waiting.AT_ONCE[name]}")
    assert expected
    assert standing(found) == Counter(expected)
    assert ({one[0] for one in found} == {APPEND}) is (name != "clicks.corrected")


@pytest.mark.parametrize("name", waiting.AT_ONCE)
def test_late_records_are_counted_once(sent: Sent, name: str) -> None:
    ((late,),) = at_once(sent.waiting, f"SELECT count(*) FROM ({waiting.of_root(name, is_late=True)})")
    assert sent.story.summary(f"{sent.prefix}.{name}")["late"] == late
    assert late


def test_every_transform_replays_to_the_same(sent: Sent) -> None:
    verdicts = sent.story.verify(" ".join(sent.names))
    assert {(one["verdict"], *one["problems"]) for one in verdicts} == {("valid",)}
    assert sum(one["transforms"] > 0 for one in verdicts) == len(folding.AT_ONCE) + len(waiting.AT_ONCE)


def test_ctrl_c_ends_a_pull_and_the_next_one_continues(story: Story, node: EmbeddedNode) -> None:
    story.add(FEW, derivative("killed.slow", {"few": "killed.few"}, "SELECT event_time, id FROM few"))
    engine = jvm(node.pid(ENGINE))
    os.kill(engine, signal.SIGSTOP)  # the pull is not done before it is ended
    try:
        story.ingest("killed.few", [line({"event_time": timestamp(), "id": number}) for number in (1, 2, 3)])
        signal.signal(
            signal.SIGINT, signal.default_int_handler
        )  # otherwise children in the background ignore it
        terminal, screen = pty.openpty()
        pulling = node.start("pull killed.slow", stderr=screen)
        os.close(screen)
        shown = b""
        while b"slow" not in shown:
            shown += os.read(terminal, 1000)
        pulling.send_signal(signal.SIGINT)
        output = pulling.communicate()[0]
        shown += os.read(terminal, 1_000_000)
        os.close(terminal)
        assert (output, pulling.returncode) == (b"", 130), shown.decode()
        assert b"aborted" in shown
        assert b"Traceback" not in shown
    finally:
        with suppress(ProcessLookupError):  # on a busy machine the engine has aborted it
            os.kill(engine, signal.SIGCONT)
    story.pull("killed.slow")
    assert sorted(story.chain("killed.slow").column("id")) == [1, 2, 3]
    assert {one["verdict"] for one in story.verify("killed.slow")} == {"valid"}
