"""Signatures of stored blocks: none, or the bytes that lie beside the block; judged here for log and verifier alike."""

from dataclasses import dataclass
from enum import StrEnum

from odf_common.codec.signature import SIZE_LIMIT, decode_signature
from odf_common.errors import InvalidInput, NotFound
from odf_common.hashing.multihash import Multihash
from odf_common.identity.did import DatasetId
from odf_common.ports.store import BlobReader, ObjectKind


class Standing(StrEnum):
    """What a block's signature is worth; `valid` says that the signer signed, not that the signer is trusted."""

    VALID = "valid"
    INVALID = "invalid"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A block's signature as found: who claims it, and why it is invalid, if it is."""

    standing: Standing
    signer: str | None = None
    fault: str | None = None


def stored_signature(blobs: BlobReader, dataset: DatasetId, block: Multihash) -> bytes | None:
    """Return the bytes beside a block, cut off where no signature is that long; None while there are none."""
    if not blobs.has(dataset, ObjectKind.SIGNATURE, block):
        return None
    try:
        with blobs.open(dataset, ObjectKind.SIGNATURE, block) as file:
            return file.read(SIZE_LIMIT + 1)
    except NotFound:
        return None


def judge(block: Multihash, raw: bytes | None) -> Judged:
    """Tell what `raw` is worth as the signature of `block`."""
    if raw is None:
        return Judged(standing=Standing.NONE)
    try:
        found = decode_signature(raw)
    except InvalidInput as error:
        return Judged(standing=Standing.INVALID, fault=f"not a signature: {error}")
    if found.is_valid_for(block):
        return Judged(standing=Standing.VALID, signer=str(found.signer))
    fault = "the signature is not the signer's for this block"
    return Judged(standing=Standing.INVALID, signer=str(found.signer), fault=fault)
