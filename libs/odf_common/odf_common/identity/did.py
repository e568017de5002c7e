"""Dataset ids: `did:odf:` and an ed25519 public key (spec: Unique Identifiers; wire-facts §3.4)."""

from dataclasses import dataclass
from typing import Final, Self

from odf_common.errors import InvalidInput
from odf_common.hashing import multibase

PREFIX: Final = "did:odf:"
ED25519_PUB: Final = b"\xed\x01"
KEY_BYTES: Final = 32


@dataclass(frozen=True, slots=True, order=True)
class DatasetId:
    """A dataset's id in binary form: `ed 01` and the 32 bytes of its public key."""

    raw: bytes

    @classmethod
    def from_bytes(cls, raw: bytes) -> Self:
        """Parse the binary form; raises `InvalidInput` unless it is an ed25519 key."""
        if len(raw) != len(ED25519_PUB) + KEY_BYTES or not raw.startswith(ED25519_PUB):
            raise InvalidInput(text=f"not an ed25519 dataset id: {raw.hex()!r}")
        return cls(bytes(raw))

    @classmethod
    def of_key(cls, public_key: bytes) -> Self:
        """Build from the 32 bytes of a public key."""
        return cls.from_bytes(ED25519_PUB + public_key)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `did:odf:` and the key in any final multibase encoding."""
        if not text.startswith(PREFIX):
            raise InvalidInput(text=f"expected {PREFIX}…, got {text!r}")
        return cls.from_bytes(multibase.decode(text[len(PREFIX) :]))

    @property
    def folder(self) -> str:
        """Return the id without its prefix, base16: the name of the dataset's folder."""
        return "f" + self.raw.hex()

    @property
    def public_key(self) -> bytes:
        """Return the 32 bytes of the key."""
        return self.raw[len(ED25519_PUB) :]

    def __str__(self) -> str:
        """Return `did:odf:fed01…`."""
        return PREFIX + self.folder

    def __repr__(self) -> str:
        """Return the text form."""
        return f"DatasetId({self})"
