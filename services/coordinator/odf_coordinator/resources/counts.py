"""The number of resources as a metric, counted when it is asked for."""

import threading
from collections.abc import Iterable
from typing import Final

from prometheus_client import Gauge, Metric
from prometheus_client.registry import Collector

from odf_common.errors import OdfError
from odf_coordinator.resources.store import ResourceStore

RESOURCE_COUNT: Final = Gauge(
    "odf_resources", "Resources that are not being deleted.", ("type", "phase"), registry=None
)


class ResourceCounts(Collector):
    """Counts the resources of a store; while it is unavailable, there is no number."""

    def __init__(self, store: ResourceStore) -> None:
        """Count the resources of a store."""
        self._store = store
        self._lock = threading.Lock()

    def describe(self) -> Iterable[Metric]:
        """Return nothing: to be registered, it need not count."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Return the metric with its values now."""
        with self._lock:
            RESOURCE_COUNT.clear()
            try:
                with self._store.read() as snapshot:
                    counts = snapshot.counts()
            except OdfError:
                return ()
            for (type_id, phase), number in counts.items():
                RESOURCE_COUNT.labels(type_id.rpartition("/")[2], phase).set(number)
            return tuple(RESOURCE_COUNT.collect())
