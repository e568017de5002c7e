import pytest

from .in_memory_broker import TOPIC, Broker


@pytest.fixture
def broker() -> Broker:
    """A broker with the topic of the source `default`."""
    broker = Broker()
    broker.make(TOPIC)
    return broker
