"""Prepare steps: what was fetched → a file that can be read (spec: PrepStep)."""

from odf_ingest.poll.unpack import decompress
from odf_ingest.poll.unpack.prepared import naming, prepared

__all__ = ["decompress", "naming", "prepared"]
