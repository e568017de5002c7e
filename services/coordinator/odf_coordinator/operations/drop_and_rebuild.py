"""Drops the data of derivatives, and rebuilds dropped data bit for bit.

To rebuild data, each transform of the chain is replayed and its result stored. The result is compared with the block:
records, offsets, watermark, checkpoint, and the bytes of the slice, because slices are stored by the hash of their
bytes. Nothing is committed, so the data of a copy is rebuilt in the same way.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import structlog

from odf_common.adapters.local.faults import translating_os_errors
from odf_common.chain.compare_chains import BlockIndex
from odf_common.chain.state import progress_after
from odf_common.chain.walk import blocks_between, iterate
from odf_common.dataset.dataset_notes import dropped_blocks, forget_drop, note_drop
from odf_common.dataset.replay import Replayer, StoredTransform, differences
from odf_common.errors import InvalidQuery, NotFound, VerificationFailed
from odf_common.identity.dataset_refs import DatasetId
from odf_common.metadata.engine_messages import TransformResponseSuccess
from odf_common.metadata.events import ExecuteTransform, SetTransform
from odf_common.ports.engine import Engine, EngineNotAvailable
from odf_common.ports.store import ObjectKind, scratch_folder
from odf_coordinator.catalog.datasets import DatasetHandle, Datasets
from odf_coordinator.commit.committer import Committer
from odf_coordinator.definitions.query_validation import Validation
from odf_coordinator.errors import DataNotDerived
from odf_coordinator.storage import (
    CheckpointMissing,
    DataDropped,
    ObjectRef,
    has_all,
    is_dropped,
    objects_by_block,
    objects_of,
    require_checkpoint,
    why_missing,
)
from odf_coordinator.transforms.engine_output import EngineOutput, store, validate

log = structlog.stdlib.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class DropResult:
    """The number of dropped slices and checkpoints, and their total `size` in bytes."""

    handle: DatasetHandle
    slices: int
    checkpoints: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DataDropper:
    """Drops the data of derivatives."""

    datasets: Datasets
    committer: Committer
    engine: Engine

    def drop(self, ref: str) -> DropResult:
        """Remove the slices and checkpoints of an owned derivative; this node can recompute them.

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
        """Raise `Refused` unless the installed engine has computed all results in the chain."""
        validation = Validation(datasets=self.datasets, engine=self.engine)
        for event in _transforms(self.datasets, handle):
            try:
                validation.require_same_results(event, handle.state.vocabulary)
            except (EngineNotAvailable, InvalidQuery) as error:
                # InvalidQuery, because another version may not even parse the query.
                text = f"the data of {handle.alias} could not be recomputed here: {error}"
                raise DataNotDerived(text=text) from error

    def _remove(self, handle: DatasetHandle) -> Iterator[ObjectRef]:
        """Remove objects and yield them. The newest are removed first, durably, because readers check only these."""
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
    """Yield the transforms that have computed objects of a chain, newest first."""
    has_results = False
    for _, decoded, _ in iterate(datasets.reader(handle.id), handle.state.head):
        event = decoded.block.event
        if isinstance(event, ExecuteTransform):
            has_results = has_results or any(objects_of(event))
        elif isinstance(event, SetTransform):
            if has_results:
                yield event
            has_results = False


class RebuildDiffers(VerificationFailed):
    """The replay of a transform differs from its block, so its data cannot be rebuilt."""

    MESSAGE = "block {block} of {dataset}, sequence number {sequence_number}, cannot be rebuilt: {text}"
    ADVICE = "restore the data from a copy of the dataset, or delete the dataset and add it again"

    dataset: str
    block: str
    sequence_number: int
    text: str


class EngineGone(EngineNotAvailable):
    """Dropped data was computed by an engine that is no longer installed, and no other one may rebuild it."""

    text: str = ""
    dataset: str
    block: str
    engine: str
    is_owned: bool
    """Whether this node owns the dataset and can commit new blocks; False for a copy."""

    def __str__(self) -> str:
        """Return the missing engine, and the options: install it for the same data, or compute new blocks."""
        text = (
            f"the data of {self.dataset} is missing, and block {self.block} was computed by {self.engine}, which is "
            "not installed: install it and pull again"
        )
        if not self.is_owned:
            return text
        return f"{text}; or derive all records again, in new blocks: `odf engine upgrade {self.dataset} --from-start`"


class InputsMissing(NotFound):
    """Dropped data cannot be rebuilt, since inputs are not on this node; `what` is the derivative."""

    MESSAGE = "the data of {what} cannot be recomputed: this node lacks inputs, or blocks of them: {inputs}"
    ADVICE = "pull them from where they are shared, with `odf pull URL`, then `odf pull {what}`"

    inputs: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DataRebuilder:
    """Rebuilds dropped data."""

    datasets: Datasets
    committer: Committer
    engine: Engine

    def is_needed(self, handle: DatasetHandle) -> bool:
        """Return whether a derivative's data is missing; of a copy, only if it was deliberately not fetched."""
        if not handle.is_derivative:
            return False
        if self.datasets.has_key(handle.id):
            return is_dropped(self.datasets, handle)
        return dropped_blocks(self.datasets.blobs, handle.id) is not None

    @translating_os_errors
    def rebuild(self, handle: DatasetHandle) -> Iterator[int]:
        """Replay the transforms whose objects are missing, oldest first; yield the number of replayed ones so far.

        Raises `RebuildDiffers`, `EngineGone` and `InputsMissing`; earlier results stay stored. Raises `DataDropped` if
        an input's data was dropped too, or this data was dropped again in the meantime. Raises errors of a replay.
        """
        datasets = self.datasets
        replayer = Replayer(
            blobs=datasets.blobs,
            catalog=datasets.catalog,
            engine=self.engine,
            state_at=datasets.states.state_at,
        )
        links = blocks_between(datasets.reader(handle.id), handle.state.head, None)
        blocks = ((name, decoded.block, decoded.version) for name, decoded, _ in links)
        done = 0
        for stored in replayer.transforms(blocks, None):
            if not has_all(datasets.blobs, handle, objects_of(stored.event)):
                self._require_inputs(handle, stored)
                self._rebuild_one(handle, replayer, stored)
                done += 1
                yield done
        with self.committer.lock(handle.id):
            if not is_dropped(datasets, handle):  # again, in the meantime
                forget_drop(datasets.blobs, handle.id)
        log.info("data rebuilt", **handle.log_facts, transforms=done)

    def _require_inputs(self, handle: DatasetHandle, stored: StoredTransform) -> None:
        """Raise `InputsMissing` unless this node has all inputs, up to the blocks that a transform has read."""
        read = {step.dataset_id: progress_after(step).last_block for step in stored.event.query_inputs}
        transform = stored.state.transform
        assert transform is not None, "a transform block follows a SetTransform"
        names = {DatasetId.parse(input_.dataset_ref): input_.alias for input_ in transform.inputs}
        missing = [
            dataset
            for dataset, block in read.items()
            if self.datasets.catalog.by_id(dataset) is None
            or (block is not None and not self.datasets.blobs.has(dataset, ObjectKind.BLOCK, block))
        ]
        if missing:
            texts = (
                f"{dataset} ({names[dataset]})" if names.get(dataset) else str(dataset) for dataset in missing
            )
            raise InputsMissing(what=handle.alias, inputs=", ".join(texts))

    def _rebuild_one(self, handle: DatasetHandle, replayer: Replayer, stored: StoredTransform) -> None:
        with scratch_folder(self.datasets.blobs) as scratch:
            try:
                response = replayer.run(stored, alias=handle.alias, scratch=scratch)
                written = validate(stored.state, response, scratch)
                for text in _differences(stored, response, written):
                    raise RebuildDiffers(
                        dataset=handle.alias,
                        block=str(stored.block_hash),
                        sequence_number=stored.block.sequence_number,
                        text=text,
                    )
                self._store(handle, stored.event, written, scratch)
            except EngineNotAvailable as error:
                raise self._engine_gone(handle, stored) from error
            except NotFound as error:
                inputs = (self.datasets.by_id(step.dataset_id) for step in stored.event.query_inputs)
                raise why_missing(
                    self.datasets, (dataset for dataset in inputs if dataset is not None), error
                ) from error

    def _engine_gone(self, handle: DatasetHandle, stored: StoredTransform) -> EngineGone:
        """Return the error that names the missing engine."""
        event = stored.state.transform
        assert event is not None, "a transform block follows a SetTransform"
        return EngineGone(
            dataset=handle.alias,
            block=str(stored.block_hash),
            engine=" ".join(part for part in (event.transform.engine, event.transform.version) if part),
            is_owned=self.datasets.has_key(handle.id),
        )

    def _store(
        self, handle: DatasetHandle, event: ExecuteTransform, written: EngineOutput, scratch: Path
    ) -> None:
        """Store the rebuilt objects, unless the data was dropped again in the meantime.

        The newest object must never be stored alone, because readers conclude from it that all others are stored.
        """
        blobs = self.datasets.blobs
        with self.committer.lock(handle.id):
            try:
                require_checkpoint(blobs, handle.id, event)
            except CheckpointMissing as error:
                raise DataDropped(what=handle.alias) from error
            store(blobs, handle.id, written, scratch)


def _differences(
    stored: StoredTransform, response: TransformResponseSuccess, written: EngineOutput
) -> Iterator[str]:
    """Yield the differences between the result of a replay and its block; the bytes of the slice come last."""
    data, declared = written.data, stored.event.new_data
    checkpoint = None if written.checkpoint is None else written.checkpoint.physical_hash
    records_hash = None if data is None else data.logical_hash
    for text, _ in differences(stored, response, lambda: records_hash, checkpoint):
        yield text
    if data is not None and declared is not None and data.physical_hash != declared.physical_hash:
        yield f"bytes of the slice: declared {declared.physical_hash}, but the replay gives {data.physical_hash}"
