"""Checks and stores the engine's output, and migrates a derivative's state from one query to the next.

A new query continues where the old one stopped. The block of the migration directly follows that of the SetTransform,
in the same commit, so a crash never leaves a query with the state of another one. The block reads nothing from any
input; this is how a replay recognizes it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import structlog

from odf_common.adapters.local.faults import translating_os_errors
from odf_common.chain.state import ChainState, InputProgress
from odf_common.chain.transform_steps import changes_nothing, empty_step, next_event
from odf_common.data.schema_evolution import (
    align_to_schema,
    aligned_schema,
    check_evolution,
    schema_of_event,
    schema_to_event,
    with_new_columns,
)
from odf_common.data.slice_checks import RecordsDiffer, check_records
from odf_common.data.slices import read_slice, slice_schema, write_slice
from odf_common.dataset.replay import migrate_request, request_files
from odf_common.errors import InvalidInput, InvalidQuery, NotFound, name_dataset
from odf_common.hashing.logical import logical_hash
from odf_common.hashing.multihash import physical_hash
from odf_common.identity.dataset_refs import DatasetId
from odf_common.metadata.engine_messages import TransformResponseSuccess
from odf_common.metadata.events import (
    Checkpoint,
    DatasetVocabulary,
    DataSlice,
    ExecuteTransform,
    KnownEvent,
    OffsetInterval,
    SetDataSchema,
    SetTransform,
)
from odf_common.metadata.scalars import Timestamp
from odf_common.ports.engine import Engine
from odf_common.ports.store import BlobStore, ObjectKind, scratch_folder
from odf_coordinator.catalog.datasets import DatasetHandle, Datasets
from odf_coordinator.storage import why_missing


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOutput:
    """The engine's output after it was checked and hashed; its files are still in the scratch folder."""

    data: DataSlice | None
    checkpoint: Checkpoint | None
    schema: SetDataSchema | None


def store(blobs: BlobStore, dataset: DatasetId, written: EngineOutput, scratch: Path) -> None:
    """Move data and checkpoint into the store durably, before any block refers to them."""
    if written.data is not None:
        blobs.put_file(dataset, ObjectKind.DATA, written.data.physical_hash, scratch / "data")
    if written.checkpoint is not None:
        blobs.put_file(
            dataset, ObjectKind.CHECKPOINT, written.checkpoint.physical_hash, scratch / "checkpoint"
        )


def validate(state: ChainState, response: TransformResponseSuccess, scratch: Path) -> EngineOutput:
    """Read, check and hash the engine's output; raises `InvalidInput` if it violates the contract of engines.

    The engine does not know the types that the dataset stores, so records with other types are rewritten.
    """
    data, checkpoint = scratch / "data", scratch / "checkpoint"
    if data.exists() and state.schema is not None:
        _align_to_dataset(data, schema_of_event(state.schema), state.vocabulary)
    return EngineOutput(
        data=_slice(data, response.new_offset_interval),
        checkpoint=_checkpoint(checkpoint) if checkpoint.exists() else None,
        schema=_new_schema(state, data) if data.exists() else None,
    )


def _align_to_dataset(file: Path, dataset_schema: pa.Schema, vocab: DatasetVocabulary) -> None:
    """Rewrite the records if the dataset stores them with other types; an empty file has only its schema.

    A new column becomes nullable, whatever its type in the query: earlier records have no value.
    """
    schema = slice_schema(file)
    target = with_new_columns(dataset_schema, schema)
    if aligned_schema(schema, target, vocab).equals(schema):
        return
    records = align_to_schema(read_slice(file), target, vocab)
    file.unlink()
    if len(records):
        write_slice(records, file)
    else:
        pq.write_table(records, file, store_schema=False)


def _slice(file: Path, interval: OffsetInterval | None) -> DataSlice | None:
    if interval is None:
        return None
    try:
        table = read_slice(file)
    except NotFound as error:
        raise InvalidInput(text="the engine reported offsets, but wrote no data") from error
    try:
        # Whether the schema fits is `_new_schema`'s question, which may also answer with a changed one.
        check_records(table, interval, None, None)
    except RecordsDiffer as error:
        raise InvalidInput(text=f"the engine wrote records that cannot be committed: {error}") from error
    with file.open("rb") as content:
        name = physical_hash(content)
    return DataSlice(
        logical_hash=logical_hash(table),
        physical_hash=name,
        offset_interval=interval,
        size=file.stat().st_size,
    )


def _checkpoint(file: Path) -> Checkpoint:
    with file.open("rb") as content:
        return Checkpoint(physical_hash=physical_hash(content), size=file.stat().st_size)


def _new_schema(state: ChainState, file: Path) -> SetDataSchema | None:
    """Return the event for a new or changed schema; None if it is unchanged.

    Raises `InvalidInput` if it is not compatible with the dataset's schema.
    """
    schema = slice_schema(file)
    try:
        is_new = state.schema is None or check_evolution(schema_of_event(state.schema), schema)
    except InvalidInput as error:
        raise InvalidInput(text=f"{error}; CAST it to the column's type in the query") from error
    return schema_to_event(schema) if is_new else None


log = structlog.stdlib.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryMigrator:
    """Builds the events that migrate a derivative's state to a new query."""

    datasets: Datasets
    engine: Engine

    @translating_os_errors
    def with_migration(
        self, handle: DatasetHandle, events: Sequence[KnownEvent], system_time: Timestamp
    ) -> tuple[KnownEvent, ...]:
        """Return the events, with those of a migration inserted if it is needed. Objects of the migration are stored.

        Raises `InvalidQuery` with the engine's message if the state cannot be migrated, and `DataDropped` if the state
        was dropped; then nothing is stored.
        """
        new = next((event for event in events if isinstance(event, SetTransform)), None)
        old = handle.state.transform
        if new is None or old is None or handle.state.checkpoint is None:
            return tuple(events)
        with scratch_folder(self.datasets.blobs) as scratch:
            try:
                migration = self._migrate(handle, old, new, system_time, scratch)
            except NotFound as error:
                raise why_missing(self.datasets, (handle,), error) from error
        if migration is None:
            return tuple(events)
        schemas, executed = migration
        log.info("query migrated", **handle.log_facts, records=executed.new_data is not None)
        index = list(events).index(new) + 1
        # The schema goes first: nothing may come between the SetTransform and its migration.
        return (*schemas, *events[:index], executed, *events[index:])

    def _migrate(
        self,
        handle: DatasetHandle,
        old: SetTransform,
        new: SetTransform,
        system_time: Timestamp,
        scratch: Path,
    ) -> tuple[tuple[SetDataSchema, ...], ExecuteTransform] | None:
        """Return the migration's event, and the event for its new schema if that differs; None if none is needed."""
        state = handle.state
        states = {progress.dataset_id: self._input(progress) for progress in state.input_progress}
        files = request_files(self.datasets.blobs, state, scratch)
        request = migrate_request(state, old, new, states, system_time=system_time, files=files)
        try:
            response = self.engine.migrate(request)
        except InvalidQuery as error:
            raise self._refusal(handle.alias, states, error) from error
        written = validate(state, response, scratch)
        if written.checkpoint is None:
            raise InvalidInput(text="the engine migrated the query, but wrote no checkpoint for the new one")
        event = next_event(
            state, empty_step(state), response, new_data=written.data, new_checkpoint=written.checkpoint
        )
        # The new query continues from the same state, so its SetTransform alone is enough.
        if changes_nothing(state, event):
            return None
        store(self.datasets.blobs, state.dataset_id, written, scratch)
        schemas = () if written.data is None or written.schema is None else (written.schema,)
        return schemas, event

    def _refusal(
        self, alias: str, states: Mapping[DatasetId, ChainState], error: InvalidQuery
    ) -> InvalidQuery:
        """Return the error for a state that cannot be migrated, or for an input that has to be pulled first."""
        for dataset, state in states.items():
            handle = self.datasets.by_id(dataset)
            if handle is not None and handle.state.schema != state.schema:
                text = f"{error}; the schema of {handle.alias} has changed: pull the derivative, then change its query"
                return InvalidQuery(text=text)
        return InvalidQuery(text=name_dataset(str(error), alias))

    def _input(self, done: InputProgress) -> ChainState:
        """Return an input's state at the block where the old query stopped."""
        if done.last_block is None:
            raise NotFound(what=f"a block of {done.dataset_id}")
        handle = self.datasets.by_id(done.dataset_id)
        if handle is not None and handle.state.head == done.last_block:
            return handle.state
        return self.datasets.states.state_at(done.dataset_id, done.last_block)
