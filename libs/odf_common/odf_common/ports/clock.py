"""Time, so that nothing in the core reads it by itself."""

from typing import Protocol

from odf_common.metadata.scalars import Timestamp


class Clock(Protocol):
    """The node's clock."""

    def now(self) -> Timestamp:
        """Return now, in whole milliseconds."""
