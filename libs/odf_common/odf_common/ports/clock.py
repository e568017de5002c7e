"""The node's clock, so that the core never reads the time itself; pauses between retries, and between periodic work."""

from dataclasses import dataclass
from typing import Final, Protocol

from odf_common.metadata.scalars import Timestamp

MAX_INCREASES: Final = 32  # of a pause: endless retries must not overflow
PERIODIC_SHARE: Final = 0.001  # of a core, at most, for one kind of periodic work


class Clock(Protocol):
    """The node's clock."""

    def now(self) -> Timestamp:
        """Return the current time in whole milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Pauses between retries: `first`, then `factor` times the previous one, up to `most`; in seconds, or all in ms."""

    first: float
    most: float
    factor: float = 2.0

    def pause(self, failures: int) -> float:
        """Return the pause after this number of consecutive failures."""
        increases = min(max(failures - 1, 0), MAX_INCREASES)
        return min(self.first * self.factor**increases, self.most)


def pause_after(cpu_seconds: float, *, at_least: float) -> float:
    """Return the seconds until periodic work is due again, so that it never takes more than `PERIODIC_SHARE`."""
    return max(at_least, cpu_seconds / PERIODIC_SHARE)
