"""NdGeoJson: one GeoJSON feature per line, or one per message (spec: ReadStep.NdGeoJson)."""

from odf_common.errors import InvalidInput
from odf_common.metadata.steps import ReadStepNdGeoJson
from odf_ingest.read.encoding import to_utf8
from odf_ingest.read.geo.feature_reader import register
from odf_ingest.read.geo.features import record_of


def _one(value: bytes) -> bytes:
    return record_of(to_utf8(value, None))


def _named(value: bytes) -> dict[str, bytes]:
    """Return the records of lines by their names; blank lines are ignored."""
    found = {}
    for number, line in enumerate(to_utf8(value, None).split(b"\n"), start=1):
        if not line.strip():
            continue
        name = f"line {number}"
        try:
            found[name] = record_of(line)
        except InvalidInput as error:
            raise InvalidInput(where=name, text=str(error)) from error
    return found


register(ReadStepNdGeoJson, _one, _named)
