"""A process that applies and reconciles is killed: no batch is half, no resource stays in Reconciling, no gap appears."""

import os
import random
import signal
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Final

from odf_testing.killed_children import fork, is_survivor, kill_before
from odf_testing.resource_node import apply, begin, end, node, stored

from odf_common.adapters.system_clock import SYSTEM_CLOCK
from odf_coordinator.resources.attempts import Attempts
from odf_coordinator.resources.store import START, EventKind
from odf_coordinator.resources.use_cases import Resources

SIZE: Final = 4
KILLS: Final = 10
LEASE_MS: Final = 300
SET: Final = "{$schema: VariableSet, headers: {name: env-%d}, spec: {variables: {version: '%d'}}}"
RAISING: Final = (EventKind.CREATED, EventKind.SPEC_CHANGED)


def change_all(resources: Resources, version: int) -> None:
    apply(resources, *(SET % (n, version) for n in range(SIZE)))


def reconcile_all(resources: Resources) -> None:
    attempts = Attempts(store=resources.store, clock=SYSTEM_CLOCK)
    for found in stored(resources):
        begun = begin(attempts, found.id, ttl_ms=LEASE_MS)
        if begun is not None:
            end(attempts, begun)


def work(home: Path, first: int, prepare: Callable[[], None] = lambda: None) -> None:
    resources, _ = node(home)
    prepare()
    for version in count(first):
        change_all(resources, version)
        reconcile_all(resources)


def work_once(home: Path, version: int, statement: int) -> None:
    resources, _ = node(home)
    kill_before(statement)
    change_all(resources, version)
    reconcile_all(resources)


def check(resources: Resources) -> int:
    """Check the state that a killed process left; return the version of the last batch."""
    found = [one for one in stored(resources) if one.name != "odf"]
    versions = {one.document["spec"]["variables"]["version"] for one in found}
    assert len(versions) == (1 if found else 0)
    generations = defaultdict[str, list[int]](list)
    with resources.store.read() as snapshot:
        events = snapshot.events_after(START, 1_000_000)
        assert [event.position for event in events] == [*range(1, snapshot.position() + 1)]
    for event in events:
        if event.kind in RAISING:
            generations[event.resource].append(event.generation)
    for one in found:
        assert generations[one.id] == [*range(1, one.generation + 1)]
        status = one.document["status"]
        assert status.get("observedGeneration", 0) <= one.generation
        assert one.document["headers"]["generation"] == one.generation
    return int(versions.pop()) if versions else 0


def settle(resources: Resources) -> None:
    """Reconcile until all is settled; a lease of a killed process ends by its time."""
    until = time.monotonic() + 30
    while any(one.phase != "Ready" for one in stored(resources)):
        assert time.monotonic() < until
        reconcile_all(resources)
        time.sleep(LEASE_MS / 3000)
    assert all(one.document["status"]["observedGeneration"] == one.generation for one in stored(resources))


def test_kills_at_random_times_leave_nothing_half_and_nothing_stuck(tmp_path: Path) -> None:
    resources, _ = node(tmp_path)
    change_all(resources, 0)  # creates the keys, too
    chance, version = random.Random(18), 0
    for _ in range(KILLS):
        child = fork(partial(work, tmp_path, version + 1))
        time.sleep(0.1 + chance.random() * 0.5)
        os.kill(child, signal.SIGKILL)
        assert not is_survivor(child)
        last = check(resources)
        assert last >= version
        version = last
        settle(resources)


def test_a_kill_at_any_statement_leaves_nothing_half_and_nothing_stuck(tmp_path: Path) -> None:
    resources, _ = node(tmp_path)
    change_all(resources, 0)
    for statement in count(0, 11):
        before = check(resources)
        if is_survivor(fork(partial(work_once, tmp_path, before + 1, statement))):
            break
        assert check(resources) in {before, before + 1}
    settle(resources)
    assert statement > 20
