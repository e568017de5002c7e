"""Text that is never shown: passwords, tokens, the clear text of secrets."""

import re
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


def without_password(address: str) -> str:
    """Return an address to show: a password in a URL is masked."""
    return _PASSWORD.sub(rf"\1:{MASK}", address)
