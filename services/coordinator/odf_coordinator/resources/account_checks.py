"""Checks of the manifests of accounts, and of their deletion."""

from odf_common.errors import InvalidInput, Refused
from odf_common.identity.dataset_refs import Name
from odf_common.resources.node_accounts import NODE_ACCOUNT, NODE_DID
from odf_common.resources.registry import ACCOUNT, ReservedName, require_account_name
from odf_common.resources.resource_manifests import ResourceManifest
from odf_common.resources.scalar_formats import Did
from odf_coordinator.resources.documents import type_id
from odf_coordinator.resources.draft import ImmutableField
from odf_coordinator.resources.lookups import ExistingDatasets, Lookups
from odf_coordinator.resources.store import Query, Snapshot, StoredResource


class AccountNeeded(Refused):
    """An account cannot be deleted, because a later account of its name would own what it has."""

    ADVICE = "delete what it owns first"


def check_account(manifest: ResourceManifest, stored: StoredResource | None, state: Lookups) -> None:
    """Raise `ImmutableField` or `InvalidInput` for a manifest of an account that this node cannot have."""
    if stored is not None:
        require_same_name(stored, manifest.name)
    elif manifest.name == NODE_ACCOUNT:
        raise ReservedName(text=f"{NODE_ACCOUNT} is the account of the node itself", where="headers.name")
    else:
        require_account_name(manifest.name)
    given = manifest.spec.get("did")
    if given is None:
        return
    did, hint = Did.parse(given), "remove `did`: the node generates one"
    if not did.is_odf:
        raise InvalidInput(text="expected a DID that begins with did:odf:", where="spec.did", hint=hint)
    if stored is not None and did == stored.did:
        return
    if did == NODE_DID or state.by_did(type_id(ACCOUNT.uri), did) is not None:
        raise InvalidInput(text="another account has this DID", where="spec.did", hint=hint)


def require_same_name(account: StoredResource, name: Name) -> None:
    """Raise `ImmutableField` if an account would get another name."""
    if Name(account.name) != name:
        text = f"it is {account.name}; an account keeps its name, which its datasets have too"
        raise ImmutableField(text=text, where="headers.name")


def require_unused(datasets: ExistingDatasets, snapshot: Snapshot, resource: StoredResource) -> None:
    """Raise `AccountNeeded` if a resource is the node's account, or one that owns resources or datasets."""
    if resource.schema != str(ACCOUNT.uri):
        return
    if resource.did == NODE_DID:
        raise AccountNeeded(text="the node itself needs this account")
    owned = snapshot.find(Query(accounts=(resource.id,), include_deleted=True, limit=2)).resources
    names = [f"{one.schema.rpartition('/')[2]}:{one.name}" for one in owned if one.id != resource.id]
    dataset = datasets.any_of(Name(resource.name))
    if names or dataset is not None:
        raise AccountNeeded(text=f"the account {resource.name} owns {names[0] if names else dataset}")
