"""A webhook's receiver that goes away without a word: other webhooks do not wait, and its event is posted again."""

import threading
from collections.abc import Callable

import pytest
from odf_testing.black_hole import BlackHole, black_hole

from .webhook_node import PREVIOUS, Node, Receiver, receiving
from .webhook_node import home as home  # noqa: PLC0414 - a fixture
from .webhook_node import node as node  # noqa: PLC0414 - a fixture
from .webhook_node import quick as quick  # noqa: PLC0414 - a fixture
from .webhook_node import receiver as receiver  # noqa: PLC0414 - a fixture

LATE_SECONDS = 60.0  # ten for an attempt, and what a busy machine adds


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("breaks", [BlackHole.swallow, BlackHole.drop])
def test_an_event_is_posted_again_after_its_receiver_was_away(
    node: Node, receiver: Receiver, breaks: Callable[[BlackHole], None]
) -> None:
    silent = threading.Event()
    with receiving(silent) as lost, black_hole(port_of(lost)) as hole:
        node.add(f"http://{hole.address}/hook")
        lost.await_posts(1)
        breaks(hole)
        silent.set()  # the answer is lost
        node.move(PREVIOUS)
        node.add(receiver.url)
        assert receiver.await_posts(1)[0].facts["head"] == str(PREVIOUS)
        hole.restore()
        assert lost.await_posts(2, LATE_SECONDS)[-1].facts["head"] == str(PREVIOUS)


def port_of(receiver: Receiver) -> int:
    return int(receiver.url.rpartition(":")[2].partition("/")[0])
