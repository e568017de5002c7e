"""What a pull reports of a dataset, and when it ends early."""

import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import yaml
from odf_testing.coordinator import Coordinator
from odf_testing.story import Manifest, derivative, root
from structlog.testing import capture_logs

from odf_common.chain.build_blocks import add_data_event
from odf_common.errors import Unavailable
from odf_common.identity.dataset_refs import DatasetId
from odf_common.metadata.events import DisablePushSource
from odf_common.metadata.scalars import Timestamp
from odf_common.ports.engine import EngineProgress
from odf_coordinator.operations import pull
from odf_coordinator.operations.pull import PullProgress, concurrent_steps
from odf_coordinator.operations.waiting import Wait
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
        found.extend(
            step.state for step in puller._await_transform(node.find("cities"), lambda: engine.now < 9)
        )
    assert found == ["running", "running", "waiting", "waiting"]


PATIENCE = 10.0  # seconds
WIDE = 8


def steps_of(
    work: Callable[[str], object], before: dict[str, list[str]], limit: Callable[[str], int] = lambda _: WIDE
) -> Iterator[str]:
    def steps(key: str) -> Generator[str, None, None]:
        yield f"begin {key}"
        work(key)
        yield f"end {key}"

    return concurrent_steps(before, steps, limit)


def test_a_key_starts_when_those_before_it_have_ended() -> None:
    before = {"c": ["b", "x"], "b": ["a"], "a": [], "x": ["a"], "lone": []}
    found = list(steps_of(lambda _: None, before))
    assert sorted(found) == sorted(f"{word} {key}" for word in ("begin", "end") for key in before)
    for key, inputs in before.items():
        for one in inputs:
            assert found.index(f"end {one}") < found.index(f"begin {key}")


def test_keys_that_do_not_depend_on_each_other_run_at_the_same_time() -> None:
    together = threading.Barrier(3)
    found = list(steps_of(lambda _: [together.wait(PATIENCE)], {"a": [], "b": [], "c": []}))
    assert len(found) == 6


def test_at_most_the_limit_of_keys_run_at_a_time() -> None:
    counts = {1: 0, 2: 0}
    most = dict(counts)
    lock = threading.Lock()
    wide, narrow = threading.Barrier(2), threading.Barrier(2)

    def limit(key: str) -> int:
        return 1 if key.startswith("narrow") else 2

    def work(key: str) -> None:
        group = limit(key)
        with lock:
            counts[group] += 1
            most[group] = max(most[group], counts[group])
        if group == 2:
            wide.wait(PATIENCE)
        else:
            with suppress(threading.BrokenBarrierError):
                narrow.wait(0.05)
        with lock:
            counts[group] -= 1

    list(steps_of(work, {f"{name} {n}": [] for n in range(6) for name in ("narrow", "wide")}, limit))
    assert most == {1: 1, 2: 2}


def test_a_cycle_and_its_readers_run_last() -> None:
    before = {"x": ["y"], "y": ["x", "a"], "after": ["x"], "self": ["self"], "a": [], "b": ["a"]}
    found = list(steps_of(lambda _: None, before))
    assert len(found) == 2 * len(before)
    ends = [found.index(f"end {key}") for key in ("a", "b")]
    assert max(ends) < min(found.index(f"begin {key}") for key in ("x", "y", "after", "self"))


def test_without_keys_nothing_is_run() -> None:
    assert list(steps_of(lambda _: None, {})) == []


def test_an_exception_reaches_the_caller_and_starts_nothing_more() -> None:
    done: list[str] = []

    def work(key: str) -> None:
        done.append(key)
        raise Unavailable(what=key, why="a test")

    with pytest.raises(Unavailable, match="a cannot be reached"):
        list(steps_of(work, {"a": [], "b": ["a"]}))
    assert done == ["a"]


def test_a_caller_that_leaves_ends_each_generator_at_its_next_step_and_waits_for_none() -> None:
    may_continue, closed = threading.Event(), threading.Event()
    went_on: list[str] = []

    def steps(key: str) -> Generator[str, None, None]:
        try:
            yield "begun"
            may_continue.wait(PATIENCE)
            yield "never seen"
            went_on.append(key)
        finally:
            closed.set()

    with closing(concurrent_steps({"a": [], "b": ["a"]}, steps, lambda _: WIDE)) as found:
        assert next(found) == "begun"
    assert not closed.is_set()
    may_continue.set()
    assert closed.wait(PATIENCE)
    assert went_on == []


def test_a_caller_that_leaves_starts_no_further_key_and_leaves_no_thread() -> None:
    before, may_continue, started = set(threading.enumerate()), threading.Event(), list[str]()

    def steps(key: str) -> Generator[str, None, None]:
        started.append(key)
        yield "begun"
        may_continue.wait(PATIENCE)
        yield "never seen"

    with closing(concurrent_steps({"a": [], "b": []}, steps, lambda _: 1)) as found:
        assert next(found) == "begun"
        threads = set(threading.enumerate()) - before
    may_continue.set()
    for thread in threads:
        thread.join(PATIENCE)
    assert [thread.is_alive() for thread in threads] == [False]
    assert started == ["a"]


@pytest.fixture
def three_roots(node: Coordinator, root: str, derivative: str) -> Coordinator:
    node.add(root, root.replace("name: cities", "name: rivers"), derivative)
    return node


def test_a_source_that_hangs_does_not_delay_the_others(three_roots: Coordinator) -> None:
    hanging = three_roots.find("cities").id
    others_done = threading.Event()

    def drain(dataset: DatasetId) -> Iterator[int]:
        if dataset == hanging:
            assert others_done.wait(PATIENCE)
        yield 0

    pulling = replace(three_roots.puller, drain=drain)
    found = []
    for step in pulling.pull(["cities", "rivers"], is_all=False, is_recursive=False, is_wanted=lambda: True):
        found.append((step.alias, step.state))
        if step.alias == "rivers" and step.state == "up-to-date":
            others_done.set()
    assert found[-1] == ("cities", "up-to-date")


COLUMNS = ("event_time TIMESTAMP", "city STRING")
BOTH = derivative("both", {"left": "cities", "right": "towns"}, "SELECT * FROM left")
OVER = derivative("over", {"both": "both"}, "SELECT * FROM both")
HOUR = 3_600_000


def node_with(
    node: Coordinator, *manifests: Manifest, held: int = 0, until: int | None = None
) -> Coordinator:
    node.engine.progress = [EngineProgress(held=held, held_until=until, held_by="a join")]
    node.add(*(yaml.safe_dump(one) for one in manifests))
    node.push("cities", "Oslo", minute=5)
    node.work()
    return node


def wait_of(node: Coordinator, ref: str) -> Wait | None:
    return node.puller.waiting.wait_of(node.find(ref))


def test_records_that_are_held_wait_for_the_input_that_is_behind(node: Coordinator) -> None:
    node_with(node, root("cities", COLUMNS), root("towns", COLUMNS), BOTH, OVER, held=3, until=HOUR)

    wait = wait_of(node, "both")

    assert wait is not None
    assert (wait.input, wait.until) == ("towns", Timestamp.from_ms(HOUR))
    assert "3 records held by a join until the watermark reaches 1970-01-01T01:00:00Z" in wait.text
    assert "towns has no watermark; that of cities is 1970-01-01T00:05:00Z" in wait.text
    assert "`odf pull towns --set-watermark 1970-01-01T01:00:00Z`" in wait.remedy
    assert "idleTimeout=1h`, or less than `odf source show towns` says" in wait.remedy
    over = wait_of(node, "over")
    assert over is not None
    assert (over.input, "(it derives from towns)" in over.text) == ("towns", True)


def test_nothing_waits_once_the_engine_holds_nothing(node: Coordinator) -> None:
    node_with(node, root("cities", COLUMNS), root("towns", COLUMNS), BOTH, held=1, until=HOUR)
    node.engine.progress = ()
    node.push("towns", "Ely", minute=70)
    node.work()
    assert wait_of(node, "both") is None
    assert wait_of(node, "towns") is None, "a root waits for no other dataset"


def test_a_count_of_another_checkpoint_is_not_used(node: Coordinator) -> None:
    node_with(node, root("cities", COLUMNS), root("towns", COLUMNS), BOTH, held=1, until=HOUR)
    before = node.find("both").state.head
    node.engine.progress = [EngineProgress(held=9)]
    node.push("towns", "Ely", minute=7)
    node.work()
    node.editor.reset("both", before, is_forced=True)
    assert wait_of(node, "both") is None


def test_an_input_whose_columns_are_unknown_is_named(node: Coordinator) -> None:
    node_with(node, root("cities", COLUMNS), root("towns", ()), BOTH, OVER)
    for name in ("both", "over"):
        wait = wait_of(node, name)
        assert wait is not None
        assert wait.text.startswith(
            "it waits for the first record of towns, whose columns are not known before"
        )
        assert wait.remedy == "publish a record to towns"


def test_records_that_wait_for_a_time_in_the_future_name_the_way_back(node: Coordinator) -> None:
    node_with(node, root("cities", COLUMNS), root("towns", COLUMNS), BOTH)
    node.push("towns", "Ely", minute=5)
    node.work()
    good = node.find("cities").state
    far = Timestamp.parse("2099-01-01T00:00:00Z")
    node.engine.progress = [EngineProgress(held=1, held_until=far.ms, held_by="a join")]
    event = add_data_event(good, new_data=None, watermark=far, source_state=good.last_source_state)
    node.creator.amend(node.find("cities"), (event,))
    node.work()

    wait = wait_of(node, "both")

    assert wait is not None
    assert "--set-watermark" not in wait.remedy
    assert wait.remedy.startswith(
        "2099-01-01T00:00:00Z is in the future: if cities has such times by intention"
    )
    assert f"`odf reset cities {good.head} --force`" in wait.remedy
    node.editor.reset("cities", good.head, is_forced=True)
    assert node.find("cities").state.watermark == good.watermark


def test_a_held_record_of_the_future_does_not_ask_for_a_lower_watermark(node: Coordinator) -> None:
    node_with(node, root("cities", COLUMNS), root("towns", COLUMNS), BOTH)
    far = Timestamp.parse("2099-01-01T00:00:00Z")
    node.engine.progress = [EngineProgress(held=1, held_until=far.ms, held_by="a join")]
    node.push("towns", "Ely", minute=5)
    node.work()

    wait = wait_of(node, "both")

    assert wait is not None
    assert wait.remedy.startswith("2099-01-01T00:00:00Z is in the future: a record has such a time")
    assert "odf reset" not in wait.remedy
    assert "maxFuture" not in wait.remedy
