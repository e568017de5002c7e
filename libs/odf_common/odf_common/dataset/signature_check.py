"""Checks of block signatures, which are stored next to the blocks; used by `odf log`, the verifier and copies."""

from dataclasses import dataclass
from enum import StrEnum

from odf_common.codec.signature import SIZE_LIMIT, decode_signature
from odf_common.errors import InvalidInput, NotFound
from odf_common.hashing.multihash import Multihash
from odf_common.ports.store import DatasetReader, ObjectKind


class SignatureStatus(StrEnum):
    """Whether a signature is valid; `valid` means that the signer signed the block, not that the signer is trusted."""

    VALID = "valid"
    INVALID = "invalid"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class SignatureCheck:
    """The result of checking a signature: its claimed signer, and the reason if it is invalid."""

    status: SignatureStatus
    signer: str | None = None
    fault: str | None = None


def stored_signature(reader: DatasetReader, block: Multihash) -> bytes | None:
    """Return the stored signature of a block, cut off just above the maximum size; None if there is none."""
    if not reader.has(ObjectKind.SIGNATURE, block):
        return None
    try:
        with reader.open(ObjectKind.SIGNATURE, block) as file:
            return file.read(SIZE_LIMIT + 1)
    except NotFound:
        return None


def check_signature(block: Multihash, raw: bytes | None) -> SignatureCheck:
    """Return the result of checking `raw` as the signature of a block; None means that the block has no signature."""
    if raw is None:
        return SignatureCheck(status=SignatureStatus.NONE)
    try:
        block_signature = decode_signature(raw)
    except InvalidInput as error:
        return SignatureCheck(status=SignatureStatus.INVALID, fault=f"not a signature: {error}")
    if block_signature.is_valid_for(block):
        return SignatureCheck(status=SignatureStatus.VALID, signer=str(block_signature.signer))
    fault = "the signature does not match the signer and this block"
    return SignatureCheck(status=SignatureStatus.INVALID, signer=str(block_signature.signer), fault=fault)
