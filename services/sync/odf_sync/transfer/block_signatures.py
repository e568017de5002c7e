"""Signatures of blocks, which are copied with their blocks: each is checked before it is stored or sent (ADR 0064).

A valid one proves no more on the copy than at its source: that a key has signed. A block without one is fine.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from odf_common.dataset.node_datasets import NodeDatasets, StoredDataset
from odf_common.dataset.signature_check import SignatureStatus, check_signature, stored_signature
from odf_common.errors import Unavailable, VerificationFailed
from odf_common.hashing.multihash import Multihash
from odf_common.identity.did import DatasetId
from odf_common.ports.store import ObjectKind
from odf_sync.repositories import RemoteDataset
from odf_sync.repositories.pack_format import BrokenPack
from odf_sync.smart.archive import ReadSignature, no_signature

# In a row that bring nothing, or too slowly; each has the retries of its connection.
MAX_FRUITLESS_ATTEMPTS: Final = 2


class SignatureRefused(VerificationFailed):
    """The signature of a block is not valid for it."""

    MESSAGE = "block {block} has an invalid signature in {repository}: {why}"
    ADVICE = "have the file signatures/<block> there removed, or pull from another repository"

    block: str
    repository: str
    why: str


def require_valid(block: Multihash, signature: bytes, repository: str) -> None:
    """Raise `SignatureRefused` unless a signature from a repository is valid for a block."""
    checked = check_signature(block, signature)
    if checked.status is not SignatureStatus.VALID:
        claimed = f", claimed by {checked.signer}" if checked.signer else ""
        raise SignatureRefused(block=str(block), repository=repository, why=f"{checked.fault}{claimed}")


def own_signatures(datasets: NodeDatasets, dataset: DatasetId, alias: str) -> ReadSignature:
    """Return a function that reads signatures of this node's blocks; it raises `SignatureRefused` for a damaged one."""
    if next(datasets.blobs.names(dataset, ObjectKind.SIGNATURE), None) is None:
        return no_signature  # not looked for block by block, which in a bucket takes a request each
    stored = StoredDataset(dataset, datasets.blobs, datasets.refs)

    def read(block: Multihash) -> bytes | None:
        signature = stored_signature(stored, block)
        if signature is not None:
            require_valid(block, signature, alias)
        return signature

    return read


def fetched_signatures(
    there: RemoteDataset, blocks: Sequence[Multihash], after: Multihash | None
) -> Iterator[tuple[Multihash, bytes]]:
    """Yield the valid signatures that a repository has of blocks, which are a part of its chain, newest first.

    `after` is the block before them. A lost connection is followed by another one, as long as signatures arrive. Raises
    `SignatureRefused`, `Unavailable`, and `InvalidInput` for a redirect that is not followed.
    """
    done, fruitless = 0, 0
    while done < len(blocks):
        before = done
        try:
            for block, signature in zip(blocks[done:], there.signatures(blocks[done:], after), strict=False):
                if signature:
                    require_valid(block, signature, there.url)
                    yield block, signature
                done += 1
        except BrokenPack as error:
            raise SignatureRefused(block=str(blocks[done]), repository=there.url, why=str(error)) from error
        except Unavailable:
            fruitless = 0 if done > before else fruitless + 1
            if fruitless == MAX_FRUITLESS_ATTEMPTS:
                raise
        else:
            if done == before:  # it has no more
                return
