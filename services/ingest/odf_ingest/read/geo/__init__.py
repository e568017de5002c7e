"""Geographic formats: features become records, their geometry a column with GeoJSON text (spec: ReadStep.GeoJson).

`features` turns a feature into a record; `shp_records` and `dbf_records` check and read the files of a
shapefile within bounds; the others are one module per format.
"""

from odf_ingest.read.geo import esri_shapefile, geojson

__all__ = ["esri_shapefile", "geojson"]
