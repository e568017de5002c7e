"""Verification on request and after commits: progress, verdicts, and what is postponed."""

import errno
import os
import threading
import time
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast

import grpc
import pyarrow.parquet as pq
import pytest
from odf_testing.builders import (
    a_chain,
    a_dataset,
    a_derivative,
    a_hash,
    a_seed,
    a_step,
    a_transform,
    some_result,
)
from odf_testing.chains import flip
from odf_testing.memory_store import in_memory
from odf_testing.small_disk import fill, small_disk
from odf_testing.verifier import Story
from structlog.testing import capture_logs

from odf_common.chain.state import ChainState
from odf_common.codec.envelopes import envelope
from odf_common.dataset.node_datasets import NodeDatasets
from odf_common.errors import InvalidInput, NotFound, StorageUnavailable, Unavailable
from odf_common.identity.dataset_refs import DatasetId
from odf_common.identity.keys import generate
from odf_common.metadata.events import DatasetKind
from odf_common.ports.store import CatalogEntry, ObjectKind
from odf_common.proto.odf.bus.v1 import bus_pb2 as bus
from odf_common.proto.odf.node.v1 import verifier_pb2 as pb
from odf_verifier.grpc_servicer import Servicer, register
from odf_verifier.targets import Damage, Problem, Tally, Target, targets
from odf_verifier.verification import OnCommit, Verdict, VerificationOptions, VerificationProgress, Verifier

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


STEP: Final = VerificationProgress(phase="integrity", done=1, total=2)
VALID: Final = Verdict(head=None, problems=(), tally=Tally())


class Judge(Verifier):
    """Records its requests, and yields one step and the verdict."""

    def __init__(self, story: Story, verdict: Verdict = VALID) -> None:
        super().__init__(story.datasets, story.engine, story.home)
        self.asked: list[tuple[str, VerificationOptions]] = []
        self.given = 0
        self._verdict = verdict

    def verify(
        self, target: Target, options: VerificationOptions
    ) -> Iterator[VerificationProgress | Verdict]:
        self.asked.append((target.name, options))
        for item in (STEP, self._verdict):
            self.given += 1
            yield item


@pytest.fixture
def story() -> Story:
    made = Story()
    for name in ("cities", "towns"):
        made.put(a_chain(a_seed(dataset=a_dataset(name))), name=name)
    return made


def verify_items(
    story: Story, judge: Judge, *, is_active: bool = True, **request: Any
) -> list[pb.VerifyItem]:
    caller = cast("Any", SimpleNamespace(is_active=lambda: is_active))
    return list(Servicer(story.datasets, judge).Verify(pb.VerifyRequest(**request), caller))


@pytest.mark.parametrize("integrity_only", [False, True])
@pytest.mark.parametrize("incremental", [False, True])
def test_a_request_says_what_is_verified(story: Story, *, integrity_only: bool, incremental: bool) -> None:
    judge = Judge(story)
    verify_items(story, judge, refs=["towns"], integrity_only=integrity_only, incremental=incremental)
    assert judge.asked == [("towns", VerificationOptions(replay=not integrity_only, incremental=incremental))]


def test_a_verdict_has_its_counts_and_the_place_of_each_problem(story: Story) -> None:
    lost = Problem(
        kind=Damage.OBJECT_MISSING,
        block=a_hash(1),
        sequence_number=7,
        object=a_hash(2),
        text="missing in data",
    )
    problems = (lost, Problem(kind=Damage.INPUT_DIVERGED, text="reset"))
    verdict = Verdict(head=None, problems=problems, tally=Tally(blocks=3, bytes=5, transforms=2))

    step, answer = verify_items(story, Judge(story, verdict), refs=["towns"])

    assert step.progress == pb.VerifyProgress(dataset="towns", phase="integrity", done=1, total=2)
    assert answer.verdict == pb.Verdict(
        dataset="towns",
        verdict="invalid",
        problems=[
            pb.Problem(
                kind="object-missing",
                block=str(a_hash(1)),
                sequence_number=7,
                object=str(a_hash(2)),
                text="missing in data",
            ),
            pb.Problem(kind="input-diverged", text="reset"),
        ],
        blocks=3,
        bytes=5,
        transforms_replayed=2,
    )


def test_a_verification_ends_when_its_caller_has_gone(story: Story) -> None:
    judge = Judge(story)
    assert verify_items(story, judge, all=True, is_active=False) == []
    assert judge.given == 2, "the first step of each dataset, and no more"


def test_health_is_reported_for_the_service_that_is_registered(story: Story) -> None:
    server = grpc.server(ThreadPoolExecutor(1))
    assert register(server, story.datasets, Judge(story)) == ("odf.node.v1.Verifier",)


@pytest.fixture
def datasets() -> NodeDatasets:
    """Have names only: no dataset can be read."""
    made = in_memory()
    for alias in ("flights", "flights.late", "me/flights.hourly", "weather"):
        made.catalog.add(CatalogEntry(alias=alias, dataset_id=generate().dataset_id))
    return made


def names(datasets: NodeDatasets, *refs: str) -> list[str]:
    return [target.name for target in targets(datasets, refs, every=False, recursive=False)]


def test_a_pattern_covers_unreadable_datasets_too(datasets: NodeDatasets) -> None:
    assert names(datasets, "FLIGHTS.%") == ["flights.late", "me/flights.hourly"]
    assert names(datasets, "weather", "%flights%", "flights") == [
        "weather", "flights", "flights.late", "me/flights.hourly",
    ]  # fmt: skip


def test_a_pattern_without_a_match_is_an_error(datasets: NodeDatasets) -> None:
    with pytest.raises(NotFound, match=r"no dataset has a name that matches trains\.%"):
        names(datasets, "flights", "trains.%")
    with pytest.raises(InvalidInput, match="% matches anything"):
        names(datasets, "flights..%")


def test_inputs_are_those_of_the_reference() -> None:
    story = Story()
    for alias in ("cities", "towns"):
        story.put(a_chain(a_seed(dataset=a_dataset(alias))), name=alias)
    chain = a_derivative(a_dataset("cities"))
    story.put(chain, name="report")
    chain.add(a_transform(a_dataset("towns")))
    story.put(chain, ref="next")

    def found(*refs: str) -> list[str]:
        return [target.name for target in targets(story.datasets, refs, every=False, recursive=True)]

    assert found("report") == ["cities", "report"]
    assert found("report@next") == ["towns", "report@next"]
    assert found("report", "report@next") == ["cities", "report", "towns", "report@next"]


def test_what_was_read_by_an_earlier_query_is_an_input_too() -> None:
    story, cities = Story(), a_dataset("cities")
    for alias in ("cities", "towns"):
        story.put(a_chain(a_seed(dataset=a_dataset(alias))), name=alias)
    chain = a_derivative(cities)
    chain.add(
        some_result(chain.state, a_step(chain.state, cities, "head", 9)), a_transform(a_dataset("towns"))
    )
    story.put(chain, name="report")

    found = targets(story.datasets, ("report",), every=False, recursive=True)

    assert [target.name for target in found] == ["cities", "towns", "report"]


def test_inputs_are_left_out_unless_they_are_asked_for_and_all_datasets_are_each_listed_once() -> None:
    story = Story()
    story.put(a_chain(a_seed(dataset=a_dataset("cities"))), name="towns")
    story.put(a_derivative(a_dataset("cities")), name="report")
    story.catalog.add(CatalogEntry(alias="empty", dataset_id=a_dataset("empty")))

    assert names(story.datasets, "report") == ["report"]
    for recursive in (False, True):
        found = targets(story.datasets, (), every=True, recursive=recursive)
        assert [target.name for target in found] == ["empty", "report", "towns"]
        assert {target.ref for target in found} == {"head"}


def test_inputs_of_inputs_come_first_and_each_once() -> None:
    story = Story()
    story.put(a_chain(a_seed(dataset=a_dataset("cities"))), name="cities")
    for name, inputs in (("daily", ["cities"]), ("hourly", ["cities"]), ("report", ["daily", "hourly"])):
        seed = a_seed(DatasetKind.Derivative, a_dataset(name))
        story.put(a_chain(seed, a_transform(*map(a_dataset, inputs))), name=name)

    found = targets(story.datasets, ("report",), every=False, recursive=True)

    assert [target.name for target in found] == ["cities", "daily", "hourly", "report"]


def test_datasets_that_read_each_other_are_each_listed_once() -> None:
    story = Story()
    for name, other in (("ping", "pong"), ("pong", "ping")):
        seed = a_seed(DatasetKind.Derivative, a_dataset(name))
        story.put(a_chain(seed, a_transform(a_dataset(other))), name=name)

    found = targets(story.datasets, ("ping",), every=False, recursive=True)

    assert [target.name for target in found] == ["pong", "ping"]


def test_inputs_of_two_inputs_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    story = Story()
    story.put(a_chain(a_seed(dataset=a_dataset("cities"))), name="cities")
    for name, inputs in (("daily", ["cities"]), ("report", ["cities", "daily"])):
        seed = a_seed(DatasetKind.Derivative, a_dataset(name))
        story.put(a_chain(seed, a_transform(*map(a_dataset, inputs))), name=name)
    current, read = story.datasets.states.current, list[DatasetId]()

    def noted(dataset: DatasetId) -> ChainState | None:
        read.append(dataset)
        return current(dataset)

    monkeypatch.setattr(story.datasets.states, "current", noted)
    found = targets(story.datasets, ("report",), every=False, recursive=True)

    assert [target.name for target in found] == ["cities", "daily", "report"]
    assert read == [a_dataset("cities"), a_dataset("daily")]


def test_inputs_that_are_missing_or_have_no_head_do_not_hide_others() -> None:
    story = Story()
    story.catalog.add(CatalogEntry(alias="empty", dataset_id=a_dataset("empty")))
    story.put(a_chain(a_seed(dataset=a_dataset("cities"))), name="cities")
    story.put(a_derivative(*map(a_dataset, ("elsewhere", "empty", "cities"))), name="report")

    found = targets(story.datasets, ("report",), every=False, recursive=True)

    assert [target.name for target in found] == ["empty", "cities", "report"]


def test_a_folder_is_a_foreign_dataset_with_the_id_of_its_seed(
    datasets: NodeDatasets, tmp_path: Path
) -> None:
    chain, folder = a_chain(), tmp_path / "a copy"
    (folder / "blocks").mkdir(parents=True)
    url = folder.as_uri()
    assert url.endswith("/a%20copy")
    with pytest.raises(NotFound, match=f"a seed block in {folder}"):
        names(datasets, url)

    for block, raw in chain.store.items():
        (folder / "blocks" / str(block)).write_bytes(raw)
    (target,) = targets(datasets, (url,), every=False, recursive=True)

    assert (target.name, target.dataset, target.is_local) == (url, chain.state.dataset_id, False)
    assert target.reader.read_block(chain.state.head) == chain.store[chain.state.head]


def test_a_dataset_or_reference_that_does_not_exist_is_an_error(datasets: NodeDatasets) -> None:
    with pytest.raises(NotFound, match=r"dataset flihgts does not exist; did you mean flights\?"):
        names(datasets, "flihgts")
    with pytest.raises(NotFound, match="dataset trains"):
        names(datasets, "trains")
    with pytest.raises(NotFound, match="reference next of flights"):
        names(datasets, "flights@next")


@pytest.mark.parametrize("is_recursive", [False, True], ids=["alone", "with-inputs"])
def test_a_dataset_without_a_head_is_listed_since_that_is_a_finding(
    datasets: NodeDatasets, is_recursive: bool
) -> None:
    found = targets(datasets, ("flights",), every=False, recursive=is_recursive)
    assert [target.name for target in found] == ["flights"]
