"""Renames and deletes datasets, even those whose chain cannot be read."""

from dataclasses import dataclass, replace
from urllib.parse import unquote

import structlog

from odf_common.errors import AlreadyExists, DatasetInUse, OdfError, VerificationFailed
from odf_common.identity.dataset_refs import parse_alias
from odf_common.ports.store import CatalogEntry, DatasetUnknown
from odf_common.resources.registry import require_free_path
from odf_coordinator.catalog.datasets import DatasetHandle, Datasets, Unreadable
from odf_coordinator.lifecycle import Claims

log = structlog.stdlib.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetNames:
    """Renames and deletes datasets."""

    datasets: Datasets
    claims: Claims

    def rename(self, ref: str, new_alias: str) -> DatasetHandle | Unreadable:
        """Rename a dataset atomically. Its push topics and the datasets that read it do not change.

        A repeated rename does nothing. A dataset whose chain cannot be read can be renamed too.
        """
        alias = str(parse_alias(new_alias))
        catalog = self.datasets.catalog
        with catalog.lock():
            entry = self._entry_to_rename(ref, alias)
            if entry.alias.lower() != alias.lower():
                require_free_path(parse_alias(alias))
                self._make_way(alias)
                self.claims.declarations.rename(entry.dataset_id, alias)
                catalog.rename(entry.alias, replace(entry, alias=alias, formerly=entry.alias))
            elif entry.alias != alias:
                self.claims.declarations.rename(entry.dataset_id, alias)
                catalog.replace(replace(entry, alias=alias))
        log.info("dataset renamed", **entry.log_facts, to=alias)
        entry = replace(entry, alias=alias)
        try:
            handle = self.datasets.open(entry)
        except OdfError as error:
            return Unreadable(entry=entry, why=str(error))
        if handle is None:  # deleted, or renamed again, in the meantime
            raise DatasetUnknown(what=alias)
        self.claims.committer.announce(handle.state)
        return handle

    def _make_way(self, alias: str) -> None:
        """Free a name, or raise `AlreadyExists` unless the resource of its dataset gives that another one.

        So two datasets swap their names: the first to be renamed moves the other aside, which is renamed after it.
        """
        other = self.datasets.catalog.by_alias(alias)
        if other is None:
            return
        declared = self.claims.declarations.declared_alias(other.dataset_id)
        if declared is None or declared.lower() == alias.lower():
            raise AlreadyExists(what=f"dataset {alias}")
        aside = f"{other.alias}.renamed-{str(other.dataset_id)[-8:]}"
        self.datasets.catalog.rename(other.alias, replace(other, alias=aside, formerly=other.alias))

    def delete(self, ref: str, *, is_forced: bool = False) -> None:
        """Remove a dataset without readers, or even with them; its chain or name need not be readable.

        Once its name is removed, the dataset does not exist any more. Repeating the command completes a deletion that
        was killed.
        """
        try:
            entry = self.datasets.entry(ref)
        except DatasetUnknown:
            if not self._finish_removal(ref):
                raise
            return
        except VerificationFailed:
            self._free_unreadable(str(parse_alias(ref)))
            return
        if self._free_second_name(entry):
            return

        def begin(current: CatalogEntry) -> None:
            if not is_forced:
                self._require_not_in_use(current)
            self.claims.declarations.request_removal(current.dataset_id)

        if not is_forced:
            # Checked twice: this first pass fills caches, so that the check under the catalog's lock is short.
            self._require_not_in_use(entry)
        removed = self.claims.remove(entry.dataset_id, begin)
        log.info("dataset deleted", **removed.log_facts)

    def _entry_to_rename(self, ref: str, alias: str) -> CatalogEntry:
        """Return the entry of the dataset to rename; in a repeated rename it already has the new name."""
        try:
            return self.datasets.entry(ref)
        except DatasetUnknown:
            renamed = self.datasets.catalog.by_alias(alias)
            if renamed is None or renamed.formerly.lower() != ref.lower():
                raise
            return renamed

    def _require_not_in_use(self, entry: CatalogEntry) -> None:
        """Raise `Refused` if another dataset reads this one."""
        dependants = [other.alias for other in self.datasets.dependants(entry.dataset_id)]
        if dependants:
            raise DatasetInUse(text=f"{entry.alias} is read by {', '.join(dependants)}")

    def _finish_removal(self, ref: str) -> bool:
        """Finish an interrupted removal of a dataset with this alias or id; return whether there was one."""
        is_finished = False
        for entry in self.datasets.catalog.claims():
            if ref.lower() in (entry.alias.lower(), str(entry.dataset_id)):
                is_finished |= self.claims.settle(entry.dataset_id, lambda record: bool(record.alias))
        return is_finished

    def _free_unreadable(self, alias: str) -> None:
        """Remove a name whose file cannot be read, so its dataset is unknown; the files of the dataset stay."""
        catalog = self.datasets.catalog
        with catalog.lock():
            if alias.lower() in {unquote(name) for name in catalog.unreadable()}:
                catalog.remove(alias)
                log.warning("unreadable name freed", freed=alias)

    def _free_second_name(self, entry: CatalogEntry) -> bool:
        """Remove this name if the dataset has another one, left by a killed rename; return whether it was removed."""
        catalog = self.datasets.catalog
        with catalog.lock():
            names = {
                other.alias.lower() for other in catalog.entries() if other.dataset_id == entry.dataset_id
            }
            if names > {entry.alias.lower()}:
                catalog.remove(entry.alias)
                log.warning("one of two names freed", dataset_id=str(entry.dataset_id), freed=entry.alias)
                return True
            return False
