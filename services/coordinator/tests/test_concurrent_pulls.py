"""Datasets are pulled side by side, each after its inputs, so that one that hangs delays only its readers."""

import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, suppress
from dataclasses import replace

import pytest
from odf_testing.coordinator import Coordinator

from odf_common.errors import Unavailable
from odf_common.identity.dataset_refs import DatasetId
from odf_coordinator.operations.pull import concurrent_steps

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
def polled(node: Coordinator, root: str, derivative: str) -> Coordinator:
    node.add(root, root.replace("name: cities", "name: rivers"), derivative)
    return node


def test_a_source_that_hangs_does_not_delay_the_others(polled: Coordinator) -> None:
    hanging = polled.find("cities").id
    others_done = threading.Event()

    def drain(dataset: DatasetId) -> Iterator[int]:
        if dataset == hanging:
            assert others_done.wait(PATIENCE)
        yield 0

    pulling = replace(polled.puller, drain=drain)
    found = []
    for step in pulling.pull(["cities", "rivers"], is_all=False, is_recursive=False, is_wanted=lambda: True):
        found.append((step.alias, step.state))
        if step.alias == "rivers" and step.state == "up-to-date":
            others_done.set()
    assert found[-1] == ("cities", "up-to-date")
