"""Verification on request and after commits: progress, verdicts, and what is postponed."""

import errno
import os
import threading
import time
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pyarrow.parquet as pq
import pytest
from odf_testing.damage import flip
from odf_testing.small_disk import fill, small_disk
from structlog.testing import capture_logs

from odf_common.codec.envelopes import envelope
from odf_common.errors import StorageUnavailable, Unavailable
from odf_common.ports.store import ObjectKind
from odf_common.proto.odf.bus.v1 import bus_pb2 as bus
from odf_common.proto.odf.node.v1 import verifier_pb2 as pb
from odf_verifier.grpc_servicer import Servicer
from odf_verifier.targets import targets
from odf_verifier.verification import OnCommit

from .test_whole_verification import NEW, Node
from .test_whole_verification import node as node  # noqa: PLC0414 - a fixture

WAIT_SECONDS = 20.0


class Context:
    """A caller that stays connected."""

    def is_active(self) -> bool:
        return True


def answers(node: Node, **request: Any) -> list[pb.VerifyItem]:
    servicer = Servicer(node.datasets, node.verifier)
    return list(servicer.Verify(pb.VerifyRequest(**request), cast("Any", Context())))


def test_a_request_is_answered_with_progress_and_a_verdict_for_each_dataset(node: Node) -> None:
    items = answers(node, all=True)

    verdicts = {item.verdict.dataset: item.verdict for item in items if item.HasField("verdict")}
    assert {name: verdict.verdict for name, verdict in verdicts.items()} == {
        "cities": "valid",
        "copy": "valid",
    }
    assert verdicts["copy"].transforms_replayed == 2
    for phase in ("integrity", "replay"):
        done = [
            (item.progress.done, item.progress.total)
            for item in items
            if (item.progress.dataset, item.progress.phase) == ("copy", phase)
        ]
        assert done == [(1, 2), (2, 2)]


def test_a_request_may_leave_the_replay_out(node: Node) -> None:
    ran = len(node.engine.requests)
    (*_, last) = answers(node, refs=["copy"], integrity_only=True)
    assert (last.verdict.verdict, last.verdict.transforms_replayed) == ("valid", 0)
    assert len(node.engine.requests) == ran


def test_a_dataset_that_cannot_be_verified_now_is_reported_with_the_reason_and_the_others_are_verified(
    node: Node,
) -> None:
    node.engine.failures = [Unavailable(what="the engine", why="it is starting")]

    items = answers(node, refs=["copy", "cities"])

    copy, cities = (item.verdict for item in items if item.HasField("verdict"))
    assert (copy.verdict, copy.problems[0].kind) == ("failed", "Unavailable")
    assert "it is starting" in copy.problems[0].text
    assert cities.verdict == "valid"


@contextmanager
def running(work: Callable[[threading.Event], None]) -> Iterator[threading.Thread]:
    stop = threading.Event()
    thread = threading.Thread(target=work, args=(stop,), daemon=True)
    thread.start()
    try:
        yield thread
    finally:
        stop.set()
        thread.join()


def await_true(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def notified(node: Node, ref: str, *bodies: Any) -> Any:
    """Return the service, notified of commits to a dataset."""
    service = node.build()
    (subscription,) = service.subscriptions
    for body in bodies or (bus.Committed(),):
        subscription.handler(envelope(node.coordinator.find(ref).id, body))
    return service


def test_announced_commits_are_verified_and_replayed(node: Node) -> None:
    service = notified(node, "copy")
    (background,) = service.background

    with running(background):
        await_true(lambda: node.is_remembered("copy", "replay"))

    assert node.is_remembered("copy", "bytes")
    assert not node.is_remembered("copy", "integrity"), "no record was read"
    verdict = node.verify("copy", NEW)
    assert (verdict.tally.blocks > 0, verdict.tally.transforms) == (True, 0)


def test_nothing_is_checked_when_commits_are_not_to_be_verified(node: Node) -> None:
    service = node.build(looks=False)
    assert (service.subscriptions, service.background) == ((), ())


def above_debug(log: Sequence[MutableMapping[str, Any]]) -> list[MutableMapping[str, Any]]:
    return [entry for entry in log if entry["log_level"] != "debug"]


def test_a_commit_that_is_damaged_is_reported_in_the_log(node: Node) -> None:
    file = node.file("copy", ObjectKind.DATA)
    flip(file)

    with capture_logs() as log, running(notified(node, "copy").background[0]):
        await_true(lambda: bool(above_debug(log)))

    (entry,) = above_debug(log)
    assert (entry["event"], entry["log_level"]) == ("verification failed", "error")
    assert (entry["dataset"], entry["kind"]) == ("copy", "physical-hash-mismatch")
    assert entry["object"] == file.name


def test_a_dataset_that_cannot_be_verified_is_postponed_and_the_next_one_is_verified(node: Node) -> None:
    node.engine.failures = [Unavailable(what="the engine")]
    on_commit = OnCommit(node.verifier)
    for target in targets(node.datasets, ("copy", "cities"), every=False, recursive=False):
        on_commit.add(target)

    with capture_logs() as log, running(on_commit.run):
        await_true(lambda: node.is_remembered("cities", "replay"))
        await_true(lambda: node.is_remembered("copy", "replay"))  # the engine is back

    assert [(entry["log_level"], entry["dataset"]) for entry in above_debug(log)] == [("warning", "copy")]


def test_a_name_that_passed_to_another_dataset_is_verified_as_that_one(node: Node) -> None:
    on_commit = OnCommit(node.verifier)
    (cities,) = targets(node.datasets, ("cities",), every=False, recursive=False)
    (copy,) = targets(node.datasets, ("copy",), every=False, recursive=False)
    on_commit.add(cities)
    on_commit.add(replace(copy, name="cities"))

    with running(on_commit.run):
        await_true(lambda: node.is_remembered("copy", "replay"))

    assert not node.is_remembered("cities", "bytes")


def test_a_commit_is_verified_after_a_quiet_period(node: Node) -> None:
    on_commit = OnCommit(node.verifier)
    with running(on_commit.run) as thread:
        time.sleep(1.2)  # it checks twice, and finds nothing
        assert thread.is_alive()
        for target in targets(node.datasets, ("cities",), every=False, recursive=False):
            on_commit.add(target)
        await_true(lambda: node.is_remembered("cities", "replay"))


def test_a_full_disk_postpones_verification_until_it_is_freed(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    with small_disk(disk, size="4m"):
        node = Node(disk / "home")
        filler = fill(disk)
        (copy,) = targets(node.datasets, ("copy",), every=False, recursive=False)
        on_commit = OnCommit(node.verifier)
        on_commit.add(copy)

        with capture_logs() as log, running(on_commit.run):
            await_true(lambda: bool(above_debug(log)))
            filler.unlink()
            await_true(lambda: node.is_remembered("copy", "replay"))

    (entry,) = above_debug(log)
    assert (entry["event"], entry["log_level"]) == ("verification postponed", "warning")
    assert entry["why"].startswith("the disk is full (No space left on device): ")


@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE, errno.ENOMEM])
def test_a_slice_that_cannot_be_opened_now_is_not_reported_as_damaged(
    node: Node, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(pq, "ParquetFile", fail)
    with pytest.raises(StorageUnavailable):
        node.verify("cities")
