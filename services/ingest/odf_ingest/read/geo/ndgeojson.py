"""NdGeoJson: one GeoJSON feature per line, or one per message (spec: ReadStep.NdGeoJson)."""

from odf_common.metadata.steps import ReadStepNdGeoJson
from odf_ingest.read.encoding import to_utf8
from odf_ingest.read.geo.features import record_of, register
from odf_ingest.read.json_formats.json_lines import lines_of


def _find_record(value: bytes) -> bytes:
    return record_of(to_utf8(value, None))


def _find_features(value: bytes) -> dict[str, bytes]:
    """Return the lines that are not blank by their places."""
    lines, places = lines_of(to_utf8(value, None))
    return dict(zip(places, lines, strict=True))


register(ReadStepNdGeoJson, _find_record, _find_features)
