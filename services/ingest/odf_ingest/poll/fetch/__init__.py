"""Fetch steps: download the new content of a polling source to local files (spec: FetchStep).

One module per kind; `ftp` is a scheme of `url`.
"""

from odf_ingest.poll.fetch import container, files_glob, mqtt, url
from odf_ingest.poll.fetch.fetch_step import Context, FetchedFile, FetchedMessages, Limits, Lines, Note, fetch

__all__ = [
    "Context",
    "FetchedFile",
    "FetchedMessages",
    "Limits",
    "Lines",
    "Note",
    "container",
    "fetch",
    "files_glob",
    "mqtt",
    "url",
]
