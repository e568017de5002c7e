"""Changes of datasets that others commit to at the same time: begun anew until one comes through."""

from collections.abc import Callable
from typing import Final, TypeVar

from odf_common.errors import HeadMoved

T = TypeVar("T")

ATTEMPTS: Final = 20  # a busy root is committed to some ten times a second


def again_when_overtaken(change: Callable[[], T]) -> T:
    """Return what a change made, beginning anew each time somebody else commits first."""
    for _ in range(ATTEMPTS - 1):
        try:
            return change()
        except HeadMoved:
            continue
    return change()
