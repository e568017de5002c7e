"""Connects the catalog of datasets with the resources that declare them, both ways."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from odf_common.errors import Refused
from odf_common.identity.dataset_refs import PREFIX, DatasetId, Name, is_pattern, parse_alias
from odf_common.resources.registry import DATASET, FLOW, Types
from odf_common.resources.selectors import Selector
from odf_coordinator.catalog.datasets import Datasets
from odf_coordinator.resources import documents
from odf_coordinator.resources.callers import Subject
from odf_coordinator.resources.changes import DELETION_POLICY, RETAIN
from odf_coordinator.resources.documents import type_id
from odf_coordinator.resources.lookups import account_of, dataset_alias
from odf_coordinator.resources.store import Query, Snapshot, StoredResource
from odf_coordinator.resources.use_cases import ResourceRef, Resources

_NODE: Final = Subject()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredDatasets:
    """The resources of datasets, as operations on datasets change them."""

    resources: Resources

    def is_declared(self, dataset: DatasetId) -> bool:
        """Return whether a resource declares a dataset, and its deletion was not requested."""
        return self._find(dataset) is not None

    def declared_alias(self, dataset: DatasetId) -> str | None:
        """Return the name that the resource of a dataset gives it; None without a resource."""
        found = self._find(dataset)
        return None if found is None else dataset_alias(account_of(found).name, found.name)

    def rename(self, dataset: DatasetId, alias: str) -> None:
        """Give the resource of a dataset, if there is one, the name of its new alias."""
        found = self._find(dataset)
        if found is None:
            return
        account = found.document["headers"]["account"]["name"]
        own = dataset_alias(Name(account), "")
        if not alias.lower().startswith(own.lower()) or "/" in alias[len(own) :]:
            text = (
                f"Dataset:{found.name} belongs to the account {account}; its dataset cannot be called {alias}"
            )
            raise Refused(text=text)
        self.resources.rename(_NODE, _ref(dataset), alias[len(own) :])

    def request_removal(self, dataset: DatasetId) -> None:
        """Request the deletion of the resource of a dataset, if there is one."""
        if self._find(dataset) is not None:
            self.resources.delete(_NODE, _ref(dataset), is_forced=True)

    def _find(self, dataset: DatasetId) -> StoredResource | None:
        with self.resources.store.read() as snapshot:
            found = snapshot.by_did(type_id(DATASET.uri), str(dataset))
        return None if found is None or found.deleted_ms is not None else found


def _ref(dataset: DatasetId) -> ResourceRef:
    return ResourceRef(type=str(DATASET.uri), ref=str(dataset))


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogDatasets:
    """The datasets of the catalog, as plans look them up."""

    datasets: Datasets

    def id_of(self, alias: str) -> str | None:
        """Return the DID of the dataset with an alias; None if it does not exist."""
        entry = self.datasets.catalog.by_alias(alias)
        return None if entry is None else str(entry.dataset_id)

    def alias_of(self, did: str) -> str | None:
        """Return the alias of a dataset; None if it does not exist."""
        entry = self.datasets.catalog.by_id(DatasetId.parse(did)) if did.startswith(PREFIX) else None
        return None if entry is None else entry.alias

    def kind_of(self, did: str) -> str | None:
        """Return `Root` or `Derivative`; None for a dataset that does not exist."""
        handle = self.datasets.by_id(DatasetId.parse(did)) if did.startswith(PREFIX) else None
        return None if handle is None else handle.state.kind.name

    def any_of(self, account: Name) -> str | None:
        """Return the alias of one of an account's datasets; None if it has none."""
        aliases = (entry.alias for entry in self.datasets.catalog.entries())
        return next((alias for alias in aliases if parse_alias(alias).account == account), None)

    def needed_by(self, snapshot: Snapshot, resource: StoredResource) -> Sequence[StoredResource]:
        """Return the derivatives and flows that name the dataset of a resource, which forbid that it is deleted."""
        if resource.type != type_id(DATASET.uri) or resource.did is None:
            return ()
        if resource.document["headers"]["annotations"].get(DELETION_POLICY) == RETAIN:
            return ()
        readers = self.datasets.dependants(DatasetId.parse(resource.did))
        found = [snapshot.by_did(type_id(DATASET.uri), str(reader.id)) for reader in readers]
        return (*(one for one in found if one is not None), *_flows_of(snapshot, resource))


def _flows_of(snapshot: Snapshot, resource: StoredResource) -> list[StoredResource]:
    """Return the flows whose target or trigger is this resource alone, and no pattern."""
    flows, after = [], None
    while True:
        page = snapshot.find(Query(types=(type_id(FLOW.uri),), after=after))
        flows += [flow for flow in page.resources if _names(flow, resource)]
        if (after := page.next) is None:
            return flows


def _names(flow: StoredResource, resource: StoredResource) -> bool:
    owner, candidate = account_of(flow), documents.selectable(resource)
    return any(one.matches(candidate, owner) for one in _selectors(flow.document["spec"]))


def _selectors(spec: Mapping[str, Any]) -> Iterator[Selector]:
    """Return the selectors of a flow that mean one resource."""
    lookup = Types().uri_of
    found = [Selector.parse(spec["target"], lookup)]
    found += [
        Selector.parse_of_datasets(trigger["dataset"], lookup)
        for trigger in spec["triggers"]
        if trigger["kind"] == "Dataset"
    ]
    return (
        one
        for one in found
        if one.id is not None or (one.name is not None and not is_pattern(one.name.dataset))
    )
