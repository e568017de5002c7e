"""What a pull reports of a dataset, and when it ends early."""

from collections.abc import Generator, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from odf_testing.coordinator import Coordinator
from structlog.testing import capture_logs

from odf_common.errors import Unavailable
from odf_common.identity.dataset_refs import DatasetId
from odf_common.metadata.events import DisablePushSource
from odf_coordinator.operations import pull
from odf_coordinator.operations.pull import PullProgress
from odf_coordinator.transforms.runner import count_late
from odf_coordinator.transforms.scheduler import Scheduler


def pulled(node: Coordinator, ref: str) -> PullProgress:
    with node.scheduler_running():
        return [*node.puller.pull([ref], is_all=False, is_recursive=False, is_wanted=lambda: True)][-1]


def test_only_records_that_were_late_in_this_pull_count(
    node: Coordinator, root: str, derivative: str
) -> None:
    node.add(root, derivative)
    with capture_logs():
        count_late(node.blobs, node.find("cities.copy"), 2)
    assert pulled(node, "cities.copy").new_late == 0


@pytest.fixture
def polled(node: Coordinator) -> Coordinator:
    text = """
kind: DatasetSnapshot
version: 1
content:
  name: cities
  kind: Root
  metadata:
    - kind: SetPollingSource
      fetch: {kind: Url, url: https://example.com/data.json}
      read: {kind: NdJson, ddlSchema: [event_time TIMESTAMP, city STRING]}
      merge: {kind: Append}
"""
    node.add(text)
    return node


def test_blocks_that_were_committed_before_a_poll_failed_count(polled: Coordinator) -> None:
    def poll(_: DatasetId) -> Generator[str, None, None]:
        yield "fetching"
        polled.push("cities", "Oslo", "Rome")
        raise Unavailable(what="the server")

    before = polled.find("cities").state
    puller = replace(polled.puller, poll=poll)
    step = [*puller.pull(["cities"], is_all=False, is_recursive=False, is_wanted=lambda: True)][-1]
    after = polled.find("cities").state
    assert (step.state, step.new_records, step.head) == ("failed", 2, after.head)
    assert step.new_blocks == after.sequence_number - before.sequence_number


def test_blocks_that_were_committed_before_a_drain_failed_count(node: Coordinator, root: str) -> None:
    node.add(root)
    node.push("cities", "Bern")

    def drain(_: DatasetId) -> Iterator[int]:
        node.push("cities", "Oslo", "Rome", minute=1)
        yield 1
        raise Unavailable(what="Kafka")

    puller = replace(node.puller, drain=drain)
    *_, waiting, failed = puller.pull(["cities"], is_all=False, is_recursive=False, is_wanted=lambda: True)
    assert (waiting.state, failed.state) == ("waiting", "failed")
    assert (failed.new_blocks, failed.new_records) == (1, 2)
    assert failed.head == node.find("cities").state.head


def test_a_pull_of_a_chain_that_is_lost_meanwhile_fails_with_the_first_error(polled: Coordinator) -> None:
    def poll(dataset: DatasetId) -> Generator[str, None, None]:
        yield "fetching"
        polled.catalog.remove("cities")
        polled.blobs.delete_dataset(dataset)
        polled.states.forget(dataset)
        raise Unavailable(what="the server")

    before = polled.find("cities").state
    puller = replace(polled.puller, poll=poll)
    step = [*puller.pull(["cities"], is_all=False, is_recursive=False, is_wanted=lambda: True)][-1]
    assert (step.state, step.new_blocks, step.head) == ("failed", 0, before.head)
    assert "the server" in step.error


def test_a_root_without_sources_is_not_drained(node: Coordinator, root: str) -> None:
    node.add(root)
    node.editor.commit_event("cities", DisablePushSource(source_name="default"))
    step = pulled(node, "cities")
    assert (step.state, step.new_blocks, step.new_records) == ("up-to-date", 0, 0)
    assert node.ingest.drained == []


def test_a_poll_ends_once_its_caller_has_gone(polled: Coordinator) -> None:
    stages: list[str] = []

    def poll(_: DatasetId) -> Generator[str, None, None]:
        for stage in ("one", "two", "three"):
            stages.append(stage)
            yield stage

    puller = replace(polled.puller, poll=poll)
    steps = puller.pull(["cities"], is_all=False, is_recursive=False, is_wanted=lambda: len(stages) < 2)
    reported = [step.progress.stage for step in steps if step.progress is not None]
    assert reported == stages == ["one", "two"]


@pytest.fixture
def waiting(node: Coordinator, root: str, derivative: str, monkeypatch: pytest.MonkeyPatch) -> Coordinator:
    """Return a node whose derivative waits for an engine that is away."""
    monkeypatch.setattr(pull, "CALLER_CHECK_SECONDS", 0.001)
    node.add(root, derivative)
    node.push("cities", "Oslo")
    node.engine.failures = [Unavailable(what="the engine")]
    node.work()
    return node


def states(node: Coordinator, most: int) -> list[str]:
    found: list[str] = []
    steps = node.puller.pull(
        ["cities.copy"], is_all=False, is_recursive=False, is_wanted=lambda: len(found) < most
    )
    for step in steps:
        found.append(step.state)  # noqa: PERF401 - `is_wanted` looks at it meanwhile
    return found


def test_a_pull_waits_while_the_engine_is_away(waiting: Coordinator) -> None:
    found = states(waiting, 5)
    assert (found.count("waiting") > 1, "failed" in found) == (True, False)


def test_a_pull_fails_once_the_engine_is_away_for_too_long(
    waiting: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pull, "ENGINE_TIMEOUT_SECONDS", 0.0)
    assert states(waiting, 3)[-1] == "failed"


def test_readers_of_rebuilt_data_may_continue(tmp_path: Path, root: str, derivative: str) -> None:
    node = Coordinator(home=tmp_path)
    node.add(root, derivative)
    node.push("cities", "Oslo")
    node.work()
    node.dropper.drop("cities.copy")
    heard: list[DatasetId] = []
    node.committer.listen(lambda state: heard.append(state.dataset_id))

    assert pulled(node, "cities.copy").state == "rebuilt"

    assert heard == [node.find("cities.copy").id]
    assert pulled(node, "cities.copy").state == "up-to-date"
    assert len(heard) == 1, "nothing was rebuilt"


class AwayEngine:
    """A scheduler whose runs never end; each wait for one takes a second, after which the engine is lost or not."""

    def __init__(self, *losses: str) -> None:
        self.now = 0.0
        self._losses = iter(losses)
        self.running = SimpleNamespace(has_silence=lambda: False, progress_of=lambda _: None)

    def request(self, _: DatasetId) -> int:
        return 1

    def wait(self, *_: object) -> None:
        self.now += 1

    def missing_dependency(self, _: DatasetId) -> str:
        return next(self._losses)


def test_the_grace_period_of_an_engine_begins_when_it_is_lost(
    node: Coordinator, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.add(root)
    engine = AwayEngine("", "", *3 * ["it is away"])
    monkeypatch.setattr(pull, "time", SimpleNamespace(monotonic=lambda: engine.now))
    monkeypatch.setattr(pull, "ENGINE_TIMEOUT_SECONDS", 2.0)
    puller = replace(node.puller, scheduler=cast("Scheduler", engine))
    found: list[str] = []
    with pytest.raises(Unavailable, match="it is away"):
        found.extend(step.state for step in puller._transform(node.find("cities"), lambda: engine.now < 9))
    assert found == ["running", "running", "waiting", "waiting"]
