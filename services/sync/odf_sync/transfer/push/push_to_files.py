"""Sends a dataset to a folder or a bucket: data and checkpoints, then blocks, then the head (spec: Dataset Sharing).

A block is sent after its signature, so that a block that an earlier attempt has sent shows that its signature is there.
A reader there sees the old chain or the new one, whole. What an attempt that was interrupted has written is found
by the next one.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from itertools import islice
from typing import Final, TypeVar

from odf_common.chain.walk import ReadBlock, raw_blocks
from odf_common.codec.flatbuffers import decode_block
from odf_common.errors import InvalidInput
from odf_common.hashing.multihash import Multihash
from odf_common.identity.did import DatasetId
from odf_common.metadata.events import Seed
from odf_common.ports.store import BlobReader, ObjectKind, block_reader
from odf_sync.repositories.remote_dataset import Target
from odf_sync.smart.archive import ReadSignature, no_signature
from odf_sync.smart.messages import ObjectFile
from odf_sync.transfer.push.upload import at_a_time

PARALLEL_WRITES: Final = 16  # files at a time
MAX_WAITING_BLOCKS: Final = 256  # waiting
T = TypeVar("T")


class AnotherDataset(InvalidInput):
    """The place to push to has another dataset, which no push replaces."""

    ADVICE = "push to another name or folder, or remove that dataset first"

    url: str
    there: str | None
    """Its id; None for a chain that begins with no seed."""

    def __str__(self) -> str:
        """Return both: the place, and the dataset in it."""
        return f"{self.url} has another dataset, {self.there or 'whose chain has no id'}: a push does not replace it"


def require_same_dataset(read: ReadBlock, head: Multihash, dataset: DatasetId, url: str) -> None:
    """Raise `AnotherDataset` unless the chain at a URL is of the same dataset."""
    *_, (_, first, _) = raw_blocks(read, head)
    event = decode_block(first).block.event
    there = event.dataset_id if isinstance(event, Seed) else None
    if there != dataset:
        raise AnotherDataset(url=url, there=None if there is None else str(there))


def send_objects(
    blobs: BlobReader, dataset: DatasetId, there: Target, objects: Sequence[ObjectFile]
) -> Iterator[int]:
    """Copy objects, and yield how many the target has; raises `NotFound` for one that is not available locally."""

    def send(obj: ObjectFile) -> None:
        kind, name = obj.object_type.kind, obj.physical_hash
        if not there.has(kind, name):
            with blobs.open(dataset, kind, name) as content:
                there.put(kind, name, content)

    yield from _together(
        send, objects, at_a_time([obj.size for obj in objects], PARALLEL_WRITES, there.held_bytes)
    )


def send_blocks(
    blobs: BlobReader,
    dataset: DatasetId,
    there: Target,
    head: Multihash,
    after: Multihash | None,
    *,
    signature: ReadSignature = no_signature,
) -> int:
    """Copy the blocks after `after` up to `head` with their signatures, and return how many these are.

    They are sent oldest first; if the target has the first one, from an attempt that was interrupted, the others are
    looked
    up too.
    """
    names: list[Multihash] = []
    for name, _, _ in raw_blocks(block_reader(blobs, dataset), head):
        if name == after:
            break
        names.append(name)
    names.reverse()
    stored = frozenset(there.blocks()) if names and there.has(ObjectKind.BLOCK, names[0]) else frozenset()

    def send(name: Multihash) -> None:
        if name in stored:
            return
        signed = signature(name)
        if signed is not None:
            there.put(ObjectKind.SIGNATURE, name, BytesIO(signed))
        there.put(ObjectKind.BLOCK, name, BytesIO(blobs.read(dataset, ObjectKind.BLOCK, name)))

    for _ in _together(send, names, PARALLEL_WRITES):
        pass
    return len(names)


def _together(send: Callable[[T], None], items: Iterable[T], workers: int) -> Iterator[int]:
    """Send items, up to `workers` at a time, and yield how many were sent; stops at the first error."""
    waiting, done = iter(items), 0
    with ThreadPoolExecutor(workers, thread_name_prefix="push") as pool:
        while some := tuple(islice(waiting, MAX_WAITING_BLOCKS)):
            pending = [pool.submit(send, block) for block in some]
            try:
                for future in pending:
                    future.result()
                    done += 1
                    yield done
            finally:
                for future in pending:
                    future.cancel()
