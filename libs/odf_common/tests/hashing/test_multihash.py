"""Codes and lengths of multihashes are unsigned LEB128; examples of the multiformats specification."""

import hashlib
import random
from io import BytesIO

import pytest
from Crypto.Hash import SHA3_256
from hypothesis import given
from hypothesis import strategies as some

from odf_common.errors import InvalidInput
from odf_common.hashing import multibase
from odf_common.hashing.multihash import (
    CHUNK_BYTES,
    Multihash,
    physical_hash,
    physical_hash_of,
    read_varint,
    write_varint,
)


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


# From the multibase specification's own tests: "yes mani !", and with zeros in front.
YES = b"yes mani !"


@pytest.mark.parametrize(
    ("text", "raw"),
    [
        ("f796573206d616e692021", YES),
        ("F796573206D616E692021", YES),
        ("bpfsxgidnmfxgsibb", YES),
        ("BPFSXGIDNMFXGSIBB", YES),
        ("z7paNL19xttacUY", YES),
        ("meWVzIG1hbmkgIQ", YES),
        ("ueWVzIG1hbmkgIQ", YES),
        ("UeWVzIG1hbmkgIQ==", YES),
        ("f00796573206d616e692021", b"\0" + YES),
        ("bab4wk4zanvqw42jaee", b"\0" + YES),
        ("z17paNL19xttacUY", b"\0" + YES),
        ("z117paNL19xttacUY", b"\0\0" + YES),
        ("UAHllcyBtYW5pICE=", b"\0" + YES),
        ("f", b""),
        ("z", b""),
        ("u-_8", b"\xfb\xff"),
        ("m+/8", b"\xfb\xff"),
    ],
)
def test_published_examples(text: str, raw: bytes) -> None:
    assert multibase.decode(text) == raw
    assert multibase.encode(raw, text[0]) == text


@pytest.mark.parametrize("text", ["f68656c6c6F", "F68656c6c6f", "bnbswy3dpEBVWS4TFOI", "BNBSWY3dpebvws4tfoi"])
def test_base16_and_base32_ignore_case(text: str) -> None:
    assert multibase.decode(text) == multibase.decode(text[0] + text[1:].swapcase())


@given(some.binary(max_size=64), some.sampled_from(multibase.FINAL))
def test_bytes_survive_a_round_trip_through_every_final_encoding(raw: bytes, encoding: str) -> None:
    assert multibase.decode(multibase.encode(raw, encoding)) == raw


@given(some.text(max_size=30))
def test_any_string_is_refused_or_is_the_one_spelling_of_its_bytes(text: str) -> None:
    try:
        raw = multibase.decode(text)
    except InvalidInput:
        return
    again = multibase.encode(raw, text[0])
    assert again == text if text[0] not in "fFbB" else again.lower() == text.lower()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0101",
        "v00",
        "k1",
        "Z1",
        "Mzzz=",
        "cabc",
        "f0",
        "fzz",
        "f 00",
        "f00\n",
        "b1",
        "bab=",
        "bb",
        "z0",
        "zl",
        "zé",
        "m=",
        "mA",
        "mAB",
        "mA-",
        "mAA==",
        "u+/",
        "uA A",
        "UAA",
        "U=",
        "UAB==",
        "f" + "٠" * 2,
        "b" + "ı" * 8,
        "f" * 5000,
    ],
)
def test_hostile_strings_are_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="multibase"):
        multibase.decode(text)


def test_hash_is_read_in_every_final_encoding_and_written_in_base16() -> None:
    expected = Multihash.sha3(bytes(range(32)))
    for encoding in multibase.FINAL:
        assert Multihash.parse(multibase.encode(expected.raw, encoding)) == expected
    assert str(expected).startswith("f1620000102")


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
