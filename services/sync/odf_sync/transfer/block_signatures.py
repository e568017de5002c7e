"""Signatures of blocks, which are copied with their blocks: each is checked before it is stored (ADR 0064).

A valid one proves no more on the copy than at its source: that a key has signed. A block without one is fine.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from odf_common.dataset.signature_check import SignatureStatus, check_signature
from odf_common.errors import InvalidInput, Unavailable, VerificationFailed
from odf_common.hashing.multihash import Multihash
from odf_sync.repositories import RemoteDataset

FRUITLESS: Final = 2  # attempts in a row without a signature, each with the retries of its connection


@dataclass(eq=False, kw_only=True)
class SignatureRefused(VerificationFailed):
    """The signature of a block is not valid for it."""

    block: str
    repository: str
    why: str

    def __str__(self) -> str:
        """Return the block, where its signature is from, and what is wrong with it."""
        return f"block {self.block} has an invalid signature in {self.repository}: {self.why}"

    def advice(self) -> str:
        """Return what to do."""
        return "have the file signatures/<block> there removed, or pull from another repository"


def require_valid(block: Multihash, signature: bytes, repository: str) -> None:
    """Raise `SignatureRefused` unless a signature from a repository is valid for a block."""
    checked = check_signature(block, signature)
    if checked.status is not SignatureStatus.VALID:
        claimed = f", claimed by {checked.signer}" if checked.signer else ""
        raise SignatureRefused(block=str(block), repository=repository, why=f"{checked.fault}{claimed}")


def fetched_signatures(
    there: RemoteDataset, blocks: Sequence[Multihash], after: Multihash | None
) -> Iterator[tuple[Multihash, bytes]]:
    """Yield the valid signatures that a repository has of blocks, which are a part of its chain, newest first.

    `after` is the block before them. A lost connection is followed by another one, as long as signatures arrive. Raises
    `SignatureRefused` and `Unavailable`.
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
        except InvalidInput as error:  # longer than a signature is
            raise SignatureRefused(block=str(blocks[done]), repository=there.url, why=str(error)) from error
        except Unavailable:
            fruitless = 0 if done > before else fruitless + 1
            if fruitless == FRUITLESS:
                raise
        else:
            if done == before:  # it has no more
                return
