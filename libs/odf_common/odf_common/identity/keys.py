"""Key pairs of datasets (spec: Unique Identifiers), signers, and signatures: ed25519 of the `cryptography` package.

Blocks are signed by the committing node, challenges by a dataset's owner (docs/formats/signature.md). The signed
message begins with a string that names its purpose, so that a signature cannot be used for another purpose. For a
block, its hash is signed. The bytes of a block contain the hash of the previous block, down to the seed with the
dataset's id. A signature is therefore bound to dataset, position and history, and the bytes of the block do not change.
"""

from dataclasses import dataclass
from typing import Final, Self

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from odf_common.errors import InvalidInput
from odf_common.hashing import multibase
from odf_common.hashing.multihash import Multihash
from odf_common.identity.dataset_refs import ED25519_PUB, KEY_BYTES, DatasetId

_MULTICODEC: Final = b"\x80\x26"  # ed25519-priv
_NO_KEY: Final = "expected an ed25519 private key as `odf key export` writes it"


@dataclass(frozen=True, slots=True, repr=False)
class PrivateKey:
    """The private key of a dataset or a node: 32 bytes, which are never displayed."""

    raw: bytes

    @classmethod
    def from_bytes(cls, raw: bytes) -> Self:
        """Return the key with these 32 bytes; raises `InvalidInput` for any other length."""
        if len(raw) != KEY_BYTES:
            raise InvalidInput(text=f"expected an ed25519 private key of {KEY_BYTES} bytes, got {len(raw)}")
        return cls(bytes(raw))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the result of `text`, in any multibase encoding; errors never contain it, since it may be secret."""
        try:
            raw = multibase.decode(text)
        except InvalidInput:
            raise InvalidInput(text=_NO_KEY) from None  # the original error may quote the secret
        if not raw.startswith(_MULTICODEC) or len(raw) != len(_MULTICODEC) + KEY_BYTES:
            raise InvalidInput(text=_NO_KEY)
        return cls.from_bytes(raw.removeprefix(_MULTICODEC))

    def text(self) -> str:
        """Return the private key as multibase text of multicodec `ed25519-priv`; it belongs only in a private file."""
        return multibase.encode(_MULTICODEC + self.raw)

    @property
    def dataset_id(self) -> DatasetId:
        """Return the id of the dataset that this key pair identifies."""
        return DatasetId.of_key(self.public_key)

    @property
    def public_key(self) -> bytes:
        """Return the public key, 32 bytes."""
        return Ed25519PrivateKey.from_private_bytes(self.raw).public_key().public_bytes_raw()

    def sign(self, message: bytes) -> bytes:
        """Return the signature of `message`, 64 bytes."""
        return Ed25519PrivateKey.from_private_bytes(self.raw).sign(message)

    def __repr__(self) -> str:
        """Return the dataset id instead of the private key."""
        return f"PrivateKey(of {self.dataset_id})"


def generate() -> PrivateKey:
    """Return a new random key pair."""
    return PrivateKey(Ed25519PrivateKey.generate().private_bytes_raw())


def verify_signature(public_key: bytes, *, signature: bytes, message: bytes) -> bool:
    """Return whether `signature` is that of `message` by an ed25519 key; for blocks use `dataset.signature_check`."""
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


BLOCK_DOMAIN: Final = b"odf/block-signature/v1\0"
OWNERSHIP_DOMAIN: Final = b"odf/dataset-ownership/v1\0"
SIGNATURE_BYTES: Final = 64
_DID_KEY: Final = "did:key:"
_BASE58: Final = "z"


@dataclass(frozen=True, slots=True, order=True)
class SignerId:
    """The id of a signer: `did:key:` followed by an ed25519 public key, which is `ed 01` and 32 bytes."""

    raw: bytes

    @classmethod
    def of_key(cls, key: PrivateKey) -> Self:
        """Return the id for the public key of a key pair."""
        return cls(ED25519_PUB + key.public_key)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `did:key:z6Mk…`, of which only one spelling is valid; raises `InvalidInput` for other text."""
        if not text.startswith(_DID_KEY + _BASE58):
            raise InvalidInput(text=f"expected {_DID_KEY}{_BASE58}…, got {text!r}")
        raw = multibase.decode(text[len(_DID_KEY) :])
        if len(raw) != len(ED25519_PUB) + KEY_BYTES or not raw.startswith(ED25519_PUB):
            raise InvalidInput(text=f"not an ed25519 key: {text!r}")
        return cls(raw)

    @property
    def public_key(self) -> bytes:
        """Return the public key, 32 bytes."""
        return self.raw[len(ED25519_PUB) :]

    def __str__(self) -> str:
        """Return `did:key:z6Mk…`."""
        return _DID_KEY + multibase.encode(self.raw, _BASE58)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSignature:
    """The signature of a block, 64 bytes, and its signer; `is_valid_for` checks it."""

    signer: SignerId
    signature: bytes

    def __post_init__(self) -> None:
        """Raise `InvalidInput` unless the signature has 64 bytes."""
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
    """Return the message that is signed for a block: a string that names the purpose, and the block's multihash."""
    return BLOCK_DOMAIN + block.raw


def sign_block(key: PrivateKey, block: Multihash) -> BlockSignature:
    """Return the signature of a block by this key."""
    return BlockSignature(signer=SignerId.of_key(key), signature=key.sign(block_message(block)))


def ownership_message(dataset: DatasetId, challenge: bytes) -> bytes:
    """Return the message that an owner signs: the purpose, the dataset's id in 34 bytes, and the challenge."""
    return OWNERSHIP_DOMAIN + dataset.raw + challenge


def prove_ownership(key: PrivateKey, challenge: bytes) -> bytes:
    """Return a signature of 64 bytes which proves that the holder of the dataset's key has received `challenge`."""
    return key.sign(ownership_message(key.dataset_id, challenge))


def proves_ownership(dataset: DatasetId, *, challenge: bytes, signature: bytes) -> bool:
    """Return whether `signature` proves that the owner of `dataset` has received this challenge."""
    return verify_signature(
        dataset.public_key, signature=signature, message=ownership_message(dataset, challenge)
    )
