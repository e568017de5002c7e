"""Tokens that are sent to other nodes, and what is raised where one is needed."""

from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

from odf_common.errors import Unavailable

TokenFor = Callable[[str], str | None]
"""Returns the token to send to a URL."""


def no_token(_: str) -> str | None:
    """Return None: all requests are anonymous."""
    return None


def authorization(token: str | None) -> dict[str, str]:
    """Return the headers that a token is sent in, none without one."""
    return {} if token is None else {"Authorization": f"Bearer {token}"}


@dataclass(eq=False, kw_only=True)
class LoginRequired(Unavailable):
    """A repository does not allow this without a token, or with the one that is stored; `what` is its URL."""

    def __str__(self) -> str:
        """Return what the server said: it can be reached."""
        return f"{self.what}: {self.why}"

    def advice(self) -> str:
        """Return how to log in."""
        url = urlsplit(self.what)
        login = f"odf login {url.scheme}://{url.netloc}"
        return f"log in with `{login}`; if you are logged in, ask the dataset's owner for a role"
