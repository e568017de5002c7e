import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from odf_testing.embedded import EmbeddedNode
from odf_testing.story import Sender, Story, derivative, root

from odf_cli.embedded.parts.tcp_ports import LOOPBACK, allocate
from odf_common.adapters.kafka.kafka_bus import KafkaBus
from odf_common.adapters.local import stores
from odf_common.errors import Unavailable
from odf_common.identity.dataset_refs import DatasetId
from odf_common.ports.bus import NOTIFICATIONS, Inbox

COLUMNS = ("id BIGINT", "at TIMESTAMP(3)")
LOCK_TTL = 10.0  # seconds, and the group's session 6: the defaults
TRIES = 6
REFUSED = 10.0  # seconds
DRAINED = 90.0
STEP = 0.2  # seconds between messages, so that there are always commits
LOOK = 0.0005  # seconds between two checks of the lock, which is held for milliseconds


def test_a_coordinator_paused_while_it_holds_the_lock_cannot_fork_the_chain(story: Story) -> None:
    node = story.node
    story.add(
        root("paused", COLUMNS, event_time="at"),
        derivative(
            "paused.even", {"paused": "paused"}, "SELECT at AS event_time, id FROM paused WHERE id % 2 = 0"
        ),
    )
    folder = story.folder("paused")
    dataset = DatasetId.parse(story.summary("paused")["id"])
    first = node.pid("coordinator")
    with streaming(node, story.topic("paused")) as sent:
        # Sometimes it is stopped when nothing is left to be refused.
        assert any(is_refused_after_sleep(node, dataset, folder) for _ in range(TRIES))
    count = len(sent)
    assert count > 30
    story.await_records({"paused": count, "paused.even": (count + 1) // 2}, DRAINED)
    # Reading the chain checks every link, rule and offset.
    assert story.chain("paused").column("id") == sent
    assert story.chain("paused.even").column("id") == sent[::2]
    assert [one["verdict"] for one in story.verify("paused paused.even")] == ["valid", "valid"]
    assert node.pid("coordinator") == first, "it was refused, it did not crash"


def is_refused_after_sleep(node: EmbeddedNode, dataset: DatasetId, folder: Path) -> bool:
    """Pause the coordinator while it holds the lock and another one commits, resume it, and return whether it was refused."""
    sleeper = pause_with_the_lock(node, dataset, folder)
    asleep = time.monotonic()
    try:
        head = head_of(folder)
        with second_coordinator(node, sleeper):
            node.eventually(lambda: head_of(folder) != head, DRAINED)
            time.sleep(max(asleep + LOCK_TTL + 1 - time.monotonic(), 0))
            taken_over = blocks_of(folder)
            log = node.home / "logs" / "coordinator.log"
            said = len(log.read_text(errors="replace"))
            os.kill(sleeper, signal.SIGCONT)
            # Both are running now, and the paused one tries to finish its commit.
            node.eventually(lambda: blocks_of(folder) > taken_over + 3, DRAINED)
            deadline = time.monotonic() + REFUSED
            while time.monotonic() < deadline:
                if was_refused(log.read_text(errors="replace")[said:], dataset):
                    return True
                time.sleep(0.1)
    finally:
        os.kill(sleeper, signal.SIGCONT)
    return False


def was_refused(said: str, dataset: DatasetId) -> bool:
    """Return whether a coordinator found that another had committed the same block, or a different one."""
    return any(
        str(dataset) in line and ('"proposal overtaken"' in line or '"proposal repeated"' in line)
        for line in said.splitlines()
    )


@contextmanager
def streaming(node: EmbeddedNode, topic: str) -> Iterator[list[int]]:
    """Publish one record after the other while the block runs; the list has the ids that were acknowledged."""
    sent: list[int] = []
    stop = threading.Event()

    sender = Sender(node)

    def run() -> None:
        while not stop.is_set():
            id_ = len(sent)
            at = f"2026-01-01T{id_ // 3600 % 24:02}:{id_ // 60 % 60:02}:{id_ % 60:02}Z"
            sender.send(topic, [f'{{"id": {id_}, "at": "{at}"}}'.encode()])
            sent.append(id_)
            stop.wait(STEP)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield sent
    finally:
        stop.set()
        thread.join()


def pause_with_the_lock(node: EmbeddedNode, dataset: DatasetId, folder: Path) -> int:
    """Stop the coordinator while it holds the dataset's lock, before it moves the head; return its pid."""
    pid = node.pid("coordinator")
    assert pid is not None
    client = node.redis().client
    deadline, head = time.monotonic() + DRAINED, None
    try:
        while time.monotonic() < deadline:
            if client.get(f"odf:lock:{dataset}") is None:
                head = head_of(folder)
                time.sleep(LOOK)
                continue
            os.kill(pid, signal.SIGSTOP)
            time.sleep(0.05)
            is_locked = client.get(f"odf:lock:{dataset}") is not None
            has_lock = is_locked and not holds_file_lock(pid, node.home, dataset)
            if has_lock and head_of(folder) == head:
                return pid
            os.kill(pid, signal.SIGCONT)
            time.sleep(0.01)
    finally:
        client.close()
    raise AssertionError("the coordinator was never seen with the lock")


def holds_file_lock(pid: int, home: Path, dataset: DatasetId) -> bool:
    """Return whether a process is inside the compare-and-set; no other one could take over until it continues."""
    file = stores.lock_file(home, dataset)
    if not file.exists():
        return False
    inode = str(file.stat().st_ino)
    locks = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    return any(
        words[4] == str(pid) and words[5].endswith(f":{inode}") for words in locks if words[1] == "FLOCK"
    )


@contextmanager
def second_coordinator(node: EmbeddedNode, first: int) -> Iterator[None]:
    """Run another coordinator of the same home, started as the supervisor starts it, with separate addresses."""
    environment = dict(
        line.split("=", 1) for line in Path(f"/proc/{first}/environ").read_text().split("\0") if "=" in line
    )
    ports = allocate(node.home, ("second-coordinator", "second-coordinator-metrics"))
    environment |= {
        "ODF_INSTANCE": "second.coordinator",
        "ODF_COORDINATOR_GRPC": f"{LOOPBACK}:{ports['second-coordinator']}",
        "ODF_METRICS_PORT": str(ports["second-coordinator-metrics"]),
    }
    command = [sys.executable, "-m", "odf_coordinator"]
    with (node.home / "logs" / "second-coordinator.log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        try:
            yield
        finally:
            process.terminate()
            try:
                process.wait(30)
            finally:
                process.kill()  # one that does not end fails this story, and disturbs no other


def head_of(folder: Path) -> str:
    return (folder / "refs" / "head").read_text()


def blocks_of(folder: Path) -> int:
    """Return the number of stored blocks."""
    return sum(1 for _ in (folder / "blocks").iterdir())


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
