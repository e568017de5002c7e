"""Removes the remains of killed operations: abandoned claims and files, objects of datasets without a name."""

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

import structlog

from odf_common.adapters.local.staging import Staging
from odf_common.errors import OdfError
from odf_common.identity.did import DatasetId
from odf_common.ports.clock import pause_after
from odf_common.ports.store import Catalog, CatalogEntry
from odf_coordinator.lifecycle.claims import Claims

log = structlog.stdlib.get_logger(__name__)

INTERVAL_SECONDS: Final = 60.0
UNFINISHED_SECONDS: Final = 600.0  # no write takes that long; a copy between file systems touches its file
# A copy has no name while it is downloaded, and an interrupted download continues from the objects it has.
GRACE_SECONDS: Final = 24 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Collector:
    """Removes leftovers in the background; datasets that have a name, or once had one, are never touched."""

    catalog: Catalog
    claims: Claims
    staging: Staging
    grace_seconds: float = GRACE_SECONDS
    now: Callable[[], float] = time.time
    cpu_seconds: Callable[[], float] = time.thread_time

    def run(self, stop: threading.Event) -> None:
        """Settle at startup and every minute, until stopped; keep disk space in reserve.

        What needs a look at each dataset is done every ten minutes, or less often if there are thousands.
        """
        self._attempt("cannot repair names for now", self.catalog.repair_names)
        due = self.now()
        while not stop.is_set():
            self.settle()
            self._attempt("cannot reserve disk space for now", self.claims.reserve.refill)
            if self.now() >= due:
                begun = self.cpu_seconds()
                self._attempt("cannot collect leftovers for now", self._collect_strays)
                self._attempt("cannot remove unfinished writes for now", self.sweep)
                due = self.now() + pause_after(self.cpu_seconds() - begun, at_least=UNFINISHED_SECONDS)
            stop.wait(INTERVAL_SECONDS)

    def collect(self) -> None:
        """Settle, and remove strays older than the grace period; a failure is logged and does not stop the rest."""
        self.settle()
        self._attempt("cannot collect leftovers for now", self._collect_strays)

    def settle(self) -> None:
        """Settle abandoned claims, finish deletions, and remove killed commands' files."""
        deletions = self.claims.datasets.blobs.finish_deletions
        self._attempt("cannot remove files of killed commands for now", self.staging.sweep)
        self._attempt("cannot finish deletions for now", deletions)
        self._attempt("cannot settle claims for now", self._settle_claims)

    def _settle_claims(self) -> None:
        unreadable = self.catalog.unreadable()
        for entry in self.catalog.claims():
            if unreadable and self.catalog.by_id(entry.dataset_id) is None:
                # One of the unreadable names may be this dataset's.
                log.warning("leftovers kept while names cannot be read", **entry.log_facts, names=unreadable)
                continue
            self._settle(entry.dataset_id, entry.alias, lambda record: bool(record.alias))

    def _collect_strays(self) -> None:
        if self.catalog.unreadable():
            return
        for dataset in self._strays():
            self._settle(dataset, "", lambda record: any(self._strays((record.dataset_id,))))

    def sweep(self) -> None:
        """Remove the unfinished writes of killed processes."""
        self.claims.datasets.blobs.sweep(self.now() - UNFINISHED_SECONDS)

    def _strays(self, among: Iterable[DatasetId] | None = None) -> tuple[DatasetId, ...]:
        return tuple(self.catalog.strays(self.now() - self.grace_seconds, among))

    def _settle(self, dataset: DatasetId, alias: str, is_due: Callable[[CatalogEntry], bool]) -> None:
        try:
            if self.claims.settle(dataset, is_due):
                log.info(
                    "leftovers of a killed operation settled", dataset=alias or None, dataset_id=str(dataset)
                )
        except OdfError as error:  # skip only this dataset
            log.warning("cannot remove leftovers for now", dataset_id=str(dataset), why=str(error))

    def _attempt(self, otherwise: str, action: Callable[[], None]) -> None:
        try:
            action()
        except OdfError as error:
            log.warning(otherwise, why=str(error))
