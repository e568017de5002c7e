"""The shapes of a .shp file → GeoJSON geometries (ESRI Shapefile Technical Description, July 1998).

Every length in the file is checked before pyshp, which trusts them, reads it. pyshp also assigns holes to the polygons
that contain them, in time that grows with the square of a polygon's rings: their number is limited.
"""

import struct
from collections.abc import Iterator, Mapping
from io import BytesIO
from itertools import pairwise
from typing import Final

import shapefile

from odf_common.errors import InvalidInput

MAX_RING_PAIRS: Final = 100_000_000  # sum over polygons of the square of their rings
_HEADER_BYTES: Final = 100
_CODE: Final = 9994
_NULL: Final = 0
_POINTS: Final = {1: 20, 11: 36, 21: 28}  # bytes by type, with the type; Z may lack the measure
_MULTIPOINTS: Final = frozenset({8, 18, 28})
_LINES: Final = frozenset({3, 13, 23})
_POLYGONS: Final = frozenset({5, 15, 25})
_WITH_Z: Final = frozenset({13, 15, 18})


def geometries(shp: bytes) -> Iterator[Mapping[str, object] | None]:
    """Yield each record's GeoJSON geometry, None for a null shape; raises `InvalidInput` before the first."""
    if len(shp) < _HEADER_BYTES or struct.unpack_from(">i", shp)[0] != _CODE:
        raise InvalidInput(where=".shp", text="is not a shapefile")
    # Some files have bytes after the end that their header names. A wrong end shows in the number of records.
    end = 2 * int(struct.unpack_from(">i", shp, 24)[0])
    shp = shp[: max(end, _HEADER_BYTES)]
    _require_sound(shp)
    return _geometries(shp[:24] + struct.pack(">i", len(shp) // 2) + shp[28:])


def _geometries(shp: bytes) -> Iterator[Mapping[str, object] | None]:
    with shapefile.Reader(shp=BytesIO(shp)) as reader:
        for number, shape in enumerate(reader.iterShapes(), start=1):
            try:
                is_empty = shape is None or shape.shapeType == _NULL or not shape.points
                yield None if is_empty else shape.__geo_interface__
            except (shapefile.ShapefileException, ValueError, IndexError, ZeroDivisionError) as error:
                raise InvalidInput(where=f"record {number}", text=f"is not a shape: {error}") from error


def _require_sound(shp: bytes) -> None:
    position, number, pairs = _HEADER_BYTES, 0, 0
    while position < len(shp):
        number += 1
        where = f"record {number}"
        if len(shp) - position < 12:
            raise InvalidInput(where=where, text="the .shp file ends inside the record: it is truncated")
        length = 2 * struct.unpack_from(">i", shp, position + 4)[0]
        start, position = position + 8, position + 8 + length
        if length < 4 or position > len(shp):
            raise InvalidInput(where=where, text="the .shp file ends inside the record: it is truncated")
        try:
            rings = _rings(shp[start:position])
        except (ValueError, struct.error) as error:
            raise InvalidInput(where=where, text=f"is not a shape: {error}") from error
        pairs += rings * rings
        if pairs > MAX_RING_PAIRS:
            text = f"polygons with too many rings: the sum of their squares exceeds {MAX_RING_PAIRS}"
            raise InvalidInput(where=where, text=text)


def _rings(content: bytes) -> int:
    """Return the number of a polygon's rings, 0 for other shapes; raises `ValueError` for wrong counts."""
    (type_,) = struct.unpack_from("<i", content)
    if type_ == _NULL:
        return 0
    if type_ in _POINTS:
        least = _POINTS[type_] if type_ != 11 else 28
        _require(len(content) >= least, "it is too short for a point")
        return 0
    if type_ in _MULTIPOINTS:
        (points,) = struct.unpack_from("<i", content, 36)
        _require_points(content, 40, points, has_z=type_ in _WITH_Z)
        return 0
    _require(type_ in _LINES | _POLYGONS, f"type {type_} has no geometry in GeoJSON")
    parts, points = struct.unpack_from("<2i", content, 36)
    _require(parts >= 0 and 44 + 4 * parts <= len(content), f"it claims {parts} parts")
    _require_points(content, 44 + 4 * parts, points, has_z=type_ in _WITH_Z)
    starts = struct.unpack_from(f"<{parts}i", content, 44)
    _require(parts > 0 or points == 0, "its points are in no part")
    _require(not starts or starts[0] == 0, "its first part does not start at its first point")
    _require(all(a < b for a, b in pairwise((*starts, points))), "its parts are not in order")
    return parts if type_ in _POLYGONS else 0


def _require_points(content: bytes, position: int, points: int, *, has_z: bool) -> None:
    size = 16 * points + (16 + 8 * points if has_z else 0)
    _require(points >= 0 and position + size <= len(content), f"it claims {points} points")


def _require(is_sound: bool, text: str) -> None:  # noqa: FBT001 - a condition
    if not is_sound:
        raise ValueError(text)
