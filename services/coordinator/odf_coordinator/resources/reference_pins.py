"""Unresolved references get the ids of resources that have appeared, or that Relations now let their owners use."""

from collections.abc import Sequence
from dataclasses import dataclass

from odf_common.resources.node_accounts import NODE_DID
from odf_common.resources.registry import ACCOUNT, Types
from odf_coordinator.resources.changes import pin_references
from odf_coordinator.resources.documents import type_id
from odf_coordinator.resources.lookups import account_of, handle_of
from odf_coordinator.resources.relations import granted_objects, is_user
from odf_coordinator.resources.store import Snapshot, StoredResource, Transaction


def may_use(snapshot: Snapshot, owner: StoredResource, target: StoredResource) -> bool:
    """Return whether resources of the account that owns one may refer to another; accounts are known to all."""
    if target.account == owner.account or target.type == type_id(ACCOUNT.uri):
        return True
    return account_of(owner).did == NODE_DID or is_user(snapshot, owner.account, target)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferencePins:
    """Pins references to what was stored."""

    types: Types
    is_multi_tenant: bool
    now_ms: int
    subject: str

    def pin(self, transaction: Transaction, stored: Sequence[StoredResource]) -> None:
        """Give unresolved references ids, as far as the owners of what has them may use the targets."""
        appeared = {one.id: one for one in stored}
        granted = [id_ for one in stored for id_ in granted_objects(one) if id_ not in appeared]
        appeared |= transaction.by_ids(granted)
        living = [one for one in appeared.values() if one.deleted_ms is None]
        names = [one.name.lower() for one in living] + [one.did for one in living if one.did is not None]
        awaited = transaction.unresolved_names(names)
        for target in living:
            if target.name.lower() in awaited or target.did in awaited:
                self._pin(transaction, target)

    def _pin(self, transaction: Transaction, target: StoredResource) -> None:
        account = None if target.type == type_id(ACCOUNT.uri) else target.account
        waiting = transaction.unresolved_to(target.type, account, target.name, target.did)
        changes = [
            pin_references(self.types, one, handle_of(target), self.now_ms, self.subject)
            for one in waiting
            if not self.is_multi_tenant or may_use(transaction, one, target)
        ]
        if changes:
            transaction.save(changes)
