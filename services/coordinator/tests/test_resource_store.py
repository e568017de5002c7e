"""What callers of the store of resources rely on, over SQLite in memory, SQLite in a file, and a PostgreSQL server."""

from dataclasses import replace

import pytest
from odf_testing.resources import (
    ACCOUNT,
    ALICE,
    BOB,
    SECRETS,
    VARIABLES,
    a_change,
    a_resource,
    an_event,
    an_id,
    names,
    save,
)

from odf_common.errors import NotFound
from odf_coordinator.resources.sql_store import SqlResourceStore
from odf_coordinator.resources.store import (
    START,
    Change,
    EventKind,
    NameConflict,
    Position,
    PositionUnknown,
    Query,
    RegisteredType,
    ResourceReference,
    RevisionMoved,
)


def test_a_saved_resource_is_read_as_it_was_saved(store: SqlResourceStore) -> None:
    new = a_resource(
        "Env.Prod",
        did="did:odf:fed01" + "0" * 62,
        spec={"variables": {"Grüße": "\x00\ud800 'quoted' % _", "n": 1.5, "none": None}},
        labels={"tier": [1, {"a": None}], "env": "prod"},
        finalizers=("ingest", "sync"),
    )
    (saved,) = save(store, new)
    assert saved == replace(new, revision=1)
    with store.read() as snapshot:
        assert snapshot.by_id(new.id) == saved
        assert snapshot.by_ids([an_id("unknown"), new.id]) == {new.id: saved}
        assert snapshot.by_name(VARIABLES, ALICE, "eNV.pROD") == saved
        assert new.did is not None
        assert snapshot.by_did(VARIABLES, new.did) == saved
        assert snapshot.by_did(SECRETS, new.did) is None
        assert snapshot.by_name(VARIABLES, BOB, "env.prod") is None
        assert snapshot.by_id(an_id("unknown")) is None


def test_each_event_has_its_place_in_the_resource_and_in_the_store(store: SqlResourceStore) -> None:
    first, second = save(store, a_resource("a"), a_resource("b"))
    started = an_event(EventKind.RECONCILE_STARTED)
    failed = an_event(EventKind.RECONCILE_FAILED, {"code": "unavailable"})
    save(store, Change(resource=replace(first, generation=2, phase="Failed"), events=[started, failed]))
    with store.read() as snapshot:
        assert snapshot.position() == 4
        events = snapshot.events_after(START)
        assert [event.position for event in events] == [1, 2, 3, 4]
        assert [event.resource for event in events] == [first.id, second.id, first.id, first.id]
        assert [event.sequence for event in snapshot.events_of(first.id)] == [1, 2, 3]
        last = snapshot.events_of(first.id)[-1]
        assert (last.kind, last.generation, last.subject) == (EventKind.RECONCILE_FAILED, 2, "alice")
        assert (last.time_ms, last.payload) == (1_000, {"code": "unavailable"})
        assert snapshot.events_after(Position(2), limit=1) == (snapshot.events_of(first.id)[1],)
        assert snapshot.events_after(Position(4)) == ()
        stored = snapshot.by_id(first.id)
        assert stored is not None
        assert stored.revision == 3


def test_a_change_of_an_older_revision_is_refused_and_nothing_changes(store: SqlResourceStore) -> None:
    old, other = save(store, a_resource("a"), a_resource("b"))
    save(store, a_change(old, phase="Ready"))
    with pytest.raises(RevisionMoved) as refused:
        save(store, a_change(other, phase="Ready"), a_change(old, phase="Failed"))
    assert refused.value.facts() == {"resource": old.id, "expected": 1, "actual": 2}
    with pytest.raises(RevisionMoved):
        save(store, replace(old, revision=0))
    with pytest.raises(RevisionMoved, match="it does not exist"):
        save(store, a_change(replace(a_resource("c"), revision=1)))
    with store.read() as snapshot:
        assert snapshot.position() == 3
        assert snapshot.by_id(other.id) == other


def test_a_transaction_sees_its_changes_and_others_see_them_when_it_ends(store: SqlResourceStore) -> None:
    (first,) = save(store, a_resource("a"))
    with store.transaction() as transaction:
        (renamed,) = transaction.save([a_change(first, EventKind.RENAMED, name="b")])
        assert transaction.by_name(VARIABLES, ALICE, "a") is None
        assert transaction.by_name(VARIABLES, ALICE, "b") == renamed
        (again,) = transaction.save([a_change(renamed, phase="Ready")])
        assert transaction.by_id(first.id) == again
        assert transaction.position() == 3
        assert len(transaction.events_of(first.id)) == 3
    with store.read() as snapshot:
        assert snapshot.by_id(first.id) == again


def test_a_transaction_that_raises_leaves_nothing(store: SqlResourceStore) -> None:
    def fail() -> None:
        with store.transaction() as transaction:
            transaction.save([a_change(a_resource("a"))])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with store.read() as snapshot:
        assert snapshot.position() == START
        assert snapshot.find(Query()).resources == ()


def test_resources_swap_their_names_within_a_transaction(store: SqlResourceStore) -> None:
    first, second = save(store, a_resource("a"), a_resource("b"))
    first, second = save(store, a_change(first, name="b"), a_change(second, name="A"))
    with store.transaction() as transaction:  # in two calls, too
        transaction.save([a_change(first, name="a")])
        transaction.save([a_change(second, name="b")])
    with store.read() as snapshot:
        (one, two) = snapshot.find(Query()).resources
        assert [one.id, two.id] == [first.id, second.id]


def test_two_resources_of_one_name_are_refused_whatever_the_case(store: SqlResourceStore) -> None:
    save(store, a_resource("env"))
    with pytest.raises(NameConflict) as refused:
        save(store, a_resource("other"), a_resource("ENV"))
    assert refused.value.facts() == {"type": VARIABLES, "account": ALICE, "name": "env"}
    with pytest.raises(NameConflict):
        save(store, a_resource("x"), a_resource("X"))
    (other,) = save(store, a_resource("other"))
    with pytest.raises(NameConflict):
        save(store, a_change(other, name="Env"))
    assert names(store) == ["env", "other"]
    save(store, a_resource("env", account=BOB), a_resource("env", type=SECRETS))


def test_accounts_own_themselves_and_their_names_are_unique_in_the_node(store: SqlResourceStore) -> None:
    (alice,) = save(store, a_resource("alice", type=ACCOUNT, id=ALICE))
    with pytest.raises(NameConflict, match="alice exists already on this node"):
        save(store, a_resource("Alice", type=ACCOUNT, id=BOB, account=BOB))
    with store.read() as snapshot:
        assert snapshot.by_name(ACCOUNT, None, "ALICE") == alice


def test_a_name_is_taken_until_the_resource_is_removed(store: SqlResourceStore) -> None:
    new = a_resource("a", did="did:odf:x", labels={"env": "prod"})
    reference = ResourceReference(path="spec.x", type=SECRETS, id=an_id("secret"))
    (first,) = save(store, a_change(new, references=[reference]))
    (deleted,) = save(store, a_change(first, EventKind.DELETION_REQUESTED, deleted_ms=2_000))
    with pytest.raises(NameConflict):
        save(store, a_resource("a"))
    with store.read() as snapshot:
        assert snapshot.by_id(first.id) == deleted
        assert snapshot.by_name(VARIABLES, ALICE, "a") == deleted
        assert snapshot.find(Query()).resources == ()
        assert snapshot.find(Query(include_deleted=True)).resources == (deleted,)
        assert snapshot.tombstone(first.id) is None
        assert snapshot.counts() == {}
    with store.transaction() as transaction:
        transaction.lease(first.id, "sync", ttl_ms=1000, now_ms=0)
        (gone,) = transaction.save([a_change(deleted, EventKind.DELETED)])
        transaction.remove(gone, 3_000)
        transaction.save([a_change(a_resource("a"))])
    with store.read() as snapshot:
        assert snapshot.by_id(first.id) is None
        tombstone = snapshot.tombstone(first.id)
        assert tombstone is not None
        assert (tombstone.name, tombstone.type, tombstone.account) == ("a", VARIABLES, ALICE)
        assert (tombstone.created_ms, tombstone.removed_ms) == (1_000, 3_000)
        assert [event.kind for event in snapshot.events_of(first.id)][-1] == EventKind.DELETED
        assert len(snapshot.find(Query(include_deleted=True)).resources) == 1
        assert snapshot.referring_to(an_id("secret")) == ()
        assert snapshot.by_did(VARIABLES, "did:odf:x") is None


def test_the_id_of_a_removed_resource_is_never_used_again(store: SqlResourceStore) -> None:
    (first,) = save(store, a_resource("a"))
    with store.transaction() as transaction:
        transaction.remove(first, 2_000)
    for change in (a_change(replace(first, revision=0)), a_change(first)):
        with pytest.raises(RevisionMoved):
            save(store, change)
    with store.transaction() as transaction:
        with pytest.raises(RevisionMoved):
            transaction.remove(first, 3_000)
        with pytest.raises(NotFound):
            transaction.lease(first.id, "sync", ttl_ms=1000, now_ms=0)


def test_a_resource_that_changed_is_not_removed(store: SqlResourceStore) -> None:
    (first,) = save(store, a_resource("a"))
    save(store, a_change(first))
    with pytest.raises(RevisionMoved), store.transaction() as transaction:
        transaction.remove(first, 2_000)
    assert names(store) == ["a"]


def test_old_tombstones_and_their_events_are_purged(store: SqlResourceStore) -> None:
    first, second, third = save(store, a_resource("a"), a_resource("b"), a_resource("c"))
    with store.transaction() as transaction:
        transaction.remove(first, 2_000)
        transaction.remove(second, 3_000)
        assert transaction.purge(2_000) == 0
        assert transaction.purge(2_001) == 1
    with store.read() as snapshot:
        assert snapshot.tombstone(first.id) is None
        assert snapshot.events_of(first.id) == ()
        assert snapshot.tombstone(second.id) is not None
        assert [event.resource for event in snapshot.events_after(Position(1))] == [second.id, third.id]
        with pytest.raises(PositionUnknown) as refused:
            snapshot.events_after(START)
        assert refused.value.facts() == {"position": 0, "oldest": 1, "newest": 3}
        assert snapshot.position() == 3
    with store.transaction() as transaction:
        assert transaction.purge(9_000) == 1
    save(store, a_resource("d"))
    with store.read() as snapshot:
        assert snapshot.position() == 4


def test_old_events_of_the_status_are_purged_and_others_stay(store: SqlResourceStore) -> None:
    (first,) = save(store, a_resource("a"))
    (first,) = save(
        store, a_change(first, EventKind.RECONCILE_STARTED, EventKind.RECONCILE_FAILED, EventKind.RENAMED)
    )
    with store.transaction() as transaction:
        assert transaction.purge(1_000) == 0
        assert transaction.purge(1_001) == 2
    save(store, a_change(first, EventKind.RECONCILE_SUCCEEDED))
    with store.read() as snapshot:
        assert [(it.sequence, it.kind) for it in snapshot.events_of(first.id)] == [
            (1, EventKind.CREATED),
            (4, EventKind.RENAMED),
            (5, EventKind.RECONCILE_SUCCEEDED),
        ]
        assert [it.position for it in snapshot.events_after(Position(3))] == [4, 5]
        for position in (2, 6):  # the second one is of a store that was restored since
            with pytest.raises(PositionUnknown):
                snapshot.events_after(Position(position))


def test_erased_payloads_are_gone_and_other_ones_stay(store: SqlResourceStore) -> None:
    events = [an_event(EventKind.CREATED, {"spec": "ciphertext"})]
    first, second = save(
        store,
        Change(resource=a_resource("a", type=SECRETS), events=events),
        Change(resource=a_resource("b", type=SECRETS), events=events),
    )
    with store.transaction() as transaction:
        transaction.erase_payloads(first.id)
    with store.read() as snapshot:
        assert [event.payload for event in snapshot.events_of(first.id)] == [None]
        assert [event.payload for event in snapshot.events_of(second.id)] == [{"spec": "ciphertext"}]


def test_types_are_registered_and_replaced(store: SqlResourceStore) -> None:
    old = RegisteredType(
        schema="https://x.org/a/v1/T", short_name="T", schemas={"s": {"type": "object"}}, added_ms=1
    )
    other = replace(old, schema="https://x.org/a/v1alpha1/T")
    new = replace(old, schemas={"s": {"type": "string"}}, added_ms=2)
    with store.transaction() as transaction:
        for registered in (other, old, new):
            transaction.save_type(registered)
    with store.read() as snapshot:
        assert snapshot.types() == (new, other)


def test_notes_of_controllers_are_kept_by_scope_and_key(store: SqlResourceStore) -> None:
    with store.transaction() as transaction:
        transaction.save_notes("flow", {"a": {"n": 1}, "b": [None], "c": "text"})
        transaction.save_notes("other", {"a": 2})
    with store.transaction() as transaction:
        transaction.save_notes("flow", {"a": {"n": 3}, "b": None, "unknown": None})
    with store.read() as snapshot:
        assert snapshot.notes("flow") == {"a": {"n": 3}, "c": "text"}
        assert snapshot.notes("flow", ["c", "b"]) == {"c": "text"}
        assert snapshot.notes("other", []) == {}
