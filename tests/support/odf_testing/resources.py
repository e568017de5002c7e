"""Resources for tests of their store: each is valid by default, and a test states only what it is about."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final
from uuid import NAMESPACE_OID, uuid4, uuid5

from odf_common.resources.scalar_formats import ResourceId
from odf_coordinator.resources.store import (
    Change,
    EventKind,
    FencingToken,
    NewEvent,
    Query,
    ResourceReference,
    ResourceStore,
    StoredResource,
    TypeId,
)

SCHEMAS: Final = "https://opendatafabric.org/schemas"
VARIABLES: Final = TypeId(f"{SCHEMAS}/config/VariableSet")
SECRETS: Final = TypeId(f"{SCHEMAS}/config/SecretSet")
SOURCE: Final = TypeId(f"{SCHEMAS}/source/Source")
ACCOUNT: Final = TypeId(f"{SCHEMAS}/auth/Account")
ALICE: Final = ResourceId("6f6e2c1e-77d1-4a0c-8e57-0d6c1f3b9a21")
BOB: Final = ResourceId("0b9c1a52-5f0e-4d53-9a3e-6f1b2b7a9d10")


def an_id(name: str) -> ResourceId:
    """Return an id, equal for equal names."""
    return ResourceId(str(uuid5(NAMESPACE_OID, name)))


def a_resource(name: str = "env", *, spec: Mapping[str, Any] | None = None, **fields: Any) -> StoredResource:
    """Return a resource of Alice that is not stored yet."""
    type_id = fields.get("type", VARIABLES)
    context, _, kind = type_id.removeprefix(f"{SCHEMAS}/").partition("/")
    schema = f"{SCHEMAS}/{context}/v1alpha1/{kind}"
    document = {"$schema": schema, "headers": {"name": name}, "spec": spec or {"variables": {}}}
    defaults = {
        "id": ResourceId(str(uuid4())),
        "type": VARIABLES,
        "schema": schema,
        "account": ALICE,
        "document": document,
        "labels": {},
        "generation": 1,
        "phase": "Pending",
        "created_ms": 1_000,
        "updated_ms": 1_000,
    }
    return StoredResource(name=name, **{**defaults, **fields})


def an_event(kind: EventKind = EventKind.SPEC_CHANGED, payload: object = None) -> NewEvent:
    """Return an event that Alice caused."""
    return NewEvent(kind=kind, subject="alice", time_ms=1_000, payload=payload)


def a_change(
    resource: StoredResource,
    *kinds: EventKind,
    references: Sequence[ResourceReference] | None = None,
    token: FencingToken | None = None,
    **fields: Any,
) -> Change:
    """Return a change of fields of a resource, by one event unless others are given."""
    first = EventKind.CREATED if resource.revision == 0 else EventKind.SPEC_CHANGED
    events = [an_event(kind) for kind in kinds or (first,)]
    return Change(resource=replace(resource, **fields), events=events, references=references, token=token)


def save(store: ResourceStore, *changes: Change | StoredResource) -> list[StoredResource]:
    """Save changes, or new resources, in one transaction; return the stored states."""
    given = [change if isinstance(change, Change) else a_change(change) for change in changes]
    with store.transaction() as transaction:
        return list(transaction.save(given))


def names(store: ResourceStore, **query: Any) -> list[str]:
    """Return the names of the first resources that a query finds."""
    with store.read() as snapshot:
        return [resource.name for resource in snapshot.find(Query(**query)).resources]
