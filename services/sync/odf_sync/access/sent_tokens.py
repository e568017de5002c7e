"""Tokens that are sent to other nodes, and what is raised where one is needed."""

from collections.abc import Callable
from dataclasses import dataclass

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
    """A repository does not allow this without a token, or with the one that is stored."""

    def advice(self) -> str:
        """Return how to log in."""
        return "log in with `odf login URL`; if you are logged in, ask the dataset's owner for a role"
