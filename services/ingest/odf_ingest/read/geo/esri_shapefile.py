"""EsriShapefile: a ZIP archive with a shapefile, at `subPath` if there are several (spec: ReadStep.EsriShapefile).

Attributes become columns, the shape a column `geometry` with GeoJSON text, in the coordinates of the file. What these
mean is in its projection: the text of the .prj file is the column `projection`, unless an attribute has that name.

A record is written as a JSON object, as which it is kept if it is rejected.
"""

import json
import math
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from io import BytesIO
from typing import Final

from odf_common.data.read_options import GEOMETRY
from odf_common.errors import InvalidInput
from odf_common.metadata.steps import ReadStepEsriShapefile
from odf_ingest.read.format import FileRecords, split_file
from odf_ingest.read.geo.dbf_records import attributes
from odf_ingest.read.geo.features import json_text
from odf_ingest.read.geo.shp_records import geometries
from odf_ingest.read.json_formats.object_readers import register_files, register_messages

MAX_FILE_BYTES: Final = 256 * 1024 * 1024  # of each file, uncompressed
MAX_SHAPEFILE_ENTRIES: Final = 10_000
_SHOWN_NAMES: Final = 5  # in an error
_MAC: Final = "__MACOSX/"  # metadata that macOS adds, with the same suffixes


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapefileParts:
    """Shapes, attributes, projection (WKT) and the name of the attributes' encoding, if given."""

    shp: bytes
    dbf: bytes
    prj: bytes | None
    cpg: bytes | None


def parts_of(archive: bytes, sub_path: str | None) -> ShapefileParts:
    """Return the files of the only shapefile, or of the one that `sub_path` (may be a glob) matches."""
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
    """Return the only name, or the only one that matches."""
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
    """Return an entry's bytes; the size that the archive claims is not trusted."""
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
    """Return the records that are not deleted by their numbers, from 1."""
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
