"""Sends a dataset to a folder or a bucket: data and checkpoints, then blocks, then the head (spec: Dataset Sharing).

A reader there sees the old chain or the new one, whole. What an attempt that was cut off has written is found
by the next one.
"""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from itertools import islice
from typing import Final, TypeVar

from odf_common.chain.walk import raw_blocks
from odf_common.codec.flatbuffers import decode_block
from odf_common.errors import InvalidInput
from odf_common.hashing.multihash import Multihash
from odf_common.identity.did import DatasetId
from odf_common.metadata.events import Seed
from odf_common.ports.store import BlobReader, ObjectKind, block_reader
from odf_sync.repositories.repository import Target

WRITES: Final = 16  # files at a time
AT_ONCE: Final = 256  # blocks in memory
Named = tuple[ObjectKind, Multihash]
T = TypeVar("T")


def require_same_dataset(there: Target, head: Multihash, dataset: DatasetId) -> None:
    """Raise `InvalidInput` unless the chain that is to be replaced is of the same dataset."""
    *_, (_, first, _) = raw_blocks(there.block, head)
    event = decode_block(first).block.event
    if not isinstance(event, Seed) or event.dataset_id != dataset:
        raise InvalidInput(text="it has another dataset, which --force does not replace", where=there.url)


def send_objects(
    blobs: BlobReader, dataset: DatasetId, there: Target, objects: Iterable[Named]
) -> Iterator[int]:
    """Copy objects, and yield how many are there; raises `NotFound` for one that is not available locally."""

    def send(one: Named) -> None:
        if not there.has(*one):
            with blobs.open(dataset, *one) as content:
                there.put(*one, content)

    yield from _together(send, objects)


def send_blocks(
    blobs: BlobReader, dataset: DatasetId, there: Target, head: Multihash, after: Multihash | None
) -> int:
    """Copy the blocks after `after` up to `head`, and return how many these are."""

    def blocks() -> Iterator[tuple[Multihash, bytes]]:
        for name, raw, _ in raw_blocks(block_reader(blobs, dataset), head):
            if name == after:
                return
            yield name, raw

    def send(one: tuple[Multihash, bytes]) -> None:
        there.put(ObjectKind.BLOCK, one[0], BytesIO(one[1]))

    return max(_together(send, blocks()), default=0)


def _together(send: Callable[[T], None], items: Iterable[T]) -> Iterator[int]:
    """Send items, up to `WRITES` at a time, and yield how many were sent; stops at the first error."""
    waiting, done = iter(items), 0
    with ThreadPoolExecutor(WRITES, thread_name_prefix="push") as pool:
        while some := tuple(islice(waiting, AT_ONCE)):
            for sent in [pool.submit(send, one) for one in some]:
                sent.result()
                done += 1
                yield done
