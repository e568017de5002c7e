"""Leases of resources, and transactions of many threads."""

import threading

import pytest
from odf_testing.resources import (
    VARIABLES,
    a_change,
    a_resource,
    names,
    save,
)

from odf_coordinator.resources.sql_store import SqlResourceStore
from odf_coordinator.resources.store import (
    START,
    FencingToken,
    LeaseLost,
    StoredResource,
)

TTL_MS = 30_000


def lease(store: SqlResourceStore, resource: StoredResource, *, now_ms: int) -> FencingToken | None:
    with store.transaction() as transaction:
        return transaction.lease(resource.id, "sync", ttl_ms=TTL_MS, now_ms=now_ms)


def test_a_lease_is_exclusive_until_it_expires_or_is_released(store: SqlResourceStore) -> None:
    (resource,) = save(store, a_resource("a"))
    first = lease(store, resource, now_ms=0)
    assert first == 1
    assert lease(store, resource, now_ms=TTL_MS - 1) is None
    with store.transaction() as transaction:
        transaction.extend(resource.id, first, ttl_ms=TTL_MS, now_ms=10)
    assert lease(store, resource, now_ms=TTL_MS) is None
    second = lease(store, resource, now_ms=TTL_MS + 10)
    assert second == 2
    with store.transaction() as transaction:
        transaction.release(resource.id, first)  # of the earlier lease: nothing happens
    assert lease(store, resource, now_ms=TTL_MS + 11) is None
    with store.transaction() as transaction:
        transaction.release(resource.id, second)
    assert lease(store, resource, now_ms=TTL_MS + 12) == 3


def test_a_holder_that_was_started_again_releases_its_leases_alone(store: SqlResourceStore) -> None:
    mine, other = save(store, a_resource("a"), a_resource("b"))
    former = lease(store, mine, now_ms=0)
    assert former is not None
    with store.transaction() as transaction:
        transaction.lease(other.id, "ingest", ttl_ms=TTL_MS, now_ms=0)
        transaction.release_all("sync")
    assert lease(store, mine, now_ms=1) == 2
    assert lease(store, other, now_ms=1) is None
    with pytest.raises(LeaseLost), store.transaction() as transaction:
        transaction.extend(mine.id, former, ttl_ms=TTL_MS, now_ms=2)


def test_many_are_leased_and_released_together(store: SqlResourceStore) -> None:
    first, second, third = save(store, *(a_resource(name) for name in "abc"))
    assert lease(store, second, now_ms=0) == 1
    ids = [first.id, second.id, third.id]
    with store.transaction() as transaction:
        tokens = transaction.lease_many(ids, "sync", ttl_ms=TTL_MS, now_ms=10)
        assert tokens == {first.id: 1, third.id: 1}
        transaction.release_many({first.id: FencingToken(1), third.id: FencingToken(7)})
    with store.transaction() as transaction:
        assert transaction.lease_many(ids, "sync", ttl_ms=TTL_MS, now_ms=20) == {first.id: 2}
        assert transaction.lease_many([], "sync", ttl_ms=TTL_MS, now_ms=20) == {}


def test_a_change_under_a_lost_lease_is_refused(store: SqlResourceStore) -> None:
    resource, other = save(store, a_resource("a"), a_resource("b"))
    first = lease(store, resource, now_ms=0)
    assert first is not None
    (resource,) = save(store, a_change(resource, phase="Reconciling", token=first))
    second = lease(store, resource, now_ms=TTL_MS)
    with pytest.raises(LeaseLost):
        save(store, a_change(other), a_change(resource, phase="Ready", token=first))
    with pytest.raises(LeaseLost), store.transaction() as transaction:
        transaction.extend(resource.id, first, ttl_ms=TTL_MS, now_ms=TTL_MS)
    with store.transaction() as transaction:
        (resource,) = transaction.save([a_change(resource, phase="Ready", token=second)])
        transaction.release(resource.id, FencingToken(2))
    with pytest.raises(LeaseLost):
        save(store, a_change(resource, token=second))
    with pytest.raises(LeaseLost):
        save(store, a_change(other, token=FencingToken(1)))
    save(store, a_change(resource))  # apply needs no lease


def test_a_read_sees_one_state_while_others_write(
    store: SqlResourceStore, request: pytest.FixtureRequest
) -> None:
    (first,) = save(store, a_resource("a"))
    written = threading.Event()

    def write() -> None:
        save(store, a_resource("b"), a_change(first, phase="Ready"))
        written.set()

    with store.read() as snapshot:
        assert snapshot.position() == 1
        writer = threading.Thread(target=write)
        writer.start()
        # Only in memory does a writer wait for readers.
        assert written.wait(0.1 if "memory" in request.node.name else 10) is (
            "memory" not in request.node.name
        )
        assert snapshot.by_id(first.id) == first
        assert snapshot.position() == 1
        assert snapshot.counts() == {(VARIABLES, "Pending"): 1}
    writer.join()
    assert names(store) == ["a", "b"]


def test_transactions_of_many_threads_take_turns(store: SqlResourceStore) -> None:
    (resource,) = save(store, a_resource("counter", spec={"n": 0}))

    def increase() -> None:
        for _ in range(10):
            with store.transaction() as transaction:
                state = transaction.by_id(resource.id)
                assert state is not None
                document = {**state.document, "spec": {"n": state.document["spec"]["n"] + 1}}
                transaction.save([a_change(state, document=document)])

    threads = [threading.Thread(target=increase) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with store.read() as snapshot:
        state = snapshot.by_id(resource.id)
        assert state is not None
        assert state.document["spec"] == {"n": 80}
        assert [event.position for event in snapshot.events_after(START)] == list(range(1, 82))
