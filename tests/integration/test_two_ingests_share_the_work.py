"""A second ingest reads a part of the datasets until it is killed; under the same name each fences the other."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest
from odf_testing.embedded import EmbeddedNode
from odf_testing.story import APPEND, Row, Sender, Story, root

from odf_cli.embedded.parts.tcp_ports import LOOPBACK, allocate
from odf_common.adapters.kafka.kafka_bus import KafkaBus
from odf_common.ports.bus import INGEST_COMMANDS, Inbox

COLUMNS = ("id BIGINT", "at TIMESTAMP(3)")
EACH = 50  # records per round
PAUSE = 0.6  # seconds between rounds
MEMBERS = 4  # of the group that join and leave
PATIENCE = 120.0  # seconds until the second ingest has started, got datasets and committed


@pytest.fixture
def second(node: EmbeddedNode, tmp_path: Path) -> Iterator["Second"]:
    made = Second(node, tmp_path / "log")
    yield made
    made.kill()


class Second:
    """Another ingest of the same node."""

    def __init__(self, node: EmbeddedNode, log: Path) -> None:
        pid = node.pid("ingest")
        raw = Path(f"/proc/{pid}/environ").read_bytes()
        pairs = (one.partition(b"=") for one in raw.split(b"\0") if one)
        self._environment = {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}
        # Not a port of the kernel's choice: an outgoing connection could get it before this ingest listens on it.
        port = allocate(log.parent, ["ingest"])["ingest"]
        self._environment["ODF_INGEST_GRPC"] = f"{LOOPBACK}:{port}"
        self._environment.pop("ODF_METRICS_PORT", None)
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, instance: str) -> None:
        self._environment["ODF_INSTANCE"] = instance
        with self._log.open("wb") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "odf_ingest"],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def said(self) -> str:
        return self._log.read_text(errors="replace")


def records(number: int) -> list[Row]:
    first = number * EACH
    return [
        {"id": id_, "at": f"2026-01-01T00:{number // 60:02}:{number % 60:02}Z"}
        for id_ in range(first, first + EACH)
    ]


class Load:
    """Rounds of records for some datasets."""

    def __init__(self, story: Story, names: Sequence[str]) -> None:
        self._story = story
        self._names = names
        self._rounds = 0
        self._sender = Sender(story.node)
        story.add(*(root(name, COLUMNS, event_time="at", merge=APPEND) for name in names))
        self._topics = [story.topic(name) for name in names]

    def publish(self) -> None:
        messages = [json.dumps(record).encode() for record in records(self._rounds)]
        for topic in self._topics:
            self._sender.send(topic, messages)
        self._rounds += 1
        time.sleep(PAUSE)

    def publish_until(self, claim: Callable[[], bool], why: Callable[[], str]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not claim():
            assert time.monotonic() < deadline, why()
            self.publish()

    def require_each_once(self) -> None:
        self._story.pull(" ".join(self._names))
        for name in self._names:
            table = self._story.chain(name).table
            assert table is not None
            assert table.column("id").to_pylist() == list(range(self._rounds * EACH)), name
        assert {one["verdict"] for one in self._story.verify(" ".join(self._names))} == {"valid"}


def committed_by(said: str) -> set[str]:
    """Return the ids of the datasets with commits in a log."""
    lines = (json.loads(line) for line in said.splitlines() if '"records committed"' in line)
    return {line["dataset_id"] for line in lines}


def test_each_instance_reads_its_part_and_one_that_is_killed_is_taken_over(
    node: EmbeddedNode, story: Story, second: Second
) -> None:
    names = tuple(f"shared.{number:02}" for number in range(12))
    load = Load(story, names)
    ids = {story.summary(name)["id"] for name in names}
    first = node.home / "logs" / "ingest.log"

    def new_of_first(since: int) -> set[str]:
        return committed_by(first.read_text(errors="replace")[since:]) & ids

    load.publish()
    second.start("second.ingest")
    load.publish_until(lambda: bool(committed_by(second.said()) & ids), second.said)
    begun, begun_second = len(first.read_text(errors="replace")), len(second.said())
    load.publish_until(
        lambda: new_of_first(begun) | committed_by(second.said()[begun_second:]) >= ids, second.said
    )
    theirs = committed_by(second.said()[begun_second:]) & ids
    assert theirs
    assert new_of_first(begun).isdisjoint(theirs)
    second.kill()
    begun = len(first.read_text(errors="replace"))
    load.publish_until(lambda: new_of_first(begun) >= ids, lambda: str(new_of_first(begun)))
    load.require_each_once()


def test_records_are_taken_once_by_two_instances_that_fence_each_other(story: Story, second: Second) -> None:
    load = Load(story, tuple(f"fenced.{number}" for number in range(4)))
    load.publish()
    second.start("embedded.ingest")  # the name of the first: Kafka lets only the latest one read
    load.publish_until(lambda: bool(committed_by(second.said())), second.said)
    load.publish()
    second.kill()
    for _ in range(3):
        load.publish()
    load.require_each_once()


def test_a_storm_of_rebalances_loses_and_doubles_nothing(
    node: EmbeddedNode, story: Story, second: Second
) -> None:
    """Members of the group join and leave; one of them is an ingest that reads and is killed meanwhile."""
    # Enough that each instance reads some: partitions are chosen by random ids.
    load = Load(story, tuple(f"storm.{number:02}" for number in range(12)))
    bus, taken = KafkaBus(node.cluster), list[int]()
    load.publish()
    second.start("storm.ingest")
    for number in range(MEMBERS):
        member = bus.subscribe(
            INGEST_COMMANDS, group="odf.ingest", on_assigned=lambda mine: taken.append(len(mine))
        )
        load.publish_until(partial(has_joined, member), lambda: "it gets no partitions")
        member.close()
        if number == MEMBERS - 2:
            load.publish_until(lambda: bool(committed_by(second.said())), second.said)
            second.kill()
    bus.close()
    assert max(taken) > 0
    load.require_each_once()


def has_joined(member: Inbox) -> bool:
    member.poll(0.1)
    return member.has_assignment
