"""Changes of resources as they happen."""

import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Final

from odf_common.resources.conditions import RECONCILIATION_ERROR
from odf_common.resources.phases import Phase
from odf_common.resources.scalar_formats import ResourceId
from odf_coordinator.resources.store import (
    EventKind,
    Position,
    Query,
    ResourceEvent,
    ResourceStore,
    Snapshot,
    StoredResource,
    Transaction,
    TypeId,
)

COMMIT_POLL_SECONDS: Final = 1.0  # another coordinator may write, and nothing tells of it
UNSETTLED: Final = frozenset((Phase.PENDING.value, Phase.RECONCILING.value))
# Events after which a resource is reconciled; the others are of an attempt itself.
DUE: Final = frozenset(
    {
        EventKind.CREATED,
        EventKind.SPEC_CHANGED,
        EventKind.HEADERS_CHANGED,
        EventKind.RENAMED,
        EventKind.REFERENCE_PINNED,
        EventKind.DELETION_REQUESTED,
    }
)
# Events after which the resources that refer to one are reconciled.
OF_DEPENDENCIES: Final = frozenset(
    {
        EventKind.RECONCILE_SUCCEEDED,
        EventKind.RECONCILE_FAILED,
        EventKind.RENAMED,
        EventKind.DELETION_REQUESTED,
        EventKind.DELETED,
    }
)


_Page = list[tuple[ResourceEvent, StoredResource | None]]


class Watch:
    """Wakes those that wait for changes."""

    def __init__(self, store: ResourceStore) -> None:
        """Watch a store; `notify` is called after each commit of this process."""
        self._store = store
        self._changed = threading.Condition()
        self._commits = 0
        self._requested: dict[int, list[StoredResource]] = {}
        """Resources that users want reconciled, for each iterator of `due_ids`."""
        self._polled = 0.0
        self._position: Position | None = None  # at the last poll

    def notify(self) -> None:
        """Wake all watchers."""
        with self._changed:
            self._commits += 1
            self._changed.notify_all()

    def request(self, resource: StoredResource) -> None:
        """Make a resource due for the controllers of its type, wherever they are."""
        with self._changed:
            for requested in self._requested.values():
                requested.append(resource)
            self._commits += 1
            self._changed.notify_all()

    def require_known(self, position: Position | None) -> None:
        """Raise `PositionUnknown` unless all changes after a position can be read."""
        if position is not None:
            with self._store.read() as snapshot:
                snapshot.events_after(position, 1)

    def changes(
        self, start: Position | None, is_wanted: Callable[[], bool]
    ) -> Iterator[tuple[ResourceEvent, StoredResource | None]]:
        """Return each change after a position, by default from now on, with the resource as it is then.

        A resource is None once it is gone. Ends when `is_wanted` is False, within a second.
        """
        for change in self.changes_or_none(start, is_wanted):
            if change is not None:
                yield change

    def changes_or_none(
        self, start: Position | None, is_wanted: Callable[[], bool]
    ) -> Iterator[tuple[ResourceEvent, StoredResource | None] | None]:
        """Return the same changes, and None after each second without any."""
        for page in self._pages(start, is_wanted):
            yield from page or (None,)

    def _pages(self, start: Position | None, is_wanted: Callable[[], bool]) -> Iterator[_Page]:
        """Return the same changes, up to some hundreds at once; an empty page after each second without any."""
        position = start
        while is_wanted():
            seen = self._commits
            with self._store.read() as snapshot:
                if position is None:
                    position = snapshot.position()
                events = snapshot.events_after(position)
                found = snapshot.by_ids([event.resource for event in events])
            if events:
                yield [(event, found.get(event.resource)) for event in events]
                position = events[-1].position
                continue
            yield []
            while is_wanted() and not self._await_commit(seen):
                yield []

    def _await_commit(self, seen: int) -> bool:
        """Wait up to a second for a commit; then one of the watchers asks the store for those of other processes."""
        with self._changed:
            if self._commits == seen:
                self._changed.wait(COMMIT_POLL_SECONDS)
            now = time.monotonic()
            if self._commits != seen or now < self._polled + COMMIT_POLL_SECONDS / 2:
                return self._commits != seen
            self._polled = now
        with self._store.read() as snapshot:
            position = snapshot.position()
        is_new, self._position = position != self._position, position
        if is_new:
            self.notify()
        return is_new

    def ids_of(self, type: TypeId) -> tuple[ResourceId, ...]:
        """Return the ids of all resources of a type."""
        with self._store.read() as snapshot:
            return tuple(one.id for one in _all(snapshot, (type,)))

    def due_ids(
        self, types: Collection[TypeId], is_wanted: Callable[[], bool]
    ) -> Iterator[ResourceId | None]:
        """Return the ids of resources of types that have to be reconciled, and None after each second without any.

        First those that are not settled or not removed yet; then those that change, that refer to one which does, or
        that are requested.
        """
        requested: list[StoredResource] = []
        with self._changed:
            self._requested[id(requested)] = requested
        try:
            yield from self._due_ids(types, is_wanted, requested)
        finally:
            with self._changed:
                del self._requested[id(requested)]

    def _due_ids(
        self, types: Collection[TypeId], is_wanted: Callable[[], bool], requested: list[StoredResource]
    ) -> Iterator[ResourceId | None]:
        with self._store.read() as snapshot:
            position = snapshot.position()
            due = [one.id for one in _all(snapshot, types) if _is_unsettled(one)]
        yield from due
        for page in self._pages(position, is_wanted):
            while requested:
                wanted = requested.pop()
                if wanted.type in types:
                    yield wanted.id
            if not page:
                yield None
            changed = [
                one.id for event, one in page if one is not None and event.kind in DUE and one.type in types
            ]
            yield from dict.fromkeys(changed + self._dependents(page, types))

    def _dependents(self, page: _Page, types: Collection[TypeId]) -> list[ResourceId]:
        """Return the resources of types that refer to those which have changed."""
        ids = {event.resource for event, _ in page if event.kind in OF_DEPENDENCIES}
        if not ids:
            return []
        with self._store.read() as snapshot:
            return [one.id for one in snapshot.referring_to_any([*ids]) if one.type in types]


class WatchedStore:
    """A store whose watchers are woken after each commit."""

    def __init__(self, store: ResourceStore, watch: Watch) -> None:
        """Commit to a store, and notify a watch of it."""
        self._store, self._watch = store, watch

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Commit as the store does."""
        with self._store.transaction() as transaction:
            yield transaction
        self._watch.notify()

    def read(self) -> AbstractContextManager[Snapshot]:
        """Read as the store does."""
        return self._store.read()


def _all(snapshot: Snapshot, types: Collection[TypeId]) -> Iterator[StoredResource]:
    query = Query(types=tuple(types), include_deleted=True)
    while True:
        page = snapshot.find(query)
        yield from page.resources
        if page.next is None:
            return
        query = replace(query, after=page.next)


def _is_unsettled(resource: StoredResource) -> bool:
    """Return whether a controller has to do something: also a retry whose time was kept by a former process."""
    if resource.deleted_ms is not None or resource.phase in UNSETTLED:
        return True
    error = resource.document["status"]["conditions"].get(str(RECONCILIATION_ERROR), {})
    return "retryAt" in error
