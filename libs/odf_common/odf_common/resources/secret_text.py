"""Text that is never shown: passwords, tokens, the clear text of secrets."""

from typing import Final

MASK: Final = "***"


class Secret(str):
    """A value that is stored or used, and masked wherever it is shown."""

    __slots__ = ()

    def __repr__(self) -> str:
        """Return no part of the value."""
        return repr(MASK)


NO_SECRET: Final = Secret()
