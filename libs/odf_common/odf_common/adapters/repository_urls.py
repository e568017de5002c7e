"""URLs of repositories, and of the datasets in them (wire-facts §8)."""

from typing import Final
from urllib.parse import quote, urlsplit

from odf_common.errors import InvalidInput
from odf_common.identity.dataset_refs import RemoteAlias

SMART_PREFIX: Final = "odf+"  # before http: the Smart Transfer Protocol
WEB: Final = ("http", "https")
SMART: Final = tuple(SMART_PREFIX + scheme for scheme in WEB)
BUCKETS: Final = {"s3": None, "s3+http": "http", "s3+https": "https"}
"""The scheme of the bucket's endpoint, if the URL names one."""
SCHEMES: Final = ("file", *WEB, *SMART, *BUCKETS)


def repository_url(text: str) -> str:
    """Return the URL of a repository with a slash at its end; raises `InvalidInput` unless it is one."""
    try:
        parts = urlsplit(text)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise InvalidInput(text=f"{text!r} is not a URL: {error}") from error
    if parts.scheme not in SCHEMES:
        raise InvalidInput(text=f"expected a URL that begins with {', '.join(SCHEMES)}, got {text!r}")
    if parts.username is not None or parts.password is not None:
        raise InvalidInput(
            text="a URL must not contain a user or a password; tokens are stored by `odf login`"
        )
    if parts.query or parts.fragment or any(character.isspace() for character in text):
        raise InvalidInput(text=f"a repository's URL has no query, fragment or spaces: {text!r}")
    if parts.scheme == "file":
        if host not in (None, "localhost") or not parts.path.startswith("/"):
            raise InvalidInput(text=f"expected file:///FOLDER, got {text!r}")
    elif not host:
        raise InvalidInput(text=f"{text!r} names no host")
    return text.rstrip("/") + "/"


def dataset_url(base: str, dataset: RemoteAlias | str) -> str:
    """Return the URL of a dataset of a repository, given by its alias or by the folder's name."""
    if isinstance(dataset, str):
        return base + quote(dataset)
    names = [name for name in (dataset.account, dataset.dataset) if name is not None]
    return base + "/".join(map(str, names))
