"""Prepare steps: what was fetched → a file that can be read (spec: PrepStep). One module per kind."""

from odf_ingest.poll.unpack import decompress, pipe
from odf_ingest.poll.unpack.prepared import naming, prepared

__all__ = ["decompress", "naming", "pipe", "prepared"]
