"""Replays stored transforms, to verify their results or to rebuild lost data.

The request is rebuilt from the inputs that the stored event names, with the schemas and vocabularies that they had at
the time, by the same functions that built the original request. A migration (`chain/transforms.is_migration`) is
replayed as a migration.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from odf_common.chain.build_blocks import later
from odf_common.chain.rules import admit
from odf_common.chain.state import ChainState
from odf_common.chain.transform_steps import (
    InputSlices,
    InputSource,
    RequestFiles,
    build_request,
    input_of,
    is_migration,
)
from odf_common.chain.walk import blocks_between, read_link
from odf_common.data.columns import stored_schema
from odf_common.data.schema_evolution import schema_of_event
from odf_common.errors import InvalidInput, NotFound
from odf_common.hashing.multihash import Multihash
from odf_common.identity.dataset_refs import DatasetId
from odf_common.metadata.engine_messages import TransformResponseSuccess
from odf_common.metadata.events import ExecuteTransform, ExecuteTransformInput, MetadataBlock, SetTransform
from odf_common.metadata.scalars import Timestamp
from odf_common.ports.engine import Engine, MigrateRequest, OnProgress, PlannedInput
from odf_common.ports.store import BlobReader, Catalog, ObjectKind, block_reader

StateAt = Callable[[DatasetId, Multihash], ChainState]  # the state after a block of a chain
StoredBlock = tuple[Multihash, MetadataBlock, int]  # hash, block, manifest version


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTransform:
    """A stored transform, and the state of the chain before it."""

    block_hash: Multihash
    block: MetadataBlock
    event: ExecuteTransform
    state: ChainState
    migrated: SetTransform | None = None
    """The previous transform, if this one is a migration from it."""


class Replayer:
    """Replays the transforms of one dataset, in chain order."""

    def __init__(self, *, blobs: BlobReader, catalog: Catalog, engine: Engine, state_at: StateAt) -> None:
        """Create a replayer; `state_at` returns the state of an input at the block where its first replay begins."""
        self._blobs = blobs
        self._catalog = catalog
        self._engine = engine
        self._state_at = state_at
        self._inputs = _Inputs(blobs, catalog, state_at)

    def transforms(
        self, blocks: Iterable[StoredBlock], since: ChainState | None
    ) -> Iterator[StoredTransform]:
        """Iterate over the transforms in `blocks`, which follow the state `since`; both are oldest first."""
        state = since
        replaced = None if since is None else self._replaced_at(since)
        for name, block, version in blocks:
            event = block.event
            if isinstance(event, ExecuteTransform):
                assert state is not None, "the rules have been checked: a transform is not the first block"
                migrated = replaced if is_migration(event, replaced) else None
                yield StoredTransform(
                    block_hash=name, block=block, event=event, state=state, migrated=migrated
                )
            replaced = state.transform if state is not None and isinstance(event, SetTransform) else None
            state = admit(state, block, block_hash=name, version=version)

    def run(
        self, stored: StoredTransform, *, alias: str, scratch: Path, on_progress: OnProgress | None = None
    ) -> TransformResponseSuccess:
        """Run a stored transform again; the engine writes the files `data` and `checkpoint` to `scratch`.

        `alias` names the output in logs. The engine calls `on_progress`, except during a migration. Raises
        `NotFound`, `Damaged`, `InputMismatch` or `ChainBroken` if an input is not available as it was,
        `InvalidQuery`, and `Unavailable`.
        """
        state = stored.state
        files = request_files(self._blobs, state, scratch)
        time = stored.block.system_time
        slices, states = self._inputs.advance(stored.event)
        if stored.migrated is not None:
            assert state.transform is not None, "it follows a SetTransform"
            return self._engine.migrate(
                migrate_request(
                    state, stored.migrated, state.transform, states, system_time=time, files=files
                )
            )
        sources = {
            dataset: input_source(self._blobs, self._alias(dataset), state, scratch)
            for dataset, state in states.items()
        }
        request = build_request(state, slices, sources, alias=alias, system_time=time, files=files)
        return self._engine.execute_transform(request, on_progress)

    def _alias(self, dataset: DatasetId) -> str:
        entry = self._catalog.by_id(dataset)
        return str(dataset) if entry is None else entry.alias

    def _replaced_at(self, state: ChainState) -> SetTransform | None:
        """Return the transform that the last block of a chain has replaced; None if it has not replaced any."""
        read = block_reader(self._blobs, state.dataset_id)
        block = read_link(read, state.head)[1].block
        # The blocks to replay may begin right after a SetTransform, with its migration.
        if not isinstance(block.event, SetTransform) or block.prev_block_hash is None:
            return None
        return self._state_at(state.dataset_id, block.prev_block_hash).transform


def differences(
    stored: StoredTransform,
    response: TransformResponseSuccess,
    records_hash: Callable[[], Multihash | None],
    checkpoint: Multihash | None,
) -> Iterator[tuple[str, Multihash | None]]:
    """Yield the differences between a replay and the stored block: a description, and the hash of the object concerned.

    `records_hash` returns the logical hash of the records, or raises `InvalidInput` if they do not fit the dataset. The
    encoding of the records may differ.
    """
    event = stored.event
    declared = event.new_data
    interval = None if declared is None else declared.offset_interval
    if response.new_offset_interval != interval:
        yield f"offsets: declared {interval}, but the replay gives {response.new_offset_interval}", None
    elif declared is not None:
        try:
            actual = str(records_hash())
        except InvalidInput as error:
            actual = f"records that do not fit the dataset: {error}"
        if actual != str(declared.logical_hash):
            text = f"records: declared {declared.logical_hash}, but the replay gives {actual}"
            yield text, declared.physical_hash
    watermark = later(stored.state.watermark, response.new_watermark)
    if watermark != event.new_watermark:
        yield f"watermark: declared {event.new_watermark}, but the replay gives {watermark}", None
    if event.new_checkpoint is not None and checkpoint != event.new_checkpoint.physical_hash:
        name = event.new_checkpoint.physical_hash
        yield f"checkpoint: declared {name}, but the replay gives {checkpoint}", name


def request_files(blobs: BlobReader, state: ChainState, scratch: Path) -> RequestFiles:
    """Return the paths that a step after `state` reads and writes; raises `NotFound` if its checkpoint is missing."""
    before = None
    if state.checkpoint is not None:
        name = state.checkpoint.physical_hash
        before = str(blobs.local_path(state.dataset_id, ObjectKind.CHECKPOINT, name))
    return RequestFiles(
        prev_checkpoint=before, new_checkpoint=str(scratch / "checkpoint"), new_data=str(scratch / "data")
    )


def input_source(blobs: BlobReader, alias: str, state: ChainState, scratch: Path) -> InputSource:
    """Return an input in the given state for a request; its schema is written as an empty Parquet file to `scratch`.

    Raises `NotFound` if the input has no schema yet.
    """
    dataset = state.dataset_id
    if state.schema is None:
        raise NotFound(what=f"the schema of {alias}")
    file = scratch / f"schema-{dataset.folder}.parquet"
    schema = stored_schema(schema_of_event(state.schema))
    pq.write_table(schema.empty_table(), file, store_schema=False)
    return InputSource(
        alias=alias,
        vocab=state.vocabulary,
        schema_file=str(file),
        path_of=lambda name: str(blobs.local_path(dataset, ObjectKind.DATA, name)),
    )


class _Inputs:
    """The states of the inputs, computed step by step as they were when the transforms ran."""

    def __init__(self, blobs: BlobReader, catalog: Catalog, state_at: StateAt) -> None:
        self._blobs = blobs
        self._catalog = catalog
        self._state_at = state_at
        self._states: dict[DatasetId, ChainState | None] = {}

    def advance(self, event: ExecuteTransform) -> tuple[tuple[InputSlices, ...], dict[DatasetId, ChainState]]:
        """Return the slices that the transform read from each input, and the state of each input afterwards."""
        slices = tuple(input_of(step, self._blocks(step)) for step in event.query_inputs)
        return slices, {step.dataset_id: self._state(step.dataset_id) for step in event.query_inputs}

    def _state(self, dataset: DatasetId) -> ChainState:
        state = self._states[dataset]
        if state is None:
            raise NotFound(what=f"a block of {dataset}")
        return state

    def _blocks(self, step: ExecuteTransformInput) -> list[MetadataBlock]:
        dataset = step.dataset_id
        state = self._states.setdefault(dataset, None)
        if step.prev_block_hash is not None and (state is None or state.head != step.prev_block_hash):
            state = self._state_at(dataset, step.prev_block_hash)
        blocks = []
        if step.new_block_hash is not None:
            links = blocks_between(
                block_reader(self._blobs, dataset), step.new_block_hash, step.prev_block_hash
            )
            for name, decoded, _ in links:
                state = admit(state, decoded.block, block_hash=name, version=decoded.version)
                blocks.append(decoded.block)
        self._states[dataset] = state
        return blocks


def migrate_request(
    state: ChainState,
    old: SetTransform,
    new: SetTransform,
    inputs: Mapping[DatasetId, ChainState],
    *,
    system_time: Timestamp,
    files: RequestFiles,
) -> MigrateRequest:
    """Return the request to migrate the output's state `state` from the query `old` to `new`.

    `inputs` contains the state of each input at the last block that was read. Raises `NotFound` for an input without a
    schema, and `InvalidInput` if the two queries use the same alias for different inputs.
    """
    return MigrateRequest(
        old=old,
        new=new,
        inputs=tuple(_inputs(old, new, inputs)),
        vocab=state.vocabulary,
        system_time=system_time,
        next_offset=state.next_offset,
        prev_checkpoint_path=files.prev_checkpoint,
        new_checkpoint_path=files.new_checkpoint,
        new_data_path=files.new_data,
    )


def _inputs(
    old: SetTransform, new: SetTransform, inputs: Mapping[DatasetId, ChainState]
) -> Iterator[PlannedInput]:
    called: dict[str, DatasetId] = {}
    for input_ in (*old.inputs, *new.inputs):
        dataset, name = DatasetId.parse(input_.dataset_ref), input_.alias or input_.dataset_ref
        before = called.get(name.lower())
        if before is not None and before != dataset:
            text = f"{name} was the alias of {before} and is now that of {dataset}; use different aliases"
            raise InvalidInput(text=text)
        if before is None:
            state = inputs.get(dataset)
            if state is None or state.schema is None:
                raise NotFound(what=f"the schema of {name}")
            called[name.lower()] = dataset
            yield PlannedInput(name=name, schema=schema_of_event(state.schema), vocab=state.vocabulary)
