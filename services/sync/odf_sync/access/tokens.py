"""Bearer tokens: `odf_` and 36 bytes in Crockford's base32, which are id, secret, and a checksum.

The checksum lets a mistyped token be refused, and a leaked one be recognized, without a look into the store.
"""

import base64
import hashlib
import secrets
import zlib
from dataclasses import dataclass
from hmac import compare_digest
from typing import Final, Self

PREFIX: Final = "odf_"
ID_BYTES: Final = 8
TOKEN_SECRET_BYTES: Final = 24
_STANDARD: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
_CROCKFORD: Final = "0123456789abcdefghjkmnpqrstvwxyz"
_ENCODE: Final = str.maketrans(_STANDARD, _CROCKFORD)
_DECODE: Final = str.maketrans(_CROCKFORD, _STANDARD)
_LENGTH: Final = 58  # characters of 36 bytes, without padding
_PADDING: Final = "======"


@dataclass(frozen=True, slots=True, repr=False)
class Token:
    """A token; its text is shown once, and only its hash is stored."""

    raw: bytes

    @classmethod
    def new(cls) -> Self:
        """Return a new token from the system's randomness."""
        return cls(secrets.token_bytes(ID_BYTES + TOKEN_SECRET_BYTES))

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Return the token of a text; None if it is not one."""
        body = text.removeprefix(PREFIX)
        if len(body) != _LENGTH or body == text or not set(body) <= set(_CROCKFORD):
            return None
        raw = base64.b32decode(body.translate(_DECODE) + _PADDING)
        token = cls(raw[: ID_BYTES + TOKEN_SECRET_BYTES])
        return token if compare_digest(token.text(), text) else None

    def text(self) -> str:
        """Return the text: only for its owner."""
        encoded = base64.b32encode(self.raw + zlib.crc32(self.raw).to_bytes(4)).decode()
        return PREFIX + encoded.rstrip("=").translate(_ENCODE)

    @property
    def id(self) -> str:
        """Return the id, by which it is listed and revoked."""
        return self.raw[:ID_BYTES].hex()

    @property
    def hash(self) -> bytes:
        """Return the stored form of a token; 24 random bytes need no salt and no slow hash."""
        return hashlib.sha3_256(self.raw).digest()

    def __repr__(self) -> str:
        """Return the id, not the secret."""
        return f"Token({self.id})"
