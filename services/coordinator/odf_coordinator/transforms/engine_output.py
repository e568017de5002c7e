"""The engine's output: read back, checked, hashed and aligned with the dataset's schema, then stored."""

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from odf_common.chain.state import ChainState
from odf_common.data.schema_alignment import align_to_schema, aligned_schema, with_new_columns
from odf_common.data.schema_evolution import check_evolution, schema_of_event, schema_to_event
from odf_common.data.slice_checks import RecordsDiffer, check_records
from odf_common.data.slices import read_slice, slice_schema, write_slice
from odf_common.errors import InvalidInput, NotFound
from odf_common.hashing.logical import logical_hash
from odf_common.hashing.physical import physical_hash
from odf_common.identity.did import DatasetId
from odf_common.metadata.engine_messages import TransformResponseSuccess
from odf_common.metadata.events import Checkpoint, DatasetVocabulary, DataSlice, OffsetInterval, SetDataSchema
from odf_common.ports.store import BlobStore, ObjectKind


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOutput:
    """The engine's output, checked and hashed, still in the scratch folder."""

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
    """Read back, check and hash the engine's output; raises `InvalidInput` if it violates the contract.

    The engine does not know the dataset's stored types, so records with other types are rewritten.
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
    """Return the event for a new or compatibly changed schema, else None; raises `InvalidInput` if incompatible."""
    schema = slice_schema(file)
    try:
        is_new = state.schema is None or check_evolution(schema_of_event(state.schema), schema)
    except InvalidInput as error:
        raise InvalidInput(text=f"{error}; CAST it to the column's type in the query") from error
    return schema_to_event(schema) if is_new else None
