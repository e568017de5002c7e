"""The producer of the bus after an error that it does not survive."""

import time
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from odf_common.adapters.kafka import kafka_bus
from odf_common.adapters.kafka.client_config import new_producer
from odf_common.adapters.kafka.cluster import KafkaCluster
from odf_common.adapters.kafka.kafka_bus import KafkaBus

WAIT_SECONDS = 20


def test_a_producer_is_replaced_once_another_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    bus, tries = KafkaBus(KafkaCluster("127.0.0.1:1")), list[Any]()

    def fail_once(config: Any) -> Any:
        tries.append(config)
        if len(tries) == 1:
            raise KafkaException(KafkaError(KafkaError._CRIT_SYS_RESOURCE, "Failed to create thread"))
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
