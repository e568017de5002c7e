"""Geographic formats. A feature becomes a record; its geometry is a column of GeoJSON text (spec: ReadStep.GeoJson).

`geojson` converts features to records. `esri_shapefile` checks and reads shapefiles, and uses `geojson` for records.
"""

from odf_ingest.read.geo import esri_shapefile, geojson

__all__ = ["esri_shapefile", "geojson"]
