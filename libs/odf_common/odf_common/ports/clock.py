"""Time: the node's clock, so that nothing in the core reads it by itself, and pauses between tries."""

from dataclasses import dataclass
from typing import Final, Protocol

from odf_common.metadata.scalars import Timestamp

MAX_INCREASES: Final = 32  # of a pause; what is retried forever must not overflow


class Clock(Protocol):
    """The node's clock."""

    def now(self) -> Timestamp:
        """Return now, in whole milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Pauses between tries, in seconds: `first`, then `factor` times the one before, up to `most`."""

    first: float
    most: float
    factor: float = 2.0

    def pause(self, failures: int) -> float:
        """Return how long to wait after the last of that many consecutive failures."""
        increases = min(max(failures - 1, 0), MAX_INCREASES)
        return min(self.first * self.factor**increases, self.most)
