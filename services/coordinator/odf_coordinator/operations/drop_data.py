"""Drops data of derivatives that can be recomputed from the inputs: slices and checkpoints, never blocks.

A marker (`dataset/object_markers.py`) is written before anything is removed, to tell dropped data from lost data.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import structlog

from odf_common.chain.input_divergence import BlockIndex
from odf_common.chain.walk import iterate
from odf_common.dataset.object_markers import note_drop
from odf_common.errors import InvalidQuery
from odf_common.metadata.events import ExecuteTransform, SetTransform
from odf_common.ports.engine import Engine, EngineNotAvailable
from odf_common.ports.store import ObjectKind
from odf_coordinator.catalog.datasets import DatasetHandle, Datasets
from odf_coordinator.commit.committer import Committer
from odf_coordinator.definitions.query_validation import Validation
from odf_coordinator.errors import DataNotDerived
from odf_coordinator.storage.availability import objects_by_block
from odf_coordinator.storage.object_checks import ObjectRef, objects_of

log = structlog.stdlib.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class DropResult:
    """The dropped objects; `size` in bytes."""

    handle: DatasetHandle
    slices: int
    checkpoints: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DataDropper:
    """Drops data."""

    datasets: Datasets
    committer: Committer
    engine: Engine

    def drop(self, ref: str) -> DropResult:
        """Remove the slices and checkpoints of an owned derivative that this node can recompute.

        Raises `Refused` for a root, for a copy, if an input no longer has the blocks that were read, or if a transform
        was computed by an engine that is not installed; `Unavailable` if the engine does not answer.
        """
        handle = self.datasets.find(ref)
        if not handle.is_derivative:
            text = f"{handle.alias} is a root: its data is not derived and cannot be recomputed"
            raise DataNotDerived(text=text)
        self.committer.require_owned(handle.id)
        self._require_engine(handle)  # not under the lock: a busy engine may take long to answer
        with self.committer.lock(handle.id):
            before, handle = handle, self.datasets.find(ref)
            if handle.state.transform != before.state.transform:
                self._require_engine(handle)
            self._require_inputs(handle)
            note_drop(self.datasets.blobs, handle.id, handle.state.head)
            removed = list(self._remove(handle))
        log.info("data dropped", **handle.log_facts, objects=len(removed))
        return DropResult(
            handle=handle,
            slices=sum(obj.kind is ObjectKind.DATA for obj in removed),
            checkpoints=sum(obj.kind is ObjectKind.CHECKPOINT for obj in removed),
            size=sum(obj.size for obj in removed),
        )

    def _require_inputs(self, handle: DatasetHandle) -> None:
        for done in handle.state.input_progress:
            source = self.datasets.by_id(done.dataset_id)
            if source is None:
                text = f"{done.dataset_id}, an input of {handle.alias}, is missing; the data could not be recomputed"
                raise DataNotDerived(text=text)
            line = BlockIndex(self.datasets.reader(source.id), source.state.head)
            if done.last_block is not None and not line.contains(done.last_block):
                text = (
                    f"{source.alias}, an input of {handle.alias}, no longer has block {done.last_block}; "
                    "the data could not be recomputed"
                )
                raise DataNotDerived(text=text)

    def _require_engine(self, handle: DatasetHandle) -> None:
        """Raise `Refused` unless the installed engine computed every transform with results in the chain."""
        validation = Validation(datasets=self.datasets, engine=self.engine)
        for event in _transforms(self.datasets, handle):
            try:
                validation.require_same_results(event, handle.state.vocabulary)
            except (EngineNotAvailable, InvalidQuery) as error:
                # InvalidQuery, because another version may not even parse the query.
                text = f"the data of {handle.alias} could not be recomputed here: {error}"
                raise DataNotDerived(text=text) from error

    def _remove(self, handle: DatasetHandle) -> Iterator[ObjectRef]:
        """Remove objects and yield them; the newest ones first, durably, because readers check only those."""
        blobs = self.datasets.blobs
        seen: set[tuple[ObjectKind, str]] = set()
        newest: list[ObjectRef] = []
        others: list[ObjectRef] = []
        for _, objects in objects_by_block(self.datasets, handle):
            new = [obj for obj in objects if (obj.kind, str(obj.name)) not in seen]
            seen.update((obj.kind, str(obj.name)) for obj in new)
            has_data = any(obj.kind is ObjectKind.DATA for obj in newest)
            (others if has_data else newest).extend(new)
        for group in (newest, others):
            stored = [obj for obj in group if blobs.has(handle.id, obj.kind, obj.name)]
            for kind in (ObjectKind.DATA, ObjectKind.CHECKPOINT):
                blobs.remove(handle.id, kind, [obj.name for obj in stored if obj.kind is kind])
            yield from stored


def _transforms(datasets: Datasets, handle: DatasetHandle) -> Iterator[SetTransform]:
    """Yield the transforms of a chain that computed any of its objects, newest first."""
    has_results = False
    for _, decoded, _ in iterate(datasets.reader(handle.id), handle.state.head):
        event = decoded.block.event
        if isinstance(event, ExecuteTransform):
            has_results = has_results or any(objects_of(event))
        elif isinstance(event, SetTransform):
            if has_results:
                yield event
            has_results = False
