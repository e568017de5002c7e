"""Reads of the store of resources."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, TypeVar

from sqlalchemy import ColumnElement, Connection, false, func, select, tuple_

from odf_common.resources.scalar_formats import ResourceId
from odf_coordinator.resources.sql_tables import (
    EVENTS,
    LABELS,
    NODE,
    NOTES,
    REFERENCES,
    RESOURCE_COLUMNS,
    RESOURCES,
    STATE,
    TYPES,
    digest,
    event_of,
    name_key,
    reference_of,
    resource_of,
    tombstone_of,
    type_of,
)
from odf_coordinator.resources.store import (
    MAX_PAGE,
    Cursor,
    Json,
    Page,
    Position,
    PositionUnknown,
    Query,
    RegisteredType,
    ResourceEvent,
    ResourceReference,
    StoredResource,
    Tombstone,
    TypeId,
)

T = TypeVar("T")
CHUNK: Final = 1000  # values of one statement: SQLite takes 32 766
STORED: Final = RESOURCES.c.removed_ms.is_(None)
ESCAPE: Final = "\\"  # of patterns


class SqlSnapshot:
    """Reads of one transaction."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def by_id(self, id: ResourceId) -> StoredResource | None:
        return next(iter(self._resources(RESOURCES.c.id == id)), None)

    def by_ids(self, ids: Sequence[ResourceId]) -> Mapping[ResourceId, StoredResource]:
        found = (self._resources(RESOURCES.c.id.in_(chunk)) for chunk in chunks(ids))
        return {resource.id: resource for resources in found for resource in resources}

    def by_name(self, type: TypeId, account: ResourceId | None, name: str) -> StoredResource | None:
        is_named = (RESOURCES.c.name_key == name_key(name)) & (RESOURCES.c.type == type)
        return next(iter(self._resources(is_named, RESOURCES.c.scope == (account or NODE))), None)

    def by_names(
        self, type: TypeId, account: ResourceId | None, names: Sequence[str]
    ) -> Mapping[str, StoredResource]:
        is_in_scope = (RESOURCES.c.type == type) & (RESOURCES.c.scope == (account or NODE))
        parts = chunks([name_key(name) for name in names])
        found = (self._resources(RESOURCES.c.name_key.in_(part), is_in_scope) for part in parts)
        return {name_key(resource.name): resource for resources in found for resource in resources}

    def by_did(self, type: TypeId, did: str) -> StoredResource | None:
        found = self._resources(RESOURCES.c.did == did, RESOURCES.c.type == type)
        return min(found, key=lambda it: (it.deleted_ms is not None, it.created_ms), default=None)

    def tombstone(self, id: ResourceId) -> Tombstone | None:
        columns = [RESOURCES.c[column] for column in Tombstone.__slots__]
        row = self.connection.execute(select(*columns).where(RESOURCES.c.id == id, ~STORED)).first()
        return None if row is None else tombstone_of(row)

    def tombstone_named(self, type: TypeId, account: ResourceId, name: str) -> Tombstone | None:
        columns = [RESOURCES.c[column] for column in Tombstone.__slots__]
        is_wanted = (
            RESOURCES.c.name_key == name_key(name),
            RESOURCES.c.type == type,
            RESOURCES.c.account == account,
        )
        newest = select(*columns).where(~STORED, *is_wanted).order_by(RESOURCES.c.removed_ms.desc())
        row = self.connection.execute(newest).first()
        return None if row is None else tombstone_of(row)

    def find(self, query: Query) -> Page:
        statement = select(*RESOURCE_COLUMNS).where(STORED, *_conditions(query))
        statement = statement.order_by(RESOURCES.c.name_key, RESOURCES.c.id)
        limit = min(query.limit, MAX_PAGE)
        found = tuple(map(resource_of, self.connection.execute(statement.limit(limit + 1))))
        page = found[:limit]
        return Page(
            resources=page, next=Cursor(name=page[-1].name, id=page[-1].id) if found[limit:] else None
        )

    def counts(self) -> Mapping[tuple[TypeId, str], int]:
        statement = select(RESOURCES.c.type, RESOURCES.c.phase, func.count())
        statement = statement.where(STORED, RESOURCES.c.deleted_ms.is_(None))
        rows = self.connection.execute(statement.group_by(RESOURCES.c.type, RESOURCES.c.phase))
        return {(TypeId(type_id), phase): number for type_id, phase, number in rows}

    def references_from(self, id: ResourceId) -> tuple[ResourceReference, ...]:
        statement = select(REFERENCES).where(REFERENCES.c.resource == id).order_by(REFERENCES.c.path)
        return tuple(map(reference_of, self.connection.execute(statement)))

    def referring_to(self, id: ResourceId) -> tuple[StoredResource, ...]:
        return self._resources_with_reference(REFERENCES.c.id == id)

    def referring_to_any(self, ids: Sequence[ResourceId]) -> tuple[StoredResource, ...]:
        parts = (self._resources_with_reference(REFERENCES.c.id.in_(part)) for part in chunks(ids))
        return tuple(resource for part in parts for resource in part)

    def unresolved_to(
        self, type: TypeId, account: ResourceId | None, name: str, did: str | None = None
    ) -> tuple[StoredResource, ...]:
        by_name = (REFERENCES.c.name_key == name_key(name)) & (
            REFERENCES.c.account.is_not_distinct_from(account)
        )
        by_did = false() if did is None else REFERENCES.c.did_key == did
        return self._resources_with_reference((by_name | by_did) & (REFERENCES.c.type == type))

    def unresolved_names(self, names: Sequence[str]) -> frozenset[str]:
        found: set[str] = set()
        for column in (REFERENCES.c.name_key, REFERENCES.c.did_key):
            for part in chunks(names):
                found |= set(self.connection.execute(select(column).where(column.in_(part))).scalars())
        return frozenset(found)

    def events_of(self, id: ResourceId) -> tuple[ResourceEvent, ...]:
        statement = select(EVENTS).where(EVENTS.c.resource == id).order_by(EVENTS.c.sequence)
        return tuple(map(event_of, self.connection.execute(statement)))

    def events_after(self, position: Position, limit: int = MAX_PAGE) -> tuple[ResourceEvent, ...]:
        oldest, newest = self.connection.execute(select(STATE.c.purged, STATE.c.position)).one()
        if not oldest <= position <= newest:
            raise PositionUnknown(position=position, oldest=oldest, newest=newest)
        statement = select(EVENTS).where(EVENTS.c.position > position).order_by(EVENTS.c.position)
        return tuple(map(event_of, self.connection.execute(statement.limit(limit))))

    def position(self) -> Position:
        return Position(self.connection.execute(select(STATE.c.position)).scalar_one())

    def types(self) -> tuple[RegisteredType, ...]:
        return tuple(map(type_of, self.connection.execute(select(TYPES).order_by(TYPES.c.schema))))

    def notes(self, scope: str, keys: Sequence[str] | None = None) -> Mapping[str, Json]:
        statement = select(NOTES.c.key, NOTES.c.note).where(NOTES.c.scope == scope)
        parts = [statement] if keys is None else [statement.where(NOTES.c.key.in_(it)) for it in chunks(keys)]
        return {row.key: json.loads(row.note) for part in parts for row in self.connection.execute(part)}

    def _resources(self, *conditions: ColumnElement[bool]) -> tuple[StoredResource, ...]:
        statement = select(*RESOURCE_COLUMNS).where(STORED, *conditions).order_by(RESOURCES.c.id)
        return tuple(map(resource_of, self.connection.execute(statement)))

    def _resources_with_reference(self, matches: ColumnElement[bool]) -> tuple[StoredResource, ...]:
        return self._resources(RESOURCES.c.id.in_(select(REFERENCES.c.resource).where(matches)))


def _conditions(query: Query) -> Iterator[ColumnElement[bool]]:
    if query.types:
        yield RESOURCES.c.type.in_(query.types)
    if query.accounts:
        yield RESOURCES.c.account.in_(query.accounts)
    yield from _name_conditions(name_key(query.name))
    if query.phase is not None:
        yield RESOURCES.c.phase == query.phase
    if not query.include_deleted:
        yield RESOURCES.c.deleted_ms.is_(None)
    for key in query.label_keys:
        yield _is_labelled(LABELS.c.key == digest(key))
    for key, value in query.labels.items():
        yield _is_labelled(LABELS.c.key == digest(key), LABELS.c.value == digest(value))
    if query.after is not None:
        place = tuple_(RESOURCES.c.name_key, RESOURCES.c.id)
        yield place > (name_key(query.after.name), query.after.id)


def _is_labelled(*conditions: ColumnElement[bool]) -> ColumnElement[bool]:
    return RESOURCES.c.id.in_(select(LABELS.c.resource).where(*conditions))


def _name_conditions(pattern: str) -> Iterator[ColumnElement[bool]]:
    prefix, wildcard, rest = pattern.partition("%")
    if not wildcard:
        yield RESOURCES.c.name_key == pattern
        return
    if prefix:  # a range of the index
        yield RESOURCES.c.name_key >= prefix
        yield RESOURCES.c.name_key < prefix + chr(0x10FFFF)
    if rest:
        escaped = pattern.replace(ESCAPE, ESCAPE * 2).replace("_", f"{ESCAPE}_")
        yield RESOURCES.c.name_key.like(escaped, escape=ESCAPE)


def chunks(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """Return the items in parts of the size of one statement."""
    return (items[start : start + CHUNK] for start in range(0, len(items), CHUNK))
