"""Multihashes: hashes with their algorithm and length (spec: Hash Representation; wire-facts §3.3).

The module also computes the physical hash of a file's bytes, which names data slices and checkpoints
and reveals damage.
"""

import hashlib
from dataclasses import dataclass
from typing import BinaryIO, Final, Self

from odf_common.errors import InvalidInput
from odf_common.hashing import multibase

SHA2_256: Final = 0x12
SHA3_256: Final = 0x16
ARROW0_SHA3_256: Final = 0x300016
MAX_DIGEST_BYTES: Final = 32


@dataclass(frozen=True, slots=True, order=True)
class Multihash:
    """A hash in binary form: varint code, varint length, digest. As text it is multibase base16, `f…`."""

    raw: bytes

    @classmethod
    def from_digest(cls, code: int, digest: bytes) -> Self:
        """Return the multihash for the multicodec of an algorithm and a digest of at most 32 bytes."""
        return cls(write_varint(code) + write_varint(len(digest)) + digest)

    @classmethod
    def sha3(cls, digest: bytes) -> Self:
        """Return the multihash for a SHA3-256 digest, as for blocks and files."""
        return cls(b"\x16\x20" + digest)

    @classmethod
    def arrow0(cls, digest: bytes) -> Self:
        """Return the multihash for an arrow-digest, as for the logical hash of records."""
        return cls(b"\x96\x80\xc0\x01\x20" + digest)

    @classmethod
    def from_bytes(cls, raw: bytes) -> Self:
        """Parse the binary form; raises `InvalidInput` if it is malformed or its length does not match."""
        code, position = read_varint(raw, 0)
        length, position = read_varint(raw, position)
        if length > MAX_DIGEST_BYTES or len(raw) - position != length:
            raise InvalidInput(
                text=f"not a multihash: {raw.hex()!r} declares {length} bytes, but has {len(raw) - position}"
            )
        return cls(write_varint(code) + write_varint(length) + raw[position:])

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse multibase text in any encoding with status `final`; raises `InvalidInput`."""
        return cls.from_bytes(multibase.decode(text))

    @property
    def code(self) -> int:
        """Return the multicodec of the algorithm."""
        return read_varint(self.raw, 0)[0]

    @property
    def digest(self) -> bytes:
        """Return the digest without code and length."""
        _, position = read_varint(self.raw, 0)
        _, position = read_varint(self.raw, position)
        return self.raw[position:]

    def __str__(self) -> str:
        """Return the base16 text, as in names of objects and in YAML."""
        return "f" + self.raw.hex()

    def __repr__(self) -> str:
        """Return the text form."""
        return f"Multihash({self})"


def write_varint(number: int) -> bytes:
    """Encode an unsigned integer as LEB128."""
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def read_varint(raw: bytes, position: int) -> tuple[int, int]:
    """Return the integer at `position` and the position after it.

    Raises `InvalidInput` if it is truncated or has more than 63 bits.
    """
    number = 0
    for shift in range(0, 63, 7):
        if position >= len(raw):
            raise InvalidInput(text="a varint is cut off")
        byte = raw[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, position
    raise InvalidInput(text="a varint is longer than 63 bits")


CHUNK_BYTES: Final = 1 << 20


def physical_hash(file: BinaryIO) -> Multihash:
    """Return the SHA3-256 of a file from its current position to its end; it is read in chunks of 1 MiB."""
    digest = hashlib.sha3_256()
    while chunk := file.read(CHUNK_BYTES):
        digest.update(chunk)
    return Multihash.sha3(digest.digest())


def physical_hash_of(raw: bytes) -> Multihash:
    """Return the SHA3-256 of bytes in memory."""
    return Multihash.sha3(hashlib.sha3_256(raw).digest())
