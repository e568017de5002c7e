"""Fetch steps: what a polling source has that is new, as local files (spec: FetchStep). One module per kind."""

from odf_ingest.poll.fetch import files_glob, url
from odf_ingest.poll.fetch.step import Context, Fetched, Limits, fetch

__all__ = ["Context", "Fetched", "Limits", "fetch", "files_glob", "url"]
