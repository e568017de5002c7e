"""A broker with the topic of the source `default`, and a running reader of it."""

from collections.abc import Iterator
from typing import Any

import pytest

from .in_memory_broker import TOPIC, Broker, Running, running


@pytest.fixture
def broker() -> Broker:
    """A broker with the topic of the source `default`."""
    broker = Broker()
    broker.make(TOPIC)
    return broker


@pytest.fixture
def node(bench: Any, broker: Broker) -> Iterator[Running]:
    """A running reader of `bench`."""
    with running(bench, broker) as made:
        yield made
