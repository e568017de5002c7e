"""How resources are found in the store: pages, patterns, labels and references."""

from dataclasses import replace

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
    an_id,
    names,
    save,
)

from odf_coordinator.resources.sql_store import SqlResourceStore
from odf_coordinator.resources.store import (
    Query,
    ResourceReference,
)


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
        assert snapshot.referring_to_any([secret.id, an_id("unknown")]) == (source,)
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
