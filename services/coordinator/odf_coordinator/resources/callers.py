"""On whose behalf resources are read and changed."""

import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from odf_common.errors import nearest
from odf_common.identity.dataset_refs import Name
from odf_common.ports.clock import Clock
from odf_common.resources.node_accounts import did_of_name, implied_spec
from odf_common.resources.phases import Phase
from odf_common.resources.registry import ACCOUNT, ResourceType
from odf_common.resources.scalar_formats import ResourceId
from odf_coordinator.resources import documents
from odf_coordinator.resources.documents import type_id
from odf_coordinator.resources.lookups import NODE_ACCOUNT, account_of
from odf_coordinator.resources.relations import is_user
from odf_coordinator.resources.store import (
    Change,
    EventKind,
    NewEvent,
    Query,
    Snapshot,
    StoredResource,
    Transaction,
)


def new_id() -> ResourceId:
    """Return a new id."""
    return ResourceId(uuid.uuid4())


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """On whose behalf a call is made."""

    did: str = ""
    """Empty: the account of the node."""
    name: str = ""
    is_admin: bool = True
    may_grant: bool = True
    """Whether accounts and Relations may be changed, which tokens that only write may not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCaller:
    """A caller with an account of this node."""

    account: StoredResource
    is_admin: bool
    may_grant: bool = True
    has_use: Callable[[StoredResource], bool] = lambda _: False
    """Returns whether Relations let the caller use a resource of another account."""

    def may_write(self, account: ResourceId) -> bool:
        """Return whether the account is the caller's, or the caller administers the node."""
        return self.is_admin or account == self.account.id

    def may_read(self, resource: StoredResource) -> bool:
        """Return whether the caller may see a resource."""
        return self.is_admin or resource.document["headers"]["account"].get("id") == self.account.id

    def may_use(self, target: StoredResource) -> bool:
        """Return whether the caller may refer to a resource."""
        return self.may_read(target) or self.has_use(target)


def caller_of(snapshot: Snapshot, subject: Subject, clock: Clock) -> NodeCaller:
    """Return the caller of a subject; an account without a resource gets one when it changes something."""
    name = Name(subject.name) if subject.name else NODE_ACCOUNT
    did = subject.did or did_of_name(name)
    # By the DID: another account, which was removed, may have had the name.
    account = snapshot.by_did(type_id(ACCOUNT.uri), did) or _new_account(name, did, clock)
    has_use = partial(is_user, snapshot, account.id)
    return NodeCaller(
        account=account, is_admin=subject.is_admin, may_grant=subject.may_grant, has_use=has_use
    )


def writer_of(transaction: Transaction, subject: Subject, clock: Clock) -> NodeCaller:
    """Return a caller whose account is stored."""
    caller = caller_of(transaction, subject, clock)
    if caller.account.revision:
        return caller
    event = NewEvent(kind=EventKind.CREATED, subject=caller.account.id, time_ms=caller.account.created_ms)
    (account,) = transaction.save([Change(resource=caller.account, events=[event], references=())])
    return replace(caller, account=account)


def suggest_name(snapshot: Snapshot, caller: NodeCaller, kind: ResourceType, name: str) -> str:
    """Return a question about the most similar name that a caller may see, else how to list the names."""
    page = snapshot.find(Query(types=(type_id(kind.uri),)))
    near = nearest(name, [_name_from(caller, one) for one in page.resources if caller.may_read(one)])
    return f"did you mean {near}?" if near else f"`odf get {kind.short_name}` prints those that you may see"


def _name_from(caller: NodeCaller, resource: StoredResource) -> str:
    """Return the name by which a caller reaches a resource."""
    is_own = resource.account in {caller.account.id, resource.id}
    return resource.name if is_own else f"{account_of(resource).name}/{resource.name}"


def _new_account(name: Name, did: str, clock: Clock) -> StoredResource:
    """Return an account that was known to the node before it had resources."""
    account = new_id()
    now = documents.timestamp(clock.now().ms)
    document = {
        "$schema": str(ACCOUNT.uri),
        "headers": {
            "id": account,
            "name": name.text,
            "account": {"id": account, "did": did, "name": name.text},
            "labels": {},
            "annotations": {},
            "generation": 1,
            "createdAt": now,
            "updatedAt": now,
        },
        "spec": implied_spec(name, did),
        "status": {"phase": Phase.READY.value, "observedGeneration": 1, "conditions": {}},
    }
    return StoredResource(
        id=account,
        type=type_id(ACCOUNT.uri),
        schema=str(ACCOUNT.uri),
        account=account,
        name=name.text,
        did=did,
        document=document,
        labels={},
        generation=1,
        phase=Phase.READY.value,
        created_ms=clock.now().ms,
        updated_ms=clock.now().ms,
    )
