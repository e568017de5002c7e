"""What can go wrong while records are brought in; each names the facts a person needs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self, TypeGuard

from odf_common.adapters.local import CorruptName, CorruptRef
from odf_common.adapters.local.durable import LockHeld
from odf_common.errors import Damaged, InvalidInput, NotFound, OdfError, Refused, StorageUnavailable
from odf_common.ports.engine import QueryTooSlow


@dataclass(eq=False, kw_only=True)
class UnsupportedStep(InvalidInput):
    """This node cannot perform the step."""

    step: str

    def advice(self) -> str:
        """Return what to do."""
        return "Choose another read format or merge strategy, or convert the data before it is pushed."


QUICKER: Final = (
    "Commit an AddPushSource with a query that takes less, with `odf commit`: it continues with that."
)


@dataclass(eq=False, kw_only=True)
class SourceStopped(Refused):
    """The push source is stopped until someone acts; `reason` and `text` are those of the error that stopped it."""

    source: str
    dataset: str

    def __str__(self) -> str:
        """Return the source, the error's name and its words."""
        return f"push source {self.source} is stopped: {self.text} ({self.reason})"

    def advice(self) -> str:
        """Return the command that makes it continue."""
        which = f"{self.dataset} --source {self.source}"
        if self.reason in OF_TOPIC:
            return (
                f"Nothing was skipped. Accept the topic as it is: odf source resume {which} --from earliest "
                "(or latest, keep, or an offset)."
            )
        if self.reason == SourceGone.__name__:
            return "Nothing was skipped. Add the push source again to continue."
        if self.reason == QueryTooSlow.__name__:
            return f"Nothing was skipped. {QUICKER} To try the same query again: odf source resume {which}"
        if self.reason == SnapshotRetractsTooMuch.__name__:
            return (
                "Nothing was retracted. If the snapshot is right: odf source set "
                f"{which} maxRetractedShare=1, then odf source resume {which}. "
                f"If it is not, leave it out: odf source skip {which}."
            )
        return (
            f"Nothing was skipped. Mend the cause, then: odf source resume {which}. "
            f"Or leave the message out: odf source skip {which}."
        )


@dataclass(eq=False, kw_only=True)
class NothingCommitted(Refused):
    """A push failed before it was proposed: it is not in the chain, and will not be."""

    hint: str

    @classmethod
    def because(cls, error: OdfError) -> Self:
        """Return the refusal in the words of what went wrong."""
        return cls(
            reason=cls.__name__,
            text=f"{error}; nothing was committed",
            hint=f"{error.advice()}; then repeat the command".removeprefix("; then "),
        )

    def advice(self) -> str:
        """Return what to do."""
        return self.hint


@dataclass(eq=False, kw_only=True)
class SnapshotRetractsTooMuch(Refused):
    """One snapshot would retract more of the current rows than its source allows: the source stops before it."""

    retracted: int
    rows: int

    def advice(self) -> str:
        """Return what to do."""
        return (
            "If the snapshot is right, raise the limit with `odf source set DATASET maxRetractedShare=1`, then "
            "continue with `odf source resume DATASET` or ingest the file again; nothing was retracted."
        )


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

    def __str__(self) -> str:
        """Return which half is missing."""
        return self.why


@dataclass(eq=False, kw_only=True)
class SourceWaits(Refused):
    """The push source waits for a message that has not come; `reason` and `text` are those of what lacks it."""

    source: str
    dataset: str

    def __str__(self) -> str:
        """Return the source and what it waits for."""
        return f"push source {self.source} waits for more: {self.text}"

    def advice(self) -> str:
        """Return what to do."""
        return (
            "Nothing was skipped; it continues by itself as soon as the other half is in the topic. "
            f"If that never comes, leave this half out: odf source skip {self.dataset} --source {self.source}."
        )


@dataclass(eq=False, kw_only=True)
class SourceRetries(Refused):
    """Something stands in the push source's way that may pass; it is tried again."""

    source: str
    remedy: str = ""

    def __str__(self) -> str:
        """Return the source, and what is in its way."""
        what = f"push source {self.source}" if self.source else "the dataset"
        return f"{what} is tried again: {self.text}"

    def advice(self) -> str:
        """Return what to do."""
        return self.remedy or "Nothing was skipped; it continues by itself once the cause is mended."


@dataclass(eq=False, kw_only=True)
class SourceQueries(Refused):
    """The push source's query over a batch takes long."""

    source: str
    reason: str = "SourceQueries"
    text: str = "its query over a batch has not ended yet"

    def __str__(self) -> str:
        """Return the source, and what it waits for."""
        return f"push source {self.source} is slow: {self.text}"

    def advice(self) -> str:
        """Return what to do."""
        return f"If it takes five minutes the source stops, so that others get on. {QUICKER}"


@dataclass(eq=False, kw_only=True)
class TopicReplaced(OdfError):
    """The push topic is not the one that was read before."""

    topic: str
    expected: str
    actual: str

    def __str__(self) -> str:
        """Return that it is another topic, and how that comes."""
        return (
            f"its topic was replaced: {self.topic} has the id {self.actual}, {self.expected} was read before; it was "
            "deleted and created again, or the dataset was fed elsewhere"
        )


@dataclass(eq=False, kw_only=True)
class TopicGone(OdfError):
    """The push topic that was read before is not there any more."""

    topic: str

    def __str__(self) -> str:
        """Return which topic is missing."""
        return f"its topic is gone: {self.topic} was deleted"


@dataclass(eq=False, kw_only=True)
class NoTopic(NotFound):
    """The push source has no topic here yet."""

    dataset: str

    def advice(self) -> str:
        """Return what creates it."""
        return f"`odf pull {self.dataset}` creates it, where the dataset is ours"


@dataclass(eq=False, kw_only=True)
class RecordsLost(OdfError):
    """Messages were deleted from the push topic before they were read."""

    topic: str
    partition: int
    next: int
    low: int

    def __str__(self) -> str:
        """Return which messages are lost."""
        return (
            f"messages were lost: {self.topic} begins at offset {self.low} of partition {self.partition}, "
            f"{self.next} is to be read; they expired or were deleted"
        )


@dataclass(eq=False, kw_only=True)
class PositionBeyondEnd(OdfError):
    """The push topic ends before the position that was read last."""

    topic: str
    partition: int
    next: int
    high: int

    def __str__(self) -> str:
        """Return where the topic ends, and where it should be read."""
        return (
            f"its topic ends too early: {self.topic} ends at offset {self.high} of partition {self.partition}, "
            f"{self.next} is to be read; it was cut, or the dataset was fed elsewhere"
        )


@dataclass(eq=False, kw_only=True)
class SourceGone(OdfError):
    """The dataset has no such push source."""

    source: str


@dataclass(eq=False, kw_only=True)
class AlreadyCommitted(OdfError):
    """The batch is in the chain."""


@dataclass(eq=False, kw_only=True)
class KeyReused(InvalidInput):
    """A file is pushed with an idempotency key with which another one was committed."""

    text: str = "other content was committed with this idempotency key; none of this file is"
    key: str

    def advice(self) -> str:
        """Return what to do."""
        return f"Push this file with a key other than {self.key!r}, or without one."


@dataclass(eq=False, kw_only=True)
class PositionMoved(OdfError):
    """The chain stands at another position of the topic than the batch begins at; read again from there."""

    source: str


@dataclass(eq=False, kw_only=True)
class RecordRejected(OdfError):
    """The message is not a record of the source, which is set to stop there."""

    topic: str
    partition: int
    offset: int
    why: str

    def __str__(self) -> str:
        """Return the message and why it is no record."""
        where = f"message {self.partition}/{self.offset} of topic {self.topic}"
        return f"{where} is not a record: {self.why}; the source stops there (badRecords=stop)"


@dataclass(eq=False, kw_only=True)
class TooManyRejected(OdfError):
    """More messages of a batch are not records than the source is set to reject."""

    topic: str
    rejected: int
    messages: int
    limit: float
    why: str

    def __str__(self) -> str:
        """Return both counts, and why the first message is no record."""
        return (
            f"{self.rejected} of {self.messages} messages of topic {self.topic} are not records, "
            f"more than maxRejectedShare={self.limit:g} allows; the first: {self.why}"
        )


# Why the topic is not the one that the chain knows: accepting it as it is, is a person's decision.
OF_TOPIC: Final = frozenset(
    one.__name__ for one in (TopicReplaced, TopicGone, RecordsLost, PositionBeyondEnd)
)


STORAGE_FAULTS: Final = frozenset(
    kind.__name__ for kind in (Damaged, CorruptName, CorruptRef, StorageUnavailable, LockHeld)
)


def is_storage_fault(error: Exception) -> TypeGuard[OdfError]:
    """Return whether an error is about a dataset's files, here or at the coordinator, and not about its records."""
    if isinstance(error, Refused):
        return error.reason in STORAGE_FAULTS
    return isinstance(error, Damaged | StorageUnavailable)
