"""Processes that write to the store of resources are killed: whole batches stay, and watchers miss no event."""

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
from odf_testing.killed_children import fork, is_survivor, kill_before
from odf_testing.resources import ALICE, SECRETS, a_resource

from odf_coordinator.resources.sql_store import SqlResourceStore
from odf_coordinator.resources.store import (
    START,
    Change,
    EventKind,
    NewEvent,
    Position,
    Query,
    ResourceEvent,
    ResourceReference,
    ResourceStore,
    Snapshot,
)

Open = Callable[[], SqlResourceStore]
SIZE = 5  # resources of a batch, which removes an older one
KILLS = 12


@pytest.fixture(params=["file", "postgresql"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    url = request.getfixturevalue("postgres_url") if request.param == "postgresql" else None
    return lambda: SqlResourceStore.open(tmp_path, url)


def write_batch(store: ResourceStore, batch: str) -> None:
    """Create some resources and remove the first one, if there is any; each event has the number of all."""
    reference = ResourceReference(path="spec.x", type=SECRETS, account=ALICE, name=batch)
    with store.transaction() as transaction:
        oldest = transaction.find(Query(limit=1)).resources
        payload = {"batch": batch, "events": SIZE + len(oldest)}
        created = NewEvent(kind=EventKind.CREATED, subject="alice", time_ms=1, payload=payload)
        deleted = NewEvent(kind=EventKind.DELETED, subject="alice", time_ms=2, payload=payload)
        for resource in oldest:
            (last,) = transaction.save([Change(resource=resource, events=[deleted])])
            transaction.remove(last, 2)
        new = [a_resource(f"{batch}.{n}", labels={"batch": batch}) for n in range(SIZE)]
        transaction.save([Change(resource=it, events=[created], references=[reference]) for it in new])


def check(store: ResourceStore) -> None:
    """Check that all batches are whole, and that the tables agree."""
    with store.read() as snapshot:
        events = all_events(snapshot)
        assert [it.position for it in events] == [*range(1, snapshot.position() + 1)]
        of_batch = Counter(it.payload["batch"] for it in events)
        assert all(it.payload["events"] == of_batch[it.payload["batch"]] for it in events)
        removed = {it.resource for it in events if it.kind is EventKind.DELETED}
        created = {it.resource for it in events if it.kind is EventKind.CREATED}
        stored = snapshot.by_ids(sorted(created))
        assert stored.keys() == created - removed
        assert all(snapshot.tombstone(resource) is not None for resource in removed)
        assert {it.revision for it in stored.values()} <= {1}
        for batch in of_batch:
            names = [it.name for it in snapshot.find(Query(labels={"batch": batch})).resources]
            assert names == sorted(it.name for it in stored.values() if it.labels["batch"] == batch)
            assert len(snapshot.unresolved_to(SECRETS, ALICE, batch)) == len(names)


def all_events(snapshot: Snapshot, after: Position = START) -> list[ResourceEvent]:
    """Return all events after a position."""
    found: list[ResourceEvent] = []
    while page := snapshot.events_after(found[-1].position if found else after):
        found += page
    return found


def test_a_kill_at_any_statement_leaves_the_batch_or_nothing(open_store: Open) -> None:
    def work(statement: int) -> None:
        kill_before(statement)
        store = open_store()
        write_batch(store, f"b{statement:03}")

    for statement in count():
        child = fork(lambda statement=statement: work(statement))  # type: ignore[misc]
        survived = is_survivor(child)
        store = open_store()
        check(store)
        with store.read() as snapshot:
            has_batch = bool(snapshot.find(Query(labels={"batch": f"b{statement:03}"})).resources)
        store.close()
        assert has_batch is survived
        if survived:
            break
    assert statement > 15


def write_until_killed(open_store: Open, writer: str) -> None:
    store = open_store()
    for number in count():
        write_batch(store, f"{writer}{number:05}")


def test_kills_at_random_times_leave_whole_batches(open_store: Open) -> None:
    chance = random.Random(7)
    for round_ in range(KILLS):
        child = fork(lambda round_=round_: write_until_killed(open_store, f"r{round_:02}-"))  # type: ignore[misc]
        time.sleep(0.05 + chance.random() * 0.2)
        os.kill(child, signal.SIGKILL)
        assert not is_survivor(child)
        store = open_store()
        check(store)
        write_batch(store, f"between{round_:02}")
        store.close()


def test_a_watcher_of_two_writers_sees_each_event_once_and_in_order(open_store: Open) -> None:
    batches = 40

    def write(writer: str) -> None:
        store = open_store()
        for number in range(batches):
            write_batch(store, f"{writer}{number:05}")

    store = open_store()
    with store.read():  # the first use creates the tables, and would compete with both writers
        pass
    writers = [fork(lambda writer=writer: write(writer)) for writer in "ab"]  # type: ignore[misc]
    watched: list[ResourceEvent] = []
    until = time.monotonic() + 60
    while len(watched) < 2 * batches * (SIZE + 1) - 1 and time.monotonic() < until:
        with store.read() as snapshot:
            watched += all_events(snapshot, watched[-1].position if watched else START)
    assert all(map(is_survivor, writers))
    assert [it.position for it in watched] == [*range(1, 2 * batches * (SIZE + 1))]
    check(store)
    store.close()


def test_a_writer_continues_when_another_is_killed_in_its_transaction(open_store: Open) -> None:
    def hold() -> None:
        with open_store().transaction():
            os.kill(os.getpid(), signal.SIGSTOP)

    store = open_store()
    write_batch(store, "first")
    holder = fork(hold)
    os.waitpid(holder, os.WUNTRACED)
    os.kill(holder, signal.SIGKILL)
    assert not is_survivor(holder)
    write_batch(store, "second")
    check(store)
    store.close()
