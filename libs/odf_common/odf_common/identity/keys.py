"""Key pairs behind dataset ids (spec: Unique Identifiers) and signers: ed25519, by the `cryptography` package."""

from dataclasses import dataclass
from typing import Self

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from odf_common.errors import InvalidInput
from odf_common.identity.did import KEY_SIZE, DatasetId


@dataclass(frozen=True, slots=True, repr=False)
class PrivateKey:
    """The secret half of a dataset's or a node's identity: 32 bytes, never shown."""

    raw: bytes

    @classmethod
    def from_bytes(cls, raw: bytes) -> Self:
        """Accept the 32 bytes of `raw`; raises `InvalidInput` for any other length."""
        if len(raw) != KEY_SIZE:
            raise InvalidInput(text=f"expected an ed25519 private key of {KEY_SIZE} bytes, got {len(raw)}")
        return cls(bytes(raw))

    @property
    def dataset_id(self) -> DatasetId:
        """Return the id that the public half makes."""
        return DatasetId.of_key(self.public_key)

    @property
    def public_key(self) -> bytes:
        """Return the 32 bytes of the public half."""
        return Ed25519PrivateKey.from_private_bytes(self.raw).public_key().public_bytes_raw()

    def sign(self, message: bytes) -> bytes:
        """Return the 64 bytes of the signature of `message`."""
        return Ed25519PrivateKey.from_private_bytes(self.raw).sign(message)

    def __repr__(self) -> str:
        """Return the id, not the secret."""
        return f"PrivateKey(of {self.dataset_id})"


def generate() -> PrivateKey:
    """Return a new key pair from the system's randomness."""
    return PrivateKey(Ed25519PrivateKey.generate().private_bytes_raw())


def is_signed_by(dataset: DatasetId, *, signature: bytes, message: bytes) -> bool:
    """Tell whether the holder of `dataset`'s key signed `message`."""
    return holds(dataset.public_key, signature=signature, message=message)


def holds(public_key: bytes, *, signature: bytes, message: bytes) -> bool:
    """Tell whether the holder of an ed25519 key signed `message`."""
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True
