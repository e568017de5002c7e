from dataclasses import replace
from typing import Any

import pytest

from odf_common.errors import InvalidInput
from odf_common.identity.dataset_refs import Name
from odf_common.resources.references import AccountHandle, AccountRef
from odf_common.resources.scalar_formats import Did, ResourceId, TypeRef, TypeUri
from odf_common.resources.selectors import Candidate, Selector

DATASET = TypeUri(context="dataset", name="Dataset")
KIND = TypeUri(context="dataset", name="DatasetKind")
KNOWN = {"Dataset": DATASET, "Flow": TypeUri(context="flow", name="Flow"), "DatasetKind": KIND}
ID = ResourceId("0b9c1a52-5f0e-4d53-9a3e-6f1b2b7a9d10")
DID = Did("did:odf:fed01" + "6f" * 32)
ALICE = AccountHandle(
    id=ResourceId("6f6e2c1e-77d1-4a0c-8e57-0d6c1f3b9a21"),
    did=Did("did:odf:fed01" + "aa" * 32),
    name=Name("Alice"),
)
BOB = AccountHandle(
    id=ResourceId("6f6e2c1e-77d1-4a0c-8e57-0d6c1f3b9a22"), did=Did("did:pkh:eip155:1:0xAb"), name=Name("bob")
)
RIVERS = Candidate(
    type=DATASET.identity,
    id=ID,
    name=Name("Org.Rivers.Hourly"),
    did=DID,
    account=ALICE,
    labels={str(KIND.identity): "Root", "env": "prod", "owner": {"team": "a"}},
)


def lookup(type: TypeRef) -> TypeUri | None:
    return KNOWN.get(type) if isinstance(type, str) else type if type in KNOWN.values() else None


def select(value: object) -> Selector:
    return Selector.parse(value, lookup)


def matches(value: object, candidate: Candidate = RIVERS, owner: AccountHandle = ALICE) -> bool:
    return select(value).matches(candidate, owner)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Dataset:%", True),
        ("Dataset:org.rivers.hourly", True),
        ("Dataset:org.%", True),
        ("Dataset:ORG.%.hourly", True),
        ("Dataset:%rivers%", True),
        ("Dataset:org.rivers", False),
        ("Dataset:alice/org.%", True),
        ("Dataset:bob/org.%", False),
        (f"Dataset:{ALICE.id}/%", True),
        (f"Dataset:{ALICE.did}/%", True),
        ("Dataset:%/org.%", True),
        ("Flow:%", False),
        (f"{DATASET}:%", True),
        (f"Dataset:{ID}", True),
        (f"Dataset:{ALICE.id}", False),
    ],
)
def test_resource_selector_string_is_type_account_and_pattern(text: str, expected: bool) -> None:
    assert matches(text) is expected


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("%", "with a type"),
        ("org.%", "with a type"),
        ("", "with a type"),
        ("Nothing:%", "the node knows no type Nothing"),
        ("https://h/c/v1/A:%", "the node knows no type"),
        ("Dataset:", "% matches anything"),
        ("Dataset:a_b", "% matches anything"),
        ("Dataset:a/b/c", "account"),
        ("Dataset:a b", "% matches anything"),
        ("Dataset:a#b", "% matches anything"),
        (5, "expected a string or an object"),
        ({"name": "%"}, "type: expected the name of a type"),
        ({"type": "Dataset", "nam": "%"}, "nam: unknown field"),
        ({"type": "Dataset", "name": 5}, "name: expected a string"),
        ({"type": "Dataset", "name": "a/b"}, "name: 'a/b' has an account"),
        ({"type": "Dataset", "id": "5"}, "UUID"),
        ({"type": "Dataset", "account": "a_b"}, "account"),
        ({"type": "Dataset", "kind": "Root"}, "kind: unknown field"),
        ({"type": "Dataset", "labels": []}, "labels: expected an object"),
        ({"type": "Dataset", "labels": {"my_key": 1}}, r"labels\.my_key: 'my_key'"),
        ({"type": "Dataset", "labels": {"$or": [{"a.b": 1}]}}, r"labels\.\$or\[0\]\.a\.b"),
    ],
)  # fmt: skip
def test_resource_selector_of_another_form_is_refused(text: object, problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem):
        select(text)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, True),
        ({"name": "org.%", "id": ID, "account": "alice", "labels": {"env": "prod"}}, True),
        ({"name": "org.%", "labels": {"env": "dev"}}, False),
        ({"name": "com.%", "labels": {"env": "prod"}}, False),
        ({"account": {"id": ALICE.id, "name": "renamed"}}, True),
        ({"account": {"id": BOB.id, "name": "alice"}}, False),
        ({"account": {"did": ALICE.did}}, True),
        ({"account": "%"}, True),
    ],
)
def test_all_given_fields_must_hold(fields: dict[str, Any], expected: bool) -> None:
    assert matches({"type": "Dataset", **fields}) is expected


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        ("org.opendatafabric.%", "org.opendatafabric.a.b", True),
        ("org.opendatafabric.%", "org.opendatafabric", False),
        ("a%", "A", True),
        ("a%b%c", "aXbXc", True),
        ("%", "x", True),
        ("a", "ab", False),
    ],
)
def test_percent_is_any_run_of_characters_of_the_whole_name(pattern: str, name: str, expected: bool) -> None:
    assert matches(f"Dataset:{pattern}", replace(RIVERS, name=Name(name))) is expected


def test_without_account_the_owner_of_the_selector_is_meant() -> None:
    assert matches("Dataset:%", owner=ALICE)
    assert not matches("Dataset:%", owner=BOB)
    assert matches("Dataset:%/%", owner=BOB)
    assert matches("Dataset:bob/%", replace(RIVERS, account=BOB), owner=ALICE)


def test_resource_being_deleted_never_matches() -> None:
    assert not matches("Dataset:%", replace(RIVERS, is_deleted=True))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("%", True),
        ("org.%", True),
        ("Dataset:org.%", True),
        ("bob/org.%", False),
        ({}, True),
        ({"kind": "Root"}, True),
        ({"kind": "Derivative"}, False),
        ({"kind": "Root", "labels": {"env": "dev"}}, False),
    ],
)
def test_dataset_selector_has_the_type_fixed_and_a_kind(value: object, expected: bool) -> None:
    assert Selector.parse_of_datasets(value, lookup).matches(RIVERS, ALICE) is expected


@pytest.mark.parametrize("value", ["Flow:%", {"type": "Dataset"}, {"kind": "root"}, {"kind": 1}])
def test_dataset_selector_of_another_form_is_refused(value: object) -> None:
    with pytest.raises(InvalidInput):
        Selector.parse_of_datasets(value, lookup)


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ({"datasetKind": "Root"}, True),
        ({str(KIND): "Root"}, True),
        ({"owner": {"team": "a"}}, True),
        ({"name": "org.rivers.HOURLY"}, True),
        ({"name": {"$like": "org.%"}}, True),
        ({"id": str(ID)}, True),
        ({"did": str(DID)}, True),
        ({"account": "alice"}, True),
        ({"account": str(ALICE.id)}, True),
        ({"account": "bob"}, False),
        ({"$or": [{"name": "foo"}, {"env": {"$in": ["prod"]}}]}, True),
        ({"$not": {"env": "prod"}}, False),
        ({"did": {"$exists": False}}, False),
    ],
)
def test_label_filter_works_on_labels_and_on_headers(labels: dict[str, Any], expected: bool) -> None:
    assert matches({"type": "Dataset", "labels": labels}) is expected


def test_kind_is_an_alias_of_dataset_kind_on_datasets_with_a_warning() -> None:
    selector = select({"type": "Dataset", "name": "%", "labels": {"kind": "Root"}})
    assert selector.matches(RIVERS, ALICE)
    assert selector.warnings == ("the label `kind` is called `datasetKind`",)
    assert select({"type": "Flow", "labels": {"kind": "Root"}}).warnings == ()


def test_index_gets_the_equalities_and_keys_that_must_hold() -> None:
    selector = select(
        {
            "type": "Dataset",
            "name": "w.%",
            "labels": {"datasetKind": "Root", "env": {"$in": ["a", "b"]}, "name": "w.a"},
        }
    )
    needs = selector.index_needs(ALICE)
    assert needs.type == DATASET.identity
    assert needs.account == ALICE.reference()
    assert (needs.id, needs.name) == (None, "w.%")
    assert needs.labels == {str(KIND.identity): "Root"}
    assert needs.label_keys == {str(KIND.identity), "env"}
    assert select("Dataset:bob/a").index_needs(ALICE).account == AccountRef(name=Name("bob"))
    assert select("Dataset:%/a").index_needs(ALICE).account is None
    assert select({"type": "Dataset"}).index_needs(ALICE).name == "%"
