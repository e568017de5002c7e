"""Slices and checkpoints of a repository: fetched, and refused unless they are what their blocks declare."""

import hashlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from odf_common.chain.state import ChainState
from odf_common.data.checks import check_records
from odf_common.data.schema import schema_of_event
from odf_common.data.slices import read_slice
from odf_common.errors import OdfError, VerificationFailed
from odf_common.hashing.logical import logical_hash
from odf_common.hashing.multihash import Multihash
from odf_common.identity.did import DatasetId
from odf_common.metadata.events import AddData, DataSlice, ExecuteTransform, SetDataSchema
from odf_common.ports.store import ObjectKind
from odf_common.runtime.environment import Environment
from odf_sync.compare import RemoteBlock
from odf_sync.repositories import Repository

READERS: Final = threading.Semaphore(2)  # slices in memory at a time


@dataclass(eq=False, kw_only=True)
class ObjectDiffers(VerificationFailed):
    """The repository's object is not what its block declares."""

    object: str
    block: str
    sequence_number: int
    actual: str
    repository: str


@dataclass(eq=False, kw_only=True)
class RecordsRefused(VerificationFailed):
    """A slice of the repository holds other records than its block declares."""

    object: str
    block: str
    sequence_number: int
    repository: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteObject:
    """A slice or checkpoint to fetch; `size` in bytes as declared by its block, `schema` what a slice has to have."""

    kind: ObjectKind
    name: Multihash
    size: int
    block: RemoteBlock
    slice: DataSlice | None = None
    schema: SetDataSchema | None = None


def declared_objects(past: ChainState | None, blocks: Sequence[RemoteBlock]) -> Iterator[RemoteObject]:
    """Iterate over what blocks after `past` declare, each object once, with the schema that a slice has to have."""
    seen: set[Multihash] = set()
    schema = None if past is None else past.schema
    for block in blocks:
        event = block.decoded.block.event
        if isinstance(event, SetDataSchema):
            schema = event
        if not isinstance(event, AddData | ExecuteTransform):
            continue
        for one in (event.new_data, event.new_checkpoint):
            if one is None or one.physical_hash in seen:
                continue
            seen.add(one.physical_hash)
            found = RemoteObject(
                kind=ObjectKind.CHECKPOINT, name=one.physical_hash, size=one.size, block=block
            )
            if isinstance(one, DataSlice):
                found = replace(found, kind=ObjectKind.DATA, slice=one, schema=schema)
            yield found


def fetch(env: Environment, there: Repository, dataset: DatasetId, one: RemoteObject, scratch: Path) -> None:
    """Store one object; raises `ObjectDiffers`, `RecordsRefused`, and what the repository raises."""
    file = scratch / str(one.name)
    with file.open("w+b") as out:
        there.fetch(one.kind, one.name, out, one.size)
        out.seek(0)
        actual = Multihash.sha3(hashlib.file_digest(out, "sha3_256").digest())
        size = out.tell()
    if actual != one.name or size != one.size:
        raise ObjectDiffers(
            object=f"{one.kind}/{one.name}",
            block=str(one.block.hash),
            sequence_number=one.block.decoded.block.sequence_number,
            actual=f"{actual}, {size} bytes",
            repository=there.url,
        )
    if one.slice is not None:
        _check_slice(there, one, one.slice, file)
    env.blobs.put_file(dataset, one.kind, one.name, file)


def _check_slice(there: Repository, one: RemoteObject, declared: DataSlice, file: Path) -> None:
    """Return if the records are those that the block declares; raises `RecordsRefused`."""
    try:
        with READERS:
            table = read_slice(file)
            actual = logical_hash(table)
            schema = None if one.schema is None else schema_of_event(one.schema)
            check_records(table, declared.offset_interval, schema)
        if actual == declared.logical_hash:
            return
        why = f"records hash to {actual}, {declared.logical_hash} is declared"
    except OdfError as error:
        why = str(error)
    raise RecordsRefused(
        object=f"{one.kind}/{one.name}",
        block=str(one.block.hash),
        sequence_number=one.block.decoded.block.sequence_number,
        repository=there.url,
        why=why,
    )
