"""Kills parts of a node while it is busy, and repeats commands until all is done."""

import json
import os
import random
import re
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from odf_testing.embedded import PATIENCE, EmbeddedNode
from odf_testing.story import Row, Sender, Story

JVM: Final = "the JVM"
ENGINE: Final = "engine-spark"
Messages = Mapping[str, Sequence[bytes]]
_TRIES: Final = 60
_LOOK_SECONDS: Final = 0.002
# The entries of a part's debug log when a unit of its work begins and ends.
_WORK: Final = {
    "coordinator": (b"transform step begins", b"transform step ends"),
    "ingest": (b"proposing a block", b"proposal answered"),
    ENGINE: (b"request begins", b"request ends"),
}


def disturbed(
    story: Story, victim: str, source: random.Random, *, files: Messages, topics: Messages, pulled: str
) -> None:
    """Send with `odf ingest` and through Kafka, pull, and kill meanwhile; return when all is committed and running.

    The victim is in the middle of its work when it is killed; the node's log level is debug, so that its log shows it.
    """
    node, sender = story.node, Sender(story.node)
    for name, messages in topics.items():
        sender.send(story.topic(name), messages)
    commands = []
    for name, messages in files.items():
        file = node.home / f"{name}.ndjson"
        file.write_bytes(b"\n".join(messages))
        commands.append(f"ingest {name} {file} --idempotency-key {source.random()}")
    part = ENGINE if victim == JVM else victim
    work = Work(node, part)
    running = {command: node.start(command) for command in (*commands, f"pull {pulled}")}
    time.sleep(source.uniform(0, 0.5))
    old = killed_while_busy(node, part, work, with_jvm=victim == JVM)
    for process in running.values():
        said = process.communicate()[1].decode()
        assert process.returncode in (0, 1), said
        assert "Traceback" not in said, said
    node.await_restart(part, old)
    for command in commands:
        done(node, command)  # what was committed already is not committed again
    settle(story, " ".join((*files, *topics)))  # so that the next round's records come after these


class Work:
    """What a part has done since this was created, by its log."""

    def __init__(self, node: EmbeddedNode, part: str) -> None:
        self._log = node.home / "logs" / f"{part}.log"
        self._start = self._log.stat().st_size
        self._begins, self._ends = _WORK[part]

    def is_under_way(self) -> bool:
        """Return whether pieces have begun that have not ended; those that had begun before are not counted."""
        with self._log.open("rb") as log:
            log.seek(self._start)
            text = log.read()
        under_way = 0
        for line in re.findall(rb"%b|%b" % (self._begins, self._ends), text):
            under_way = under_way + 1 if line == self._begins else max(0, under_way - 1)
        return under_way > 0


def killed_while_busy(node: EmbeddedNode, part: str, work: Work, *, with_jvm: bool = False) -> int:
    """Kill a part, or only its JVM, while a piece of its work is under way; return the pid of the part."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        pid = node.pid(part)
        if pid is not None and work.is_under_way():
            os.kill(pid, signal.SIGSTOP)  # so that it cannot finish between the check and the kill
            try:
                if work.is_under_way():
                    os.kill(jvm(pid) if with_jvm else pid, signal.SIGKILL)
                    return pid
            finally:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
        time.sleep(_LOOK_SECONDS)
    raise AssertionError(f"{part} had nothing to do")


@contextmanager
def paused(node: EmbeddedNode, part: str) -> Iterator[None]:
    """Pause a part; afterwards it goes on, unless it was killed."""
    pid = node.kill(part, signal.SIGSTOP)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def done(node: EmbeddedNode, command: str) -> list[Row]:
    """Repeat a command while one of its dependencies is unreachable; return its rows."""
    said = b""
    for _ in range(_TRIES):
        ended = node.attempt(f"{command} --output json")
        if ended.returncode == 0:
            return list(json.loads(ended.stdout))
        said = ended.stderr
        time.sleep(1)
    raise AssertionError(f"odf {command}: {said.decode()}")


def settle(story: Story, datasets: str) -> None:
    """Pull until nothing is left to do."""
    while not {row["state"] for row in done(story.node, f"pull {datasets}")} <= {"up-to-date", "waiting"}:
        pass


def jvm(parent: int | None) -> int:
    """Return the JVM that a process has started."""
    assert parent is not None, "it is being restarted"
    lists = [file.read_text().split() for file in Path(f"/proc/{parent}/task").glob("*/children")]
    (found,) = [int(pid) for each in lists for pid in each if is_java(int(pid))]
    return found


def is_java(pid: int) -> bool:
    """Return whether a process is a JVM."""
    return Path(f"/proc/{pid}/comm").read_text().strip() == "java"
