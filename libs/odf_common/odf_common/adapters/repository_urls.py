"""URLs of repositories, and of the datasets in them (wire-facts §8)."""

import re
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, urlsplit

from odf_common.errors import InvalidInput
from odf_common.resources.secret_text import MASK

if TYPE_CHECKING:
    from odf_common.identity.dataset_refs import RemoteAlias

SMART_PREFIX: Final = "odf+"  # before http: the Smart Transfer Protocol
WEB: Final = ("http", "https")
SMART: Final = tuple(SMART_PREFIX + scheme for scheme in WEB)
BUCKETS: Final = {"s3": None, "s3+http": "http", "s3+https": "https"}
"""The scheme of the bucket's endpoint; None if the URL has no endpoint."""
_AUTHORITY_END: Final = re.compile("[/?#]")
SCHEMES: Final = ("file", *WEB, *SMART, *BUCKETS)


def repository_url(text: str) -> str:
    """Return the URL of a repository with a slash at the end; raises `InvalidInput` if it cannot be one."""
    require_no_credentials(text)
    try:
        parts = urlsplit(text)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise InvalidInput(text=f"{text!r} is not a URL: {error}") from error
    if parts.scheme not in SCHEMES:
        raise InvalidInput(text=f"expected a URL that begins with {', '.join(SCHEMES)}, got {text!r}")
    if parts.query or parts.fragment or any(character.isspace() for character in text):
        raise InvalidInput(text=f"a repository's URL has no query, fragment or spaces: {text!r}")
    if parts.scheme == "file":
        if host not in (None, "localhost") or not parts.path.startswith("/"):
            raise InvalidInput(text=f"expected file:///FOLDER, got {text!r}")
    elif not host:
        raise InvalidInput(text=f"{text!r} names no host")
    return text.rstrip("/") + "/"


def require_no_credentials(url: str) -> None:
    """Raise `InvalidInput` if a URL contains a user or a password, because both would be stored and shown with it.

    The message repeats neither of them. Text that is not a URL passes.
    """
    scheme, credentials, host = _credentials(url)
    if not credentials:
        return
    if scheme in BUCKETS:
        advice = "set ODF_S3_ACCESS_KEY and ODF_S3_SECRET_KEY"
    elif scheme in (*WEB, *SMART):
        advice = f"log in with `odf login {scheme.removeprefix(SMART_PREFIX)}://{host}`, and give the URL without them"
    else:
        advice = "give it without them"
    raise InvalidInput(text=f"credentials do not belong in a URL; {advice}")


def hidden_credentials(url: str) -> str:
    """Return a URL with user and password replaced by stars."""
    scheme, credentials, _ = _credentials(url)
    return f"{scheme}://{MASK}@" + url.removeprefix(f"{scheme}://{credentials}") if credentials else url


def _credentials(url: str) -> tuple[str, str, str]:
    """Return the parts of a URL: scheme; user and password, with the `@` after them; host."""
    scheme, _, rest = url.partition("://")
    credentials, at, host = _AUTHORITY_END.split(rest, maxsplit=1)[0].rpartition("@")
    return scheme, credentials + at, host


def dataset_url(base: str, dataset: "RemoteAlias | str") -> str:
    """Return the URL of a dataset in a repository; `dataset` is its alias or the name of its folder."""
    if isinstance(dataset, str):
        return base + quote(dataset)
    names = [name for name in (dataset.account, dataset.dataset) if name is not None]
    return base + "/".join(map(str, names))
