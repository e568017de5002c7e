"""Kills parts of a node while it is working, and repeats commands until all is done."""

import json
import os
import random
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from odf_testing.embedded import EmbeddedNode
from odf_testing.story import Row, Sender, Story

JVM: Final = "the JVM"
ENGINE: Final = "engine-spark"
Messages = Mapping[str, Sequence[bytes]]
_TRIES: Final = 60


def disturbed(story: Story, victim: str, source: random.Random, *, files: Messages, topics: Messages) -> None:
    """Send with `odf ingest` and through Kafka, pull, and kill meanwhile; return when all is committed and running."""
    node, sender = story.node, Sender(story.node)
    for name, messages in topics.items():
        sender.send(story.topic(name), messages)
    commands = []
    for name, messages in files.items():
        file = node.home / f"{name}.ndjson"
        file.write_bytes(b"\n".join(messages))
        commands.append(f"ingest {name} {file} --idempotency-key {source.random()}")
    running = {command: node.start(command) for command in (*commands, "pull --all")}
    time.sleep(source.uniform(0, 2))
    part = ENGINE if victim == JVM else victim
    old = node.pid(part)
    assert old is not None
    os.kill(jvm(old) if victim == JVM else old, signal.SIGKILL)
    for process in running.values():
        said = process.communicate()[1].decode()
        assert process.returncode in (0, 1), said
        assert "Traceback" not in said, said
    node.await_restart(part, old)
    for command in commands:
        done(node, command)  # what was committed already is not committed again
    settle(story, " ".join((*files, *topics)))  # so that the next round's records come after these


def done(node: EmbeddedNode, command: str) -> list[Row]:
    """Repeat a command while something that it needs is unreachable; return its rows."""
    said = b""
    for _ in range(_TRIES):
        process = node.start(f"{command} --output json")
        rows, said = process.communicate()
        if process.returncode == 0:
            return list(json.loads(rows))
        time.sleep(1)
    raise AssertionError(f"odf {command}: {said.decode()}")


def settle(story: Story, datasets: str = "--all") -> None:
    """Pull until nothing is left to do."""
    while {row["state"] for row in done(story.node, f"pull {datasets}")} != {"up-to-date"}:
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
