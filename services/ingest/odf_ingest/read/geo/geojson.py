"""GeoJson: a FeatureCollection; a message is a feature, or a collection of one (spec: ReadStep.GeoJson).

NdGeoJson: one feature per line, or one per message (spec: ReadStep.NdGeoJson).
"""

from odf_common.errors import InvalidInput
from odf_common.metadata.steps import ReadStepGeoJson, ReadStepNdGeoJson
from odf_ingest.read.encoding import require_utf8, to_utf8
from odf_ingest.read.geo.features import record_of, register
from odf_ingest.read.json_formats.json_exact import Document
from odf_ingest.read.json_formats.json_lines import lines_of
from odf_ingest.read.types.type_names import show_value


def _record_of_line(value: bytes) -> bytes:
    """Return the record of a line or message."""
    return record_of(to_utf8(value, None))


def _lines(value: bytes) -> dict[str, bytes]:
    """Return the lines that are not blank by their places."""
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
    """Return the features of a collection by their places."""
    return {f"feature {number}": feature for number, feature in enumerate(_features(value), start=1)}


def _features(value: bytes) -> list[bytes]:
    """Return the text of each feature of a collection, or of the only one."""
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
