import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from odf_common.adapters.kafka.bus import KafkaBus
from odf_common.adapters.kafka.partitioner import partition_of
from odf_common.codec.bus import decode, envelope
from odf_common.identity.did import DatasetId
from odf_common.ports.bus import NOTIFICATIONS, Inbox
from odf_common.proto.odf.bus.v1.bus_pb2 import VerifyHead
from odf_common.runtime.node import NoNode, is_running, read_node
from odf_common.runtime.supervisor.leftovers import leftovers
from odf_common.testing.embedded import EmbeddedNode

SERVICES = ("ingest", "coordinator", "engine-spark", "verifier", "sync")


@pytest.fixture
def small(tmp_path: Path) -> Iterator[EmbeddedNode]:
    """A node of its own with Kafka and Redis only."""
    made = EmbeddedNode(tmp_path / "home")
    made.up("kafka", "redis")
    yield made
    made.run("down")


def test_status_tells_where_everything_is(node: EmbeddedNode) -> None:
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


@pytest.mark.parametrize("service", SERVICES)
def test_a_killed_service_comes_back(node: EmbeddedNode, service: str) -> None:
    old = node.kill(service)
    begun = time.monotonic()
    node.eventually(lambda: node.pid(service) not in (None, old))
    assert time.monotonic() - begun < 2
    node.await_restart(service, old)


def test_a_killed_broker_comes_back_at_the_same_address(small: EmbeddedNode) -> None:
    address = small.kafka
    small.topics().create_push_topic("odf.push.kept")
    small.produce("odf.push.kept", [b"one", b"two"])
    small.await_restart("kafka", small.kill("kafka"))
    assert small.kafka == address
    assert small.produce("odf.push.kept", [b"three"]) == 1
    assert small.topics().watermarks("odf.push.kept", 0) == (0, 3)


def test_messages_lie_in_the_partition_that_is_told(small: EmbeddedNode) -> None:
    bus = KafkaBus(small.kafka)
    inbox = bus.subscribe(NOTIFICATIONS, group=None)
    ids = [DatasetId.of_key(os.urandom(32)) for _ in range(50)]
    for dataset in ids:
        bus.send(NOTIFICATIONS, envelope(dataset, VerifyHead()))
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
    # A folder where Kafka wants a file: it cannot start.
    (tmp_path / "kafka" / "data" / "meta.properties").mkdir(parents=True)
    broken = EmbeddedNode(tmp_path)
    said = broken.fails("up --detach kafka")
    assert said.count("error: kafka did not start") == 1
    assert "meta.properties" in said
    assert list(leftovers(tmp_path)) == []
    assert "no node is running" in broken.fails("status")


def test_a_service_that_is_not_there_is_refused(tmp_path: Path) -> None:
    assert "there is no service bakery" in EmbeddedNode(tmp_path).fails("up --detach bakery")


def _take(inbox: Inbox, seen: dict[str, int]) -> int:
    while (message := inbox.poll(0.2)) is not None:
        seen[decode(message.key, message.value).dataset_id] = message.partition
    return len(seen)
