"""Errors of the coordinator; the `text` of a refusal names the datasets and what to do."""

from odf_common.errors import Conflict, Refused


class DataNotDerived(Refused):
    """The data cannot be dropped, since this node could not recompute it."""


class EventReserved(Refused):
    """Only the node writes events of this kind."""


class DerivativeWatermark(Refused):
    """A derivative's watermark follows from its inputs and cannot be set."""


class WatermarkDecreased(Refused):
    """A watermark cannot be lowered."""


class NotFastForward(Refused):
    """The reference does not continue the head's chain."""


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
