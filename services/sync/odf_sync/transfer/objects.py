"""Downloads slices and checkpoints from a repository, and refuses those that do not match what their blocks declare.

Objects of a derivative that the repository does not have are skipped, to be recomputed later. The existence of the
newest slice of a derivative tells readers that all its objects exist (ADR 0008). So that slice is downloaded last, and
only if no other object is missing.
"""

import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import structlog

from odf_common.adapters.local.faults import translating_os_errors
from odf_common.adapters.memory import max_decoded_bytes
from odf_common.chain.state import ChainState
from odf_common.chain.walk import blocks_between
from odf_common.data.schema_evolution import schema_of_event
from odf_common.data.slice_checks import check_records
from odf_common.data.slices import MAX_FOREIGN_BYTES, read_foreign_slice
from odf_common.errors import InvalidInput, NotFound, OdfError, Unavailable, VerificationFailed
from odf_common.hashing.logical import logical_hash
from odf_common.hashing.multihash import Multihash
from odf_common.identity.dataset_refs import DatasetId
from odf_common.metadata.events import DataEvent, DataSlice, SetDataSchema
from odf_common.metadata.scalars import Timestamp
from odf_common.ports.store import BlobStore, Catalog, ObjectKind, block_reader
from odf_sync.repositories import RemoteDataset, SmartDataset
from odf_sync.repositories.node_client import MIN_BYTES_PER_SECOND
from odf_sync.transfer.partial_files import PartialFile, partial_file
from odf_sync.transfer.remote_chain import MAX_FRUITLESS_ATTEMPTS, RemoteBlock

log = structlog.stdlib.get_logger(__name__)

READERS: Final = threading.Semaphore(2)  # slices in memory at a time
MAX_SLICE_BYTES: Final = max_decoded_bytes(MAX_FOREIGN_BYTES)
GRACE_SECONDS: Final = 10.0  # of an attempt: to connect, with retries


class ObjectDiffers(VerificationFailed):
    """An object in the repository differs from what its block declares."""

    object: str
    block: str
    sequence_number: int
    actual: str
    repository: str

    def __str__(self) -> str:
        """Return a sentence with the object and its actual hash or size."""
        declared = f"what block {self.sequence_number} ({self.block}) declares"
        return f"{self.object} at {self.repository} is not {declared}, but {self.actual}"


class RecordsRefused(VerificationFailed):
    """A slice in the repository does not have the records that its block declares."""

    object: str
    block: str
    sequence_number: int
    repository: str
    why: str

    def __str__(self) -> str:
        """Return a sentence with the slice and the reason."""
        block = f"block {self.sequence_number} ({self.block})"
        return f"{self.object} at {self.repository}, which {block} declares, has wrong records: {self.why}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteObject:
    """A slice or checkpoint as a block declares it; `size` is in bytes.

    The last three fields are set for slices only.
    """

    kind: ObjectKind
    name: Multihash
    size: int
    block: Multihash
    sequence_number: int
    slice: DataSlice | None = None
    schema: SetDataSchema | None = None
    system_time: Timestamp | None = None


def declared_objects(past: ChainState | None, blocks: Iterable[RemoteBlock]) -> Iterator[RemoteObject]:
    """Yield the objects that the blocks after `past` declare, slices with the schema of their records.

    An object is yielded once for each declaration: its file may match the declaration of one block and not of another.
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
                block=block.hash,
                sequence_number=block.decoded.block.sequence_number,
                slice=data,
                schema=schema,
                system_time=block.decoded.block.system_time,
            )
        if checkpoint is not None:
            yield RemoteObject(
                kind=ObjectKind.CHECKPOINT,
                name=checkpoint.physical_hash,
                size=checkpoint.size,
                block=block.hash,
                sequence_number=block.decoded.block.sequence_number,
            )


def by_object(declared: Iterable[RemoteObject]) -> tuple[tuple[RemoteObject, ...], ...]:
    """Return the declarations grouped by object, in the order in which the objects are first declared."""
    declarations: dict[tuple[ObjectKind, Multihash], list[RemoteObject]] = {}
    for obj in declared:
        declarations.setdefault((obj.kind, obj.name), []).append(obj)
    return tuple(tuple(group) for group in declarations.values())


@translating_os_errors
def fetch(
    blobs: BlobStore,
    there: RemoteDataset,
    dataset: DatasetId,
    declared: Sequence[RemoteObject],
    folder: Path,
    *,
    trusts_records: bool = False,
) -> None:
    """Store one object unless it exists, if it matches all blocks that declare it.

    An interrupted download leaves its bytes in `folder`, where the next attempt continues it.

    Raises `ObjectDiffers`, `RecordsRefused`, and the repository's errors.
    """
    first = declared[0]
    check = _check_size if trusts_records else _check
    if blobs.has(dataset, first.kind, first.name):
        check(there.url, declared, blobs.local_path(dataset, first.kind, first.name))
        log.debug("object is stored already", object=f"{first.kind}/{first.name}")
        return
    with partial_file(folder, first.name) as file:
        try:
            _download(there, first, file)
            check(there.url, declared, file.path)
            blobs.put_file(dataset, first.kind, first.name, file.path)
        except (VerificationFailed, InvalidInput, NotFound):
            file.path.unlink(missing_ok=True)  # nothing to continue
            raise


@translating_os_errors
def check_stored(blobs: BlobStore, source: str, dataset: DatasetId, declared: Sequence[RemoteObject]) -> None:
    """Raise an error unless a stored object, received from `source`, matches all its declarations.

    Raises `NotFound`, `ObjectDiffers` or `RecordsRefused`.
    """
    first = declared[0]
    _check(source, declared, blobs.local_path(dataset, first.kind, first.name))


def _download(there: RemoteDataset, obj: RemoteObject, file: PartialFile) -> None:
    """Complete a partial file; if its hash is wrong because an earlier attempt left other bytes, download it again."""
    begun, began = file.tell(), time.monotonic()
    _receive(there, obj, file)
    log.debug(
        "object downloaded",
        object=f"{obj.kind}/{obj.name}",
        repository=there.url,
        continued_at=begun,
        bytes=file.tell(),
        ms=round((time.monotonic() - began) * 1000),
    )
    if file.hash() != obj.name and begun:
        file.clear()
        _receive(there, obj, file)
    if file.hash() != obj.name:
        raise _difference(there.url, obj, f"{file.hash()}, {file.tell()} bytes")


def _receive(there: RemoteDataset, obj: RemoteObject, file: PartialFile) -> None:
    """Download the rest of a partial file; reconnects after a lost connection as long as enough bytes arrive."""
    fruitless = 0
    while not file.tell() or file.tell() < obj.size:
        before, began = file.tell(), time.monotonic()
        try:
            there.fetch(obj.kind, obj.name, file, obj.size)
        except Unavailable:
            arrived, seconds = file.tell() - before, time.monotonic() - began
            fruitless = (
                0 if arrived > MIN_BYTES_PER_SECOND * (seconds - GRACE_SECONDS) and arrived else fruitless + 1
            )
            if fruitless == MAX_FRUITLESS_ATTEMPTS:
                raise
        else:
            return


def _check(source: str, declared: Sequence[RemoteObject], file: Path) -> None:
    """Raise `ObjectDiffers` or `RecordsRefused` unless a file matches all declarations."""
    _check_size(source, declared, file)
    _check_slices(source, declared, file)


def _check_size(source: str, declared: Sequence[RemoteObject], file: Path) -> None:
    """Raise `ObjectDiffers` unless the file has the size of each declaration."""
    size = file.stat().st_size
    for obj in declared:
        if obj.size != size:
            raise _difference(source, obj, f"{size} bytes")


def _check_slices(source: str, declared: Sequence[RemoteObject], file: Path) -> None:
    """Raise `RecordsRefused` unless the records match each declaration."""
    slices = [(obj, obj.slice) for obj in declared if obj.slice is not None]
    if not slices:
        return
    with READERS:
        try:
            records = max(data.offset_interval.records for _, data in slices)
            table = read_foreign_slice(file, records, MAX_SLICE_BYTES)
            actual = logical_hash(table)
        except OdfError as error:
            raise _refusal(source, slices[0][0], str(error)) from error
        for obj, data in slices:
            if actual != data.logical_hash:
                why = f"records hash to {actual}, but {data.logical_hash} is declared"
                raise _refusal(source, obj, why)
            try:
                schema = None if obj.schema is None else schema_of_event(obj.schema)
                check_records(table, data.offset_interval, schema, obj.system_time)
            except OdfError as error:
                raise _refusal(source, obj, str(error)) from error


def _difference(source: str, obj: RemoteObject, actual: str) -> ObjectDiffers:
    return ObjectDiffers(actual=actual, repository=source, **_declaration(obj))


def _refusal(source: str, obj: RemoteObject, why: str) -> RecordsRefused:
    return RecordsRefused(why=why, repository=source, **_declaration(obj))


def _declaration(obj: RemoteObject) -> dict[str, Any]:
    """Return the fields of an error about an object: its name, and the block that declares it."""
    number = obj.sequence_number
    return {"object": f"{obj.kind}/{obj.name}", "block": str(obj.block), "sequence_number": number}


PARALLEL_DOWNLOADS: Final = 8  # objects at a time
Object = Sequence[RemoteObject]  # with all its declarations


class CopiedObjects:
    """Downloads the objects that the copied blocks of a dataset declare."""

    def __init__(
        self,
        blobs: BlobStore,
        folder: Path,
        dataset: DatasetId,
        declared: Iterable[RemoteObject],
        *,
        may_lack: bool,
        trusts_records: bool = False,
    ) -> None:
        """Download the declared objects, given oldest first; partial downloads are kept in `folder`.

        If `may_lack`, objects that the repository does not have are counted in `missing` and raise no error. If
        `trusts_records`, slices are checked only by size and hash.
        """
        self._blobs = blobs
        self._folder = folder
        self._dataset = dataset
        self._objects = by_object(declared)
        self._may_lack = may_lack
        self._trusts_records = trusts_records
        self.missing = 0
        """The number of objects that neither the repository nor this node has; complete after `fetch`."""

    def __len__(self) -> int:
        """Return the number of objects."""
        return len(self._objects)

    def fetch(self, there: RemoteDataset, *, at_once: int = PARALLEL_DOWNLOADS) -> Iterator[int]:
        """Download the objects that are not stored, and check all; yields the number of finished objects.

        Stops at the first object that does not match its declaration. Raises `NotFound` for an object that the
        repository does not have, unless `may_lack`.
        """
        if isinstance(there, SmartDataset):
            lacking = (obj[0] for obj in self._objects if not self._is_stored(obj))
            there.request((obj.kind, obj.name, obj.size) for obj in lacking)
        slices = [obj for obj in self._objects if obj[0].kind is ObjectKind.DATA]
        newest = slices[-1:] if self._may_lack else []
        others = [obj for obj in self._objects if obj not in newest]
        yield from self._fetch(there, others, at_once, done=0)
        if self.missing and not all(map(self._is_stored, newest)):
            self.missing += len(newest)
        else:
            yield from self._fetch(there, newest, at_once, done=len(others))

    def _fetch(
        self, there: RemoteDataset, objects: Sequence[Object], at_once: int, *, done: int
    ) -> Iterator[int]:
        with ThreadPoolExecutor(at_once, thread_name_prefix="download") as pool:
            fetched = [pool.submit(self._fetch_one, there, obj) for obj in objects]
            try:
                for count, download in enumerate(as_completed(fetched), done + 1):
                    try:
                        download.result()
                    except NotFound:
                        if not self._may_lack:
                            raise
                        self.missing += 1
                    yield count
            finally:
                pool.shutdown(wait=True, cancel_futures=True)

    def _fetch_one(self, there: RemoteDataset, obj: Object) -> None:
        fetch(self._blobs, there, self._dataset, obj, self._folder, trusts_records=self._trusts_records)

    def _is_stored(self, obj: Object) -> bool:
        return self._blobs.has(self._dataset, obj[0].kind, obj[0].name)


def lost_objects(blobs: BlobStore, dataset: DatasetId, head: Multihash) -> Iterator[RemoteObject]:
    """Yield the objects that the local chain declares up to `head` but that this node does not have, oldest first."""
    links = blocks_between(block_reader(blobs, dataset), head, None)
    blocks = (RemoteBlock(hash=name, raw=raw, decoded=decoded) for name, decoded, raw in links)
    for obj in declared_objects(None, blocks):
        if not blobs.has(dataset, obj.kind, obj.name):
            yield obj


def missing_inputs(catalog: Catalog, state: ChainState) -> tuple[str, ...]:
    """Return the inputs of a derivative that this node does not have: ids, with the query's names for them."""
    transform = state.transform
    inputs = () if transform is None else transform.inputs
    return tuple(
        f"{input_.dataset_ref} ({input_.alias})" if input_.alias else input_.dataset_ref
        for input_ in inputs
        if catalog.by_id(DatasetId.parse(input_.dataset_ref)) is None
    )
