"""Errors of ingest; each has the facts that a user needs."""

from collections.abc import Mapping
from typing import Final, Self, TypeGuard

from odf_common.adapters.local.catalog import CorruptName
from odf_common.adapters.local.durable import LockHeld
from odf_common.adapters.local.stores import CorruptRef
from odf_common.chain.arrivals import TimeInFuture
from odf_common.chain.build_blocks import ClockBehind
from odf_common.errors import (
    Conflict,
    Damaged,
    InvalidInput,
    NotFound,
    OdfError,
    Refused,
    StorageUnavailable,
    Unavailable,
)
from odf_common.ports.engine import QueryTooSlow


class Signal(OdfError):
    """An exception that tells another part of this process how to continue; it is never sent to a client."""


class UnsupportedStep(InvalidInput):
    """This node does not support the step."""

    ADVICE = "choose another read format or merge strategy, or convert the data before pushing it"

    step: str


class UnsupportedMediaType(InvalidInput):
    """Data was pushed with a media type that this node does not read."""

    MESSAGE = "Content-Type {media_type!r} is not a format that this node reads"

    media_type: str
    known: tuple[str, ...]

    def advice(self) -> str:
        return (
            f"set the header Content-Type to the format of the body: {', '.join(self.known)}; or to "
            "application/octet-stream for the format of the source"
        )


class TooManyPending(Unavailable):
    """The limit of pushes that wait to be committed to a dataset is reached."""

    MESSAGE = "{what} wait to be committed: {why}"
    ADVICE = "repeat the push later, or push larger batches: each one becomes a block"

    why: str | None = "none more is accepted until some are committed"


class SettingsDeclared(InvalidInput):
    """Settings of a source are set by command, although a Source resource declares them."""

    MESSAGE = "the resource Source {source} has the settings of this source"
    ADVICE = "change {fields} in its manifest, and apply that"

    source: str
    fields: str


class BufferFull(Unavailable):
    """The buffer of a Source resource has no room for a push."""

    MESSAGE = "the buffer of the source is full: {what}; nothing of this push was accepted"
    ADVICE = "repeat the push later; a larger `spec.ingress.buffer.bufferSize` of the Source takes more"


RESET: Final = (
    "a block has brought a state that ingest did not write: `odf log {dataset}` shows it as newSourceState; `odf reset "
    "{dataset} BLOCK` goes back to the block before it, and the source continues from there"
)


class SourceStateUnreadable(InvalidInput):
    """The chain has a source state that this version cannot read."""

    where: str | None = "source state"

    def advice(self) -> str:
        return RESET.format(dataset="DATASET")


QUICKER: Final = "commit a faster query with `odf commit DATASET FILE`: the source continues with that"


class SourceStopped(Refused):
    """The push source is stopped until a user acts; `reason` and `text` are those of the error that stopped it."""

    MESSAGE = "push source {source} is stopped: {text} ({reason})"

    source: str
    dataset: str
    topic: str = ""
    """The topic at which it is stopped, if it reads external topics."""

    def advice(self) -> str:
        """Return the command that resumes the source."""
        which = f"{self.dataset} --source {self.source}"
        if self.reason in OF_TOPIC:
            where = f"{which} --topic {self.topic}" if self.topic else which
            return (
                f"nothing was skipped; accept the topic as it is: `odf source resume {where} --from earliest` "
                "(or latest, keep, or an offset)"
            )
        if self.reason == SourceStateUnreadable.__name__:
            return f"nothing was skipped; {RESET.format(dataset=self.dataset)}"
        if self.reason == SourceGone.__name__:
            return "nothing was skipped; add the push source again to continue"
        if self.reason == QueryTooSlow.__name__:
            return f"nothing was skipped; {QUICKER}; to try the same query again: `odf source resume {which}`"
        if self.reason == SnapshotRetractsTooMuch.__name__:
            return (
                "nothing was retracted; if the snapshot is right: `odf source set "
                f"{which} maxRetractedShare=1`, then `odf source resume {which}`; "
                f"if it is not, skip it: `odf source skip {which}`"
            )
        other_half = "; the source stops again at the +C of this -C, which is skipped in the same way"
        return (
            f"nothing was skipped; fix the cause, then: `odf source resume {which}`; "
            f"or skip the message: `odf source skip {which}`{other_half if _takes_back(self) else ''}"
        )


def _takes_back(stop: SourceStopped) -> bool:
    """Return whether a source is stopped at a -C that does not fit, not at an incomplete correction."""
    return stop.reason == RecordRejected.__name__ and " -C " in stop.text


class NothingCommitted(Refused):
    """A push failed before its block was proposed, so nothing of it was or will be committed."""

    ADVICE = "{hint}"

    hint: str

    @classmethod
    def because(cls, error: OdfError) -> Self:
        """Return the refusal for an error."""
        return cls(
            reason=cls.__name__,
            text=f"{error}; nothing was committed",
            hint=f"{error.advice()}; then repeat the command".removeprefix("; then "),
        )


class SnapshotRetractsTooMuch(Refused):
    """A snapshot would retract more of the current rows than its source allows, so the source stops before it."""

    retracted: int
    rows: int
    is_empty: bool = False

    def advice(self) -> str:
        setting = "emptySnapshot=retract" if self.is_empty else "maxRetractedShare=1"
        return (
            f"if the snapshot is right, allow it with `odf source set DATASET {setting}`, then continue with `odf "
            "source resume DATASET` or ingest the file again; nothing was retracted"
        )


class IncompleteCorrection(InvalidInput):
    """A correction is incomplete: a -C without its +C, or a +C without its -C."""

    whole: int
    """The first `whole` records of the batch contain only complete corrections."""
    may_come: bool
    """Whether only +C records are missing, which may follow after the batch."""


class OperationsMismatched(InvalidInput):
    """Some records of a changelog do not fit the current records of their keys; the others can be merged."""

    faults: Mapping[int, str]
    """The reasons by row of the batch; both records of a correction have one."""


class AwaitingCorrection(Signal):
    """The other half of a correction has not arrived before the offsets `end`, in `tries` batches."""

    MESSAGE = "{why}"

    end: Mapping[int, int]
    tries: int
    why: str


class SourceWaiting(Refused):
    """The push source waits for a message that has not arrived; `reason` and `text` are those of the error."""

    MESSAGE = "push source {source} waits for more: {text}"
    ADVICE = (
        "nothing was skipped; it continues automatically as soon as the other half is in the topic; if "
        "that never arrives, skip this half: `odf source skip {dataset} --source {source}`"
    )

    source: str
    dataset: str


class SourceRetries(Refused):
    """A problem that may be transient blocks the push source; it is retried."""

    source: str
    remedy: str = ""

    def __str__(self) -> str:
        """Return the source, and the problem."""
        what = f"push source {self.source}" if self.source else "the dataset"
        return f"{what} is being retried: {self.text}"

    def advice(self) -> str:
        return self.remedy or "nothing was skipped; it continues automatically once the cause is fixed"


class SourceQueries(Refused):
    """The preprocess query of a push source over a batch is still running."""

    MESSAGE = "push source {source} is slow: {text}"

    source: str
    text: str = "its query over a batch has not ended yet"

    def advice(self) -> str:
        return f"after five minutes the source stops, so that it does not block others; {QUICKER}"


class SourceBuildsIndex(Refused):
    """The index for merging that the push source needs is being built from the dataset's slices."""

    ADVICE = (
        "do nothing: its messages are committed as soon as the index is complete; other sources do not wait"
    )

    source: str
    done: int
    """Number of slices that have been read."""
    total: int
    """Total number of slices; 0 until it is known."""
    text: str = "building the index for merging"

    def __str__(self) -> str:
        """Return the source, and the progress of building the index."""
        far = f"{self.done} of {self.total} slices" if self.total else "reading the chain"
        return f"push source {self.source} is {self.text}: {far}"


class RegistryUnavailable(Unavailable):
    """The schema registry of a source is unavailable. The source is paused, and no message is lost."""

    MESSAGE = "{what} gives no schema: {why}"
    ADVICE = (
        "nothing was skipped or rejected; it continues automatically once the registry answers; set "
        "another address or credentials with `odf source set DATASET KEY=VALUE` (schemaRegistry, "
        "schemaRegistryUser, schemaRegistryPassword, schemaRegistryCa)"
    )


class TopicReplaced(Conflict):
    """The push topic was deleted and created again, so it is not the one that was read before."""

    MESSAGE = (
        "its topic was replaced: {topic} has the id {actual}, but {expected} was read before; it was "
        "deleted and created again, or the dataset was fed on another node"
    )

    topic: str
    expected: str
    actual: str


class TopicGone(Conflict):
    """The push topic that was read before no longer exists."""

    MESSAGE = "its topic is gone: {topic} was deleted"

    topic: str


class NoTopic(NotFound):
    """The push source has no topic on this node yet."""

    dataset: str
    why: str = ""
    """The reason why it has none, if it reads external topics."""

    def advice(self) -> str:
        """Return the command that creates the topic."""
        return self.why or f"`odf pull {self.dataset}` creates it, if this node owns the dataset"


class RecordsExpired(Conflict):
    """Messages were deleted from the push topic before they were read."""

    MESSAGE = (
        "messages were lost: {topic} begins at offset {low} of partition {partition}, but {next} is "
        "next; they expired or were deleted"
    )

    topic: str
    partition: int
    next: int
    low: int


class PositionBeyondEnd(Conflict):
    """The push topic ends before the position up to which it was read."""

    MESSAGE = (
        "its topic ends too early: {topic} ends at offset {high} of partition {partition}, but {next} "
        "is next; it was truncated, or the dataset was fed on another node"
    )

    topic: str
    partition: int
    next: int
    high: int


class SourceGone(NotFound):
    """The dataset has no such push source."""

    @classmethod
    def for_source(cls, source: str) -> Self:
        """Return the error for a source's name."""
        return cls(what=f"push source {source}")


class AlreadyCommitted(Signal):
    """The chain already has the batch."""


class KeyReused(InvalidInput):
    """A file is pushed with an idempotency key that was used for another file."""

    ADVICE = "push it with a key other than {key!r}, or without one"

    text: str = "other content was committed with this idempotency key; nothing of this file was committed"
    key: str


class PositionChanged(Signal):
    """The chain has another position than the start of the batch; the source is read again from there."""

    source: str


class RecordRejected(InvalidInput):
    """A message cannot be read as a record of the source, whose settings say that it stops then."""

    topic: str
    partition: int
    offset: int
    why: str

    def __str__(self) -> str:
        """Return the location of the message, and the reason."""
        where = f"message {self.partition}/{self.offset} of topic {self.topic}"
        return f"{where} is not a record: {self.why}; the source stops there (badRecords=stop)"


class TooManyRejected(InvalidInput):
    """The share of bad messages in a batch is above the limit of the source."""

    MESSAGE = (
        "{rejected} of {count} {messages} are not records, more than maxRejectedShare={limit:g} allows; "
        "the first: {why}"
    )

    messages: str
    rejected: int
    count: int
    limit: float
    why: str


# The topic is not as the chain knows it; only a user can decide to accept it as it is.
OF_TOPIC: Final = frozenset(
    error.__name__ for error in (TopicReplaced, TopicGone, RecordsExpired, PositionBeyondEnd)
)


STORAGE_FAULTS: Final = frozenset(
    kind.__name__ for kind in (Damaged, CorruptName, CorruptRef, StorageUnavailable, LockHeld)
)


def is_storage_fault(error: Exception) -> TypeGuard[OdfError]:
    """Return whether an error of this service or the coordinator concerns a dataset's files, not its records."""
    if isinstance(error, Refused):
        return error.reason in STORAGE_FAULTS
    return isinstance(error, Damaged | StorageUnavailable)


def pauses_source(error: Exception) -> TypeGuard[OdfError]:
    """Return whether an error is not caused by the batch, so that its source is read again later."""
    is_ahead = (
        isinstance(error, Refused) and error.reason == TimeInFuture.__name__
    )  # the clock, of the coordinator's
    return is_ahead or is_storage_fault(error) or isinstance(error, RegistryUnavailable | ClockBehind)


class CannotRetry(Conflict):
    """A rejected message cannot be published again unchanged, or a rejected row still does not fit its source."""

    MESSAGE = "message {place} cannot be retried: {why}"

    place: str
    why: str
    is_row: bool = False

    def advice(self) -> str:
        if self.is_row:
            return (
                "change how the source reads with `odf commit DATASET FILE` and retry again, or correct the row where "
                f"it comes from, pull or push it again, and `odf rejected drop DATASET {self.place}`"
            )
        return (
            "push its record with `odf ingest DATASET FILE`, or have its producer publish it again, and `odf rejected "
            f"drop DATASET {self.place}`"
        )


class NoMessageToSkip(Refused):
    """No message blocks the source."""


class StillSearching(Refused):
    """The message to skip has not been found yet; the search continues."""


class SourceNotRead(Refused):
    """No instance of ingest reads the source at the moment."""


class SourceNotStopped(Refused):
    """The source is not stopped."""
