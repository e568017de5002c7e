"""A dataset whose lock another process holds, and healthy ones next to it: commands received over the bus."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import grpc
from odf_testing.bus import MemoryBus, MemoryTopics
from odf_testing.coordinator import Coordinator
from structlog.testing import capture_logs

from odf_common.adapters.local import durable, stores
from odf_common.codec.envelopes import decode, envelope
from odf_common.codec.flatbuffers import encode_event
from odf_common.codec.times import time_message
from odf_common.metadata.events import SetInfo
from odf_common.ports.bus import COORDINATOR_COMMANDS, COORDINATOR_REPLIES
from odf_common.proto.odf.bus.v1 import bus_pb2 as bus
from odf_common.proto.odf.node.v1.coordinator_pb2 import ListRequest
from odf_common.service.consumer.consumer_loop import Reader, Subscription
from odf_coordinator.api.bus_handlers import Commands
from odf_coordinator.api.grpc_servicer import Servicer
from odf_coordinator.catalog.datasets import DatasetHandle


@contextmanager
def running(node: Coordinator, messages: MemoryBus) -> Iterator[None]:
    """Handle commands as the service does."""
    handler = Commands(committer=node.committer, importer=node.importer).handle
    subscription = Subscription(topic=COORDINATOR_COMMANDS, handler=handler, threads=4)
    reader = Reader(subscription, group="odf.coordinator", bus=messages, topics=MemoryTopics())
    stop = threading.Event()
    thread = threading.Thread(target=reader.run, args=(stop,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def until(claim: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not claim() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert claim()


def propose(node: Coordinator, messages: MemoryBus, known: DatasetHandle) -> None:
    event = encode_event(SetInfo(description="x"))
    body = bus.Propose(
        expected_head=known.state.head.raw, system_time=time_message(node.clock.now()), events=[event]
    )
    messages.send(COORDINATOR_COMMANDS, envelope(known.id, body))


def test_a_lock_that_stays_held_blocks_only_its_dataset(tmp_path: Path, root: str) -> None:
    node, messages = Coordinator(home=tmp_path, is_durable=True), MemoryBus()
    node.add(root, root.replace("name: cities", "name: towns"))
    cities, towns = node.find("cities"), node.find("towns")

    def answered() -> list[str]:
        return [decode(*one).dataset_id for one in messages.topics[COORDINATOR_REPLIES]]

    def problems() -> dict[str, str]:
        found = Servicer(node.parts).List(ListRequest(), cast("grpc.ServicerContext", None)).datasets
        return {one.alias: one.problem for one in found}

    with capture_logs(), running(node, messages):
        with durable.lock_file(stores.lock_file(tmp_path, cities.id)):
            propose(node, messages, cities)
            propose(node, messages, towns)
            until(lambda: answered() == [str(towns.id)])
            propose(node, messages, node.find("towns"))
            until(lambda: len(answered()) == 2)
            assert node.find("cities").state == cities.state
            until(lambda: "commits are waiting" in problems()["cities"])
            assert problems()["towns"] == ""
        until(lambda: str(cities.id) in answered())
    assert node.find("cities").state.info is not None
    assert problems() == {"cities": "", "towns": ""}
