import time

import pytest
from odf_testing.embedded import EmbeddedNode

from odf_common.adapters.kafka.kafka_bus import KafkaBus
from odf_common.errors import Unavailable
from odf_common.ports.bus import NOTIFICATIONS, Inbox


def test_a_member_whose_name_another_has_taken_is_fenced_and_can_be_opened_again(node: EmbeddedNode) -> None:
    # A restarted broker may do this to a static member: its new session takes its old one's name.
    bus = KafkaBus(node.cluster, instance="the-same-name")
    first = bus.subscribe(NOTIFICATIONS, group="fenced")
    await_ready(first)
    second = bus.subscribe(NOTIFICATIONS, group="fenced")
    await_ready(second)
    with pytest.raises(Unavailable, match="fenced"):
        poll_for(first, 20)
    first.close()
    second.close()
    again = bus.subscribe(NOTIFICATIONS, group="fenced")
    await_ready(again)
    again.close()
    bus.close()


def await_ready(inbox: Inbox) -> None:
    """Poll until partitions are assigned."""
    deadline = time.monotonic() + 30
    while not inbox.has_assignment:
        inbox.poll(0.1)
        assert time.monotonic() < deadline, "no partitions were given"


def poll_for(inbox: Inbox, seconds: float) -> None:
    """Poll for a while."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        inbox.poll(0.1)
