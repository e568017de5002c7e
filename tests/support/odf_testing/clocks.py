"""Clocks for tests: port `Clock` without the machine's time."""

import itertools
from dataclasses import dataclass

from odf_common.metadata.scalars import Timestamp


@dataclass
class ManualClock:
    """Shows `ms` until a test changes it."""

    ms: int = 1_800_000_000_000

    def now(self) -> Timestamp:
        return Timestamp.from_ms(self.ms)


class TickingClock:
    """Advances by one second per call."""

    def __init__(self) -> None:
        self._seconds = itertools.count(1_800_000_000)

    def now(self) -> Timestamp:
        return Timestamp.from_ms(next(self._seconds) * 1000)
