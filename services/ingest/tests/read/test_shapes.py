"""Each length in a shape is checked before use: at the limit it is accepted, one beyond it is refused."""

import struct

import pytest

from odf_common.errors import InvalidInput
from odf_ingest.read.geo import esri_shapefile
from odf_ingest.read.geo.esri_shapefile import _require_sound, _rings, geometries

BOX = struct.pack("<4d", 0, 0, 9, 9)
NULL, POINT, LINE, POLYGON, MULTIPOINT = 0, 1, 3, 5, 8


def points(count: int) -> bytes:
    return b"".join(struct.pack("<2d", number, number) for number in range(count))


def parts_of(
    type_: int, starts: list[int], count: int, *, claimed: int | None = None, more: bytes = b""
) -> bytes:
    """Return a line or a polygon: its parts begin at points `starts`."""
    head = struct.pack("<i", type_) + BOX
    numbers = struct.pack("<2i", len(starts), count if claimed is None else claimed)
    return head + numbers + struct.pack(f"<{len(starts)}i", *starts) + points(count) + more


def multipoint(
    count: int, *, claimed: int | None = None, type_: int = MULTIPOINT, more: bytes = b""
) -> bytes:
    number = struct.pack("<i", count if claimed is None else claimed)
    return struct.pack("<i", type_) + BOX + number + points(count) + more


def z_of(count: int) -> bytes:
    """Return the range and the values of the third coordinate."""
    return bytes(16 + 8 * count)


SOUND = [
    (struct.pack("<i", NULL), 0),
    (struct.pack("<i", POINT) + points(1), 0),
    (struct.pack("<i", 21) + bytes(24), 0),
    (struct.pack("<i", 11) + bytes(24), 0),
    (parts_of(LINE, [0], 2), 0),
    (parts_of(LINE, [0, 2, 5], 6), 0),
    (parts_of(POLYGON, [0], 4), 1),
    (parts_of(POLYGON, [0, 4, 8], 12), 3),
    (parts_of(15, [0, 4], 8, more=z_of(8)), 2),
    (parts_of(25, [0], 4), 1),
    (parts_of(13, [0], 2, more=z_of(2)), 0),
    (parts_of(POLYGON, [], 0), 0),
    (multipoint(0), 0),
    (multipoint(3), 0),
    (multipoint(3, type_=18, more=z_of(3)), 0),
    (multipoint(3, type_=28), 0),
]


@pytest.mark.parametrize(("content", "rings"), SOUND)
def test_a_sound_shape_has_its_rings(content: bytes, rings: int) -> None:
    assert _rings(content) == rings


@pytest.mark.parametrize("content", [one for one, _ in SOUND if len(one) > 4])
def test_a_shape_that_is_one_byte_too_short_is_refused(content: bytes) -> None:
    """A null shape, of four bytes, has nothing to cut off."""
    with pytest.raises((ValueError, struct.error)):
        _rings(content[:-1])


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (struct.pack("<i", 31) + bytes(100), "type 31 has no geometry"),
        (struct.pack("<i", 2) + bytes(100), "type 2 has no geometry"),
        (struct.pack("<i", POINT) + bytes(15), "too short for a point"),
        (parts_of(LINE, [0], 2, claimed=3), "it claims 3 points"),
        (parts_of(LINE, [0], 2, claimed=-1), "it claims -1 points"),
        (multipoint(3, claimed=4), "it claims 4 points"),
        (multipoint(3, claimed=-1), "it claims -1 points"),
        (multipoint(3, type_=18), "it claims 3 points"),
        (parts_of(15, [0], 4), "it claims 4 points"),
        (parts_of(LINE, [], 2), "in no part"),
        (parts_of(LINE, [1], 2), "does not start at its first point"),
        (parts_of(LINE, [0, 2, 1], 4), "not in order"),
        (parts_of(LINE, [0, 2, 2], 4), "not in order"),
        (parts_of(LINE, [0, 4], 4), "not in order"),
        (struct.pack("<i", LINE) + BOX + struct.pack("<2i", -1, 0), "it claims -1 parts"),
        (struct.pack("<i", LINE) + BOX + struct.pack("<2i", 1, 0), "it claims 1 parts"),
    ],
)
def test_a_shape_that_claims_what_it_does_not_have_is_refused(content: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        _rings(content)


def file_of(*contents: bytes, lengths: tuple[int, ...] | None = None) -> bytes:
    """Return a .shp file of records, with these lengths in 16-bit words."""
    records = b"".join(
        struct.pack(">2i", number, len(content) // 2 if lengths is None else lengths[number - 1]) + content
        for number, content in enumerate(contents, start=1)
    )
    head = struct.pack(">i", 9994) + bytes(20) + struct.pack(">i", (100 + len(records)) // 2)
    return head + struct.pack("<2i", 1000, POLYGON) + BOX + bytes(32) + records


def test_records_follow_each_other_to_the_end_of_the_file() -> None:
    null, line = struct.pack("<i", NULL), parts_of(LINE, [0], 2)
    whole = file_of(null, line, null)
    _require_sound(whole)
    assert [one is None for one in geometries(whole)] == [True, False, True]
    assert len(list(geometries(whole + b"more"))) == 3, "what follows the end that the header names"
    assert list(geometries(file_of())) == []
    for cut in (1, 3, 4, 11):
        with pytest.raises(InvalidInput, match=r"record 3: the \.shp file ends inside"):
            _require_sound(whole[:-cut])
    for lengths, number in (((1, 2, 2), 1), ((3, 2, 2), 2), ((2, 1000, 2), 2)):
        with pytest.raises(InvalidInput, match=f"record {number}"):
            _require_sound(file_of(null, null, null, lengths=lengths))


@pytest.mark.parametrize(("most", "is_taken"), [(13, True), (12, False)])
def test_the_squares_of_the_rings_of_all_polygons_are_summed(
    monkeypatch: pytest.MonkeyPatch, most: int, is_taken: bool
) -> None:
    monkeypatch.setattr(esri_shapefile, "MAX_RING_PAIRS", most)
    content = file_of(
        parts_of(POLYGON, [0, 4], 8), parts_of(LINE, [0, 2, 4], 6), parts_of(POLYGON, [0, 4, 8], 12)
    )
    if is_taken:
        _require_sound(content)
    else:
        with pytest.raises(InvalidInput, match="record 3: polygons with too many rings"):
            _require_sound(content)


@pytest.mark.parametrize("content", [b"", bytes(99), bytes(100), struct.pack("<i", 9994) + bytes(96)])
def test_an_invalid_shapefile_is_refused(content: bytes) -> None:
    with pytest.raises(InvalidInput, match="is not a shapefile"):
        geometries(content)
