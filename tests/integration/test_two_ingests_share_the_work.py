"""A second ingest takes over a part of the datasets, and gives it back when it is killed."""

import itertools
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from odf_testing.embedded import EmbeddedNode
from odf_testing.manifests import APPEND, root
from odf_testing.story import Row, Story

COLUMNS = ("id BIGINT", "at TIMESTAMP(3)")
DATASETS = tuple(f"shared.{number}" for number in range(4))
EACH = 50  # records a round
PAUSE = 0.3  # seconds between rounds
PATIENCE = 120.0  # seconds until the second ingest has started, got datasets and committed


@pytest.fixture
def second(node: EmbeddedNode, tmp_path: Path) -> Iterator["Second"]:
    made = Second(node, tmp_path / "log")
    yield made
    made.kill()


class Second:
    """Another ingest of the same node."""

    def __init__(self, node: EmbeddedNode, log: Path) -> None:
        pid = node.pid("ingest")
        raw = Path(f"/proc/{pid}/environ").read_bytes()
        pairs = (one.partition(b"=") for one in raw.split(b"\0") if one)
        self._environment = {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}
        self._environment["ODF_INGEST_GRPC"] = f"127.0.0.1:{_free_port()}"
        self._environment.pop("ODF_METRICS_PORT", None)
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("wb") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "odf_ingest"],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def said(self) -> str:
        return self._log.read_text(errors="replace")


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def records(number: int) -> list[Row]:
    first = number * EACH
    return [
        {"id": id_, "at": f"2026-01-01T00:{number // 60:02}:{number % 60:02}Z"}
        for id_ in range(first, first + EACH)
    ]


def test_records_are_taken_once_whichever_instance_takes_them(story: Story, second: Second) -> None:
    for name in DATASETS:
        story.add(root(name, COLUMNS, event_time="at", merge=APPEND))
    rounds = itertools.count()

    def publish_round() -> None:
        number = next(rounds)
        for name in DATASETS:
            story.publish(name, records(number))
        time.sleep(PAUSE)

    publish_round()
    second.start()
    deadline = time.monotonic() + PATIENCE
    while "records committed" not in second.said():
        assert time.monotonic() < deadline, f"it never got a dataset of its own\n{second.said()}"
        publish_round()
    publish_round()
    second.kill()
    for _ in range(3):
        publish_round()
    story.pull(" ".join(DATASETS))
    published = next(rounds) * EACH
    for name in DATASETS:
        table = story.chain(name).table
        assert table is not None
        assert table.column("id").to_pylist() == list(range(published)), name
    assert {one["verdict"] for one in story.verify(" ".join(DATASETS))} == {"valid"}
