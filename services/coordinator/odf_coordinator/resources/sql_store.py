"""The store of resources in SQL: one set of statements for SQLite and PostgreSQL.

A transaction writes in bulk, a few statements per call. Positions come from one counter, and names are compared when it
ends; both are sound because only one transaction writes at a time.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from sqlalchemy import Column, Connection, Row, Table, bindparam, delete, func, insert, select, update

from odf_common.errors import NotFound
from odf_common.resources.scalar_formats import ResourceId
from odf_coordinator.resources.sql_database import Database, open_postgresql, open_sqlite
from odf_coordinator.resources.sql_snapshot import STORED, SqlSnapshot, chunks
from odf_coordinator.resources.sql_tables import (
    EVENTS,
    LABELS,
    LEASES,
    NOTES,
    REFERENCES,
    RESOURCES,
    STATE,
    TYPES,
    Values,
    canonical_json,
    event_values,
    json_text,
    label_values,
    name_key,
    reference_values,
    resource_values,
    scope_of,
    type_values,
)
from odf_coordinator.resources.store import (
    STATUS_EVENTS,
    Change,
    FencingToken,
    Json,
    LeaseLost,
    NameConflict,
    RegisteredType,
    ResourceEvent,
    RevisionMoved,
    StoredResource,
)


class SqlTransaction(SqlSnapshot):
    """Reads and writes of one transaction."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self._new_names: set[str] = set()
        self.has_erased = False

    def save(self, changes: Sequence[Change]) -> tuple[StoredResource, ...]:
        if not changes:
            return ()
        before = self._rows([change.resource.id for change in changes])
        saved = tuple(_accept(change, before.get(change.resource.id)) for change in changes)
        self._require_leases(changes)
        labelled = [it for it in saved if _has_new_labels(it, before.get(it.id))]
        referring = [change for change in changes if change.references is not None]
        self._replace(RESOURCES.c.id, [it.id for it in saved], [resource_values(it) for it in saved])
        self._replace(
            LABELS.c.resource,
            [it.id for it in labelled],
            [values for it in labelled for values in label_values(it)],
        )
        self._replace(
            REFERENCES.c.resource,
            [change.resource.id for change in referring],
            [
                reference_values(change.resource.id, reference)
                for change in referring
                for reference in change.references or ()
            ],
        )
        self._append(changes)
        self._new_names |= {name_key(it.name) for it in saved if _has_new_name(it, before.get(it.id))}
        return saved

    def rewrite(self, resource: StoredResource) -> None:
        self._update(resource, document=json_text(resource.document))
        self.has_erased = True

    def rewrite_payload(self, event: ResourceEvent) -> None:
        is_event = EVENTS.c.position == event.position
        self.connection.execute(update(EVENTS).where(is_event).values(payload=json_text(event.payload)))
        self.has_erased = True

    def remove(self, resource: StoredResource, now_ms: int) -> None:
        self._update(resource, did=None, document="{}", labels="{}", finalizers="[]", removed_ms=now_ms)
        for column in (LABELS.c.resource, REFERENCES.c.resource, LEASES.c.resource):
            self._replace(column, [resource.id], [])
        self.has_erased = True

    def erase_payloads(self, id: ResourceId) -> None:
        self.connection.execute(update(EVENTS).where(EVENTS.c.resource == id).values(payload="null"))
        self.has_erased = True

    def purge(self, before_ms: int) -> int:
        is_old = RESOURCES.c.removed_ms < before_ms
        is_of_removed = EVENTS.c.resource.in_(select(RESOURCES.c.id).where(is_old))
        is_status = (EVENTS.c.time_ms < before_ms) & EVENTS.c.kind.in_(sorted(STATUS_EVENTS))
        purged = is_of_removed | is_status
        newest = self.connection.execute(select(func.max(EVENTS.c.position)).where(purged)).scalar_one()
        number = self.connection.execute(delete(EVENTS).where(purged)).rowcount
        self.connection.execute(delete(RESOURCES).where(is_old))
        self.connection.execute(update(STATE).where(STATE.c.purged < (newest or 0)).values(purged=newest))
        return number

    def lease(self, id: ResourceId, holder: str, *, ttl_ms: int, now_ms: int) -> FencingToken | None:
        if self.by_id(id) is None:
            raise NotFound(what=f"resource {id}")
        return self.lease_many([id], holder, ttl_ms=ttl_ms, now_ms=now_ms).get(id)

    def lease_many(
        self, ids: Sequence[ResourceId], holder: str, *, ttl_ms: int, now_ms: int
    ) -> dict[ResourceId, FencingToken]:
        parts = (select(LEASES).where(LEASES.c.resource.in_(part)) for part in chunks(ids))
        former = {row.resource: row for part in parts for row in self.connection.execute(part)}
        free = [one for one in ids if one not in former or (former[one].expires_ms or 0) <= now_ms]
        tokens = {one: FencingToken(former[one].token + 1 if one in former else 1) for one in free}
        expires_ms = now_ms + ttl_ms
        rows = [
            {"resource": one, "holder": holder, "token": token, "expires_ms": expires_ms}
            for one, token in tokens.items()
        ]
        self._replace(LEASES.c.resource, free, rows)
        return tokens

    def extend(self, id: ResourceId, token: FencingToken, *, ttl_ms: int, now_ms: int) -> None:
        if not self._set_expiry(id, token, now_ms + ttl_ms):
            raise LeaseLost(resource=id, token=token)

    def release(self, id: ResourceId, token: FencingToken) -> None:
        self.release_many({id: token})

    def release_many(self, tokens: Mapping[ResourceId, FencingToken]) -> None:
        is_held = (LEASES.c.resource == bindparam("id")) & (LEASES.c.token == bindparam("of"))
        statement = update(LEASES).where(is_held).values(expires_ms=None)
        if tokens:
            self.connection.execute(statement, [{"id": one, "of": token} for one, token in tokens.items()])

    def release_all(self, holder: str) -> None:
        self.connection.execute(update(LEASES).where(LEASES.c.holder == holder).values(expires_ms=None))

    def save_type(self, type: RegisteredType) -> None:
        self._replace(TYPES.c.schema, [type.schema], [type_values(type)])

    def save_notes(self, scope: str, notes: Mapping[str, Json]) -> None:
        for chunk in chunks(list(notes)):
            is_replaced = (NOTES.c.scope == scope) & NOTES.c.key.in_(chunk)
            self.connection.execute(delete(NOTES).where(is_replaced))
        kept = {key: note for key, note in notes.items() if note is not None}
        rows = [{"scope": scope, "key": key, "note": canonical_json(note)} for key, note in kept.items()]
        self._insert(NOTES, rows)

    def check_names(self) -> None:
        """Raise `NameConflict` if a name that this transaction has given belongs to two resources."""
        columns = (RESOURCES.c.type, RESOURCES.c.scope, RESOURCES.c.name_key)
        for chunk in chunks(sorted(self._new_names)):
            statement = select(*columns).where(STORED, RESOURCES.c.name_key.in_(chunk)).group_by(*columns)
            double = self.connection.execute(statement.having(func.count() > 1).limit(1)).first()
            if double is not None:
                raise NameConflict(type=double.type, account=double.scope or None, name=double.name_key)

    def _update(self, resource: StoredResource, **values: object) -> None:
        is_stored = (RESOURCES.c.id == resource.id) & (RESOURCES.c.revision == resource.revision)
        statement = update(RESOURCES).where(STORED, is_stored).values(**values)
        if self.connection.execute(statement).rowcount == 0:
            raise _revision_moved(resource, self._rows([resource.id]).get(resource.id))

    def _rows(self, ids: Sequence[ResourceId]) -> dict[ResourceId, Row[Any]]:
        """Return the stored rows of resources, and of removed ones."""
        names = ("id", "type", "scope", "name_key", "labels", "revision", "removed_ms")
        statement = select(*(RESOURCES.c[name] for name in names))
        parts = (self.connection.execute(statement.where(RESOURCES.c.id.in_(part))) for part in chunks(ids))
        return {ResourceId(row.id): row for rows in parts for row in rows}

    def _require_leases(self, changes: Sequence[Change]) -> None:
        tokens = {change.resource.id: change.token for change in changes if change.token is not None}
        for chunk in chunks(list(tokens)):
            is_held = LEASES.c.resource.in_(chunk) & LEASES.c.expires_ms.is_not(None)
            rows = self.connection.execute(select(LEASES.c.resource, LEASES.c.token).where(is_held))
            held = {row.resource: row.token for row in rows}
            for resource in chunk:
                if held.get(resource) != tokens[resource]:
                    raise LeaseLost(resource=resource, token=tokens[resource])

    def _append(self, changes: Sequence[Change]) -> None:
        number = sum(len(change.events) for change in changes)
        counter = update(STATE).values(position=STATE.c.position + number).returning(STATE.c.position)
        position = self.connection.execute(counter).scalar_one() - number
        rows = []
        for change in changes:
            for sequence, event in enumerate(change.events, change.resource.revision + 1):
                position += 1
                rows.append(event_values(event, change.resource, sequence, position))
        self._insert(EVENTS, rows)

    def _set_expiry(self, id: ResourceId, token: FencingToken, expires_ms: int | None) -> bool:
        is_held = (LEASES.c.resource == id) & (LEASES.c.token == token) & LEASES.c.expires_ms.is_not(None)
        statement = update(LEASES).where(is_held).values(expires_ms=expires_ms)
        return self.connection.execute(statement).rowcount > 0

    def _replace(self, key: Column[Any], keys: Sequence[str], rows: Sequence[Values]) -> None:
        for chunk in chunks(keys):
            self.connection.execute(delete(key.table).where(key.in_(chunk)))
        self._insert(key.table, rows)

    def _insert(self, table: Table, rows: Sequence[Values]) -> None:
        if rows:
            self.connection.execute(insert(table), rows)


class SqlResourceStore:
    """The store in a database; thread-safe."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @classmethod
    def open(cls, home: Path | None, url: str | None = None) -> Self:
        """Return the store of a node: in PostgreSQL if a URL is given, else in the home, or without one in memory."""
        return cls(open_sqlite(home) if url is None else open_postgresql(url))

    @contextmanager
    def transaction(self) -> Iterator[SqlTransaction]:
        with self._database.write() as connection:
            transaction = SqlTransaction(connection)
            yield transaction
            transaction.check_names()
            self._database.has_erased |= transaction.has_erased

    @contextmanager
    def read(self) -> Iterator[SqlSnapshot]:
        with self._database.read() as connection:
            yield SqlSnapshot(connection)

    def close(self) -> None:
        """Close the connections."""
        self._database.close()


def _accept(change: Change, row: Row[Any] | None) -> StoredResource:
    """Return the resource with its new revision; raises `RevisionMoved`."""
    resource = change.resource
    assert change.events
    if resource.revision != (0 if row is None else row.revision) or (row is not None and row.removed_ms):
        raise _revision_moved(resource, row)
    return replace(resource, revision=resource.revision + len(change.events))


def _revision_moved(resource: StoredResource, row: Row[Any] | None) -> RevisionMoved:
    actual = None if row is None or row.removed_ms is not None else row.revision
    return RevisionMoved(resource=resource.id, expected=resource.revision, actual=actual)


def _has_new_labels(resource: StoredResource, row: Row[Any] | None) -> bool:
    return row is None or row.labels != canonical_json(resource.labels)


def _has_new_name(resource: StoredResource, row: Row[Any] | None) -> bool:
    name = (resource.type, scope_of(resource), name_key(resource.name))
    return row is None or name != (row.type, row.scope, row.name_key)
