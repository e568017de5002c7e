"""Key pairs of datasets (spec: Unique Identifiers) and signers: ed25519, by the `cryptography` package."""

from dataclasses import dataclass
from typing import Final, Self

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from odf_common.errors import InvalidInput
from odf_common.hashing import multibase
from odf_common.identity.did import KEY_BYTES, DatasetId

_MULTICODEC: Final = b"\x80\x26"  # ed25519-priv
_NO_KEY: Final = "expected an ed25519 private key as `odf key export` writes it"


@dataclass(frozen=True, slots=True, repr=False)
class PrivateKey:
    """The private key of a dataset or a node: 32 bytes, never shown."""

    raw: bytes

    @classmethod
    def from_bytes(cls, raw: bytes) -> Self:
        """Return the key of 32 bytes; raises `InvalidInput` for any other length."""
        if len(raw) != KEY_BYTES:
            raise InvalidInput(text=f"expected an ed25519 private key of {KEY_BYTES} bytes, got {len(raw)}")
        return cls(bytes(raw))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the result of `text`, in any multibase. The error never contains the input, which may be a secret."""
        try:
            raw = multibase.decode(text)
        except InvalidInput:
            raise InvalidInput(text=_NO_KEY) from None  # the original error may quote the secret
        if not raw.startswith(_MULTICODEC) or len(raw) != len(_MULTICODEC) + KEY_BYTES:
            raise InvalidInput(text=_NO_KEY)
        return cls.from_bytes(raw.removeprefix(_MULTICODEC))

    def text(self) -> str:
        """Return the private key as multibase text of multicodec `ed25519-priv`: only for a file of its owner."""
        return multibase.encode(_MULTICODEC + self.raw)

    @property
    def dataset_id(self) -> DatasetId:
        """Return the dataset id of the public key."""
        return DatasetId.of_key(self.public_key)

    @property
    def public_key(self) -> bytes:
        """Return the 32 bytes of the public key."""
        return Ed25519PrivateKey.from_private_bytes(self.raw).public_key().public_bytes_raw()

    def sign(self, message: bytes) -> bytes:
        """Return the 64 bytes of the signature of `message`."""
        return Ed25519PrivateKey.from_private_bytes(self.raw).sign(message)

    def __repr__(self) -> str:
        """Return the id, not the private key."""
        return f"PrivateKey(of {self.dataset_id})"


def generate() -> PrivateKey:
    """Return a new key pair from the system's randomness."""
    return PrivateKey(Ed25519PrivateKey.generate().private_bytes_raw())


def verify_signature(public_key: bytes, *, signature: bytes, message: bytes) -> bool:
    """Return whether the holder of an ed25519 key signed `message`; blocks: `odf_common.dataset.signature_check`."""
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True
