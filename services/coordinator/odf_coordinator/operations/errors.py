"""Refusals of operations on datasets; `text` names the datasets and what to do."""

from dataclasses import dataclass

from odf_common.errors import Refused


@dataclass(eq=False, kw_only=True)
class DataNotDerived(Refused):
    """The data cannot be dropped, since this node could not recompute it."""


@dataclass(eq=False, kw_only=True)
class EventReserved(Refused):
    """Only the node writes events of this kind."""


@dataclass(eq=False, kw_only=True)
class DerivativeWatermark(Refused):
    """A derivative's watermark follows from its inputs and cannot be set."""


@dataclass(eq=False, kw_only=True)
class WatermarkDecreased(Refused):
    """A watermark cannot be lowered."""


@dataclass(eq=False, kw_only=True)
class NotFastForward(Refused):
    """The reference does not continue the head's chain."""
