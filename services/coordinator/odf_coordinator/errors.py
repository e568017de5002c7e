"""Errors of the coordinator; the `text` of a refusal names the datasets and what to do."""

from dataclasses import dataclass

from odf_common.errors import Conflict, Refused


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


@dataclass(eq=False, kw_only=True)
class InputDiverged(Conflict):
    """A derivative has read a block that its input no longer has."""

    MESSAGE = (
        "{dataset} has read block {block} of {input}, which is no longer in its chain: {input} was "
        "reset, or has diverged"
    )
    ADVICE = (
        "`odf pull --reset-derivatives {dataset}` rolls {dataset} back to the last consistent block, "
        "and recomputes it from there"
    )

    dataset: str
    input: str
    block: str
