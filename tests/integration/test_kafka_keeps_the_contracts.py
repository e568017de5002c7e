"""Kafka as the ports `Bus` and `Topics`; the fakes of other tests keep the same contracts."""

import itertools
from collections.abc import Iterator

import pytest
from odf_testing.bus_contracts import BusContract, TopicsContract
from odf_testing.embedded import EmbeddedNode

from odf_common.adapters.kafka.admin import KafkaTopics
from odf_common.adapters.kafka.kafka_bus import KafkaBus
from odf_common.ports.bus import FIXED_TOPICS

numbers = itertools.count()


class TestKafkaBus(BusContract):
    @pytest.fixture
    def bus(self, node: EmbeddedNode) -> Iterator[KafkaBus]:
        prefix = f"contract{next(numbers)}."
        KafkaTopics(node.cluster, prefix=prefix).ensure_topics(FIXED_TOPICS)
        bus = KafkaBus(node.cluster, prefix=prefix)
        yield bus
        bus.close()


class TestKafkaTopics(TopicsContract):
    @pytest.fixture
    def topics(self, node: EmbeddedNode) -> KafkaTopics:
        return KafkaTopics(node.cluster, prefix="contract.")

    @pytest.fixture
    def name(self) -> str:
        return f"topics-of-a-contract.{next(numbers)}"
