"""The views over a network that breaks without a word: they follow the heads again once Kafka is back."""

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from odf_testing.black_hole import BlackHole, black_hole
from odf_testing.builders import a_dataset, a_hash
from odf_testing.secure_kafka import kafka_behind

from odf_cli.embedded.parts.tcp_ports import allocate
from odf_common.adapters.kafka.client_config import new_producer, producer_config
from odf_common.adapters.kafka.cluster import KafkaCluster
from odf_common.codec.envelopes import encode, envelope
from odf_common.ports.bus import NOTIFICATIONS
from odf_common.proto.odf.bus.v1 import bus_pb2 as bus
from odf_common.service.settings import child_environment

LATE_SECONDS = 90.0  # fifteen, and what a busy machine adds
DATASET = a_dataset(1)


@contextmanager
def views(home: Path, kafka: str) -> Iterator[str]:
    """Run the views' process, and yield their URL."""
    url = f"127.0.0.1:{allocate(home, ('views',))['views']}"
    environment = {**child_environment(), "ODF_HOME": str(home), "ODF_KAFKA": kafka, "ODF_VIEWS_HTTP": url}
    with (home / "log").open("ab") as log:
        command = [sys.executable, "-m", "odf_coordinator.views"]
        with subprocess.Popen(command, env=environment, stdout=log, stderr=log) as process:
            try:
                yield f"http://{url}"
                assert process.poll() is None, (home / "log").read_text()[-4000:]
            finally:
                process.kill()


def announce(cluster: KafkaCluster, name: str) -> None:
    """Announce a head by a client that has no dead connection."""
    key, value = encode(envelope(DATASET, bus.Committed(head=a_hash(name).raw, alias=name)))
    producer = new_producer(producer_config(cluster))
    producer.produce(NOTIFICATIONS, value, key)
    assert producer.flush(LATE_SECONDS) == 0


def shown(url: str) -> list[str]:
    try:
        with urllib.request.urlopen(f"{url}/datasets", timeout=LATE_SECONDS) as answer:
            return [row["alias"] for row in json.load(answer)]
    except urllib.error.URLError:
        return []


def await_shown(url: str, cluster: KafkaCluster, name: str) -> float:
    """Announce a head until it is shown: a reader that joins a group sees what is announced from then on."""
    begun = time.monotonic()
    while shown(url) != [name]:
        assert time.monotonic() < begun + LATE_SECONDS
        announce(cluster, name)
        time.sleep(0.2)
    return time.monotonic() - begun


@pytest.mark.parametrize("breaks", [BlackHole.swallow, BlackHole.drop])
def test_they_show_new_heads_again_after_kafka_was_away(
    tmp_path: Path, breaks: Callable[[BlackHole], None]
) -> None:
    (tmp_path / "kafka").mkdir()
    with (
        black_hole(0) as hole,
        kafka_behind(tmp_path / "kafka", hole) as cluster,
        views(tmp_path, cluster.bootstrap) as url,
    ):
        await_shown(url, cluster, "before")
        breaks(hole)
        time.sleep(8)  # longer than a session
        assert shown(url) == ["before"]
        hole.restore()
        print(f"shown after {await_shown(url, cluster, 'after'):.1f} s")
