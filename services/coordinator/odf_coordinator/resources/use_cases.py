"""The operations on resources, which commands, REST and GraphQL call (RFC-018)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import structlog

from odf_common.errors import Refused
from odf_common.ports.clock import Clock
from odf_common.resources.node_accounts import NODE_DID
from odf_common.resources.references import AccountHandle, AccountRef
from odf_common.resources.registry import ACCOUNT, DATASET, ResourceType, Types
from odf_common.resources.resource_manifests import (
    ResourceManifest,
    WrittenResource,
    manifests_of,
)
from odf_common.resources.scalar_formats import Did, ResourceId, is_uuid, parse_name
from odf_common.resources.selectors import Selector
from odf_coordinator.resources import documents
from odf_coordinator.resources.account_checks import require_same_name, require_unused
from odf_coordinator.resources.apply import (
    Forbidden,
    Options,
    ResourceGone,
    ResourceNotFound,
    Tools,
    account_not_found,
    plan,
    require_grantor,
)
from odf_coordinator.resources.callers import (
    NodeCaller,
    Subject,
    caller_of,
    new_id,
    suggest_name,
    writer_of,
)
from odf_coordinator.resources.changes import PRUNED, Outcome, disown, rename, request_deletion
from odf_coordinator.resources.documents import type_id
from odf_coordinator.resources.draft import require_controllers
from odf_coordinator.resources.lookups import (
    NODE_ACCOUNT,
    ExistingDatasets,
    NoDatasets,
    account_named,
    account_of,
    dataset_alias,
    find_account,
    find_tombstone,
    is_account,
    name_conflict,
    require_free_alias,
)
from odf_coordinator.resources.pre_apply import PreApply
from odf_coordinator.resources.preconditions import AlreadyApplied, require_etag, require_version
from odf_coordinator.resources.reference_pins import ReferencePins
from odf_coordinator.resources.registered_types import build_types, read_batch
from odf_coordinator.resources.requests import RequestKey
from odf_coordinator.resources.store import (
    Cursor,
    Position,
    Query,
    RegisteredType,
    ResourceEvent,
    ResourceStore,
    RevisionMoved,
    Snapshot,
    StoredResource,
    Transaction,
    TypeId,
)

log = structlog.stdlib.get_logger(__name__)

DEFAULT_LIMIT: Final = 100
RETRIES: Final = 5  # of a batch whose resources others have changed meanwhile


class ResourceInUse(Refused):
    """Other resources need the resource."""

    ADVICE = "delete them first, or repeat with --force: they fail then"


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A request to apply manifests."""

    written: Sequence[WrittenResource]
    options: Options = field(default_factory=Options)
    is_dry_run: bool = False
    prune: Selector | None = None
    is_create_only: bool = False
    etag: str = ""
    """The version that the resources must have; empty: any."""
    key: RequestKey | None = None
    """By which a repetition of the request is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceRef:
    """A resource as requests name it: by id, DID, or name in an account."""

    type: str
    ref: str
    account: str = ""
    """Empty: that of the caller."""


@dataclass(slots=True, kw_only=True)
class Resources:
    """The resources of a node."""

    store: ResourceStore
    clock: Clock
    pre_apply: Callable[[], PreApply]
    datasets: ExistingDatasets = field(default_factory=NoDatasets)
    needed_by: Callable[[Snapshot, StoredResource], Sequence[StoredResource]] = lambda _, __: ()
    """The resources that forbid a deletion unless it is forced."""
    owned_by: Callable[[Snapshot, StoredResource], Sequence[StoredResource]] = lambda _, __: ()
    """The resources that go with a deleted one unless they are orphaned."""
    keep_keys: Callable[[Mapping[str, Any]], None] = lambda _: None
    """Keeps the keys of new DIDs before their resources are stored."""
    controlled: frozenset[str] = frozenset()
    """The `$schema` of each type that has a controller."""
    changed: list[Callable[[], None]] = field(default_factory=list)
    """Called after each commit."""
    is_multi_tenant: bool = False
    """Whether accounts are apart from each other; otherwise each one administers the node."""
    _types: Types | None = None

    def types(self) -> Types:
        """Return the types of the node, which only `add_types` changes."""
        if self._types is None:
            with self.store.read() as snapshot:
                return self._types_in(snapshot)
        return self._types

    def _types_in(self, snapshot: Snapshot) -> Types:
        """Return the types of the node, as one reads them who has a snapshot open."""
        if self._types is None:
            self._types = build_types(snapshot.types())
        return self._types

    def schemas(self) -> dict[str, Any]:
        """Return the registered schemas by `$id`."""
        with self.store.read() as snapshot:
            return {uri: one for kind in snapshot.types() for uri, one in kind.schemas.items()}

    def add_types(self, subject: Subject, documents: Sequence[Any]) -> Sequence[RegisteredType]:
        """Register types by their schemas, or replace them; raises `InvalidSchema`, `Forbidden`."""
        if not subject.is_admin:
            raise Forbidden(text="only administrators of the node register types")
        with self.store.transaction() as transaction:
            added = read_batch(documents, transaction.types(), self.clock.now().ms)
            for one in added:
                transaction.save_type(one)
            types = build_types(transaction.types())
        self._types = types
        return added

    def apply(self, subject: Subject, batch: Batch) -> tuple[Outcome, ...]:
        """Apply a batch as a whole; return the outcomes in the order of dependencies.

        Raises `InvalidManifests`; for a key that was sent before, `Repeated` or `RequestKeyReused`.
        """
        types = self.types()
        manifests = manifests_of(batch.written, types)
        require_controllers(manifests, self.controlled)
        for attempt in range(RETRIES):
            try:
                return self._apply_once(subject, manifests, batch, types)
            except RevisionMoved:
                if attempt == RETRIES - 1:
                    raise
        raise AssertionError

    def _apply_once(
        self, subject: Subject, manifests: Sequence[ResourceManifest], batch: Batch, types: Types
    ) -> tuple[Outcome, ...]:
        now_ms = self.clock.now().ms
        with self.store.transaction() as transaction:
            pre_apply = self.pre_apply()  # here, so that no transaction after a rotation uses the former keys
            caller = writer_of(transaction, subject, self.clock)
            if batch.key is not None:
                batch.key.require_new(transaction, caller.account.id, now_ms)
            tools = Tools(
                types=types,
                prepare=pre_apply,
                new_id=new_id,
                new_did=pre_apply.new_did,
                datasets=self.datasets,
                now_ms=now_ms,
            )
            outcomes = plan(manifests, transaction, caller, batch.options, tools)
            _require_as_expected(manifests, outcomes, batch)
            outcomes = (*outcomes, *self._deletions(transaction, caller, batch, outcomes, now_ms))
            if batch.is_dry_run:
                raise _DryRun(outcomes)
            self.keep_keys(pre_apply.new_keys)
            stored = transaction.save([one.change for one in outcomes if one.change is not None])
            self._pin_references(transaction, (caller.account, *stored), subject)
            by_id = {resource.id: resource for resource in stored}
            outcomes = tuple(
                replace(one, resource=by_id.get(one.resource.id, one.resource)) for one in outcomes
            )
            if batch.key is not None:
                answer = [one.plain() for one in outcomes]
                batch.key.keep(transaction, caller.account.id, answer, now_ms)
        self._notify()
        return outcomes

    def dry_run(self, subject: Subject, batch: Batch) -> tuple[Outcome, ...]:
        """Return the outcomes of `apply`; nothing is stored."""
        try:
            return self.apply(subject, replace(batch, is_dry_run=True))
        except _DryRun as result:
            return result.outcomes

    def get(self, subject: Subject, wanted: ResourceRef, *, is_deleted_too: bool = False) -> StoredResource:
        """Return a resource, with the names in its handles as they are now. Raises `ResourceNotFound`."""
        with self.store.read() as snapshot:
            caller = caller_of(snapshot, subject, self.clock)
            return self._with_names(
                snapshot, self._find(snapshot, caller, wanted, is_deleted_too=is_deleted_too)
            )

    def use(self, subject: Subject, wanted: ResourceRef) -> StoredResource:
        """Return a resource that an account's own resources may use; raises `ResourceNotFound` as for a missing one."""
        is_admin = not self.is_multi_tenant or subject.did == NODE_DID
        with self.store.read() as snapshot:
            caller = caller_of(snapshot, replace(subject, is_admin=is_admin), self.clock)
            kind = self._types_in(snapshot).of_schema(wanted.type)
            found = self._lookup(snapshot, caller, kind, wanted)
            if found is None or found.deleted_ms is not None or not caller.may_use(found):
                raise ResourceNotFound(what=f"{kind.short_name} {wanted.ref}")
            return found

    def find(
        self, subject: Subject, query: Query, selector: Selector | None = None
    ) -> tuple[tuple[StoredResource, ...], Cursor | None, Position]:
        """Return a page of what the caller may read, where the next one starts, and the position of the state."""
        with self.store.read() as snapshot:
            caller = caller_of(snapshot, subject, self.clock)
            page = snapshot.find(query)
            kept = tuple(
                self._with_names(snapshot, resource)
                for resource in page.resources
                if caller.may_read(resource)
                and (selector is None or _is_selected(selector, resource, caller))
            )
            return kept, page.next, snapshot.position()

    def may_read(self, subject: Subject, resource: StoredResource | None) -> bool:
        """Return whether a subject may see a resource; one that is gone is seen by administrators only."""
        if resource is None:
            return subject.is_admin
        with self.store.read() as snapshot:
            return caller_of(snapshot, subject, self.clock).may_read(resource)

    def dependents(self, subject: Subject, wanted: ResourceRef) -> tuple[StoredResource, ...]:
        """Return the resources that refer to one."""
        with self.store.read() as snapshot:
            caller = caller_of(snapshot, subject, self.clock)
            found = self._find(snapshot, caller, wanted, is_deleted_too=True)
            return tuple(one for one in snapshot.referring_to(found.id) if caller.may_read(one))

    def history(self, subject: Subject, wanted: ResourceRef) -> tuple[ResourceEvent, ...]:
        """Return all events of a resource, oldest first, with the names of the accounts that caused them."""
        with self.store.read() as snapshot:
            caller = caller_of(snapshot, subject, self.clock)
            events = snapshot.events_of(self._find(snapshot, caller, wanted, is_deleted_too=True).id)
            accounts = snapshot.by_ids([ResourceId(one) for one in {event.subject for event in events}])
        names = {id_: account.name for id_, account in accounts.items()}
        return tuple(
            replace(event, subject=names.get(ResourceId(event.subject), event.subject)) for event in events
        )

    def delete(
        self,
        subject: Subject,
        wanted: ResourceRef,
        *,
        is_forced: bool = False,
        is_orphaning: bool = False,
        expected: str = "",
    ) -> StoredResource:
        """Request the deletion of a resource; its controllers clean up, then it is gone.

        What it owns goes with it, unless orphaned. Raises `ResourceInUse` if others need it, unless forced.
        """
        with self.store.transaction() as transaction:
            caller = writer_of(transaction, subject, self.clock)
            found = self._find(transaction, caller, wanted)
            require_etag(found, expected)
            self._require_writable(caller, found)
            require_unused(self.datasets, transaction, found)
            users = self.needed_by(transaction, found)
            if users and not is_forced:
                names = ", ".join(self._name(user) for user in users)
                raise ResourceInUse(text=f"{self._name(found)} is needed by {names}")
            now_ms = self.clock.now().ms
            change = request_deletion(found, now_ms, caller.account.id, is_forced=is_forced)
            (stored,) = transaction.save([change])
            if is_orphaning:
                owned = self.owned_by(transaction, found)
                transaction.save([disown(one, found.id, now_ms, caller.account.id) for one in owned])
        self._notify()
        return stored

    def rename(self, subject: Subject, wanted: ResourceRef, name: str, expected: str = "") -> StoredResource:
        """Give a resource another name; its id and what refers to it stay."""
        new_name = parse_name(name)
        with self.store.transaction() as transaction:
            caller = writer_of(transaction, subject, self.clock)
            found = self._find(transaction, caller, wanted)
            require_etag(found, expected)
            self._require_writable(caller, found)
            if found.name == new_name.text:
                return found
            if found.schema == str(ACCOUNT.uri):
                require_same_name(found, new_name)
            kind = self._types_in(transaction).of_schema(found.schema)
            conflict = name_conflict(transaction, kind, account_of(found), new_name, (found.id,))
            if conflict is not None:
                raise conflict
            if found.schema == str(DATASET.uri):
                alias = dataset_alias(account_of(found).name, new_name.text)
                require_free_alias(self.datasets, alias, found.did)
            change = rename(found, new_name, self.clock.now().ms, caller.account.id)
            (stored,) = transaction.save([change])
            self._pin_references(transaction, (stored,), subject)
        self._notify()
        return stored

    def _find(
        self, snapshot: Snapshot, caller: NodeCaller, wanted: ResourceRef, *, is_deleted_too: bool = False
    ) -> StoredResource:
        kind = self._types_in(snapshot).of_name(wanted.type)
        found = self._lookup(snapshot, caller, kind, wanted)
        is_visible = found is not None and caller.may_read(found)
        is_gone = found is None and self._is_gone(snapshot, caller, kind, wanted)
        if is_gone or (found is not None and is_visible and found.deleted_ms and not is_deleted_too):
            raise ResourceGone(what=f"{kind.short_name} {wanted.ref}")
        if found is None or not is_visible:
            hint = suggest_name(snapshot, caller, kind, wanted.ref)
            raise ResourceNotFound(what=f"{kind.short_name} {wanted.ref}", hint=hint)
        return found

    def _is_gone(
        self, snapshot: Snapshot, caller: NodeCaller, kind: ResourceType, wanted: ResourceRef
    ) -> bool:
        """Return whether a resource that the caller might have read was removed."""
        account, _, name = wanted.ref.rpartition("/")
        owner = None if is_uuid(name) else self.account_id(snapshot, caller, account or wanted.account)
        gone = find_tombstone(snapshot, type_id(kind.uri), owner, name)
        return gone is not None and (caller.is_admin or gone.account == caller.account.id)

    def _lookup(
        self, snapshot: Snapshot, caller: NodeCaller, kind: ResourceType, wanted: ResourceRef
    ) -> StoredResource | None:
        if is_uuid(wanted.ref):
            found = snapshot.by_id(ResourceId.parse(wanted.ref))
            return found if found is not None and found.type == type_id(kind.uri) else None
        if wanted.ref.startswith("did:"):
            return snapshot.by_did(type_id(kind.uri), Did.parse(wanted.ref))
        account, _, name = wanted.ref.rpartition("/")
        if kind is ACCOUNT:
            return account_named(snapshot, name)
        owner = self.account_id(snapshot, caller, account or wanted.account)
        return None if owner is None else snapshot.by_name(type_id(kind.uri), owner, name)

    def account_id(self, snapshot: Snapshot, caller: NodeCaller, text: str) -> ResourceId | None:
        """Return the id of an account that a request names; that of the caller if it names none."""
        if not text:
            return caller.account.id
        ref = AccountRef.parse(text)
        if is_account(account_of(caller.account), ref):
            return caller.account.id
        found = find_account(snapshot, ref)
        return None if found is None else found.id

    def accounts_named(self, subject: Subject, text: str) -> Sequence[ResourceId]:
        """Return the accounts of a list: all for an empty text; raises `ResourceNotFound`."""
        if not text:
            return ()
        with self.store.read() as snapshot:
            found = self.account_id(snapshot, caller_of(snapshot, subject, self.clock), text)
        if found is None:
            raise account_not_found(text)
        return (found,)

    def require_writable(self, subject: Subject, found: StoredResource) -> None:
        """Raise `Forbidden` unless a subject may change a resource."""
        with self.store.read() as snapshot:
            self._require_writable(caller_of(snapshot, subject, self.clock), found)

    def _require_writable(self, caller: NodeCaller, found: StoredResource) -> None:
        owner = found.document["headers"]["account"]
        require_grantor(caller, found.schema)
        if found.schema == str(ACCOUNT.uri) and not caller.is_admin:
            raise Forbidden(text="only administrators of the node change accounts")
        if not caller.may_write(owner["id"]):
            raise Forbidden(text=f"you may not change resources of the account {owner['name']}")

    def _deletions(
        self,
        transaction: Transaction,
        caller: NodeCaller,
        batch: Batch,
        outcomes: Sequence[Outcome],
        now_ms: int,
    ) -> list[Outcome]:
        """Return the deletions of what a selector matches and the batch does not have."""
        if batch.prune is None:
            return []
        kept = {one.resource.id for one in outcomes}
        found = self._select(transaction, caller, batch, batch.prune)
        deletions = [one for one in found if one.id not in kept]
        for one in deletions:
            self._require_writable(caller, one)
            require_unused(self.datasets, transaction, one)
        return [
            Outcome(
                type=self._types_in(transaction).of_schema(one.schema),
                resource=one,
                outcome=PRUNED,
                change=request_deletion(one, now_ms, caller.account.id),
            )
            for one in deletions
        ]

    def _select(
        self, transaction: Transaction, caller: NodeCaller, batch: Batch, selector: Selector
    ) -> list[StoredResource]:
        account = caller.account
        if batch.options.account is not None:
            account = find_account(transaction, batch.options.account) or account
        owner = replace(caller, account=account)
        query = Query(types=(TypeId(str(selector.type)),), accounts=(account.id,))
        found: list[StoredResource] = []
        while True:
            page = transaction.find(query)
            found += [one for one in page.resources if _is_selected(selector, one, owner)]
            if page.next is None:
                return found
            query = replace(query, after=page.next)

    def _pin_references(
        self, transaction: Transaction, stored: Sequence[StoredResource], subject: Subject
    ) -> None:
        pins = ReferencePins(
            types=self._types_in(transaction),
            is_multi_tenant=self.is_multi_tenant,
            now_ms=self.clock.now().ms,
            subject=subject.name or NODE_ACCOUNT.text,
        )
        pins.pin(transaction, stored)

    def _with_names(self, snapshot: Snapshot, resource: StoredResource) -> StoredResource:
        """Return a resource with the names in its handles as they are now."""
        kind = self._types_in(snapshot).of_schema(resource.schema)
        return replace(
            resource, document=documents.with_current_names(kind, resource.document, snapshot.by_ids)
        )

    def _name(self, resource: StoredResource) -> str:
        return f"{self.types().of_schema(resource.schema).short_name}:{resource.name}"

    def _notify(self) -> None:
        for listener in self.changed:
            listener()


class _DryRun(Exception):
    def __init__(self, outcomes: tuple[Outcome, ...]) -> None:
        self.outcomes = outcomes


def _require_as_expected(
    manifests: Sequence[ResourceManifest], outcomes: Sequence[Outcome], batch: Batch
) -> None:
    """Raise `AlreadyApplied` or `PreconditionFailed` for what a request does not allow."""
    for one in outcomes:
        if batch.is_create_only and one.resource.revision:
            raise AlreadyApplied(what=f"{one.type.short_name} {one.resource.name}")
        if batch.etag and one.resource.revision:
            generation = one.resource.generation - (one.change is not None)
            require_version(f'"{generation}.{one.resource.revision}"', batch.etag)
    assert len(outcomes) == len(manifests)


def _is_selected(selector: Selector, resource: StoredResource, caller: NodeCaller) -> bool:
    owner = AccountHandle.from_plain(caller.account.document["headers"]["account"])
    return selector.matches(documents.selectable(resource), owner)
