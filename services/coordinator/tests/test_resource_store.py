"""What callers of the store of resources rely on, over SQLite in memory, SQLite in a file, and a PostgreSQL server."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from odf_testing.resources import (
    ACCOUNT,
    ALICE,
    BOB,
    SECRETS,
    SOURCE,
    VARIABLES,
    a_change,
    a_resource,
    an_event,
    an_id,
    save,
)

from odf_common.errors import NotFound
from odf_coordinator.resources.sql_store import SqlResourceStore
from odf_coordinator.resources.store import (
    START,
    Change,
    EventKind,
    FencingToken,
    LeaseLost,
    NameConflict,
    Position,
    PositionUnknown,
    Query,
    RegisteredType,
    ResourceReference,
    RevisionMoved,
    StoredResource,
)

TTL_MS = 30_000


@pytest.fixture(params=["memory", "file", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SqlResourceStore]:
    match request.param:
        case "memory":
            opened = SqlResourceStore.open(None)
        case "file":
            opened = SqlResourceStore.open(tmp_path)
        case _:
            opened = SqlResourceStore.open(tmp_path, request.getfixturevalue("postgres_url"))
    yield opened
    opened.close()


def names(store: SqlResourceStore, **query: Any) -> list[str]:
    with store.read() as snapshot:
        return [resource.name for resource in snapshot.find(Query(**query)).resources]


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
        transaction.lease(first.id, "sync", ttl_ms=TTL_MS, now_ms=0)
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
            transaction.lease(first.id, "sync", ttl_ms=TTL_MS, now_ms=0)


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


def test_pages_have_one_order_and_no_gaps(store: SqlResourceStore) -> None:
    given = ["b", "A-1", "a.1", "a1", "a-2", "Z", "a"]
    save(
        store,
        *map(a_resource, given),
        *(a_resource("b", type=SECRETS, id=an_id(str(n)), account=an_id(f"of {n}")) for n in range(5)),
    )
    with store.read() as snapshot:
        pages, query = [], Query(limit=5)
        while True:
            page = snapshot.find(query)
            pages.append([resource.name for resource in page.resources])
            if page.next is None:
                break
            query = replace(query, after=page.next)
        assert pages == [["a", "A-1", "a-2", "a.1", "a1"], ["b"] * 5, ["b", "Z"]]
        ids = [resource.id for resource in snapshot.find(Query(name="b")).resources]
        assert ids == sorted(ids)
        assert len(ids) == 6


def test_no_page_is_longer_than_the_limit(store: SqlResourceStore) -> None:
    save(store, *(a_resource(f"n{n}") for n in range(1_001)))
    with store.read() as snapshot:
        page = snapshot.find(Query(limit=5_000))
        assert len(page.resources) == 1_000
        assert len(snapshot.find(Query(after=page.next)).resources) == 1


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("%", ["org.a", "org.a.b", "Org.b", "x"]),
        ("ORG.%", ["org.a", "org.a.b", "Org.b"]),
        ("%.B", ["org.a.b", "Org.b"]),
        ("o%b", ["org.a.b", "Org.b"]),
        ("org.a", ["org.a"]),
        ("org.a.%", ["org.a.b"]),
        ("org_a", []),
        ("%_%", []),
        ("or%\\%", []),
        ("", []),
    ],
)
def test_names_are_found_by_patterns(store: SqlResourceStore, pattern: str, found: list[str]) -> None:
    save(store, *map(a_resource, ("org.a", "org.a.b", "Org.b", "x")))
    assert names(store, name=pattern) == found


def test_resources_are_found_by_type_account_and_phase(store: SqlResourceStore) -> None:
    save(
        store,
        a_resource("a"),
        a_resource("b", account=BOB, phase="Ready"),
        a_resource("c", type=SECRETS),
        a_resource("d", type=SOURCE, account=BOB),
    )
    assert names(store, types=[VARIABLES]) == ["a", "b"]
    assert names(store, types=[SECRETS, SOURCE]) == ["c", "d"]
    assert names(store, accounts=[BOB]) == ["b", "d"]
    assert names(store, accounts=[ALICE, BOB], types=[SOURCE]) == ["d"]
    assert names(store, phase="Ready") == ["b"]
    with store.read() as snapshot:
        assert snapshot.counts() == {
            (VARIABLES, "Pending"): 1,
            (VARIABLES, "Ready"): 1,
            (SECRETS, "Pending"): 1,
            (SOURCE, "Pending"): 1,
        }


@pytest.mark.parametrize(
    ("value", "equal", "others"),
    [
        (1, [1, 1.0], ["1", True, 2, [1]]),
        ("1", ["1"], [1, "01"]),
        (True, [True], [1, "true", False]),
        (None, [None], [False, "", "null"]),
        (0.5, [0.5], [0, "0.5"]),
        (
            {"a": [1, "x"], "b": None},
            [{"b": None, "a": [1.0, "x"]}],
            [{"a": [1, "x"]}, {"a": ["x", 1], "b": None}],
        ),
        ("x" * 4096, ["x" * 4096], ["x" * 4095]),
    ],
)
def test_labels_are_equal_as_json_is(
    store: SqlResourceStore, value: object, equal: list[object], others: list[object]
) -> None:
    save(store, a_resource("a", labels={"k": value, "l": "y"}), a_resource("b", labels={"l": "y"}))
    assert [names(store, labels={"k": other}) for other in equal] == [["a"] for _ in equal]
    assert [names(store, labels={"k": other}) for other in others] == [[] for _ in others]


def test_labels_are_found_by_all_their_conditions_and_follow_changes(store: SqlResourceStore) -> None:
    long = "https://example.org/" + "k" * 5_000
    first, _ = save(store, a_resource("a", labels={"k": 1, long: "x"}), a_resource("b", labels={"k": 2}))
    assert names(store, label_keys=["k"]) == ["a", "b"]
    assert names(store, label_keys=["k", long]) == ["a"]
    assert names(store, labels={"k": 1, long: "x"}) == ["a"]
    assert names(store, labels={"k": 1, long: "y"}) == []
    (first,) = save(store, a_change(first, labels={"k": 2}))
    assert names(store, labels={"k": 2}) == ["a", "b"]
    assert names(store, label_keys=[long]) == []
    save(store, a_change(first, labels={}))
    assert names(store, label_keys=["k"]) == ["b"]


def test_references_are_followed_backwards(store: SqlResourceStore) -> None:
    (secret,) = save(store, a_resource("keys", type=SECRETS))
    to_secret = ResourceReference(
        path="spec.config.b", type=SECRETS, id=secret.id, account=ALICE, name="keys"
    )
    by_name = ResourceReference(path="spec.config.a", type=SECRETS, account=ALICE, name="Later")
    by_did = ResourceReference(path="spec.inputs[0]", type=SOURCE, did="did:odf:x")
    to_account = ResourceReference(path="headers.account", type=ACCOUNT, name="Carol")
    (source,) = save(
        store,
        a_change(a_resource("s", type=SOURCE), references=[to_secret, by_name, by_did, to_account]),
    )
    with store.read() as snapshot:
        assert snapshot.references_from(source.id) == (to_account, by_name, to_secret, by_did)
        assert snapshot.referring_to(secret.id) == (source,)
        assert snapshot.unresolved_to(SECRETS, ALICE, "keys") == ()  # it is resolved
        assert snapshot.unresolved_to(SECRETS, ALICE, "later") == (source,)
        assert snapshot.unresolved_to(SECRETS, BOB, "later") == ()
        assert snapshot.unresolved_to(VARIABLES, ALICE, "later") == ()
        assert snapshot.unresolved_to(SOURCE, ALICE, "any", "did:odf:x") == (source,)
        assert snapshot.unresolved_to(SOURCE, ALICE, "any", "did:odf:y") == ()
        assert snapshot.unresolved_to(SOURCE, ALICE, "any") == ()
        assert snapshot.unresolved_to(ACCOUNT, None, "carol") == (source,)
    (source,) = save(store, a_change(source, phase="Ready"))  # references stay
    with store.read() as snapshot:
        assert snapshot.referring_to(secret.id) == (source,)
    save(store, a_change(source, references=[replace(by_name, id=secret.id)]))
    with store.read() as snapshot:
        assert snapshot.unresolved_to(SECRETS, ALICE, "later") == ()
        assert len(snapshot.references_from(source.id)) == 1


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
