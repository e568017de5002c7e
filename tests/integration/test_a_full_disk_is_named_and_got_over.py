"""Datasets on a disk that is really full: nothing crashes, all is reported, reading continues, and nothing is lost."""

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Self

import pytest
import urllib3
from odf_testing.chains import assert_objects_are_whole
from odf_testing.embedded import EmbeddedNode
from odf_testing.small_disk import fill, small_disk
from odf_testing.story import Row, Sender, Story, derivative, ledger, root

COLUMNS: Final = ("id BIGINT", "amount DOUBLE", "at TIMESTAMP(3)")
ROOTS: Final = ("full.append", "full.ledger")
DERIVED: Final = "full.derived"
ALL: Final = (*ROOTS, DERIVED)
SIZE: Final = "8m"
BATCH: Final = 20  # records
PAUSE: Final = 0.2  # seconds between two batches
ANSWER_SECONDS: Final = 5.0
SERVICES: Final = ("ingest", "coordinator", "verifier", "sync")
FULL: Final = "the disk is full (No space left on device)"


def record(id_: int) -> Row:
    return {"id": id_, "amount": id_ / 4, "at": "2026-01-01T00:00:00Z"}


@pytest.fixture(scope="module")
def full(node: EmbeddedNode, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedNode]:
    """A node whose datasets are on a small file system; its engine and Kafka, of another node, write elsewhere."""
    node = node.guest(tmp_path_factory.mktemp("full"))
    with small_disk(node.home / "datasets", size=SIZE):
        node.up(*SERVICES)
        try:
            yield node
        finally:
            node.down()


class Stream:
    """Publishes the records 0, 1, … to all roots, batch after batch; `sent` is how many each has."""

    def __init__(self, story: Story) -> None:
        self.sent = 0
        self._topics = [story.topic(name) for name in ROOTS]
        self._sender = Sender(story.node)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(PAUSE):
            messages = [json.dumps(record(id_)).encode() for id_ in range(self.sent, self.sent + BATCH)]
            for topic in self._topics:
                self._sender.send(topic, messages)
            self.sent += BATCH


def pids(node: EmbeddedNode) -> dict[str, int | None]:
    return {name: node.pid(name) for name in SERVICES}


def require_named(node: EmbeddedNode) -> None:
    """`odf status` reports for each dataset that the disk is full and what to do, and counts waiting messages.

    Of the derivative only if it still had something to write.
    """

    def is_named() -> bool:
        status = node.run("status --output json")
        named = {one["of"] for one in status["problems"] if FULL in one["problem"] and one["remedy"]}
        waiting = {one["alias"]: one["lag"] for one in status["datasets"]}
        return set(ROOTS) <= named <= set(ALL) and all(waiting[name] > 0 for name in ROOTS)

    node.eventually(is_named)
    (problem,) = {one["remedy"] for one in node.run("status --output json")["problems"]}
    assert problem.startswith("free space on the disk that holds the node's home")


def require_refused(story: Story, tmp_path: Path) -> None:
    """Writes are refused explicitly, and leave no files."""
    file = tmp_path / "one.ndjson"
    file.write_text(json.dumps(record(999_999)))
    license_ = tmp_path / "license.yaml"
    license_.write_text("{kind: SetLicense, shortName: x, name: x, websiteUrl: 'http://example.org'}")
    (row,) = story.node.run(f"ingest {ROOTS[0]} {file} --output json", code=1)
    assert row["outcome"] == "refused"
    assert FULL in row["error"]
    assert row["error"].endswith("nothing was committed")
    assert FULL in story.refused(root("full.new", COLUMNS))
    assert FULL in story.node.fails(f"commit {ROOTS[0]} {license_}")
    assert FULL in story.node.fails(f"rename {ROOTS[0]} full.other")


def require_read(story: Story) -> None:
    """Committed data is listed, shown, queried and verified."""
    counts = dict(zip(ALL, story.records(*ALL), strict=True))
    for name, count in counts.items():
        assert [row["id"] for row in story.tail(name)] == list(range(count))
    (answer,) = story.node.run(f"sql -c 'SELECT count(*) AS n FROM `{DERIVED}`' --output json")
    assert answer["n"] == counts[DERIVED]
    assert {row["verdict"] for row in story.verify("--all")} == {"valid"}


def test_a_full_disk_stops_commits_only_and_they_continue_when_there_is_space(
    full: EmbeddedNode, tmp_path: Path
) -> None:
    node, story = full, Story(full)
    story.add(
        root(ROOTS[0], COLUMNS, event_time="at"), root(ROOTS[1], COLUMNS, merge=ledger("id"), event_time="at")
    )
    story.add(derivative(DERIVED, {"i": ROOTS[0]}, "SELECT at AS event_time, id FROM i"))
    with Stream(story) as stream:
        node.eventually(lambda: all(count > 0 for count in story.records(*ALL)))
        before = pids(node)
        filler = fill(node.home / "datasets")
        require_named(node)
        require_refused(story, tmp_path)
        require_read(story)
        assert pids(node) == before
        old = {name: node.kill(name) for name in ("coordinator", "ingest")}
        for name, pid in old.items():
            node.await_restart(name, pid)
        require_named(node)  # a node starts on a full disk, and reports the same
        filler.unlink()
        published = stream.sent
        node.eventually(lambda: min(story.records(*ALL)) >= published)
    story.await_records(dict.fromkeys(ALL, stream.sent))
    node.eventually(lambda: node.run("status --output json")["problems"] == [])
    for name in ALL:
        assert story.chain(name).column("id") == list(range(stream.sent))
        assert_objects_are_whole(story.folder(name))
    assert {row["verdict"] for row in story.verify("--all")} == {"valid"}
    assert list(node.home.rglob(".pending-*")) == []
    assert story.find("full.new") is None


@pytest.fixture(scope="module")
def cramped(node: EmbeddedNode, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedNode]:
    """A node whose whole home is on a small file system, with its logs and accepted pushes."""
    home = tmp_path_factory.mktemp("disk") / "cramped"
    with small_disk(home, size="16m"):
        node = node.guest(home)
        node.up(*SERVICES)
        try:
            yield node
        finally:
            node.down()


def push(node: EmbeddedNode, id_: int) -> tuple[int, str | None, float]:
    """Push a record over HTTP; return the status, when to repeat it, and the seconds until the answer."""
    begun = time.monotonic()
    url = f"{node.node.http}/{ROOTS[0]}/ingest?wait=commit"
    headers = {"Content-Type": "application/x-ndjson", "Idempotency-Key": f"push {id_}"}
    answer = urllib3.request("POST", url, body=json.dumps(record(id_)), headers=headers, retries=False)
    return answer.status, answer.headers.get("Retry-After"), time.monotonic() - begun


def problems_of(node: EmbeddedNode, *datasets: str) -> list[str]:
    """Return what `odf status` says of datasets; that the disk is nearly full, it always says of this one."""
    return [
        one["problem"] for one in node.run("status --output json")["problems"] if one.get("of") in datasets
    ]


def test_a_push_to_a_full_home_is_asked_to_come_back_and_its_repeat_is_committed_once(
    cramped: EmbeddedNode,
) -> None:
    story = Story(cramped)
    story.add(root(ROOTS[0], COLUMNS, event_time="at"))
    story.add(derivative(DERIVED, {"i": ROOTS[0]}, "SELECT at AS event_time, id FROM i"))
    assert push(cramped, 0)[0] == 200
    before = pids(cramped)
    filler = fill(cramped.home)
    status, retry_after, seconds = push(cramped, 1)
    assert (status, retry_after, seconds < ANSWER_SECONDS) == (507, "1", True)
    story.publish(ROOTS[0], [json.dumps(record(2)).encode()])
    cramped.eventually(lambda: FULL in "".join(problems_of(cramped, ROOTS[0])))
    filler.unlink()
    cramped.eventually(lambda: push(cramped, 1)[0] == 200)
    story.await_records({ROOTS[0]: 3, DERIVED: 3})
    assert sorted(story.chain(ROOTS[0]).column("id")) == [0, 1, 2]
    assert {row["verdict"] for row in story.verify("--all")} == {"valid"}
    assert pids(cramped) == before
    cramped.eventually(lambda: problems_of(cramped, ROOTS[0], DERIVED) == [])
