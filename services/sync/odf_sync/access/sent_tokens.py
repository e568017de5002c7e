"""Tokens that are sent to other nodes, and what is raised where one is needed."""

from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import urlsplit

from odf_common.adapters.repository_urls import SMART_PREFIX
from odf_common.errors import NotFound, Unavailable

UNAUTHENTICATED: Final = 401
AUTHORIZATION: Final = "authorization"

TokenFor = Callable[[str], str | None]
"""Returns the token to send to a URL."""


def no_token(_: str) -> str | None:
    """Return None: all requests are anonymous."""
    return None


def authorization(token: str | None) -> dict[str, str]:
    """Return the headers that a token is sent in, none without one."""
    return {} if token is None else {"Authorization": f"Bearer {token}"}


class AccessDenied(Unavailable):
    """A repository does not allow a request; `what` is its URL, `status` that of the answer over HTTP."""

    MESSAGE = "{what}: {why}"

    status: int = 0


class LoginRequired(AccessDenied):
    """A repository does not allow this without a token, or with the one that is stored; `what` is its URL."""

    def advice(self) -> str:
        """Return the command that logs in."""
        return f"log in with `{_login_at(self.what)}`; a login that is stored may have expired"


class AccessForbidden(AccessDenied):
    """A repository does not allow this to the account that the token belongs to; `what` is its URL."""

    is_write: bool = False

    def advice(self) -> str:
        """Return the accounts that can permit it."""
        advice = "ask its owner for a role: `odf access grant`, on that node"
        if not self.is_write:
            return advice
        return (
            f"{advice}; an account creates datasets under its own name only, by a token with the scope write"
        )


class BucketForbidden(AccessDenied):
    """A bucket of S3 does not allow this over HTTP without credentials; `what` is its URL."""

    ADVICE = "a private bucket is read from s3://BUCKET/PATH, with the credentials of ODF_S3_…"


class ObjectForbidden(NotFound):
    """A file of a dataset whose head could be read is missing, or may not be read; `what` is its URL."""

    MESSAGE = "{what} does not exist, or may not be read (the server denies access)"
    ADVICE = (
        "S3 answers so for a missing file, unless the reader may list the bucket (s3:ListBucket); ask "
        "who published the dataset whether the file exists and may be read"
    )


class NothingVisible(NotFound):
    """A server has no dataset at a URL that may be read, without a token or with the one that is stored."""

    url: str
    is_logged_in: bool = False

    def __str__(self) -> str:
        """Return the missing permission."""
        return NotFound.__str__(self)

    def advice(self) -> str:
        """Return the possible causes."""
        name = "check its name, which is ACCOUNT/DATASET on a node with accounts"
        access = "ask its owner for a role" if self.is_logged_in else f"`{_login_at(self.url)}`"
        return f"{name}; or you have no access to it: {access}"


def denial(url: str, status: int, headers: Mapping[str, str], *, is_write: bool = False) -> AccessDenied:
    """Return the error for an answer of status 401 or 403 to a request with these headers."""
    if status == UNAUTHENTICATED or not any(name.lower() == AUTHORIZATION for name in headers):
        return LoginRequired(what=url, why=f"the server requires a login (status {status})", status=status)
    action = "write" if is_write else "read"
    why = f"you may not {action} it (status {status})"
    return AccessForbidden(what=url, why=why, status=status, is_write=is_write)


def _login_at(text: str) -> str:
    url = urlsplit(text.removeprefix(SMART_PREFIX))
    return f"odf login {url.scheme}://{url.netloc}"
