import pytest
from hypothesis import given
from hypothesis import strategies as some

from odf_common.errors import InvalidInput
from odf_common.hashing import multibase
from odf_common.hashing.multihash import Multihash

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
