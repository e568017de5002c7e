"""Accounts, datasets and handles of one state of the store."""

from collections.abc import Container, Sequence
from typing import Final, Protocol

from odf_common.errors import InvalidInput
from odf_common.identity.dataset_refs import Name
from odf_common.resources import node_accounts
from odf_common.resources.references import AccountHandle, AccountRef, Handle
from odf_common.resources.registry import ACCOUNT, DATASET, ResourceType
from odf_common.resources.scalar_formats import Did, ResourceId, TypeUri, is_uuid
from odf_coordinator.resources.documents import type_id
from odf_coordinator.resources.store import (
    NameConflict,
    ResourceReference,
    Snapshot,
    StoredResource,
    Tombstone,
    TypeId,
)

NODE_ACCOUNT: Final = node_accounts.NODE_ACCOUNT


class ExistingDatasets(Protocol):
    """The datasets of the node, as plans look them up."""

    def id_of(self, alias: str) -> str | None:
        """Return the DID of the dataset with an alias; None if it does not exist."""

    def alias_of(self, did: str) -> str | None:
        """Return the alias of a dataset; None if it does not exist."""

    def kind_of(self, did: str) -> str | None:
        """Return `Root` or `Derivative`; None for a dataset that does not exist."""

    def any_of(self, account: Name) -> str | None:
        """Return the alias of one of an account's datasets; None if it has none."""


class NoDatasets:
    """A node without datasets."""

    def id_of(self, _: str) -> None:
        """Return None."""

    def alias_of(self, _: str) -> None:
        """Return None."""

    def kind_of(self, _: str) -> None:
        """Return None."""

    def any_of(self, _: Name) -> None:
        """Return None."""


def dataset_alias(account: Name, name: str) -> str:
    """Return the alias of the dataset that a resource of an account declares."""
    return name if account == NODE_ACCOUNT else f"{account}/{name}"


def input_alias(ref: str, account: Name) -> str:
    """Return the alias of an input of a query in a resource of an account; an id as it is.

    Names without an account are of the resource's own.
    """
    own, slash, name = ref.partition("/")
    if slash and own.lower() == NODE_ACCOUNT.key:
        return name
    return ref if slash or ref.startswith("did:") else dataset_alias(account, ref)


def require_free_alias(datasets: ExistingDatasets, alias: str, did: str | None) -> None:
    """Raise `InvalidInput` if an alias belongs to another dataset."""
    named = datasets.id_of(alias)
    if named is not None and named != did:
        hint = "choose another name, or rename that dataset first"
        raise InvalidInput(text=f"the dataset {alias} exists", where="headers.name", hint=hint)


class Lookups(Protocol):
    """Reads of one state, as a plan needs them; each is as in `Snapshot`."""

    def by_id(self, id: ResourceId) -> StoredResource | None:
        """Return a resource."""

    def by_name(self, type: TypeId, account: ResourceId | None, name: str) -> StoredResource | None:
        """Return the resource that has a name."""

    def by_did(self, type: TypeId, did: str) -> StoredResource | None:
        """Return the resource that has a DID."""

    def references_from(self, id: ResourceId) -> tuple[ResourceReference, ...]:
        """Return the references of a resource."""


class RememberedReads:
    """Reads of a state that does not change meanwhile: each is done once, and many of them together."""

    def __init__(self, state: Snapshot) -> None:
        """Read one state."""
        self._state = state
        self.references_from = state.references_from
        self._by_id: dict[ResourceId, StoredResource | None] = {}
        self._by_name: dict[tuple[TypeId, ResourceId | None, str], StoredResource | None] = {}
        self._by_did: dict[tuple[TypeId, str], StoredResource | None] = {}

    def read_ids(self, ids: Sequence[ResourceId]) -> None:
        """Read many resources together."""
        found = self._state.by_ids(ids)
        self._by_id |= {id_: found.get(id_) for id_ in ids}

    def read_names(self, type: TypeId, account: ResourceId | None, names: Sequence[str]) -> None:
        """Read the resources that have these names together."""
        found = self._state.by_names(type, account, names)
        self._by_name |= {(type, account, name.lower()): found.get(name.lower()) for name in names}

    def by_id(self, id: ResourceId) -> StoredResource | None:
        """Return a resource."""
        if id not in self._by_id:
            self._by_id[id] = self._state.by_id(id)
        return self._by_id[id]

    def by_name(self, type: TypeId, account: ResourceId | None, name: str) -> StoredResource | None:
        """Return the resource that has a name."""
        key = (type, account, name.lower())
        if key not in self._by_name:
            self._by_name[key] = self._state.by_name(type, account, name)
        return self._by_name[key]

    def by_did(self, type: TypeId, did: str) -> StoredResource | None:
        """Return the resource that has a DID."""
        if (type, did) not in self._by_did:
            self._by_did[type, did] = self._state.by_did(type, did)
        return self._by_did[type, did]


def name_conflict(
    state: Lookups, kind: ResourceType, owner: AccountHandle, name: Name, ids: Container[str]
) -> NameConflict | None:
    """Return the error for a name that a resource other than these has."""
    is_account = kind is ACCOUNT
    other = state.by_name(type_id(kind.uri), None if is_account else owner.id, name.text)
    if other is None or other.id in ids:
        return None
    account = None if is_account else owner.name.text
    return NameConflict(type=kind.short_name, account=account, name=other.name)


def handle_of(resource: StoredResource) -> Handle:
    """Return the handle of a stored resource."""
    return Handle(
        type=TypeUri.parse(resource.schema),
        id=resource.id,
        did=None if resource.did is None else Did(resource.did),
        name=Name(resource.name),
        account=account_of(resource),
    )


def account_of(resource: StoredResource) -> AccountHandle:
    """Return the account that owns a resource; an account owns itself."""
    return AccountHandle.from_plain(resource.document["headers"]["account"])


def is_account(account: AccountHandle, ref: AccountRef) -> bool:
    """Return whether a reference means an account."""
    if ref.id is not None:
        return account.id == ref.id
    if ref.did is not None:
        return account.did == ref.did
    return account.name == ref.name


def find_account(state: Lookups, ref: AccountRef) -> StoredResource | None:
    """Return the account that a reference means; None if it does not exist."""
    if ref.id is not None:
        found = state.by_id(ref.id)
        return found if found is not None and found.type == type_id(ACCOUNT.uri) else None
    if ref.did is not None:
        return state.by_did(type_id(ACCOUNT.uri), ref.did)
    return account_named(state, str(ref.name))


def account_named(state: Lookups, name: str) -> StoredResource | None:
    """Return the account that has a name."""
    return state.by_name(type_id(ACCOUNT.uri), None, name)


def dataset_named(state: Lookups, alias: str) -> StoredResource | None:
    """Return the resource of the dataset that has an alias or id; None if it has none."""
    kind = type_id(DATASET.uri)
    if alias.startswith("did:"):
        return state.by_did(kind, alias)
    account, _, name = alias.rpartition("/")
    found = account_named(state, account or NODE_ACCOUNT.text)
    return None if found is None else state.by_name(kind, found.id, name)


def find_tombstone(state: Snapshot, type: TypeId, owner: ResourceId | None, ref: str) -> Tombstone | None:
    """Return the tombstone of an id, or the newest one of a name of an account."""
    if is_uuid(ref):
        found = state.tombstone(ResourceId.parse(ref))
    else:
        found = None if owner is None else state.tombstone_named(type, owner, ref)
    return found if found is not None and found.type == type else None
