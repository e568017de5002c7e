"""Signatures: of blocks by the committing node, of challenges by a dataset's owner (docs/formats/signature.md).

The signed message begins with a string that names its purpose, so no signature can be used for another one. Blocks are
signed by hash: a block's bytes contain the previous block's hash, down to the seed with the dataset's id, so a
signature is bound to dataset, position and history, and the block's bytes stay unchanged.
"""

from dataclasses import dataclass
from typing import Final, Self

from odf_common.errors import InvalidInput
from odf_common.hashing import multibase
from odf_common.hashing.multihash import Multihash
from odf_common.identity.did import ED25519_PUB, KEY_BYTES, DatasetId
from odf_common.identity.keys import PrivateKey, verify_signature

BLOCK_DOMAIN: Final = b"odf/block-signature/v1\0"
OWNERSHIP_DOMAIN: Final = b"odf/dataset-ownership/v1\0"
SIGNATURE_BYTES: Final = 64
_DID_KEY: Final = "did:key:"
_BASE58: Final = "z"


@dataclass(frozen=True, slots=True, order=True)
class SignerId:
    """A signer's id: `did:key:` and an ed25519 public key, `ed 01` and 32 bytes."""

    raw: bytes

    @classmethod
    def of_key(cls, key: PrivateKey) -> Self:
        """Return the id of a key's public half."""
        return cls(ED25519_PUB + key.public_key)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `did:key:z6Mk…` in its only valid spelling; raises `InvalidInput` for anything else."""
        if not text.startswith(_DID_KEY + _BASE58):
            raise InvalidInput(text=f"expected {_DID_KEY}{_BASE58}…, got {text!r}")
        raw = multibase.decode(text[len(_DID_KEY) :])
        if len(raw) != len(ED25519_PUB) + KEY_BYTES or not raw.startswith(ED25519_PUB):
            raise InvalidInput(text=f"not an ed25519 key: {text!r}")
        return cls(raw)

    @property
    def public_key(self) -> bytes:
        """Return the 32 bytes of the key."""
        return self.raw[len(ED25519_PUB) :]

    def __str__(self) -> str:
        """Return `did:key:z6Mk…`."""
        return _DID_KEY + multibase.encode(self.raw, _BASE58)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSignature:
    """A signer and a signature of 64 bytes; `is_valid_for` checks it against a block."""

    signer: SignerId
    signature: bytes

    def __post_init__(self) -> None:
        """Raise `InvalidInput` for any other length."""
        if len(self.signature) != SIGNATURE_BYTES:
            raise InvalidInput(
                text=f"expected a signature of {SIGNATURE_BYTES} bytes, got {len(self.signature)}"
            )

    def is_valid_for(self, block: Multihash) -> bool:
        """Return whether the signer signed the block with this hash."""
        return verify_signature(
            self.signer.public_key, signature=self.signature, message=block_message(block)
        )


def block_message(block: Multihash) -> bytes:
    """Return the message that is signed for a block: the domain string, then the multihash of the block's bytes."""
    return BLOCK_DOMAIN + block.raw


def sign_block(key: PrivateKey, block: Multihash) -> BlockSignature:
    """Return the key's signature of a block."""
    return BlockSignature(signer=SignerId.of_key(key), signature=key.sign(block_message(block)))


def ownership_message(dataset: DatasetId, challenge: bytes) -> bytes:
    """Return the message that an owner signs: the domain string, the 34 bytes of the dataset's id, the challenge."""
    return OWNERSHIP_DOMAIN + dataset.raw + challenge


def prove_ownership(key: PrivateKey, challenge: bytes) -> bytes:
    """Return the proof, 64 bytes, that the holder of the dataset's key has received `challenge`."""
    return key.sign(ownership_message(key.dataset_id, challenge))


def proves_ownership(dataset: DatasetId, *, challenge: bytes, signature: bytes) -> bool:
    """Return whether `signature` is the proof of `dataset`'s owner for this challenge."""
    return verify_signature(
        dataset.public_key, signature=signature, message=ownership_message(dataset, challenge)
    )
