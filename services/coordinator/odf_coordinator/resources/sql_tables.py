"""The tables of resources, and rows ⇄ values of the port.

Text is compared by its bytes in both databases, so that pages have one order. JSON is stored as text with sorted keys.
What users choose freely is looked up by a digest, as an index of PostgreSQL takes at most 2.7 kB per entry.
"""

import json
from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any, Final

from sqlalchemy import BigInteger, Column, Index, Integer, MetaData, Row, Table, Text, UniqueConstraint
from sqlalchemy.dialects import postgresql

from odf_common.resources.scalar_formats import ResourceId
from odf_coordinator.resources.store import (
    EventKind,
    Json,
    NewEvent,
    Position,
    RegisteredType,
    ResourceEvent,
    ResourceReference,
    StoredResource,
    Tombstone,
    TypeId,
)

METADATA: Final = MetaData()
KEY: Final = Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")
NODE: Final = ""  # the scope of names of accounts, which own themselves

STATE: Final = Table(
    "resource_store",
    METADATA,
    Column("version", Integer, nullable=False),
    Column("position", BigInteger, nullable=False),
    Column("purged", BigInteger, nullable=False),  # position of the newest event that was purged
)
RESOURCES: Final = Table(
    "resources",
    METADATA,
    Column("id", KEY, primary_key=True),
    Column("type", KEY, nullable=False),
    Column("schema", KEY, nullable=False),
    Column("account", KEY, nullable=False),
    Column("scope", KEY, nullable=False),  # the account in which the name is unique
    Column("name", KEY, nullable=False),
    Column("name_key", KEY, nullable=False),
    Column("did", KEY),
    Column("document", Text, nullable=False),
    Column("labels", Text, nullable=False),
    Column("generation", BigInteger, nullable=False),
    Column("phase", KEY, nullable=False),
    Column("finalizers", Text, nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Column("updated_ms", BigInteger, nullable=False),
    Column("deleted_ms", BigInteger),
    Column("revision", BigInteger, nullable=False),
    Column("removed_ms", BigInteger),  # of a tombstone
    # Not unique: names may be swapped in one transaction, which compares those of its final state.
    Index("resources_by_name", "name_key", "type", "scope"),
    Index("resources_by_type", "type", "name_key", "id"),
    Index("resources_by_account", "account", "type", "name_key", "id"),
    Index("resources_by_phase", "phase", "type", "name_key", "id"),
    Index("resources_by_did", "did"),
)
EVENTS: Final = Table(
    "resource_events",
    METADATA,
    Column("position", BigInteger, primary_key=True, autoincrement=False),
    Column("resource", KEY, nullable=False),
    Column("sequence", BigInteger, nullable=False),
    Column("kind", Text, nullable=False),
    Column("generation", BigInteger, nullable=False),
    Column("subject", Text, nullable=False),
    Column("time_ms", BigInteger, nullable=False),
    Column("payload", Text, nullable=False),
    UniqueConstraint("resource", "sequence"),
)
LABELS: Final = Table(
    "resource_labels",
    METADATA,
    Column("key", KEY, primary_key=True),  # its digest
    Column("value", KEY, primary_key=True),  # the same
    Column("resource", KEY, primary_key=True),
    Index("resource_labels_by_resource", "resource"),
)
REFERENCES: Final = Table(
    "resource_references",
    METADATA,
    Column("resource", KEY, nullable=False),
    Column("path", KEY, nullable=False),
    Column("type", KEY, nullable=False),
    Column("id", KEY),
    Column("account", KEY),
    Column("name", KEY),
    Column("did", KEY),
    Column("name_key", KEY),  # of an unresolved one
    Column("did_key", KEY),  # the same
    Index("resource_references_by_resource", "resource"),
    Index("resource_references_by_id", "id"),
    Index("resource_references_by_name", "name_key"),
    Index("resource_references_by_did", "did_key"),
)
LEASES: Final = Table(
    "resource_leases",
    METADATA,
    Column("resource", KEY, primary_key=True),
    Column("holder", Text, nullable=False),
    Column("token", BigInteger, nullable=False),
    Column("expires_ms", BigInteger),  # of a lease that was not released
)
TYPES: Final = Table(
    "resource_types",
    METADATA,
    Column("schema", KEY, primary_key=True),
    Column("short_name", Text, nullable=False),
    Column("schemas", Text, nullable=False),
    Column("added_ms", BigInteger, nullable=False),
)
NOTES: Final = Table(
    "controller_notes",
    METADATA,
    Column("scope", KEY, primary_key=True),
    Column("key", KEY, primary_key=True),
    Column("note", Text, nullable=False),
)

Values = dict[str, Any]  # of a row, by column
_ENCODER: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)


def json_text(value: Json) -> str:
    """Return JSON text with keys in the order of the value; in ASCII, as `canonical_json`."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def canonical_json(value: Json) -> str:
    """Return JSON text that is the same for equal values; in ASCII, since PostgreSQL has no NUL and no surrogates."""
    return _ENCODER.encode(value)


def digest(value: Json) -> str:
    """Return the same text for equal values, and for no others."""
    return sha256(canonical_json(_unify_numbers(value)).encode()).hexdigest()


def _unify_numbers(value: Json) -> Json:
    """Return an equal value in which 1.0 is written 1."""
    match value:
        case float() if value.is_integer():
            return int(value)
        case Mapping():
            return {key: _unify_numbers(item) for key, item in value.items()}
        case list() | tuple():
            return [_unify_numbers(item) for item in value]
        case _:
            return value


def scope_of(resource: StoredResource) -> str:
    """Return the account in which its name is unique; of an account, the node."""
    return NODE if resource.account == resource.id else resource.account


def name_key(name: str) -> str:
    """Return a name as it is compared."""
    return name.lower()


def resource_values(resource: StoredResource) -> Values:
    """Return the row of a resource."""
    values = {column: getattr(resource, column) for column in StoredResource.__slots__}
    return values | {
        "scope": scope_of(resource),
        "name_key": name_key(resource.name),
        "document": json_text(resource.document),
        "labels": canonical_json(resource.labels),
        "finalizers": canonical_json(resource.finalizers),
        "removed_ms": None,
    }


def resource_of(row: Row[Any]) -> StoredResource:
    """Return the resource of a row with the columns in `RESOURCE_COLUMNS`."""
    values = dict(zip(StoredResource.__slots__, row, strict=True))
    for column in ("document", "labels", "finalizers"):
        values[column] = json.loads(values[column])
    values["finalizers"] = tuple(values["finalizers"])
    return StoredResource(**values)


RESOURCE_COLUMNS: Final = tuple(RESOURCES.c[column] for column in StoredResource.__slots__)


def tombstone_of(row: Row[Any]) -> Tombstone:
    """Return the tombstone of a row with its columns."""
    return Tombstone(**row._mapping)  # noqa: SLF001 - SQLAlchemy's documented name


def event_values(event: NewEvent, resource: StoredResource, sequence: int, position: int) -> Values:
    """Return the row of an event."""
    return {
        "position": position,
        "resource": resource.id,
        "sequence": sequence,
        "kind": event.kind.value,
        "generation": resource.generation,
        "subject": event.subject,
        "time_ms": event.time_ms,
        "payload": json_text(event.payload),
    }


def event_of(row: Row[Any]) -> ResourceEvent:
    """Return the event of a row."""
    return ResourceEvent(
        position=Position(row.position),
        resource=ResourceId(row.resource),
        sequence=row.sequence,
        kind=EventKind(row.kind),
        generation=row.generation,
        subject=row.subject,
        time_ms=row.time_ms,
        payload=json.loads(row.payload),
    )


def label_values(resource: StoredResource) -> Iterator[Values]:
    """Yield the postings of the labels of a resource."""
    for key, value in resource.labels.items():
        yield {"key": digest(key), "value": digest(value), "resource": resource.id}


def reference_values(resource: ResourceId, reference: ResourceReference) -> Values:
    """Return the row of a reference."""
    values = {column: getattr(reference, column) for column in ResourceReference.__slots__}
    is_open = reference.id is None
    key = name_key(reference.name) if is_open and reference.name is not None else None
    did = reference.did if is_open else None
    return {"resource": resource, **values, "name_key": key, "did_key": did}


def reference_of(row: Row[Any]) -> ResourceReference:
    """Return the reference of a row."""
    return ResourceReference(
        path=row.path,
        type=TypeId(row.type),
        id=row.id,
        account=row.account,
        name=row.name,
        did=row.did,
    )


def type_values(type: RegisteredType) -> Values:
    """Return the row of a registered type."""
    values = {column: getattr(type, column) for column in RegisteredType.__slots__}
    return values | {"schemas": canonical_json(type.schemas)}


def type_of(row: Row[Any]) -> RegisteredType:
    """Return the registered type of a row."""
    return RegisteredType(
        schema=row.schema,
        short_name=row.short_name,
        schemas=json.loads(row.schemas),
        added_ms=row.added_ms,
    )
