"""What can go wrong while records are brought in; each names the facts a person needs."""

from collections.abc import Mapping
from dataclasses import dataclass

from odf_common.errors import InvalidInput, OdfError, Refused


@dataclass(eq=False, kw_only=True)
class UnsupportedStep(InvalidInput):
    """This node cannot perform the step."""

    step: str

    def advice(self) -> str:
        """Return what to do."""
        return "Choose another read format or merge strategy, or convert the data before it is pushed."


@dataclass(eq=False, kw_only=True)
class SourceStopped(Refused):
    """The push source stands still until someone acts; `reason` and `text` are those of the error that stopped it."""

    source: str

    def __str__(self) -> str:
        """Return the source, the error's name and its words."""
        return f"push source {self.source} is stopped: {self.text} ({self.reason})"

    def advice(self) -> str:
        """Return what to do."""
        return "Nothing was skipped; mend the cause, then restart ingest or commit to the dataset to go on."


@dataclass(eq=False, kw_only=True)
class HalfCorrection(InvalidInput):
    """A record is half a correction; the first `whole` records of the batch have both halves of theirs.

    `may_come` tells whether each half that is missing is a +C: those may lie behind the batch.
    """

    whole: int
    may_come: bool


@dataclass(eq=False, kw_only=True)
class HalfMissing(OdfError):
    """The other half of a correction has not come up to `end`, by partition; `tries` were made before."""

    end: Mapping[int, int]
    tries: int
    why: str


@dataclass(eq=False, kw_only=True)
class SourceWaits(Refused):
    """The push source waits for a message that has not come; `reason` and `text` are those of what lacks it."""

    source: str

    def __str__(self) -> str:
        """Return the source and what it waits for."""
        return f"push source {self.source} waits for more: {self.text}"

    def advice(self) -> str:
        """Return what to do."""
        return "Nothing was skipped; it goes on by itself as soon as the other half is in the topic."


@dataclass(eq=False, kw_only=True)
class TopicReplaced(OdfError):
    """The push topic is not the one that was read before."""

    topic: str
    expected: str
    actual: str


@dataclass(eq=False, kw_only=True)
class TopicGone(OdfError):
    """The push topic that was read before is not there any more."""

    topic: str


@dataclass(eq=False, kw_only=True)
class RecordsLost(OdfError):
    """Messages were deleted from the push topic before they were read."""

    topic: str
    partition: int
    next: int
    low: int


@dataclass(eq=False, kw_only=True)
class PositionBeyondEnd(OdfError):
    """The push topic ends before the position that was read last."""

    topic: str
    partition: int
    next: int
    high: int


@dataclass(eq=False, kw_only=True)
class SourceGone(OdfError):
    """The dataset has no such push source."""

    source: str


@dataclass(eq=False, kw_only=True)
class AlreadyCommitted(OdfError):
    """The batch is in the chain."""


@dataclass(eq=False, kw_only=True)
class PositionMoved(OdfError):
    """The chain stands at another position of the topic than the batch begins at; read again from there."""

    source: str
