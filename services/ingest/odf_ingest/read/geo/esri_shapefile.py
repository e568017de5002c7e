"""EsriShapefile: a ZIP archive with a shapefile, at `subPath` if there are several (spec: ReadStep.EsriShapefile).

Attributes become columns. The shape becomes a column `geometry` with GeoJSON text in the coordinates of the file. The
column `projection` has the text of the .prj file, which defines the coordinates, unless an attribute has that name.
A record is written as a JSON object; a dead letter of the record contains this object.

The shapes of the .shp file become GeoJSON geometries (ESRI Shapefile Technical Description, July 1998). All lengths in
the file are checked first, because pyshp trusts them. pyshp assigns holes to the polygons that contain them in a time
that grows with the square of the number of rings, so that number is limited.

The attributes of the .dbf file become JSON values; numbers keep their digits (dBASE III to V). Their encoding is that
of the .cpg file, or else of the language driver in the header. Without both it is UTF-8 if all text is valid UTF-8, and
otherwise ISO 8859-1.
"""

import codecs
import json
import math
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from io import BytesIO
from itertools import pairwise
from typing import Final

import shapefile

from odf_common.data.read_options import GEOMETRY
from odf_common.errors import InvalidInput
from odf_common.metadata.events import ReadStepEsriShapefile
from odf_ingest.read.format import FileRecords, split_file
from odf_ingest.read.geo.geojson import json_text
from odf_ingest.read.json_formats.json import register_files, register_messages
from odf_ingest.read.types.type_names import Quoted, show_value

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
    """Yield each record's GeoJSON geometry, None for a null shape.

    Raises `InvalidInput` before the first record if any is malformed.
    """
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
    """Return the number of rings of a polygon, 0 for other shapes; raises `ValueError` if counts are invalid."""
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


_FIELDS_OFFSET: Final = 32
_FIELD_BYTES: Final = 32
_FIELDS_END: Final = 0x0D
_DELETED: Final = b"*"
_NUMBER: Final = re.compile(r"([+-]?)(\d*)(?:\.(\d*))?(?:[eE]([+-]?\d+))?", re.ASCII)
_DAY: Final = re.compile(r"\d{8}", re.ASCII)
_DRIVERS: Final = (
    "01:437 02:850 03:1252 08:865 13:932 4d:936 4e:949 4f:950 50:874 57:1252 58:1252 59:1252 "
    "64:852 65:866 66:865 67:861 6a:737 6b:857 78:950 79:949 7a:936 7b:932 c8:1250 c9:1251 "
    "ca:1254 cb:1253 cc:1257"
)
# By language driver, the byte 29 of a header.
_CODE_PAGES: Final = {
    int(driver, 16): int(page) for driver, page in (pair.split(":") for pair in _DRIVERS.split())
}
_FALLBACK: Final = "iso-8859-1"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Field:
    name: bytes
    type: str
    start: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Header:
    records: int
    start: int
    size: int
    """Size of a record in bytes, including its deletion flag."""
    fields: tuple[_Field, ...]


def attributes(dbf: bytes, cpg: bytes | None) -> Iterator[dict[str, object] | None]:
    """Yield each record's values by name, None for a deleted record.

    Raises `InvalidInput` before the first record if the file is malformed, and at a record that is.
    """
    header = _header(dbf)
    encoding = _encoding(dbf, cpg, header)
    names = [_decode(field.name, encoding, "a column's name") for field in header.fields]
    if len(set(names)) != len(names):
        raise InvalidInput(where=".dbf", text=f"has two columns with the same name: {', '.join(names)}")
    return _records(dbf, header, names, encoding)


def _records(
    dbf: bytes, header: _Header, names: Sequence[str], encoding: str
) -> Iterator[dict[str, object] | None]:
    columns = list(zip(names, header.fields, strict=True))
    for number in range(header.records):
        start = header.start + number * header.size
        record = dbf[start : start + header.size]
        if record[:1] == _DELETED:
            yield None
            continue
        values: dict[str, object] = {}
        for name, field in columns:
            try:
                values[name] = _value(field, record[field.start : field.start + field.size], encoding)
            except ValueError as error:
                text = f"{error}; correct it in the .dbf file, or mark its record as deleted"
                raise InvalidInput(where=f"record {number + 1}: column {name}", text=text) from error
        yield values


def _header(dbf: bytes) -> _Header:
    if len(dbf) < _FIELDS_OFFSET + 1:
        raise InvalidInput(where=".dbf", text="is truncated")
    records, start, size = struct.unpack_from("<IHH", dbf, 4)
    fields = []
    position, offset = _FIELDS_OFFSET, 1
    while position < min(start, len(dbf)) and dbf[position] != _FIELDS_END:
        entry = dbf[position : position + _FIELD_BYTES]
        if len(entry) < _FIELD_BYTES:
            raise InvalidInput(where=".dbf", text="is truncated")
        field = _Field(
            name=entry[:11].split(b"\0", 1)[0].strip(),
            type=chr(entry[11]),
            start=offset,
            size=entry[16],
        )
        fields.append(field)
        position, offset = position + _FIELD_BYTES, offset + field.size
    if not fields or start <= position - _FIELD_BYTES or offset > size:
        raise InvalidInput(where=".dbf", text="its header contradicts itself")
    if start + records * size > len(dbf):
        have = max(len(dbf) - start, 0) // size
        raise InvalidInput(where=".dbf", text=f"is truncated: it claims {records} records and has {have}")
    for field in fields:
        if field.type not in "CNFDL":
            text = f"type {field.type!r} is not supported; supported are C, N, F, D and L"
            raise InvalidInput(where=f".dbf: column {show_value(field.name.decode('latin-1'))}", text=text)
    return _Header(records=records, start=start, size=size, fields=tuple(fields))


def _encoding(dbf: bytes, cpg: bytes | None, header: _Header) -> str:
    if cpg is not None and cpg.strip():
        return _encoding_of(cpg)
    page = _CODE_PAGES.get(dbf[29])
    if page is not None:
        return f"cp{page}"
    # `start` is beyond the header, so that only text of records and names of columns is looked at.
    try:
        dbf[header.start :].decode()
        for field in header.fields:
            field.name.decode()
    except UnicodeDecodeError:
        return _FALLBACK
    return "utf-8"


def _encoding_of(cpg: bytes) -> str:
    """Return Python's name for the encoding in a .cpg file: `UTF-8`, `1252`, `ANSI 1252`, `88591` or `ISO 8859-1`."""
    text = cpg.decode("ascii", "replace").strip()
    plain = text.lower().removeprefix("ansi").removeprefix("oem").replace(" ", "-").strip("-")
    if plain.isdecimal():
        pages = {"65001": "utf-8"}
        plain = pages.get(plain, f"iso-8859-{plain[4:]}" if plain.startswith("8859") else f"cp{plain}")
    try:
        "".encode(plain)
        return codecs.lookup(plain).name
    except (LookupError, ValueError) as error:
        raise InvalidInput(where=".cpg", text=f"{show_value(text)} is not a known encoding") from error


def _decode(raw: bytes, encoding: str, what: str) -> str:
    try:
        return raw.decode(encoding)
    except (UnicodeError, LookupError) as error:
        raise InvalidInput(where=".dbf", text=f"{what} is not {encoding} text") from error


def _value(field: _Field, raw: bytes, encoding: str) -> object:
    """Return a value for JSON; raises `ValueError`."""
    if field.type == "C":
        try:
            return raw.rstrip(b"\0 ").decode(encoding).rstrip(" ") or None
        except UnicodeDecodeError:
            raise ValueError(f"{show_value(raw.rstrip(b' '))} is not {encoding} text") from None
    text = raw.decode("latin-1").strip("\0 ")
    if not text or set(text) == {"*"}:
        return None
    if field.type == "L":
        return _logical(text)
    return _day(text) if field.type == "D" else _number(text)


def _logical(text: str) -> bool | None:
    if text in "TtYy":
        return True
    if text in "FfNn":
        return False
    if text == "?":
        return None
    raise ValueError(f"{show_value(text)} is not a logical value")


def _day(text: str) -> str | None:
    if text == "0" * 8:
        return None
    if _DAY.fullmatch(text) is None:
        raise ValueError(f"{show_value(text)} is not a date of the form YYYYMMDD")
    return f"{text[:4]}-{text[4:6]}-{text[6:]}"


def _number(text: str) -> Quoted:
    """Return a number in JSON notation with the same digits."""
    match = _NUMBER.fullmatch(text)
    if match is None or not (match.group(2) or match.group(3)):
        raise ValueError(f"{show_value(text)} is not a number")
    sign, whole, fraction, exponent = match.groups()
    digits = (whole.lstrip("0") or "0") + (f".{fraction}" if fraction else "")
    return Quoted(f"{sign.strip('+')}{digits}" + (f"e{int(exponent)}" if exponent else ""))


MAX_FILE_BYTES: Final = 256 * 1024 * 1024  # of each file, uncompressed
MAX_SHAPEFILE_ENTRIES: Final = 10_000
_SHOWN_NAMES: Final = 5  # in an error
_MAC: Final = "__MACOSX/"  # metadata that macOS adds, with the same suffixes


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapefileParts:
    """The files of a shapefile: shapes, attributes, projection (WKT), and the name of the attributes' encoding."""

    shp: bytes
    dbf: bytes
    prj: bytes | None
    cpg: bytes | None


def parts_of(archive: bytes, sub_path: str | None) -> ShapefileParts:
    """Return the files of the only shapefile, or of the one that matches `sub_path`, which may be a glob."""
    try:
        with zipfile.ZipFile(BytesIO(archive)) as file:
            return _parts(file, sub_path)
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError, OSError) as error:
        raise InvalidInput(text=f"is not a readable ZIP archive: {error}") from error
    except UnicodeError as error:
        raise InvalidInput(text="is not a readable ZIP archive: a name is malformed") from error


def _parts(file: zipfile.ZipFile, sub_path: str | None) -> ShapefileParts:
    entries = file.infolist()
    if len(entries) > MAX_SHAPEFILE_ENTRIES:
        raise InvalidInput(
            text=f"the archive has {len(entries)} entries; up to {MAX_SHAPEFILE_ENTRIES} are read"
        )
    files = [entry for entry in entries if not entry.is_dir() and not entry.filename.startswith(_MAC)]
    shp = _choose([file.filename for file in files if file.filename.lower().endswith(".shp")], sub_path)
    stem = shp[:-3].lower()
    by_suffix: dict[str, zipfile.ZipInfo] = {}
    for member in files:
        if member.filename.lower().startswith(stem) and member.filename.lower().count(".") == stem.count("."):
            suffix = member.filename.lower()[len(stem) :]
            if suffix in by_suffix:
                raise InvalidInput(where=member.filename, text="is in the archive twice")
            by_suffix[suffix] = member
    return ShapefileParts(
        shp=_read_required(file, by_suffix, "shp", shp),
        dbf=_read_required(file, by_suffix, "dbf", shp),
        prj=_read(file, by_suffix["prj"]) if "prj" in by_suffix else None,
        cpg=_read(file, by_suffix["cpg"]) if "cpg" in by_suffix else None,
    )


def _choose(names: list[str], sub_path: str | None) -> str:
    """Return the only name, or the only one that matches `sub_path`; raises `InvalidInput`."""
    if not names:
        raise InvalidInput(text="the archive contains no .shp file; archives inside it are not opened")
    matching = [name for name in names if sub_path is None or name == sub_path or fnmatchcase(name, sub_path)]
    if len(matching) == 1:
        return matching[0]
    examples = ", ".join(sorted(matching or names)[:_SHOWN_NAMES])
    if not matching:
        raise InvalidInput(text=f"subPath {sub_path!r} matches none of the archive's shapefiles: {examples}")
    advice = "name one in subPath" if sub_path is None else f"subPath {sub_path!r} has to match one"
    raise InvalidInput(text=f"the archive has {len(matching)} shapefiles: {examples}; {advice}")


def _read_required(
    file: zipfile.ZipFile, by_suffix: dict[str, zipfile.ZipInfo], suffix: str, shp: str
) -> bytes:
    if suffix not in by_suffix:
        raise InvalidInput(where=shp, text=f"the archive lacks its .{suffix} file")
    return _read(file, by_suffix[suffix])


def _read(file: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    """Return the bytes of an entry, up to a limit: the size that the archive claims may be wrong."""
    content = b""
    if entry.file_size <= MAX_FILE_BYTES:
        with file.open(entry) as stream:
            content = stream.read(MAX_FILE_BYTES + 1)
    if entry.file_size > MAX_FILE_BYTES or len(content) > MAX_FILE_BYTES:
        raise InvalidInput(
            where=entry.filename, text=f"is larger than {MAX_FILE_BYTES >> 20} MiB uncompressed"
        )
    return content


PROJECTION = "projection"


def _find_objects(step: ReadStepEsriShapefile, value: bytes) -> Mapping[str, bytes]:
    """Return the records by number, from 1, without deleted ones."""
    parts = parts_of(value, step.sub_path)
    projection = _projection(parts)
    shapes = geometries(parts.shp)
    records = {}
    for number, properties in enumerate(attributes(parts.dbf, parts.cpg), start=1):
        try:
            geometry = next(shapes)
        except StopIteration:
            text = f"the .dbf file has {number} or more records and the .shp file {number - 1}"
            raise InvalidInput(text=f"{text}: one is truncated, or they do not belong together") from None
        if properties is not None:
            records[f"record {number}"] = _record(properties, geometry, projection, number)
    if next(shapes, shapes) is not shapes:
        raise InvalidInput(text="the .shp file has more records than the .dbf file: one is truncated")
    return records


def _record(
    properties: dict[str, object], geometry: Mapping[str, object] | None, projection: str | None, number: int
) -> bytes:
    if GEOMETRY in properties:
        text = "an attribute has the name of the geometry column"
        raise InvalidInput(where=f"record {number}: column {GEOMETRY}", text=text)
    try:
        geometry_text = (
            None if geometry is None else json.dumps(geometry, separators=(",", ":"), allow_nan=False)
        )
    except ValueError as error:
        text = f"a coordinate is {math.nan} or infinite"
        raise InvalidInput(where=f"record {number}: column {GEOMETRY}", text=text) from error
    record = {**properties, GEOMETRY: geometry_text}
    if projection is not None:
        record.setdefault(PROJECTION, projection)
    return json_text(record).encode()


def _projection(parts: ShapefileParts) -> str | None:
    try:
        return None if parts.prj is None else parts.prj.decode().strip() or None
    except UnicodeDecodeError as error:
        raise InvalidInput(where=".prj", text="is not text") from error


@split_file.register(ReadStepEsriShapefile)
def _split(step: ReadStepEsriShapefile, content: bytes) -> FileRecords:
    records = _find_objects(step, content)
    return FileRecords(step=step, values=list(records.values()), places=list(records))


register_files(ReadStepEsriShapefile, _find_objects)
register_messages(ReadStepEsriShapefile, lambda _, value: value, lambda _: True)
