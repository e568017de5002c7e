"""Accounts, datasets and handles of one state of the store."""

from typing import Final, Protocol

from odf_common.errors import InvalidInput
from odf_common.identity.dataset_refs import Name
from odf_common.resources.references import AccountHandle, AccountRef, Handle
from odf_common.resources.registry import ACCOUNT, DATASET
from odf_common.resources.scalar_formats import Did, TypeUri
from odf_coordinator.resources.documents import type_id
from odf_coordinator.resources.store import (
    Snapshot,
    StoredResource,
)

NODE_ACCOUNT: Final = Name("odf")
"""The account of a node without others; names of its datasets do not have it."""


class ExistingDatasets(Protocol):
    """The datasets of the node, as plans look them up."""

    def id_of(self, alias: str) -> str | None:
        """Return the DID of the dataset with an alias; None if it does not exist."""

    def alias_of(self, did: str) -> str | None:
        """Return the alias of a dataset; None if it does not exist."""

    def kind_of(self, did: str) -> str | None:
        """Return `Root` or `Derivative`; None for a dataset that does not exist."""


class NoDatasets:
    """A node without datasets."""

    def id_of(self, _: str) -> None:
        """Return None."""

    def alias_of(self, _: str) -> None:
        """Return None."""

    def kind_of(self, _: str) -> None:
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


def find_account(state: Snapshot, ref: AccountRef) -> StoredResource | None:
    """Return the account that a reference means; None if it does not exist."""
    if ref.id is not None:
        found = state.by_id(ref.id)
        return found if found is not None and found.type == type_id(ACCOUNT.uri) else None
    if ref.did is not None:
        return state.by_did(type_id(ACCOUNT.uri), ref.did)
    return account_named(state, str(ref.name))


def account_named(state: Snapshot, name: str) -> StoredResource | None:
    """Return the account that has a name."""
    return state.by_name(type_id(ACCOUNT.uri), None, name)


def dataset_named(state: Snapshot, alias: str) -> StoredResource | None:
    """Return the resource of the dataset that has an alias or id; None if it has none."""
    kind = type_id(DATASET.uri)
    if alias.startswith("did:"):
        return state.by_did(kind, alias)
    account, _, name = alias.rpartition("/")
    found = account_named(state, account or NODE_ACCOUNT.text)
    return None if found is None else state.by_name(kind, found.id, name)
