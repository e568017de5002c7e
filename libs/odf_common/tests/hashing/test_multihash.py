"""Codes and lengths of multihashes are unsigned LEB128; examples of the multiformats specification."""

import pytest

from odf_common.errors import InvalidInput
from odf_common.hashing.multihash import Multihash, read_varint, write_varint


@pytest.mark.parametrize(
    ("number", "raw"),
    [
        (0, b"\0"),
        (1, b"\x01"),
        (127, b"\x7f"),
        (128, b"\x80\x01"),
        (255, b"\xff\x01"),
        (300, b"\xac\x02"),
        (16384, b"\x80\x80\x01"),
        (2**63 - 1, b"\xff" * 8 + b"\x7f"),
    ],
)
def test_numbers_are_written_and_read_as_varints(number: int, raw: bytes) -> None:
    assert write_varint(number) == raw
    assert read_varint(b"x" + raw + b"y", 1) == (number, 1 + len(raw))


@pytest.mark.parametrize("raw", [b"", b"\x80", b"\xff" * 8, b"\xff" * 9 + b"\x01"])
def test_varints_that_are_cut_off_or_too_long_are_refused(raw: bytes) -> None:
    with pytest.raises(InvalidInput, match="varint"):
        read_varint(raw, 0)


def test_a_multihash_has_its_code_its_length_and_the_digest() -> None:
    assert Multihash.sha3(bytes(32)).raw == b"\x16\x20" + bytes(32)
    assert Multihash.arrow0(bytes(32)).raw == b"\x96\x80\xc0\x01\x20" + bytes(32)
    assert repr(Multihash.sha3(bytes(32))) == f"Multihash(f1620{'00' * 32})"
