"""The flows of a store, and their targets: what a selector matches now, as far as its owner may use it."""

from collections.abc import Callable
from dataclasses import replace

from odf_common.resources.references import AccountHandle
from odf_common.resources.registry import FLOW
from odf_common.resources.scalar_formats import ResourceId
from odf_common.resources.selectors import Selector
from odf_coordinator.resources import documents
from odf_coordinator.resources.documents import type_id
from odf_coordinator.resources.lookups import account_of, find_account
from odf_coordinator.resources.store import Query, Snapshot, StoredResource, TypeId

MaySelect = Callable[[AccountHandle, StoredResource], bool]
"""Returns whether flows of an account may work on a resource."""


def own_only(owner: AccountHandle, resource: StoredResource) -> bool:
    """Return whether a resource is of the account itself."""
    return resource.account == owner.id


def all_flows(snapshot: Snapshot) -> list[StoredResource]:
    """Return the flows of a store."""
    query = Query(types=(type_id(FLOW.uri),))
    found: list[StoredResource] = []
    while True:
        page = snapshot.find(query)
        found += page.resources
        if page.next is None:
            return found
        query = replace(query, after=page.next)


def find_targets(
    snapshot: Snapshot, flow: StoredResource, selector: Selector, may_select: MaySelect
) -> dict[ResourceId, StoredResource]:
    """Return the resources that a flow is for, by id."""
    owner = account_of(flow)
    needs = selector.index_needs(owner)
    account = None if needs.account is None else find_account(snapshot, needs.account)
    if needs.account is not None and account is None:
        return {}
    query = Query(
        types=(TypeId(str(needs.type)),),
        accounts=() if account is None else (account.id,),
        name=needs.name,
        labels=needs.labels,
        label_keys=sorted(needs.label_keys),
    )
    found: dict[ResourceId, StoredResource] = {}
    while True:
        page = snapshot.find(query)
        for one in page.resources:
            if selector.matches(documents.selectable(one), owner) and may_select(owner, one):
                found[one.id] = one
        if page.next is None:
            return found
        query = replace(query, after=page.next)
