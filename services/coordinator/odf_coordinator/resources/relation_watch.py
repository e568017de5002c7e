"""Rights on datasets as they change."""

from collections.abc import Callable, Iterator
from typing import Final

from odf_common.resources.registry import ACCOUNT, DATASET, RELATIONS
from odf_coordinator.resources.documents import type_id
from odf_coordinator.resources.relations import DatasetGrant, dataset_grants
from odf_coordinator.resources.store import EventKind, Position, ResourceEvent, ResourceStore, StoredResource
from odf_coordinator.resources.watch import DUE, Watch

_TYPES: Final = frozenset(type_id(kind.uri) for kind in (ACCOUNT, DATASET, RELATIONS))


def watch_grants(
    store: ResourceStore, watch: Watch, is_wanted: Callable[[], bool]
) -> Iterator[tuple[DatasetGrant, ...] | None]:
    """Return the rights in effect at first and after each change, and None after each second without one."""
    position, grants = _read(store)
    yield grants
    for change in watch.changes_or_none(position, is_wanted):
        if change is None:
            yield None
        elif _matters(*change):
            _, changed = _read(store)
            if changed != grants:
                grants = changed
                yield grants


def _read(store: ResourceStore) -> tuple[Position, tuple[DatasetGrant, ...]]:
    with store.read() as snapshot:
        return snapshot.position(), dataset_grants(snapshot)


def _matters(event: ResourceEvent, resource: StoredResource | None) -> bool:
    """Return whether an event may have changed rights; status changes, which are most events, do not."""
    if resource is None:
        return event.kind is EventKind.DELETED
    return event.kind in DUE and resource.type in _TYPES
