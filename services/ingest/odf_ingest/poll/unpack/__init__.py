"""Prepare steps: what was fetched → a file that can be read (spec: PrepStep)."""

from odf_ingest.poll.unpack import decompress
from odf_ingest.poll.unpack.prepare_steps import naming, prepare_fetched

__all__ = ["decompress", "naming", "prepare_fetched"]
