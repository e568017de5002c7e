"""The clock of the node, which the core uses instead of reading the time itself, and pauses between retries."""

from dataclasses import dataclass
from typing import Final, Protocol

from odf_common.metadata.scalars import Timestamp

MAX_INCREASES: Final = 32  # of a pause: endless retries must not overflow
PERIODIC_SHARE: Final = 0.001  # of a core, at most, for one kind of periodic work


class Clock(Protocol):
    """The clock of the node."""

    def now(self) -> Timestamp:
        """Return the current time in whole milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Exponential backoff: the first pause, the factor between pauses, and the maximum (`most`); all in one unit."""

    first: float
    most: float
    factor: float = 2.0

    def pause(self, failures: int) -> float:
        """Return the pause after this number of consecutive failures."""
        increases = min(max(failures - 1, 0), MAX_INCREASES)
        return min(self.first * self.factor**increases, self.most)


def pause_after(cpu_seconds: float, *, at_least: float) -> float:
    """Return the seconds until the next run of periodic work, so that it uses at most `PERIODIC_SHARE` of the time."""
    return max(at_least, cpu_seconds / PERIODIC_SHARE)
