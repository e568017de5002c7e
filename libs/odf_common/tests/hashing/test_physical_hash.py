import hashlib
import random
from io import BytesIO

import pytest
from Crypto.Hash import SHA3_256

from odf_common.hashing.multihash import CHUNK_BYTES, Multihash, physical_hash, physical_hash_of


def test_the_hash_of_nothing_is_known() -> None:
    expected = "f1620a7ffc6f8bf1ed76651c14756a061d662f580ff4de43b49fa82d80a4b80f8434a"
    assert str(physical_hash_of(b"")) == expected
    assert str(physical_hash(BytesIO())) == expected


@pytest.mark.parametrize("size", [1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES])
def test_a_file_hashes_as_its_bytes(size: int) -> None:
    raw = bytes(range(256)) * (size // 256 + 1)
    expected = Multihash.sha3(hashlib.sha3_256(raw[:size]).digest())
    assert physical_hash(BytesIO(raw[:size])) == expected == physical_hash_of(raw[:size])


@pytest.mark.parametrize("size", [0, 1, 135, 136, 137, 1 << 20, (1 << 20) + 1])
def test_another_implementation_of_sha3_gives_the_same(size: int) -> None:
    content = random.Random(size).randbytes(size)
    assert physical_hash(BytesIO(content)).digest == SHA3_256.new(content).digest()
