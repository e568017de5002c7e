"""Clients of Kafka when their threads cannot be started, and the producer of the bus after a fatal error."""

import subprocess
import sys
import time
from typing import Any

import pytest
from confluent_kafka import KafkaError

from odf_common.adapters.kafka import kafka_bus
from odf_common.adapters.kafka.client_config import new_producer
from odf_common.adapters.kafka.cluster import KafkaCluster
from odf_common.adapters.kafka.kafka_bus import KafkaBus
from odf_common.errors import Unavailable

WAIT_SECONDS = 20


# In a process of its own, whose memory is limited to what it has: a thread needs more for its stack.
START_A_CLIENT = """
import os, resource
from pathlib import Path
from odf_common.adapters.kafka.client_config import common, new_admin_client
from odf_common.adapters.kafka.cluster import KafkaCluster
from odf_common.errors import Unavailable
pages = int(Path("/proc/self/statm").read_text().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * os.sysconf("SC_PAGE_SIZE") + (4 << 20),) * 2)
try:
    new_admin_client(common(KafkaCluster("127.0.0.1:1")))
except Unavailable:
    print("unavailable", flush=True)
os._exit(0)
"""


def test_a_client_whose_threads_cannot_be_started_is_unavailable() -> None:
    command = [sys.executable, "-c", START_A_CLIENT]
    done = subprocess.run(command, stdout=subprocess.PIPE, timeout=60, check=True)
    assert done.stdout == b"unavailable\n"


def test_a_producer_is_replaced_once_another_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    bus, tries = KafkaBus(KafkaCluster("127.0.0.1:1")), list[Any]()

    def fail_once(config: Any) -> Any:
        tries.append(config)
        if len(tries) == 1:
            raise Unavailable(what="Kafka", why="Failed to create thread")
        return new_producer(config)

    monkeypatch.setattr(kafka_bus, "new_producer", fail_once)
    useless = bus._producer
    bus._on_error(KafkaError(KafkaError._FATAL, "a gap in sequence numbers", fatal=True))
    until = time.monotonic() + WAIT_SECONDS
    while bus._producer is useless:
        assert time.monotonic() < until
        time.sleep(0.01)
    assert len(tries) == 2
    bus.close()
