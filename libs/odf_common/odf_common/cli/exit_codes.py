"""What the `odf` command's exit codes mean."""

from enum import IntEnum
from typing import Self


class ExitCode(IntEnum):
    """An exit code, with its meaning for the reference."""

    OK = 0, "success"
    FAILED = 1, "refused or failed"
    MISUSE = 2, "misuse"  # click's own
    VERIFICATION_FAILED = 3, "verification failed"
    NOT_EQUAL = 4, "compared and not equal"
    ABORTED = 130, "ended by Ctrl-C"  # 128 + SIGINT, as shells report it

    meaning: str

    def __new__(cls, value: int, meaning: str) -> Self:
        """Build a member from its number and meaning."""
        code = int.__new__(cls, value)
        code._value_ = value
        code.meaning = meaning
        return code
