from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from odf_common.errors import InvalidInput
from odf_common.identity.dataset_refs import Name
from odf_common.resources import references as refs
from odf_common.resources.references import (
    AccountHandle,
    AccountRef,
    Handle,
    InvalidReference,
    Reference,
    ReferenceField,
)
from odf_common.resources.scalar_formats import Did, ResourceId, ShortTypeName, TypeUri

ID = ResourceId("0b9c1a52-5f0e-4d53-9a3e-6f1b2b7a9d10")
OTHER_ID = ResourceId("6f6e2c1e-77d1-4a0c-8e57-0d6c1f3b9a21")
DID = Did("did:odf:fed01" + "6f" * 32)
WALLET = Did("did:pkh:eip155:1:0xb9c5714089478a327f09197987f16f9e5d936e8a")
KEYS = TypeUri(context="config", name="SecretSet")
VOLUME = TypeUri(context="storage", name="PersistentVolume")
SOURCE_FIELD = TypeUri(context="source", name="Source")
DATASET = ShortTypeName("Dataset")
URI = "https://opendatafabric.org/schemas/dataset/v1alpha1/Dataset"
NAME, ALICE = Name("name"), Name("alice")
FIELDS = [
    refs.ANY_RESOURCE,
    refs.SOURCE_FIELD,
    refs.WEBHOOK_FIELD,
    refs.VOLUME,
    refs.CONFIG_VALUE,
    refs.CREDENTIAL,
]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Dataset:name", Reference(type=DATASET, name=NAME)),
        ("Dataset:alice/name", Reference(type=DATASET, name=NAME, account=AccountRef(name=ALICE))),
        (f"Dataset:{OTHER_ID}/name", Reference(type=DATASET, name=NAME, account=AccountRef(id=OTHER_ID))),
        (f"Dataset:{WALLET}/name", Reference(type=DATASET, name=NAME, account=AccountRef(did=WALLET))),
        (f"Dataset:{ID.upper()}", Reference(type=DATASET, id=ID)),
        (f"Dataset:{DID}", Reference(type=DATASET, did=DID)),
        (f"Account:{WALLET}", Reference(type=ShortTypeName("Account"), did=WALLET)),
        (f"{URI}:name", Reference(type=TypeUri.parse(URI), name=NAME)),
        (f"{URI}:{DID}", Reference(type=TypeUri.parse(URI), did=DID)),
        ("https://h:8443/c/v1/A:name", Reference(type=TypeUri.parse("https://h:8443/c/v1/A"), name=NAME)),
    ],
)
def test_resource_ref_string_has_type_and_target(text: str, expected: Reference) -> None:
    assert Reference.parse(text, refs.ANY_RESOURCE) == expected


@pytest.mark.parametrize(
    ("text", "field", "problem"),
    [
        ("name", refs.ANY_RESOURCE, "the type of the target is missing"),
        (str(DID), refs.ANY_RESOURCE, "the type of the target is missing"),
        ("", refs.ANY_RESOURCE, "the type of the target is missing"),
        (":name", refs.ANY_RESOURCE, "does not name a type"),
        ("Dataset:", refs.ANY_RESOURCE, "is not a name"),
        ("Dataset:a/b/c", refs.ANY_RESOURCE, "is not a name"),
        ("Dataset:/name", refs.ANY_RESOURCE, "account"),
        ("Dataset:alice/", refs.ANY_RESOURCE, "is not a name"),
        (f"Dataset:alice/{ID}", refs.ANY_RESOURCE, "has the form of an id"),
        (f"Dataset:alice/{DID}", refs.ANY_RESOURCE, "is not a name"),
        ("Dataset:00000000-0000-1000-8000-000000000000", refs.ANY_RESOURCE, "UUID of version 4"),
        ("Dataset:did:key:z6Mk", refs.ANY_RESOURCE, "did:odf"),
        ("Data_set:name", refs.ANY_RESOURCE, "does not name a type"),
        ("http://h/c/v1/A:name", refs.ANY_RESOURCE, "the type of the target is missing"),
        ("https://h/c/v1/a:name", refs.ANY_RESOURCE, "is not the URI of a type"),
        ("Dataset:name#key", refs.ANY_RESOURCE, "a path is not possible"),
        ("Dataset:name", refs.SOURCE_FIELD, "Dataset cannot be referred to here"),
        (f"{URI}:name", refs.SOURCE_FIELD, "cannot be referred to here"),
        ("VariableSet:name", refs.VOLUME, "VariableSet cannot be referred to here"),
        ("Secret:postgres#password", refs.CONFIG_VALUE, r"expected SecretSet\|VariableSet:\[ACCOUNT/\]NAME#PATH"),
        ("SecretSet:keys", refs.CONFIG_VALUE, "a path is missing"),
        ("keys#a", refs.CONFIG_VALUE, "the type of the target is missing"),
        (str(DID), refs.VOLUME, "PersistentVolume has no DID"),
        (f"Source:{DID}", refs.SOURCE_FIELD, "Source has no DID"),
        (f"Dataset:{WALLET}", refs.ANY_RESOURCE, "is not the DID of a dataset"),
    ],
)  # fmt: skip
def test_string_of_another_form_is_refused_and_the_form_named(
    text: str, field: ReferenceField, problem: str
) -> None:
    with pytest.raises(InvalidReference, match=problem) as caught:
        Reference.parse(text, field)
    assert f"expected {field.form}" in str(caught.value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("alice", AccountRef(name=ALICE)),
        (str(ID), AccountRef(id=ID)),
        (str(DID), AccountRef(did=DID)),
        (str(WALLET), AccountRef(did=WALLET)),
        ({"name": "alice"}, AccountRef(name=ALICE)),
        ({"id": ID, "did": WALLET, "name": "alice"}, AccountRef(id=ID, did=WALLET, name=ALICE)),
    ],
)
def test_account_ref_is_a_name_a_uuid_or_a_did(value: object, expected: AccountRef) -> None:
    assert AccountRef.parse(value) == expected


@pytest.mark.parametrize(
    "value",
    [
        "",
        "a_b",
        "alice/bob",
        "Account:alice",
        {},
        {"account": "a"},
        {"name": 1},
        {"name": None},
        None,
        5,
        ["a"],
    ],
)
def test_account_ref_of_another_form_is_refused(value: object) -> None:
    with pytest.raises(InvalidReference, match="account"):
        AccountRef.parse(value)


@pytest.mark.parametrize("text", ["vault", "PersistentVolume:vault", f"{VOLUME}:vault"])
def test_volume_ref_may_have_the_type_that_its_field_fixes(text: str) -> None:
    reference = Reference.parse(text, refs.VOLUME)
    assert reference.name == Name("vault")
    assert refs.is_type(reference.type, VOLUME)


def test_volume_ref_accepts_its_type_in_an_object_and_does_not_print_it() -> None:
    with_type = Reference.parse({"type": "PersistentVolume", "name": "vault"}, refs.VOLUME)
    without = Reference.parse({"name": "vault"}, refs.VOLUME)
    assert with_type.plain(refs.VOLUME) == without.plain(refs.VOLUME) == {"name": "vault"}
    with pytest.raises(InvalidReference, match="Dataset cannot be referred to here"):
        Reference.parse({"type": "Dataset", "name": "vault"}, refs.VOLUME)


@pytest.mark.parametrize("field", [refs.SOURCE_FIELD, refs.WEBHOOK_FIELD])
def test_type_may_be_left_out_of_strings_where_the_field_fixes_it(field: ReferenceField) -> None:
    bare = Reference.parse("ca.bankofcanada", field)
    assert bare.type == field.fixed_type
    assert Reference.parse(str(bare), field) == bare


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("SecretSet:keys#api.token", "api.token"),
        ("VariableSet:alice/keys#a", "a"),
        (f"SecretSet:{ID}#a#b", "a#b"),
    ],
)
def test_value_ref_has_a_path(text: str, path: str) -> None:
    assert Reference.parse(text, refs.CONFIG_VALUE).path == path


def test_value_ref_refuses_an_empty_path() -> None:
    with pytest.raises(InvalidReference, match="a path is missing"):
        Reference.parse("SecretSet:keys#", refs.CONFIG_VALUE)


def test_credential_that_is_a_variable_gives_a_warning() -> None:
    secret, variable = (
        Reference.parse(f"{kind}:keys#a", refs.CREDENTIAL) for kind in ("SecretSet", "VariableSet")
    )
    assert refs.type_warning(secret, refs.CREDENTIAL) is None
    assert refs.type_warning(variable, refs.CONFIG_VALUE) is None
    assert "expected a SecretSet" in str(refs.type_warning(variable, refs.CREDENTIAL))


@pytest.mark.parametrize(
    ("value", "field", "problem"),
    [
        ({"name": "x"}, refs.ANY_RESOURCE, "type is missing"),
        ({"name": "x"}, refs.SOURCE_FIELD, "type is missing"),
        ({"type": "Dataset"}, refs.ANY_RESOURCE, "a type alone names no resource"),
        ({"type": "Dataset", "account": "alice"}, refs.ANY_RESOURCE, "a type alone names no resource"),
        ({"type": "Dataset", "nam": "x"}, refs.ANY_RESOURCE, "unknown field 'nam'"),
        ({"type": "Dataset", "name": "x", "path": "a"}, refs.ANY_RESOURCE, "a path is not possible"),
        ({"type": "Dataset", "name": 5}, refs.ANY_RESOURCE, "name: expected a string"),
        ({"type": "Dataset", "name": "x", "account": {}}, refs.ANY_RESOURCE, "id, did or name of an account"),
        ({"type": "Dataset", "name": "x", "account": None}, refs.ANY_RESOURCE, "account"),
        ({"type": "SecretSet", "name": "x"}, refs.CONFIG_VALUE, "a path is missing"),
        ({"type": "Flow", "did": DID}, refs.ANY_RESOURCE, "Flow has no DID"),
        ({}, refs.VOLUME, "a type alone"),
        (None, refs.VOLUME, "expected a string or an object"),
        (["a"], refs.VOLUME, "expected a string or an object"),
    ],
)  # fmt: skip
def test_object_of_another_form_is_refused(value: object, field: ReferenceField, problem: str) -> None:
    with pytest.raises(InvalidReference, match=problem):
        Reference.parse(value, field)


def test_object_may_have_id_did_name_and_account_together() -> None:
    value = {"type": "Dataset", "id": ID, "did": DID, "name": "name", "account": {"name": "alice"}}
    reference = Reference.parse(value, refs.ANY_RESOURCE)
    assert reference == Reference(type=DATASET, id=ID, did=DID, name=NAME, account=AccountRef(name=ALICE))
    assert reference.plain(refs.ANY_RESOURCE) == value
    assert Reference.parse({**value, "account": "alice"}, refs.ANY_RESOURCE) == reference


HANDLE = Handle(
    type=VOLUME, id=ID, name=Name("vault"), account=AccountHandle(id=OTHER_ID, did=DID, name=Name("team-a"))
)


def test_handle_is_printed_with_its_account() -> None:
    assert HANDLE.plain() == {
        "type": str(VOLUME),
        "id": str(ID),
        "name": "vault",
        "account": {"id": str(OTHER_ID), "did": str(DID), "name": "team-a"},
    }
    assert list(HANDLE.plain()) == ["type", "id", "name", "account"]
    assert HANDLE.is_resolved


def test_handle_becomes_the_reference_with_the_same_fields() -> None:
    account = AccountRef(id=OTHER_ID, did=DID, name=Name("team-a"))
    assert HANDLE.reference() == Reference(type=VOLUME, id=ID, name=Name("vault"), account=account)
    assert (
        Reference.parse(HANDLE.reference().plain(refs.ANY_RESOURCE), refs.ANY_RESOURCE) == HANDLE.reference()
    )


@pytest.mark.parametrize("account", [AccountRef(name=ALICE), AccountRef(did=WALLET), HANDLE.account, None])
def test_unresolved_handle_has_no_id(account: AccountHandle | AccountRef | None) -> None:
    handle = Handle(type=KEYS, name=NAME, account=account, path="a.b")
    assert not handle.is_resolved
    assert "id" not in handle.plain()
    assert Handle.from_plain(handle.plain()) == handle
    assert handle.reference().name == NAME


@pytest.mark.parametrize(
    "value", [{}, {"type": "Dataset", "id": ID}, {"type": URI, "id": "x"}, {"type": URI, "nam": ""}, "x"]
)
def test_damaged_handle_is_refused(value: object) -> None:
    with pytest.raises(InvalidInput, match=r"type|UUID|nam|expected"):
        Handle.from_plain(value)


def test_id_decides_and_notes_that_differ_are_warnings() -> None:
    reference = Reference(type=VOLUME, id=ID, name=NAME, account=AccountRef(name=ALICE))
    assert refs.disagreements(reference, HANDLE) == (
        "name is vault, not name; the id decides",
        "account is team-a, not alice; the id decides",
    )
    assert refs.disagreements(HANDLE.reference(), HANDLE) == ()
    assert refs.disagreements(Reference(type=VOLUME, id=ID), HANDLE) == ()


def test_did_must_agree_with_the_id() -> None:
    target = Handle(type=TypeUri.parse(URI), id=ID, did=DID, name=NAME)
    other = Did("did:odf:fed01" + "00" * 32)
    assert refs.disagreements(Reference(type=DATASET, id=ID, did=DID), target) == ()
    with pytest.raises(InvalidReference, match="has the DID"):
        refs.disagreements(Reference(type=DATASET, id=ID, did=other), target)


NAMES = some.from_regex(r"[a-zA-Z0-9]+([.-][a-zA-Z0-9]+){0,2}", fullmatch=True).map(Name)
IDS = some.uuids(version=4).map(lambda value: ResourceId(str(value)))
DIDS = some.one_of(
    some.binary(min_size=32, max_size=32).map(lambda key: Did(f"did:odf:fed01{key.hex()}")), some.just(WALLET)
)
ACCOUNTS = some.builds(
    AccountRef, id=some.none() | IDS, did=some.just(WALLET), name=some.none() | NAMES
) | some.builds(AccountRef, name=NAMES)


@some.composite
def references(draw: some.DrawFn) -> tuple[Reference, ReferenceField]:
    field = draw(some.sampled_from(FIELDS))
    kinds = field.types or (TypeUri.parse(URI), DATASET, ShortTypeName("Flow"))
    parts: dict[str, Any] = {"type": draw(some.sampled_from(kinds))}
    has_did = "Dataset" in str(parts["type"])
    optional = {
        "id": IDS,
        "name": NAMES,
        "account": ACCOUNTS,
        **({"did": DIDS.filter(lambda did: did.is_odf)} if has_did else {}),
    }
    parts |= draw(
        some.fixed_dictionaries({}, optional=optional).filter(lambda it: it.keys() & {"id", "did", "name"})
    )
    if field.has_path:
        parts["path"] = draw(some.text(min_size=1))
    return Reference(**parts), field


@given(references())
def test_object_form_is_read_as_it_is_printed(case: tuple[Reference, ReferenceField]) -> None:
    reference, field = case
    assert Reference.parse(reference.plain(field), field) == reference


@given(references())
def test_string_form_names_the_same_target(case: tuple[Reference, ReferenceField]) -> None:
    reference, field = case
    again = Reference.parse(str(reference), field)
    decides = next(key for key in ("id", "did", "name") if getattr(reference, key))
    assert getattr(again, decides) == getattr(reference, decides)
    assert (again.type, again.path) == (reference.type, reference.path)
    assert str(again) == str(reference)


@given(some.text(), some.sampled_from(FIELDS))
def test_no_string_does_more_than_be_refused(text: str, field: ReferenceField) -> None:
    with suppress(InvalidReference):
        Reference.parse(text, field)
