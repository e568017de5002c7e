"""The interface of a fetch step: one function, a variant per module (spec: FetchStep).

`poll/poller.py` calls it, and commits what it yields.

A body that arrives in pieces, over any protocol: stored, hashed, limited; transient errors are retried.
"""

import hashlib
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from functools import singledispatch
from pathlib import Path
from typing import Final, TypeVar

from odf_common.adapters.networks import Networks
from odf_common.errors import OdfError
from odf_common.hashing.multihash import Multihash
from odf_common.identity.dataset_refs import DatasetId
from odf_common.metadata.events import SourceState
from odf_common.metadata.fetching import EventTimeSource, FetchStep
from odf_common.metadata.scalars import Timestamp
from odf_common.ports.clock import Backoff
from odf_ingest.poll.poll_errors import (
    FetchUnsupported,
    PollCancelled,
    PolledElsewhere,
    SourceUnreachable,
    TooLarge,
)
from odf_ingest.poll.polled_position import PollPosition
from odf_ingest.prepare.batch import MessageBatch, as_batch

GIB: Final = 1 << 30
CHUNK_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class MqttLimits:
    """Times (seconds) and sizes of polls of an MQTT broker."""

    quiet_seconds: float = 1.0
    """Without a message, after which a poll ends."""
    gap_seconds: float = 0.1
    """Without a message, after which a batch ends: brokers wait for confirmations."""
    poll_seconds: float = 30.0
    """After which a poll ends, although more may come."""
    answer_seconds: float = 10.0
    """In which a broker answers a PUBREC or a ping, or repeats what it has open."""
    messages: int = 10_000
    """The greatest size of a batch."""
    batch_bytes: int = 16 << 20
    waiting_bytes: int = 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a poll."""

    size: int = 4 * GIB
    """Bytes of one file, as fetched and after each prepare step."""
    networks: Networks = field(default_factory=Networks)
    """Addresses other than public ones that may be fetched from."""
    is_trusted: Callable[[DatasetId], bool] = lambda _: True
    """Returns whether a dataset's source may run commands, read files and use variables of this node."""
    secrets: Path | None = None
    """A folder that no source may read: the node's keys."""
    mqtt: MqttLimits = field(default_factory=MqttLimits)


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """The durable notes of this node on a dataset's source, next to the chain."""

    read: Callable[[], str | None]
    write: Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """The source reads one record per line, or more lines; `header_quote`: the first record of a file is its header."""

    header_quote: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The context of a fetch step; `folder` is for its files, and is removed after the poll."""

    dataset: DatasetId
    name: str
    """The dataset's, for people."""
    note: Note
    environ: Mapping[str, str]
    """The node's environment."""
    takes_whole_batches: bool
    """Whether each message is a whole batch."""
    folder: Path
    position: PollPosition
    """The position before."""
    last: SourceState | None
    """The validator of what was read last from this URL or image."""
    is_append: bool
    """Whether the merge strategy is Append, under which records that are read twice are doubled."""
    is_ledger: bool
    """Whether the merge strategy is Ledger, under which the first record of a key stays."""
    is_reread: bool
    """Whether a changed file of a glob is read again."""
    is_continued: bool
    """Whether new lines of a file of a glob are read, and no other change."""
    lines: Lines | None
    """None if records are not lines of the fetched file."""
    limits: Limits
    report: Callable[[str], None]
    """Takes a description of the current step, for people."""
    is_wanted: Callable[[], bool]
    event_time: Callable[[EventTimeSource | None, str, Timestamp | None], Timestamp]
    """Returns the event time of a source with this path and time of last modification."""

    def require_wanted(self) -> None:
        """Raise `PollCancelled` if no caller wants the poll any more."""
        if not self.is_wanted():
            raise PollCancelled


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedFile:
    """One file that is new: its content, and the state of the block that will have it."""

    label: str
    """Its place for people, without secrets."""
    file: Path
    event_time: Timestamp
    state: SourceState
    is_read: Callable[[PollPosition], bool]
    """Returns whether this content, or newer, is in the chain by now."""
    is_empty: bool = False
    """Whether there is a new state and no content, not even that of an empty file."""
    fault: OdfError | None = None
    """The reason why it is not read, although it is new; raised after the other files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedMessages:
    """Messages that are new, each one record, and the state of the block that will have them."""

    label: str
    """Their place for people, without secrets."""
    values: tuple[bytes, ...]
    places: tuple[str, ...]
    """Each message's place in errors."""
    event_time: Timestamp
    before: SourceState | None
    state: SourceState

    def is_read(self, position: PollPosition) -> bool:
        """Return whether these messages are in the chain; raises `PolledElsewhere` if others are since."""
        if position.last not in (self.before, self.state):
            raise PolledElsewhere
        return position.last == self.state

    def batch(self) -> MessageBatch:
        """Return the messages as a batch of one partition, with their indices as offsets."""
        return as_batch(self.label, self.values, self.event_time)


@singledispatch
def fetch(step: FetchStep, context: Context) -> Generator[FetchedFile | FetchedMessages]:
    """Iterate over what is new, in the order in which it is to be committed.

    Each is committed before the next one is requested. Raises the error of the source; `Unavailable` may be transient.
    """
    raise FetchUnsupported(step=type(step).__name__.removeprefix("FetchStep"))


T = TypeVar("T")
ATTEMPTS: Final = 3
FETCH_BACKOFF: Final = Backoff(first=0.5, most=4.0)
DOWNLOAD_SECONDS: Final = 6 * 3600.0  # for one body in total
SILENCE_SECONDS: Final = 60.0  # between two pieces
REPORT_SECONDS: Final = 0.5  # between progress reports
MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Validators:
    """The identifiers of a version of a server's content: `ETag` and `Last-Modified`, if it sends them."""

    etag: str | None = None
    modified: Timestamp | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Download:
    """A whole body, stored in the target."""

    validators: Validators
    digest: Multihash


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """A body that has not arrived: `label` stands for its place in messages."""

    label: str
    chunks: Iterable[bytes]
    total: int = 0
    """Bytes that the server announces; 0 if unknown."""

    def store(self, target: Path, context: Context) -> tuple[Multihash, int]:
        """Store the body; return its hash and size. Raises `TooLarge`, and `SourceUnreachable` if it takes too long."""
        limit = context.limits.size
        if self.total > limit:
            raise TooLarge(what=self.label, limit=limit)
        digest, size = hashlib.sha3_256(), 0
        begun = reported = time.monotonic()
        with target.open("wb") as file:
            for chunk in self.chunks:
                context.require_wanted()
                size += len(chunk)
                if size > limit:
                    raise TooLarge(what=self.label, limit=limit)
                digest.update(chunk)
                file.write(chunk)
                now = time.monotonic()
                if now - begun > DOWNLOAD_SECONDS:
                    raise SourceUnreachable(what=self.label, why=f"slower than {DOWNLOAD_SECONDS:.0f} s")
                if now - reported > REPORT_SECONDS:
                    reported = now
                    context.report(f"{self.label}: {_amount(size, self.total)}")
        return Multihash.sha3(digest.digest()), size


def with_retry(attempt: Callable[[], T], context: Context) -> T:
    """Return the result of `attempt`; retries it after `SourceUnreachable`, up to `ATTEMPTS` attempts in total."""
    for number in range(1, ATTEMPTS):
        try:
            return attempt()
        except SourceUnreachable:
            context.require_wanted()
            time.sleep(FETCH_BACKOFF.pause(number))
    return attempt()


def _amount(size: int, total: int) -> str:
    of = f" of {total / MIB:.1f}" if total else ""
    return f"{size / MIB:.1f}{of} MiB"
