"""Failures of reconciliation: their classes, and when they are retried."""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from odf_common.errors import Conflict, InternalError, OdfError, Refused, Unavailable, is_transient

FIRST_DELAY_MS: Final = 1_000
MAX_DELAY_MS: Final = 300_000
SWEEP_MS: Final = (
    300_000  # what waits for a dependency is looked at again without an event, in case one was lost
)
MAX_BUG_RETRIES: Final = 10


class DependencyMissing(Refused):
    """A reference of a resource is unresolved, or what it means was deleted."""

    reason: str = "unresolved-reference"


class DependencyNotReady(Refused):
    """A resource waits for another one that it refers to."""

    reason: str = "dependency-not-ready"


class FailureClass(StrEnum):
    """Treatment of a failed attempt."""

    WAITING = "waiting"  # an event of the dependency wakes the resource
    TRANSIENT = "transient"  # retried with a growing delay, forever
    PERMANENT = "permanent"  # until its generation or a dependency changes
    BUG = "bug"  # as transient, a few times


_CODES: Final[Mapping[FailureClass, str]] = MappingProxyType(
    {
        FailureClass.TRANSIENT: "unavailable",
        FailureClass.PERMANENT: "rejected",
        FailureClass.BUG: "internal",
    }
)


def failure_class(error: Exception) -> FailureClass:
    """Return the class of the failure that an error is."""
    if isinstance(error, DependencyMissing | DependencyNotReady):
        return FailureClass.WAITING
    if isinstance(error, Unavailable | Conflict | TimeoutError | ConnectionError) or is_transient(error):
        return FailureClass.TRANSIENT
    if isinstance(error, OdfError) and not isinstance(error, InternalError):
        return FailureClass.PERMANENT
    return FailureClass.BUG


def failure_code(error: Exception) -> str:
    """Return the code in the condition of a failed resource."""
    if isinstance(error, DependencyMissing | DependencyNotReady):
        return error.reason
    return _CODES[failure_class(error)]


def retry_delay_ms(failure: FailureClass, earlier_failures: int, random: float) -> int | None:
    """Return the delay until the next attempt; None: no timer starts one.

    `earlier_failures` counts those in a row before this one. `random` is in [0, 1): with full jitter, resources that
    failed together do not retry together.
    """
    match failure:
        case FailureClass.WAITING:
            return SWEEP_MS
        case FailureClass.PERMANENT:
            return None
        case FailureClass.BUG if earlier_failures >= MAX_BUG_RETRIES:
            return None
        case _:
            # The exponent is limited, since the delay is at its limit long before a float overflows.
            return int(random * min(FIRST_DELAY_MS * 2 ** min(earlier_failures, 30), MAX_DELAY_MS))
