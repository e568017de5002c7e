"""Guards the dependency graph: refuses cycles, and keeps inputs from being deleted while a transform is committed."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from odf_common.errors import InvalidInput
from odf_common.identity.did import DatasetId
from odf_common.metadata.events import MetadataEvent, SetTransform
from odf_common.ports.store import CatalogEntry, DatasetUnknown
from odf_coordinator.catalog.datasets import Datasets


@contextmanager
def hold_inputs(
    datasets: Datasets, entry: CatalogEntry, events: Iterable[MetadataEvent | None], *, are_here: bool = False
) -> Iterator[None]:
    """Freeze the dependency graph while `events` with a transform are committed to a dataset.

    Raises `InvalidInput` for a cycle, and, with `are_here`, `DatasetUnknown` for an input that does not exist here.
    Acquire it before `Committer.lock`, never inside, or two commits could deadlock.
    """
    events = tuple(events)
    if not any(isinstance(event, SetTransform) for event in events):
        yield
        return
    with datasets.catalog.lock():
        require_no_cycle(datasets, entry, events, are_here=are_here)
        yield


def require_no_cycle(
    datasets: Datasets, entry: CatalogEntry, events: Iterable[MetadataEvent | None], *, are_here: bool
) -> None:
    """Raise what `hold_inputs` raises; the caller holds the catalog's lock."""
    for input_ in (input_ for event in events if isinstance(event, SetTransform) for input_ in event.inputs):
        dataset, name = DatasetId.parse(input_.dataset_ref), input_.alias or input_.dataset_ref
        if datasets.is_derived_from(dataset, entry.dataset_id):
            text = f"{entry.alias} cannot read {name}, which is {entry.alias} itself or derived from it"
            raise InvalidInput(text=text)
        if are_here and datasets.catalog.by_id(dataset) is None:
            raise DatasetUnknown(what=name)
