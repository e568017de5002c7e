"""URLs as people type them."""

from pathlib import Path

_FILE = "file://"


def absolute_url(url: str) -> str:
    """Return the URL; that of a folder from the root of the file system, wherever it is used."""
    return Path(url.removeprefix(_FILE)).absolute().as_uri() if url.startswith(_FILE) else url
