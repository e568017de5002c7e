"""Changes of resources as they happen."""

import threading
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


class Watch:
    """Wakes those that wait for changes."""

    def __init__(self, store: ResourceStore) -> None:
        """Watch a store; `notify` is called after each commit of this process."""
        self._store = store
        self._changed = threading.Condition()
        self._commits = 0
        self._requested: dict[int, list[StoredResource]] = {}
        """Resources that users want reconciled, for each iterator of `due_ids`."""

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
        position = start
        while is_wanted():
            seen = self._commits
            with self._store.read() as snapshot:
                if position is None:
                    position = snapshot.position()
                events = snapshot.events_after(position)
                found = snapshot.by_ids([event.resource for event in events])
            for event in events:
                yield event, found.get(event.resource)
                position = event.position
            if not events:
                with self._changed:
                    if self._commits == seen:
                        self._changed.wait(COMMIT_POLL_SECONDS)
                yield None

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
        for change in self.changes_or_none(position, is_wanted):
            while requested:
                wanted = requested.pop()
                if wanted.type in types:
                    yield wanted.id
            if change is None:
                yield None
                continue
            event, resource = change
            if resource is not None and event.kind in DUE and resource.type in types:
                yield resource.id
            if event.kind in OF_DEPENDENCIES:
                with self._store.read() as snapshot:
                    users = snapshot.referring_to(event.resource)
                yield from (user.id for user in users if user.type in types)


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
