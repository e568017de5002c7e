"""Changes of resources as they happen."""

import threading
from collections.abc import Callable, Iterator
from typing import Final

from odf_coordinator.resources.store import EventKind, Position, ResourceEvent, ResourceStore, StoredResource

COMMIT_POLL_SECONDS: Final = 1.0  # another coordinator may write, and nothing tells of it
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

    def notify(self) -> None:
        """Wake all watchers."""
        with self._changed:
            self._commits += 1
            self._changed.notify_all()

    def changes(
        self, start: Position | None, is_wanted: Callable[[], bool]
    ) -> Iterator[tuple[ResourceEvent, StoredResource | None]]:
        """Return each change after a position, by default from now on, with the resource as it is then.

        A resource is None once it is gone. Ends when `is_wanted` is False, within a second.
        """
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

    def due(self, is_wanted: Callable[[], bool]) -> Iterator[StoredResource]:
        """Return the resources that have to be reconciled: those that have changed, and those that refer to them."""
        for event, resource in self.changes(None, is_wanted):
            if resource is not None and event.kind in DUE:
                yield resource
            if event.kind in OF_DEPENDENCIES:
                with self._store.read() as snapshot:
                    users = snapshot.referring_to(event.resource)
                yield from users
