"""EsriShapefile: a ZIP archive with a shapefile, at `subPath` if there are several (spec: ReadStep.EsriShapefile).

Attributes become columns, the shape a column `geometry` with GeoJSON text, in the coordinates of the file. What these
mean is in its projection: the text of the .prj file is the column `projection`, unless an attribute has that name.

A record is written as a JSON object, as which it is kept if it is rejected.
"""

import json
import math
from collections.abc import Mapping

from odf_common.data.read_options import GEOMETRY
from odf_common.errors import InvalidInput
from odf_common.metadata.steps import ReadStepEsriShapefile
from odf_ingest.read.format import FileRecords, split_file
from odf_ingest.read.geo.dbf_records import attributes
from odf_ingest.read.geo.features import json_text
from odf_ingest.read.geo.shapefile_zip import ShapefileParts, parts_of
from odf_ingest.read.geo.shp_records import geometries
from odf_ingest.read.json_formats.object_readers import register_files, register_messages

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
