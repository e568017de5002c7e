"""Geographic formats: features become records, their geometry a column with GeoJSON text (spec: ReadStep.GeoJson).

`geojson` turns a feature into a record, also one of `esri_shapefile`, which checks and reads its files within bounds.
"""

from odf_ingest.read.geo import esri_shapefile, geojson

__all__ = ["esri_shapefile", "geojson"]
