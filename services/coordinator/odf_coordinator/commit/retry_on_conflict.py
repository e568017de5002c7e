"""Retries changes of datasets that receive concurrent commits."""

from collections.abc import Callable
from typing import Final, TypeVar

from odf_common.errors import HeadMoved

T = TypeVar("T")

ATTEMPTS: Final = 20  # a busy root receives about ten commits a second


def retry_on_conflict(change: Callable[[], T]) -> T:
    """Return the result of `change`, retrying it after each `HeadMoved`."""
    for _ in range(ATTEMPTS - 1):
        try:
            return change()
        except HeadMoved:
            continue
    return change()
