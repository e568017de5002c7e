"""The clock of the machine (port `Clock`)."""

import time
from typing import Final

from odf_common.metadata.scalars import Timestamp


class SystemClock:
    """The clock of the machine."""

    def now(self) -> Timestamp:
        """Return the current time in whole milliseconds."""
        return Timestamp.from_ms(time.time_ns() // 1_000_000)


SYSTEM_CLOCK: Final = SystemClock()
