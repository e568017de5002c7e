"""Text that is never shown: passwords, tokens, secrets as a manifest has them."""

import re
from dataclasses import dataclass
from typing import Final

MASK: Final = "***"
_PASSWORD: Final = re.compile(r"(?<=://)([^:@/]*):.*(?=@)")


class Secret(str):
    """A value that is stored or used, and masked wherever it is shown."""

    __slots__ = ()

    def __repr__(self) -> str:
        """Return no part of the value."""
        return repr(MASK)


NO_SECRET: Final = Secret()


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenSecret:
    """A secret in clear or, with `contentEncoding: jwe`, encrypted."""

    value: str
    content_encoding: str | None = None

    def __repr__(self) -> str:
        """Return no part of the value."""
        return f"WrittenSecret(value={MASK!r}, content_encoding={self.content_encoding!r})"


def without_password(address: str) -> str:
    """Return an address to show: a password in a URL is masked."""
    return _PASSWORD.sub(rf"\1:{MASK}", address)
