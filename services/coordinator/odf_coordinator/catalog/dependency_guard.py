"""Guards the dependency graph: refuses cycles, keeps inputs while a transform is committed, and passes on privacy."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import structlog

from odf_common.errors import InvalidInput
from odf_common.identity.did import DatasetId
from odf_common.metadata.events import MetadataEvent, SetTransform, TransformInput
from odf_common.ports.store import PRIVATE_MARK, PUBLIC_MARK, CatalogEntry
from odf_coordinator.catalog.registry import Datasets, DatasetUnknown

log = structlog.stdlib.get_logger(__name__)


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
    with datasets.catalog.locked():
        require_no_cycle(datasets, entry, events, are_here=are_here)
        yield


def require_no_cycle(
    datasets: Datasets, entry: CatalogEntry, events: Iterable[MetadataEvent | None], *, are_here: bool
) -> None:
    """Raise what `hold_inputs` raises; the caller holds the catalog's lock."""
    for input_ in _inputs_of(events):
        dataset, name = DatasetId.parse(input_.dataset_ref), input_.alias or input_.dataset_ref
        if datasets.is_derived_from(dataset, entry.dataset_id):
            text = f"{entry.alias} cannot read {name}, which is {entry.alias} itself or derived from it"
            raise InvalidInput(text=text)
        if are_here and datasets.catalog.by_id(dataset) is None:
            raise DatasetUnknown(what=name)


def keep_private(
    datasets: Datasets, dataset: DatasetId, new: SetTransform | None, *, old: SetTransform | None
) -> None:
    """Mark a dataset as private if its new transform reads a private one; called before the transform counts.

    It stays public if someone has made it so.
    """
    if new in (None, old) or not reads_private(datasets, (new,)):
        return
    if datasets.blobs.note(dataset, PUBLIC_MARK) is None:
        log.info("private, since its query reads a private dataset", dataset_id=str(dataset))
        datasets.blobs.set_note(dataset, PRIVATE_MARK, "")


def reads_private(datasets: Datasets, events: Iterable[MetadataEvent | None]) -> bool:
    """Return whether `events` read a dataset that is marked as private.

    Where datasets are private by default, nothing needs a mark.
    """
    inputs = (DatasetId.parse(input_.dataset_ref) for input_ in _inputs_of(events))
    return any(datasets.blobs.note(input_, PRIVATE_MARK) is not None for input_ in inputs)


def _inputs_of(events: Iterable[MetadataEvent | None]) -> Iterator[TransformInput]:
    return (input_ for event in events if isinstance(event, SetTransform) for input_ in event.inputs)
