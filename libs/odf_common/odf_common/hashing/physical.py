"""The hash of a file's bytes: names data slices and checkpoints, detects damage (spec: Physical and Logical Hashes)."""

import hashlib
from typing import BinaryIO, Final

from odf_common.hashing.multihash import Multihash

CHUNK_BYTES: Final = 1 << 20


def physical_hash(file: BinaryIO) -> Multihash:
    """SHA3-256 of the file from its current position to its end, read once in 1 MiB chunks."""
    digest = hashlib.sha3_256()
    while chunk := file.read(CHUNK_BYTES):
        digest.update(chunk)
    return Multihash.sha3(digest.digest())


def physical_hash_of(raw: bytes) -> Multihash:
    """SHA3-256 of bytes in memory."""
    return Multihash.sha3(hashlib.sha3_256(raw).digest())
