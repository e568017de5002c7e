"""The bus and the topics in memory keep the contracts that Kafka keeps."""

import pytest
from odf_testing.bus import MemoryBus, MemoryTopics
from odf_testing.bus_contracts import BusContract, TopicsContract


class TestMemoryBus(BusContract):
    @pytest.fixture
    def bus(self) -> MemoryBus:
        return MemoryBus()


class TestMemoryTopics(TopicsContract):
    @pytest.fixture
    def topics(self) -> MemoryTopics:
        return MemoryTopics()

    @pytest.fixture
    def name(self) -> str:
        return "topic"
