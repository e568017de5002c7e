"""Slices and checkpoints of a repository: downloaded, and refused unless they match what their blocks declare."""

import hashlib
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from odf_common.adapters.local.faults import guarded
from odf_common.chain.state import ChainState
from odf_common.data.schema_evolution import schema_of_event
from odf_common.data.slice_checks import check_records
from odf_common.data.slices import read_foreign_slice
from odf_common.errors import OdfError, VerificationFailed
from odf_common.hashing.logical import logical_hash
from odf_common.hashing.multihash import Multihash
from odf_common.identity.did import DatasetId
from odf_common.metadata.events import DataEvent, DataSlice, SetDataSchema
from odf_common.ports.store import ObjectKind
from odf_common.service.environment import Environment
from odf_sync.compare import RemoteBlock
from odf_sync.repositories import Repository

READERS: Final = threading.Semaphore(2)  # slices in memory at a time


@dataclass(eq=False, kw_only=True)
class ObjectDiffers(VerificationFailed):
    """An object in the repository differs from what its block declares."""

    object: str
    block: str
    sequence_number: int
    actual: str
    repository: str


@dataclass(eq=False, kw_only=True)
class RecordsRefused(VerificationFailed):
    """A slice in the repository has other records than its block declares."""

    object: str
    block: str
    sequence_number: int
    repository: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteObject:
    """A slice or checkpoint to fetch; `size` in bytes as declared by its block, `schema` that of a slice."""

    kind: ObjectKind
    name: Multihash
    size: int
    block: RemoteBlock
    slice: DataSlice | None = None
    schema: SetDataSchema | None = None


def declared_objects(past: ChainState | None, blocks: Sequence[RemoteBlock]) -> Iterator[RemoteObject]:
    """Yield all objects that blocks after `past` declare, with the schema of each slice.

    An object is yielded as often as it is declared: a file may match one block's declaration and not another's.
    """
    schema = None if past is None else past.schema
    for block in blocks:
        event = block.decoded.block.event
        if isinstance(event, SetDataSchema):
            schema = event
        if not isinstance(event, DataEvent):
            continue
        data, checkpoint = event.new_data, event.new_checkpoint
        if data is not None:
            yield RemoteObject(
                kind=ObjectKind.DATA,
                name=data.physical_hash,
                size=data.size,
                block=block,
                slice=data,
                schema=schema,
            )
        if checkpoint is not None:
            name, size = checkpoint.physical_hash, checkpoint.size
            yield RemoteObject(kind=ObjectKind.CHECKPOINT, name=name, size=size, block=block)


def by_object(declared: Iterable[RemoteObject]) -> tuple[tuple[RemoteObject, ...], ...]:
    """Return the declarations grouped by object, in the order of first declarations."""
    found: dict[tuple[ObjectKind, Multihash], list[RemoteObject]] = {}
    for one in declared:
        found.setdefault((one.kind, one.name), []).append(one)
    return tuple(tuple(group) for group in found.values())


@guarded
def fetch(
    env: Environment, there: Repository, dataset: DatasetId, declared: Sequence[RemoteObject], scratch: Path
) -> None:
    """Store one object, unless it exists, if it matches all blocks that declare it.

    Raises `ObjectDiffers`, `RecordsRefused`, and the repository's errors.
    """
    first = declared[0]
    is_here = env.blobs.has(dataset, first.kind, first.name)
    file = (
        env.blobs.local_path(dataset, first.kind, first.name) if is_here else _download(there, first, scratch)
    )
    size = file.stat().st_size
    for one in declared:
        if one.size != size:
            raise _differs(there, one, f"{size} bytes")
    _check_slices(there, declared, file)
    if not is_here:
        env.blobs.put_file(dataset, first.kind, first.name, file)


def _download(there: Repository, one: RemoteObject, scratch: Path) -> Path:
    file = scratch / str(one.name)
    with file.open("w+b") as out:
        there.fetch(one.kind, one.name, out, one.size)
        out.seek(0)
        actual = Multihash.sha3(hashlib.file_digest(out, "sha3_256").digest())
        size = out.tell()
    if actual != one.name:
        raise _differs(there, one, f"{actual}, {size} bytes")
    return file


def _check_slices(there: Repository, declared: Sequence[RemoteObject], file: Path) -> None:
    """Raise `RecordsRefused` unless the records are those that each block declares."""
    slices = [(one, one.slice) for one in declared if one.slice is not None]
    if not slices:
        return
    with READERS:
        try:
            table = read_foreign_slice(file)
            actual = logical_hash(table)
        except OdfError as error:
            raise _refused(there, slices[0][0], str(error)) from error
        for one, data in slices:
            if actual != data.logical_hash:
                why = f"records hash to {actual}, but {data.logical_hash} is declared"
                raise _refused(there, one, why)
            try:
                schema = None if one.schema is None else schema_of_event(one.schema)
                check_records(table, data.offset_interval, schema)
            except OdfError as error:
                raise _refused(there, one, str(error)) from error


def _differs(there: Repository, one: RemoteObject, actual: str) -> ObjectDiffers:
    return ObjectDiffers(
        object=f"{one.kind}/{one.name}",
        block=str(one.block.hash),
        sequence_number=one.block.decoded.block.sequence_number,
        actual=actual,
        repository=there.url,
    )


def _refused(there: Repository, one: RemoteObject, why: str) -> RecordsRefused:
    return RecordsRefused(
        object=f"{one.kind}/{one.name}",
        block=str(one.block.hash),
        sequence_number=one.block.decoded.block.sequence_number,
        repository=there.url,
        why=why,
    )
