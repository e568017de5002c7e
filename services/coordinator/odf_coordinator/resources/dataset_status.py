"""The state of chains in the status of resources, and resources that wait for datasets (RFC-018)."""

import threading
from collections.abc import Callable, Collection, Iterable
from typing import Final

import structlog

from odf_common.chain.state import ChainState
from odf_common.errors import OdfError
from odf_common.identity.dataset_refs import DatasetId
from odf_common.resources.conditions import CHAIN_STATE, TRUE
from odf_common.resources.registry import DATASET
from odf_common.resources.scalar_formats import ResourceId
from odf_coordinator.catalog.datasets import DatasetHandle, Datasets
from odf_coordinator.resources.attempts import Attempts
from odf_coordinator.resources.documents import Json, type_id
from odf_coordinator.resources.store import ResourceStore

log = structlog.stdlib.get_logger(__name__)

STATUS_SECONDS: Final = 2.0  # between writes to the status of one resource, however fast its chain grows


def chain_condition(handle: DatasetHandle) -> Json:
    """Return the condition about the chain of a dataset."""
    state = handle.state
    details = {
        "alias": handle.alias,
        "head": str(state.head),
        "blocks": state.sequence_number + 1,
        "records": state.next_offset,
        "watermark": None if state.watermark is None else str(state.watermark),
    }
    known = {key: value for key, value in details.items() if value is not None}
    return {"value": TRUE, "details": known}


class DatasetStatus:
    """Follows the chains of datasets that resources declare."""

    def __init__(self, datasets: Datasets, store: ResourceStore, attempts: Attempts) -> None:
        """Write to a store, and request attempts."""
        self._datasets, self._store, self._attempts = datasets, store, attempts
        self._moved: set[DatasetId] = set()
        self._waiting: dict[ResourceId, Callable[[], bool]] = {}
        self._lock = threading.Lock()

    def on_committed(self, state: ChainState) -> None:
        """Note that a head has moved."""
        with self._lock:
            self._moved.add(state.dataset_id)

    def wait(self, id: ResourceId, is_due: Callable[[], bool]) -> None:
        """Request an attempt for a resource once `is_due` returns True."""
        with self._lock:
            self._waiting[id] = is_due

    def end_wait(self, id: ResourceId) -> None:
        """Forget what a resource has waited for."""
        with self._lock:
            self._waiting.pop(id, None)

    def wake(self, datasets: Iterable[DatasetId]) -> None:
        """Request attempts for the resources that declare datasets."""
        for resource in self._resources_of(datasets).values():
            self._attempts.request(resource)

    def run(self, stop: threading.Event) -> None:
        """Write states and wake resources until stopped."""
        while not stop.wait(STATUS_SECONDS):
            self.update()

    def update(self) -> None:
        """Write the states of chains that have moved, and wake resources whose wait is over; errors are logged."""
        with self._lock:
            moved = frozenset(self._moved)
            self._moved.clear()
        try:
            self.wake_due()
            self._write(moved)
        except OdfError as error:
            log.warning("the status of datasets cannot be written now", code=error.code, why=str(error))
            with self._lock:
                self._moved |= moved

    def wake_due(self) -> None:
        """Request attempts for the resources whose wait is over."""
        with self._lock:
            waiting = tuple(self._waiting.items())
        for resource, is_due in waiting:
            if is_due():
                self.end_wait(resource)
                self._attempts.request(resource)

    def _write(self, moved: Collection[DatasetId]) -> None:
        if not moved:
            return
        conditions = {}
        for dataset, resource in self._resources_of(moved).items():
            handle = self._datasets.by_id(dataset)
            if handle is not None:
                conditions[resource] = {str(CHAIN_STATE): chain_condition(handle)}
        if conditions:
            self._attempts.note(conditions)

    def _resources_of(self, datasets: Iterable[DatasetId]) -> dict[DatasetId, ResourceId]:
        kind = type_id(DATASET.uri)
        with self._store.read() as snapshot:
            found = {dataset: snapshot.by_did(kind, str(dataset)) for dataset in datasets}
        return {dataset: one.id for dataset, one in found.items() if one is not None}
