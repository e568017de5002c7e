"""GeoJson and NdGeoJson.

GeoJson: a file is a FeatureCollection; a message is a feature, or a collection of one feature (spec: ReadStep.GeoJson).

NdGeoJson: one feature per line, or per message (spec: ReadStep.NdGeoJson).

A feature (RFC 7946) is converted to one JSON object with its properties and its geometry as compact GeoJSON text.
Numbers keep the digits with which they are written. Other members of a feature, such as its id, are ignored.
"""

import json
from collections.abc import Callable, Mapping
from typing import Final

from odf_common.data.read_options import GEOMETRY
from odf_common.errors import InvalidInput
from odf_common.metadata.events import ReadStep, ReadStepGeoJson, ReadStepNdGeoJson
from odf_ingest.read.encoding import require_utf8, to_utf8
from odf_ingest.read.format import FileRecords, split_file
from odf_ingest.read.json_formats.json import register_files, register_messages
from odf_ingest.read.json_formats.json_exact import Document, decode_object
from odf_ingest.read.json_formats.json_lines import lines_of
from odf_ingest.read.types.type_names import Quoted, show_value

_POSITIONS: Final = frozenset(
    {"Point", "MultiPoint", "LineString", "MultiLineString", "Polygon", "MultiPolygon"}
)
_COLLECTION: Final = "GeometryCollection"
Record = Callable[[bytes], bytes]
FeaturesByPlace = Callable[[bytes], Mapping[str, bytes]]  # features by the names of their places in a file


def register(step: type[ReadStep], record: Record, features: FeaturesByPlace) -> None:
    """Register readers for a format.

    `record` returns the record of a message; `features` returns the features of a file by their locations.
    """
    register_files(step, lambda _, value: _records_of(features(value)))
    register_messages(step, lambda _, value: record(value))

    @split_file.register(step)
    def split(step: ReadStep, content: bytes) -> FileRecords:
        records = features(content)
        return FileRecords(step=step, values=list(records.values()), places=list(records))


def _records_of(features: Mapping[str, bytes]) -> Mapping[str, bytes]:
    """Return the records of features by location; raises `InvalidInput` with the location of the first bad feature."""
    records = {}
    for name, feature in features.items():
        try:
            records[name] = record_of(feature)
        except InvalidInput as error:
            raise InvalidInput(where=name, text=str(error)) from error
    return records


def record_of(text: bytes) -> bytes:
    """Return a feature's record as a JSON object on one line; raises `InvalidInput`."""
    feature = decode_object(text)
    if feature.get("type") != "Feature":
        raise InvalidInput(text=f"its type is {show_value(feature.get('type'))} instead of 'Feature'")
    properties = feature.get("properties")
    if properties is not None and not isinstance(properties, dict):
        raise InvalidInput(text="its properties are not an object")
    return write_record(properties or {}, feature.get(GEOMETRY))


def write_record(properties: dict[str, object], geometry: object) -> bytes:
    """Return properties and geometry as one JSON object; raises `InvalidInput`."""
    if GEOMETRY in properties:
        raise InvalidInput(where=f"column {GEOMETRY}", text="a property has the name of the geometry column")
    try:
        geometry_text = None if geometry is None else json_text(_check_geometry(geometry))
        return json_text({**properties, GEOMETRY: geometry_text}).encode()
    except (RecursionError, UnicodeEncodeError) as error:
        raise InvalidInput(text="is nested too deeply, or has half a surrogate pair") from error


def json_text(value: object) -> str:
    """Return compact JSON; a `Quoted` number is written verbatim."""
    if isinstance(value, Quoted):
        return str(value)
    if isinstance(value, dict):
        return "{" + ",".join(f"{json_text(str(key))}:{json_text(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(json_text, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def _check_geometry(geometry: object) -> object:
    """Return the geometry; raises `InvalidInput` unless it has a type of RFC 7946 and the members of that type."""
    if not isinstance(geometry, dict):
        raise _refusal(f"{show_value(geometry)} is not a GeoJSON geometry")
    type_ = geometry.get("type")
    if type_ == _COLLECTION and isinstance(geometry.get("geometries"), list):
        for member in geometry["geometries"]:
            _check_geometry(member)
    elif type_ in _POSITIONS and isinstance(geometry.get("coordinates"), list):
        _require_numbers(geometry["coordinates"])
    elif type_ == _COLLECTION or type_ in _POSITIONS:
        needed = "geometries" if type_ == _COLLECTION else "coordinates"
        raise _refusal(f"a geometry of type {type_!r} needs a list of {needed}")
    else:
        raise _refusal(f"{show_value(type_)} is not a type of GeoJSON geometries")
    return geometry


def _require_numbers(coordinates: list[object]) -> None:
    for coordinate in coordinates:
        if isinstance(coordinate, list):
            _require_numbers(coordinate)
        elif not isinstance(coordinate, Quoted) or coordinate[-1:].isalpha():
            raise _refusal(f"{show_value(coordinate)} is not a coordinate")


def _refusal(text: str) -> InvalidInput:
    return InvalidInput(where=f"column {GEOMETRY}", text=text)


def _record_of_line(value: bytes) -> bytes:
    """Return the record of a line or message."""
    return record_of(to_utf8(value, None))


def _lines(value: bytes) -> dict[str, bytes]:
    """Return the lines that are not blank, by location."""
    lines, places = lines_of(to_utf8(value, None))
    return dict(zip(places, lines, strict=True))


register(ReadStepNdGeoJson, _record_of_line, _lines)


def _find_record(value: bytes) -> bytes:
    """Return the record of a message; raises `InvalidInput`."""
    features = _features(value)
    if len(features) != 1:
        raise InvalidInput(text=f"has {len(features)} features instead of one")
    return record_of(features[0])


def _find_features(value: bytes) -> dict[str, bytes]:
    """Return the features of a collection, by location."""
    return {f"feature {number}": feature for number, feature in enumerate(_features(value), start=1)}


def _features(value: bytes) -> list[bytes]:
    """Return the text of each feature of a collection, or of a single feature."""
    text = to_utf8(value, None)
    require_utf8(text)
    type_, features = Document(text.decode()).typed_array("features")
    if type_ == "Feature":
        return [text]
    if type_ != "FeatureCollection" or features is None:
        raise InvalidInput(
            text=f"is not a GeoJSON FeatureCollection with features: its type is {show_value(type_)}"
        )
    return [feature.encode() for _, feature in features]


register(ReadStepGeoJson, _find_record, _find_features)
