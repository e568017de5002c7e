"""Data of derivatives that is let go, since it can be made again of the inputs: slices and checkpoints, never blocks.

Nothing notes that it was dropped: objects go newest first and come back newest last, so the newest tell.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import structlog

from odf_common.chain.chain import iterate
from odf_common.chain.divergence import Line
from odf_common.errors import NotFound, Refused
from odf_common.metadata.events import AddData, ExecuteTransform
from odf_common.ports.store import BlobReader, ObjectKind
from odf_coordinator.committer import Committer
from odf_coordinator.datasets import Datasets, Known
from odf_coordinator.objects import ObjectRef, objects_of

log = structlog.get_logger(__name__)


@dataclass(eq=False, kw_only=True)
class DataDropped(NotFound):
    """The data of a derivative is not here, but can be made again."""

    def __str__(self) -> str:
        """Return whose data it is, and how to have it again."""
        return (
            f"the data of {self.what} is not here: it was dropped, or lost; `odf pull {self.what}` makes it again "
            "from its inputs"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    """What was let go; `size` in bytes."""

    known: Known
    slices: int
    checkpoints: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropping:
    """Drops data."""

    datasets: Datasets
    committer: Committer

    def drop(self, ref: str) -> Dropped:
        """Remove the slices and checkpoints of a derivative of ours whose inputs have all that it saw.

        Raises `Refused` for a root, for a copy, and where an input could not give again what it gave.
        """
        known = self.datasets.find(ref)
        if not known.is_derivative:
            text = f"{known.alias} is a root: its data is derived of nothing, and could not be made again"
            raise Refused(reason="DataNotDerived", text=text)
        self.committer.require_owned(known.id)
        self._require_inputs(known)
        with self.committer.exclusively(known.id):
            known = self.datasets.find(ref)
            removed = list(self._remove(known))
        log.info("data dropped", dataset=known.alias, objects=len(removed))
        return Dropped(
            known=known,
            slices=sum(one.kind is ObjectKind.DATA for one in removed),
            checkpoints=sum(one.kind is ObjectKind.CHECKPOINT for one in removed),
            size=sum(one.size for one in removed),
        )

    def _require_inputs(self, known: Known) -> None:
        for done in known.state.input_progress:
            source = self.datasets.by_id(done.dataset_id)
            if source is None:
                text = f"{done.dataset_id}, an input of {known.alias}, is not here; its data could not be made again"
                raise Refused(reason="DataNotDerived", text=text)
            line = Line(self.datasets.reader(source.id), source.state.head)
            if done.last_block is not None and not line.holds(done.last_block):
                text = (
                    f"{source.alias}, an input of {known.alias}, no longer has block {done.last_block}; "
                    "its data could not be made again"
                )
                raise Refused(reason="DataNotDerived", text=text)

    def _remove(self, known: Known) -> Iterator[ObjectRef]:
        """Yield what was there and is removed; the newest is gone for good before any other."""
        blobs = self.datasets.blobs
        seen: set[tuple[ObjectKind, str]] = set()
        newest: list[ObjectRef] = []
        others: list[ObjectRef] = []
        for objects in _objects(self.datasets, known):
            new = [one for one in objects if (one.kind, str(one.name)) not in seen]
            seen.update((one.kind, str(one.name)) for one in new)
            has_data = any(one.kind is ObjectKind.DATA for one in newest)
            (others if has_data else newest).extend(new)
        for group in (newest, others):
            there = [one for one in group if blobs.has(known.id, one.kind, one.name)]
            for kind in (ObjectKind.DATA, ObjectKind.CHECKPOINT):
                blobs.remove(known.id, kind, [one.name for one in there if one.kind is kind])
            yield from there


def is_dropped(datasets: Datasets, known: Known) -> bool:
    """Tell whether a derivative's newest records or newest checkpoint are not in the store."""
    for objects in _objects(datasets, known):
        if not has_all(datasets.blobs, known, objects):
            return True
        if any(one.kind is ObjectKind.DATA for one in objects):
            return False
    return False


def has_all(blobs: BlobReader, known: Known, objects: Iterable[ObjectRef]) -> bool:
    """Tell whether objects of a dataset are in the store."""
    return all(blobs.has(known.id, one.kind, one.name) for one in objects)


def why_missing(datasets: Datasets, known: Iterable[Known], error: NotFound) -> NotFound:
    """Return why an object of one of these datasets was not found, where that can be told better."""
    for one in known:
        if one.is_derivative and is_dropped(datasets, one):
            return DataDropped(what=one.alias)
    return error


def _objects(datasets: Datasets, known: Known) -> Iterator[tuple[ObjectRef, ...]]:
    """Yield the objects of each transform, newest first."""
    for _, decoded, _ in iterate(datasets.reader(known.id), known.state.head):
        if isinstance(decoded.block.event, AddData | ExecuteTransform):
            yield tuple(objects_of(decoded.block.event))
