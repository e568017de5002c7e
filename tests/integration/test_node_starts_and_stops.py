import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from odf_testing.embedded import EmbeddedNode
from odf_testing.story import as_text, root

from odf_cli.embedded.node_file import NoNode, is_running, read_node
from odf_cli.embedded.orphans import leftovers
from odf_cli.embedded.parts.tcp_ports import allocate
from odf_common.adapters.kafka.cluster import partition_of
from odf_common.adapters.kafka.kafka_bus import KafkaBus
from odf_common.adapters.kafka.topic_claims import TopicsTaken
from odf_common.codec.envelopes import decode, envelope
from odf_common.identity.dataset_refs import DatasetId
from odf_common.ports.bus import FIXED_TOPICS, NOTIFICATIONS, Inbox
from odf_common.proto.odf.bus.v1.bus_pb2 import Refused
from odf_common.service.environment import connect
from odf_common.service.node_home import claim_topics
from odf_common.service.settings import child_environment

SERVICES = ("ingest", "coordinator", "engine-spark", "verifier", "sync")


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedNode]:
    made = EmbeddedNode(tmp_path_factory.mktemp("small"))
    yield made
    made.run("down")


@pytest.fixture
def small(kept: EmbeddedNode) -> EmbeddedNode:
    """A running node with Kafka and Redis only, which each test may stop."""
    kept.up("kafka", "redis")
    return kept


def test_status_shows_all_addresses(node: EmbeddedNode) -> None:
    status = node.run("status --output json")
    assert status["home"] == str(node.home)
    assert all(status[name] for name in ("kafka", "redis", "engine", "http"))
    assert [service["name"] for service in status["services"]] == list(SERVICES)
    assert {service["state"] for service in status["services"]} == {"ready"}


def test_a_second_up_says_that_the_node_is_running(node: EmbeddedNode) -> None:
    before = node.node.pid
    shown = node.run("up --detach --output json")
    assert shown["kafka"] == node.kafka
    assert node.node.pid == before


# The engine, whose JVM is slow to start, is also restarted in the stories in which all parts are killed.
@pytest.mark.parametrize(
    "service",
    [pytest.param(one, marks=[pytest.mark.soak] * (one == "engine-spark")) for one in SERVICES],
)
def test_a_killed_service_is_restarted(node: EmbeddedNode, service: str) -> None:
    old = node.kill(service)
    begun = time.monotonic()
    node.eventually(lambda: node.pid(service) not in (None, old))
    assert time.monotonic() - begun < 2
    node.await_restart(service, old)


def test_a_killed_broker_is_restarted_at_the_same_address(small: EmbeddedNode) -> None:
    address = small.kafka
    small.topics().create_push_topic("odf.push.kept")
    small.produce("odf.push.kept", [b"one", b"two"])
    small.await_restart("kafka", small.kill("kafka"))
    assert small.kafka == address
    assert small.produce("odf.push.kept", [b"three"]) == 1
    assert small.topics().watermarks("odf.push.kept", 0) == (0, 3)


def test_messages_are_in_the_reported_partition(small: EmbeddedNode) -> None:
    bus = KafkaBus(small.cluster)
    inbox = bus.subscribe(NOTIFICATIONS, group=None)
    ids = [DatasetId.of_key(os.urandom(32)) for _ in range(50)]
    for dataset in ids:
        bus.send(NOTIFICATIONS, envelope(dataset, Refused()))
    bus.flush()
    seen: dict[str, int] = {}
    small.eventually(lambda: _take(inbox, seen) == len(ids))
    inbox.close()
    bus.close()
    assert seen == {str(dataset): partition_of(str(dataset).encode()) for dataset in ids}


def test_nothing_survives_a_killed_supervisor_and_up_starts_again(small: EmbeddedNode) -> None:
    node = small.node
    pids = [part.pid for part in node.parts if part.pid is not None]
    os.kill(node.pid, signal.SIGKILL)
    small.eventually(lambda: not any(is_running(pid) for pid in pids), 5)
    with pytest.raises(NoNode):
        read_node(small.home)
    assert "no node is running" in small.fails("status")
    small.up("kafka", "redis")
    assert small.kafka == node.kafka


def test_down_leaves_nothing(small: EmbeddedNode) -> None:
    pids = [part.pid for part in small.node.parts if part.pid is not None]
    small.down()
    assert not any(is_running(pid) for pid in pids)
    assert not (small.home / "node.json").exists()
    small.run("down")


def test_a_failed_up_shows_the_log_and_leaves_nothing(tmp_path: Path) -> None:
    # A folder where Kafka expects a file: it cannot start.
    (tmp_path / "kafka" / "data" / "meta.properties").mkdir(parents=True)
    broken = EmbeddedNode(tmp_path)
    said = broken.fails("up --detach kafka")
    assert said.count("error: kafka did not start") == 1
    assert "meta.properties" in said
    assert list(leftovers(tmp_path)) == []
    assert "no node is running" in broken.fails("status")


def test_a_second_node_on_one_kafka_is_refused_and_has_separate_topics_under_a_prefix(
    node: EmbeddedNode, tmp_path: Path
) -> None:
    second = EmbeddedNode(tmp_path / "second", node.kafka_settings())
    said = second.fails("up --detach")
    assert f"belong to the node with home {node.home} on host" in said
    assert "ODF_KAFKA_PREFIX" in said
    address = f"127.0.0.1:{allocate(tmp_path, ['verifier'])['verifier']}"
    settings = {"ODF_HOME": str(second.home), **node.kafka_settings(), "ODF_VERIFIER_GRPC": address}
    program = [sys.executable, "-m", "odf_verifier"]
    service = subprocess.run(
        program, env={**child_environment(), **settings}, capture_output=True, check=False
    )
    assert service.returncode == 1
    assert str(node.home) in service.stderr.decode()

    shared = replace(node.connected, redis=None)
    first = connect(shared)
    other = connect(replace(shared, home=second.home, kafka_prefix="second.", instance="same"))
    other.claim()
    first.claim()
    other.topics.ensure_topics(FIXED_TOPICS)
    theirs, ours = (one.bus.subscribe(NOTIFICATIONS, group=None) for one in (first, other))
    dataset = DatasetId.of_key(os.urandom(32))
    other.bus.send(NOTIFICATIONS, envelope(dataset, Refused()))
    other.bus.flush()
    seen: dict[str, int] = {}
    node.eventually(lambda: _take(ours, seen) == 1)
    _take(theirs, seen := {})
    assert str(dataset) not in seen
    for one in (theirs, ours):
        one.close()
    for env in (first, other):
        env.close()


def test_the_topics_of_a_removed_node_can_be_taken_over(node: EmbeddedNode, tmp_path: Path) -> None:
    homes = [
        replace(node.connected, home=tmp_path / name, kafka_prefix="gone.") for name in ("first", "second")
    ]
    first, second = homes
    claim_topics(first)
    with pytest.raises(TopicsTaken, match=f"home {first.home} on host .*since 20"):
        claim_topics(second)
    claim_topics(second, is_taking_over=True)
    claim_topics(second)
    with pytest.raises(TopicsTaken, match=f"home {second.home} on host .*since 20"):
        claim_topics(first)


def test_an_unknown_service_is_refused(tmp_path: Path) -> None:
    assert "unknown service bakery" in EmbeddedNode(tmp_path).fails("up --detach bakery")


def _take(inbox: Inbox, seen: dict[str, int]) -> int:
    while (message := inbox.poll(0.2)) is not None:
        seen[decode(message.key, message.value).dataset_id] = message.partition
    return len(seen)


def test_a_service_runs_in_the_foreground_until_it_is_interrupted(node: EmbeddedNode) -> None:
    def state() -> str:
        return next(part.state for part in node.node.services if part.name == "verifier")

    environment = {**child_environment(), "ODF_HOME": str(node.home), "ODF_LOG_LEVEL": "debug"}
    command = [sys.executable, "-m", "odf_cli.embedded.foreground", "verifier"]
    process = subprocess.Popen(
        command, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stderr is not None
    first = process.stderr.readline()
    node.eventually(lambda: state() == "foreground")
    second = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert second.returncode == 1
    assert "verifier" in second.stderr
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does for Ctrl-C
    assert process.wait(20) == 0, first
    node.eventually(lambda: state() == "ready")
    process.stderr.close()
    assert json.loads(first)["service"] == "verifier"


LINES = [
    "list",
    "log flights",
    "tail flights",
    "inspect schema flights",
    "inspect lineage flights",
    "rename flights departures",
    "delete flights --yes",
    "reset flights f16203fd51a2c --yes",
    "ingest flights -",
    "pull flights",
    "pull --all",
    "pull http://127.0.0.1:9/flights",
    "verify flights",
    "verify --all",
    "sql -c 'SELECT 1'",
    "add -",
    "status",
]


@pytest.mark.parametrize("line", LINES)
def test_without_a_node_the_command_says_how_to_start_one(tmp_path: Path, line: str) -> None:
    no_node = EmbeddedNode(tmp_path / "no_node")
    said = no_node.fails(line, code=1, stdin=as_text(root("flights", ("id BIGINT",))))
    assert "no node is running" in said
    assert "odf up --detach" in said
    assert "Traceback" not in said


def test_misuse_is_distinguished_from_failure(tmp_path: Path) -> None:
    no_node = EmbeddedNode(tmp_path / "no_node")
    for line in ("pull", "verify", "tail", "list --output xml", "no-such-command", "ingest"):
        assert "Traceback" not in no_node.fails(line, code=2)


def test_down_without_a_node_succeeds(tmp_path: Path) -> None:
    EmbeddedNode(tmp_path / "no_node").run("down")
