"""The interface of a fetch step: one function, which each kind implements in its module (spec: FetchStep).

`poll/poller.py` calls the function, and commits the files and messages that it yields.

Also the download of a body over any protocol: it is stored, hashed and limited in size; transient errors are retried.
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
    """Limits of polls of an MQTT broker; times are in seconds."""

    quiet_seconds: float = 1.0
    """A poll ends after this time without a message."""
    gap_seconds: float = 0.1
    """A batch ends after this time without a message, because brokers wait for confirmations."""
    poll_seconds: float = 30.0
    """Maximum duration of a poll, even if more messages arrive."""
    answer_seconds: float = 10.0
    """Time within which a broker must answer a PUBREC or a ping, or repeat unconfirmed messages."""
    messages: int = 10_000
    """Maximum number of messages in a batch."""
    batch_bytes: int = 16 << 20
    waiting_bytes: int = 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a poll."""

    size: int = 4 * GIB
    """Maximum size in bytes of one file, as fetched and after each prepare step."""
    networks: Networks = field(default_factory=Networks)
    """The networks from which data may be fetched in addition to public addresses."""
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
    """The dataset's name, for messages."""
    note: Note
    environ: Mapping[str, str]
    """The node's environment."""
    takes_whole_batches: bool
    """Whether each message becomes one batch."""
    folder: Path
    position: PollPosition
    """The source's position in the chain before this poll."""
    last: SourceState | None
    """The source state with the validator of the content that was last read from this URL or image."""
    is_append: bool
    """Whether the merge strategy is Append, with which records that are read twice are appended twice."""
    is_ledger: bool
    """Whether the merge strategy is Ledger, which keeps the first record of each key."""
    is_reread: bool
    """Whether a changed file of a glob is read again."""
    is_continued: bool
    """Whether only new lines at the end of a changed file of a glob are read."""
    lines: Lines | None
    """None if records are not lines of the fetched file."""
    limits: Limits
    report: Callable[[str], None]
    """Takes a description of the current step, for people."""
    is_wanted: Callable[[], bool]
    event_time: Callable[[EventTimeSource | None, str, Timestamp | None], Timestamp]
    """Returns the event time of a source with this path and time of last modification."""

    def require_wanted(self) -> None:
        """Raise `PollCancelled` if no caller waits for the poll any more."""
        if not self.is_wanted():
            raise PollCancelled


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedFile:
    """A file with new content, and the source state of the block that will have it."""

    label: str
    """The location of the file for messages, without secrets."""
    file: Path
    event_time: Timestamp
    state: SourceState
    is_read: Callable[[PollPosition], bool]
    """Returns whether the chain at this position has this content, or newer content."""
    is_empty: bool = False
    """Whether there is only a new state, without any content; an empty file counts as content."""
    fault: OdfError | None = None
    """The error because of which the new file is not read; it is raised after the other files were committed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedMessages:
    """New messages, each with one record, and the source state of the block that will have them."""

    label: str
    """The location of the messages for display, without secrets."""
    values: tuple[bytes, ...]
    places: tuple[str, ...]
    """The location of each message in errors."""
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
    """Yield new files or messages, in the order in which they have to be committed.

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
    """The result of a download: the complete body is stored in the target file."""

    validators: Validators
    digest: Multihash


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """A body that can be downloaded; `label` is its location in messages."""

    label: str
    chunks: Iterable[bytes]
    total: int = 0
    """Size in bytes that the server has announced; 0 if it is unknown."""

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
