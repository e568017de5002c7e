"""The port of the store of resources: one stream of events per resource, and its current state next to it.

A transaction spans many streams and takes effect as a whole. It reads its own changes, and only one writes at a time.
The store compares revisions, fencing tokens and names; everything else about a resource is decided by its callers.
Times are milliseconds since the epoch, and given by the caller.

An account in a query is the id of its resource. The identity of a type is its `$schema` without the version segment.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NewType, Protocol, TypeAlias

from odf_common.errors import Conflict, Damaged
from odf_common.resources.scalar_formats import ResourceId

TypeId = NewType("TypeId", str)
"""The identity of a type."""
Position = NewType("Position", int)
"""The place of an event among those of all resources: 1, 2, … in the order of commits, without gaps."""
FencingToken = NewType("FencingToken", int)
"""The number of times that the resource was leased."""
Json: TypeAlias = Any  # as `json.loads` returns it

START: Final = Position(0)
MAX_PAGE: Final = 1000


class EventKind(StrEnum):
    """The kind of a change of a resource."""

    CREATED = "Created"
    SPEC_CHANGED = "SpecChanged"
    HEADERS_CHANGED = "HeadersChanged"
    RENAMED = "Renamed"
    OWNER_CHANGED = "OwnerChanged"
    REFERENCE_PINNED = "ReferencePinned"
    RECONCILE_STARTED = "ReconcileStarted"
    RECONCILE_SUCCEEDED = "ReconcileSucceeded"
    RECONCILE_FAILED = "ReconcileFailed"
    CONDITION_CHANGED = "ConditionChanged"
    DELETION_REQUESTED = "DeletionRequested"
    DELETED = "Deleted"


STATUS_EVENTS: Final = frozenset(
    {
        EventKind.RECONCILE_STARTED,
        EventKind.RECONCILE_SUCCEEDED,
        EventKind.RECONCILE_FAILED,
        EventKind.CONDITION_CHANGED,
    }
)
"""Kinds that repeat without end; the others are kept as long as their resource."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredResource:
    """The current state of a resource; the fields next to `document` are those by which it is found."""

    id: ResourceId
    type: TypeId
    schema: str
    """The `$schema`, with its version."""
    account: ResourceId
    """The owning account; an account owns itself."""
    name: str
    did: str | None = None
    document: Mapping[str, Json]
    """The canonical form: `$schema`, `headers`, `spec`, `status`."""
    labels: Mapping[str, Json]
    """The values by which it is selected, by the full key."""
    generation: int
    phase: str
    finalizers: tuple[str, ...] = ()
    """Controllers that have to clean up before it is removed."""
    created_ms: int
    updated_ms: int
    deleted_ms: int | None = None
    """The time when its deletion was requested: until it is removed, its name is taken."""
    revision: int = 0
    """The number of its events; 0: not stored yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tombstone:
    """A removed resource: its name is free, and its id is never used again."""

    id: ResourceId
    type: TypeId
    account: ResourceId
    name: str
    created_ms: int
    removed_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceReference:
    """A reference in the document of a resource."""

    path: str
    """Its place, such as `spec.config.password`."""
    type: TypeId
    id: ResourceId | None = None
    """The resource that it was resolved to, which may be gone; None: unresolved, and found by its names."""
    account: ResourceId | None = None
    """The account in which the name is looked up; None for accounts, and if that account is unresolved itself."""
    name: str | None = None
    did: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewEvent:
    """An event to append; its generation is that of the saved resource."""

    kind: EventKind
    subject: str
    """The account or controller that caused it."""
    time_ms: int
    payload: Json = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceEvent:
    """A stored event."""

    position: Position
    resource: ResourceId
    sequence: int
    """Its place among those of the resource: 1, 2, …"""
    kind: EventKind
    generation: int
    subject: str
    time_ms: int
    payload: Json
    """None also after its payload was erased."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The new state of a resource, with the events that led to it."""

    resource: StoredResource
    """Its revision is the one that was read: the change is refused unless it is still the stored one."""
    events: Sequence[NewEvent]
    """At least one: without an event there is no change."""
    references: Sequence[ResourceReference] | None = None
    """All references of the document; None: as they are stored."""
    token: FencingToken | None = None
    """That of the lease under which it was made; None: without a lease."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """The last resource of a page."""

    name: str
    id: ResourceId


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A choice of resources: those that meet all conditions."""

    types: Sequence[TypeId] = ()
    """Empty: all."""
    accounts: Sequence[ResourceId] = ()
    """Empty: all."""
    name: str = "%"
    """A pattern for the whole name, without case; `%` stands for any characters, also none."""
    phase: str | None = None
    labels: Mapping[str, Json] = field(default_factory=dict)
    """Values that labels are equal to, by key, as JSON compares: 1 equals 1.0, and neither "1" nor true."""
    label_keys: Sequence[str] = ()
    """Labels that exist, whatever their value."""
    include_deleted: bool = False
    """Also resources whose deletion was requested; removed ones are in no page."""
    after: Cursor | None = None
    limit: int = MAX_PAGE


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Resources in the order of their names without case, then of their ids."""

    resources: tuple[StoredResource, ...]
    next: Cursor | None
    """The start of the next page; None: this is the last one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredType:
    """A type that was registered while the node ran."""

    schema: str
    """Its `$schema`."""
    short_name: str
    schemas: Mapping[str, Json]
    """Its JSON schemas by their `$id`, as far as they were registered with it."""
    added_ms: int


class RevisionMoved(Conflict):
    """A resource was changed by another writer first; read it again and repeat the change."""

    resource: str
    expected: int
    actual: int | None
    """None: it was removed, or never existed."""

    def __str__(self) -> str:
        """Return the resource, and its expected and actual revision."""
        actual = "it does not exist" if self.actual is None else f"found {self.actual}"
        return f"resource {self.resource} was changed in the meantime: expected revision {self.expected}, {actual}"


class NameConflict(Conflict):
    """Two resources of one type and account would have the same name."""

    ADVICE = "choose another name, or give the `id` of the existing resource to change it"

    type: str
    account: str | None
    """None: it is an account itself."""
    name: str

    def __str__(self) -> str:
        """Return the name, and where it is taken."""
        where = "on this node" if self.account is None else f"in the account {self.account}"
        return f"{self.type} {self.name} exists already {where}"


class LeaseLost(Conflict):
    """Another controller has leased the resource since; its state decides what is done next."""

    MESSAGE = "the lease of resource {resource} with token {token} was lost to another holder"

    resource: str
    token: int


class PositionUnknown(Conflict):
    """Events after a position were purged, or the store was restored from an older backup."""

    MESSAGE = "position {position} is not in the history, which has the positions {oldest} to {newest}"
    ADVICE = "list the resources again, and watch from the position that the list is of"

    position: int
    oldest: int
    newest: int


class ResourcesUnreadable(Damaged):
    """The database of resources cannot be read."""

    ADVICE = "{remedy}"

    remedy: str = (
        "stop the node, and restore the database of resources from a backup; datasets are not affected"
    )


class Snapshot(Protocol):
    """Reads of one state of the store."""

    def by_id(self, id: ResourceId) -> StoredResource | None:
        """Return a resource; None if it was removed or never existed."""

    def by_ids(self, ids: Sequence[ResourceId]) -> Mapping[ResourceId, StoredResource]:
        """Return the existing ones of many resources."""

    def by_name(self, type: TypeId, account: ResourceId | None, name: str) -> StoredResource | None:
        """Return the resource that has a name, without case, even if its deletion was requested.

        `account` is None for accounts: they own themselves, and their names are unique in the node.
        """

    def by_names(
        self, type: TypeId, account: ResourceId | None, names: Sequence[str]
    ) -> Mapping[str, StoredResource]:
        """Return the resources that have these names, as `by_name` does, by their names in lower case."""

    def by_did(self, type: TypeId, did: str) -> StoredResource | None:
        """Return the resource that has a DID; of several, one whose deletion was not requested, then the oldest."""

    def tombstone(self, id: ResourceId) -> Tombstone | None:
        """Return the record of a removed resource; None if it exists, or is unknown."""

    def tombstone_named(self, type: TypeId, account: ResourceId, name: str) -> Tombstone | None:
        """Return the newest tombstone of a name in an account."""

    def find(self, query: Query) -> Page:
        """Return a page of resources."""

    def counts(self) -> Mapping[tuple[TypeId, str], int]:
        """Return the number of resources by type and phase, without those whose deletion was requested."""

    def references_from(self, id: ResourceId) -> tuple[ResourceReference, ...]:
        """Return the references of a resource, by path."""

    def referring_to(self, id: ResourceId) -> tuple[StoredResource, ...]:
        """Return the resources with a reference that was resolved to this one, by id."""

    def referring_to_any(self, ids: Sequence[ResourceId]) -> tuple[StoredResource, ...]:
        """Return the resources with a reference that was resolved to one of these."""

    def unresolved_to(
        self, type: TypeId, account: ResourceId | None, name: str, did: str | None = None
    ) -> tuple[StoredResource, ...]:
        """Return the resources with an unresolved reference by this name, without case, or by this DID; by id.

        `account` is None for accounts, as in their references.
        """

    def unresolved_names(self, names: Sequence[str]) -> frozenset[str]:
        """Return the names, in lower case, and DIDs among these that some unresolved reference has."""

    def events_of(self, id: ResourceId) -> tuple[ResourceEvent, ...]:
        """Return the events of a resource, also of a removed one, as far as they were not purged."""

    def events_after(self, position: Position, limit: int = MAX_PAGE) -> tuple[ResourceEvent, ...]:
        """Return the next events of all resources; raises `PositionUnknown`."""

    def position(self) -> Position:
        """Return the position of the newest event, to watch from it."""

    def types(self) -> tuple[RegisteredType, ...]:
        """Return the registered types, by `$schema`."""

    def notes(self, scope: str, keys: Sequence[str] | None = None) -> Mapping[str, Json]:
        """Return the notes of a controller in a scope, by key; `keys`: only these."""


class Transaction(Snapshot, Protocol):
    """Changes that take effect together; the names of the final state are compared at its end."""

    def save(self, changes: Sequence[Change]) -> tuple[StoredResource, ...]:
        """Append events and replace states; return the new states.

        Raises `RevisionMoved` or `LeaseLost` before anything of these changes is written.
        """

    def rewrite(self, resource: StoredResource) -> None:
        """Replace the document by one that means the same, so that its revision stays and no event tells of it.

        Raises `RevisionMoved`.
        """

    def rewrite_payload(self, event: ResourceEvent) -> None:
        """Replace the payload of an event by one that means the same."""

    def remove(self, resource: StoredResource, now_ms: int) -> None:
        """Replace a resource by its tombstone; its events stay. Raises `RevisionMoved`."""

    def erase_payloads(self, id: ResourceId) -> None:
        """Erase the payloads of all events of a resource."""

    def purge(self, before_ms: int) -> int:
        """Remove older tombstones with their events, and older `STATUS_EVENTS` of all; return the number of events."""

    def lease(self, id: ResourceId, holder: str, *, ttl_ms: int, now_ms: int) -> FencingToken | None:
        """Lease a resource, and return a token larger than all before; None if it is leased already.

        The same holder waits like any other, so that two of its threads never have the same resource. Raises `NotFound`
        if it does not exist.
        """

    def lease_many(
        self, ids: Sequence[ResourceId], holder: str, *, ttl_ms: int, now_ms: int
    ) -> Mapping[ResourceId, FencingToken]:
        """Lease those of many existing resources that are not leased already, as `lease` does."""

    def extend(self, id: ResourceId, token: FencingToken, *, ttl_ms: int, now_ms: int) -> None:
        """Extend a lease; raises `LeaseLost` if another was given since, or it was released."""

    def release(self, id: ResourceId, token: FencingToken) -> None:
        """Release a lease, if it is still that of the token."""

    def release_many(self, tokens: Mapping[ResourceId, FencingToken]) -> None:
        """Release the leases that are still those of the tokens."""

    def release_all(self, holder: str) -> None:
        """Release all leases of a holder, whose process has ended."""

    def save_type(self, type: RegisteredType) -> None:
        """Add a registered type, or replace the one of the same `$schema`."""

    def save_notes(self, scope: str, notes: Mapping[str, Json]) -> None:
        """Keep what a controller has to know after a restart, by key, and no one else reads; None removes a note."""


class ResourceStore(Protocol):
    """The store; thread-safe. Raises `StorageUnavailable` or `ResourcesUnreadable` for what the database raises."""

    def transaction(self) -> AbstractContextManager[Transaction]:
        """Commit at the end of the block, durably, or roll back if it raises; at the end raises `NameConflict`.

        If the database is lost while it commits, that may have succeeded: read again before the change is repeated.
        """

    def read(self) -> AbstractContextManager[Snapshot]:
        """Read one committed state inside the block; it waits for no writer."""
