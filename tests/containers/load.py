"""Datasets under load, and observations of them: acknowledged records, answers over HTTP, `odf status`.

The load is a container of its own (`inside/load.py`), so that it meets broken networks as any client would.
"""

import json
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

import docker.errors
from docker.models.containers import Container
from odf_testing.story import as_text, derivative, root
from tests.containers.node import COMMAND, CommandFailed, Node

from odf_common.metadata.scalars import Timestamp

COLUMNS: Final = ("id BIGINT", "at TIMESTAMP(3)", "bucket STRING", "value BIGINT")
# Longer than any push waits for its commit, so that no record is late.
WATERMARK_DELAY: Final = "10m"
WINDOW_SECONDS: Final = 5
WINDOWS: Final = f"""
    SELECT window.start AS event_time, count(*) AS n, sum(value) AS total
    FROM ev GROUP BY window(at, '{WINDOW_SECONDS} seconds')"""
BUCKETS: Final = (
    "SELECT max(at) AS event_time, bucket, count(*) AS n, max(value) AS top FROM ev GROUP BY bucket"
)
# Older records, so that the watermark, which lags by that delay, closes windows from the beginning.
HISTORY_SECONDS: Final = 900
HISTORY: Final = range(-300, 0)
FIRST_PUSH: Final = 1_000_000_000  # as in inside/load.py
END_SECONDS: Final = 200
STATUS_POLL_SECONDS: Final = 1.0
ACCOUNT: Final = "load"


@dataclass(frozen=True, slots=True)
class Datasets:
    """A root and its two derivatives."""

    root: str

    @property
    def windows(self) -> str:
        """Records by windows of five seconds."""
        return f"{self.root}.windows"

    @property
    def buckets(self) -> str:
        """Count and maximum by bucket, corrected with each block."""
        return f"{self.root}.buckets"

    def __iter__(self) -> Iterator[str]:
        """Yield the names, inputs first."""
        return iter((self.root, self.windows, self.buckets))

    def add(self, node: Node) -> None:
        """Create the datasets."""
        manifests = as_text(
            root(self.root, COLUMNS, event_time="at"),
            derivative(self.windows, {"ev": self.root}, WINDOWS),
            derivative(self.buckets, {"ev": self.root}, BUCKETS),
        )
        _shell(node, 'printf %s "$MANIFESTS" | odf add -', MANIFESTS=manifests.decode())
        node.odf("source", "set", self.root, f"watermarkDelay={WATERMARK_DELAY}")
        script = f'printf %s "$RECORDS" | odf ingest {self.root} -'
        _shell(node, script, RECORDS=history(time.time()))

    def delete(self, node: Node) -> None:
        """Delete the datasets, derivatives first."""
        node.execute(COMMAND, ["odf", "delete", "--yes", self.buckets, self.windows, self.root])


def history(until: float) -> str:
    """Return records of the time before the load, as NdJson."""
    begin, step = until - HISTORY_SECONDS, HISTORY_SECONDS / len(HISTORY)
    times = [Timestamp.from_ms(int((begin + place * step) * 1000)) for place in range(len(HISTORY))]
    rows = ({"id": number, "at": str(at), "bucket": f"b{number % 10}", "value": number % 1000}
            for number, at in zip(HISTORY, times, strict=True))  # fmt: skip
    return "".join(f"{json.dumps(row)}\n" for row in rows)


def _shell(node: Node, script: str, **environment: str) -> None:
    status, output, errors = node.execute(COMMAND, ["sh", "-c", script], environment=environment)
    if status != 0:
        raise CommandFailed(f"{script}: {output}{errors}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An answer to a push over HTTP; `status` is 0 if there was none, times are in seconds since 1970."""

    push: int
    begun: float
    seconds: float
    status: int
    retry_after: str | None
    text: str


@dataclass(slots=True)
class Load:
    """A load, and its reports once it has ended."""

    container: Container
    acknowledged: set[int] = field(default_factory=lambda: set(HISTORY))
    answers: list[Answer] = field(default_factory=list)
    unacknowledged: int = 0

    def stop(self) -> None:
        """End the load, wait for what it has sent, and read what it reported."""
        self.container.kill("SIGTERM")
        self.container.wait(timeout=END_SECONDS)
        self._read(self.container.logs(stdout=True, stderr=False).decode().splitlines())

    def _read(self, lines: Iterable[str]) -> None:
        ended = set()
        for line in map(json.loads, lines):
            for first, last in line.get("acknowledged", ()):
                self.acknowledged.update(range(first, last + 1))
            if "push" in line:
                answer = Answer(**line)
                self.answers.append(answer)
                if answer.status == 200:
                    self.acknowledged.add(answer.push)
            if "done" in line:
                ended.add(line["done"])
                self.unacknowledged += line["unacknowledged"]
        if ended != {"topic", "http"}:
            raise AssertionError(f"the load ended early:\n{self.container.logs().decode()[-3000:]}")


def write_token(node: Node) -> str:
    """Return a token with which the load may push."""
    node.odf("account", "add", ACCOUNT, "--no-password")
    return str(node.odf("token", "create", ACCOUNT, "--expires", "never")["token"])


def start_load(node: Node, datasets: Datasets, token: str) -> Load:
    """Start a load on a root."""
    topic = f"odf.push.{datasets.root}.default"
    url = f"http://sync:5545/{datasets.root}/ingest?wait=commit"
    return Load(node.run_beside("load", {"TOPIC": topic, "URL": url, "TOKEN": token}))


@dataclass(slots=True)
class StatusWatch:
    """The first problems of `odf status`, and when it named them (monotonic clock); None if it named none."""

    at: float | None = None
    problems: Mapping[str, str] = field(default_factory=dict)


@contextmanager
def status_watched(node: Node, expected: Iterable[str]) -> Iterator[StatusWatch]:
    """Ask `odf status` until it names one of the parts that are `expected`, meanwhile."""
    watch, ended, parts = StatusWatch(), threading.Event(), set(expected)

    def ask() -> None:
        while not ended.wait(STATUS_POLL_SECONDS):
            with suppress(CommandFailed, docker.errors.APIError, ValueError):
                problems = _problems(node.status())
                if parts & problems.keys():
                    watch.problems, watch.at = problems, time.monotonic()
                    return

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    try:
        yield watch
    finally:
        ended.set()
        thread.join()


def _problems(status: Mapping[str, Any]) -> dict[str, str]:
    return {str(one["of"]): str(one["problem"]) for one in status["problems"]}
