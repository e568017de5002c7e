"""Signatures: a node's under the blocks it commits, a dataset's owner's under a challenge (docs/formats/signature.md).

What is signed begins with a text that names its purpose, so that no signature serves for another one. Blocks are
signed by hash: the hash is that of the block's bytes, which hold the hash of the block before, down to the seed with
the dataset's id; so the signature is bound to dataset, place and history, and the block's bytes stay as they are.
"""

from dataclasses import dataclass
from typing import Final, Self

from odf_common.errors import InvalidInput
from odf_common.hashing import multibase
from odf_common.hashing.multihash import Multihash
from odf_common.identity.did import ED25519_PUB, KEY_SIZE, DatasetId
from odf_common.identity.keys import PrivateKey, verify_signature

BLOCK_DOMAIN: Final = b"odf/block-signature/v1\0"
OWNERSHIP_DOMAIN: Final = b"odf/dataset-ownership/v1\0"
SIGNATURE_SIZE: Final = 64  # bytes
_DID_KEY: Final = "did:key:"
_BASE58: Final = "z"


@dataclass(frozen=True, slots=True, order=True)
class SignerId:
    """Who signed: `did:key:` and an ed25519 public key, `ed 01` and 32 bytes."""

    raw: bytes

    @classmethod
    def of_key(cls, key: PrivateKey) -> Self:
        """Return the public half's name."""
        return cls(ED25519_PUB + key.public_key)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Accept `did:key:z6Mk…` in its one spelling; raises `InvalidInput` for anything else."""
        if not text.startswith(_DID_KEY + _BASE58):
            raise InvalidInput(text=f"expected {_DID_KEY}{_BASE58}…, got {text!r}")
        raw = multibase.decode(text[len(_DID_KEY) :])
        if len(raw) != len(ED25519_PUB) + KEY_SIZE or not raw.startswith(ED25519_PUB):
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
    """A signer and 64 bytes; whether they hold for a block is asked of `is_valid_for`."""

    signer: SignerId
    signature: bytes

    def __post_init__(self) -> None:
        """Refuse any other length."""
        if len(self.signature) != SIGNATURE_SIZE:
            raise InvalidInput(
                text=f"expected a signature of {SIGNATURE_SIZE} bytes, got {len(self.signature)}"
            )

    def is_valid_for(self, block: Multihash) -> bool:
        """Tell whether the signer signed the block of this hash."""
        return verify_signature(
            self.signer.public_key, signature=self.signature, message=block_message(block)
        )


def block_message(block: Multihash) -> bytes:
    """Return what is signed of a block: the domain's text, then the binary multihash of the block's bytes."""
    return BLOCK_DOMAIN + block.raw


def sign_block(key: PrivateKey, block: Multihash) -> BlockSignature:
    """Return the key's signature of a block."""
    return BlockSignature(signer=SignerId.of_key(key), signature=key.sign(block_message(block)))


def ownership_message(dataset: DatasetId, challenge: bytes) -> bytes:
    """Return what an owner signs: the domain's text, the 34 bytes of the dataset's id, then the challenge."""
    return OWNERSHIP_DOMAIN + dataset.raw + challenge


def prove_ownership(key: PrivateKey, challenge: bytes) -> bytes:
    """Return the proof, 64 bytes, that whoever was given `challenge` holds the key of the dataset."""
    return key.sign(ownership_message(key.dataset_id, challenge))


def proves_ownership(dataset: DatasetId, *, challenge: bytes, signature: bytes) -> bool:
    """Tell whether `signature` is the proof of `dataset`'s owner for this challenge."""
    return verify_signature(
        dataset.public_key, signature=signature, message=ownership_message(dataset, challenge)
    )
