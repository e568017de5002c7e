"""Commits a pushed file: in one block, once per idempotency key.

Rows that cannot be read as records become dead letters, or the file is refused: the source's settings decide. A
snapshot with such a row is always refused, because without the row its current record would be retracted. A file
without any good row is refused too.

A push in flight can be canceled by its key. A second push of the same bytes to the same source joins it: a client that
timed out and retries may send another key, so only the content shows that its first push is still running.
"""

import hashlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYetError
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO, Final, Self

from odf_common.chain.state import ChainState
from odf_common.dataset.batch_keys import run_of
from odf_common.errors import InvalidInput, NotFound, Refused, StorageUnavailable
from odf_common.identity.dataset_refs import DatasetId
from odf_common.metadata.events import (
    AddPushSource,
    DatasetKind,
    ReadStep,
    ReadStepJson,
    ReadStepNdJson,
    ReadStepParquet,
)
from odf_common.metadata.scalars import Timestamp
from odf_common.ports.engine import QueryNotWanted
from odf_ingest.commit.committer import CommitQueues, Outcome, position_of
from odf_ingest.commit.position import SourcePosition
from odf_ingest.commit.rejects import (
    RejectedOfFile,
    RejectPolicy,
    RowLetters,
    rejects_rows,
    require_share,
    without_messages,
    without_rows,
)
from odf_ingest.commit.watermark import NewWatermark
from odf_ingest.errors import AlreadyCommitted, KeyReused, NothingCommitted, OperationsMismatched
from odf_ingest.message_columns import Envelope, MessageColumns
from odf_ingest.prepare.bad_rows import RefusedRows, RejectedRows, with_places
from odf_ingest.prepare.batch import BadRecord, FileBatch, MessageBatch, as_batch
from odf_ingest.prepare.debezium import unwrap_changes
from odf_ingest.prepare.plan import Plan, plan_of
from odf_ingest.prepare.preparer import PreparedRecords, Preparer
from odf_ingest.read import split_file
from odf_ingest.read.input_format import ARROW

CALLER_POLL_SECONDS: Final = 0.2  # seconds between checks whether a waiting caller is still connected
CHUNK_BYTES: Final = 1024 * 1024  # per comparison

CANCELLED: Final = "Cancelled"
IsWanted = Callable[[], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The parameters of a push; two pushes are identical if these and their bytes are equal.

    `event_time` is None if the client gave none.
    """

    dataset: DatasetId
    source: str
    event_time: Timestamp | None
    input_format: str = ""
    size: int


@dataclass(slots=True, kw_only=True, eq=False)
class _Caller:
    key: str
    is_there: Callable[[], bool]
    has_withdrawn: bool = False

    def wants_it(self) -> bool:
        return not self.has_withdrawn and self.is_there()


@dataclass(slots=True, kw_only=True, eq=False)
class _Push:
    target: Target
    content: BinaryIO  # kept open: the client may remove the file when it exits
    callers: list[_Caller]
    outcome: "Future[Outcome]" = field(default_factory=Future)

    def is_wanted(self) -> bool:
        return any(caller.wants_it() for caller in list(self.callers))


class PushesInFlight:
    """The pushes that are running in this process; thread-safe."""

    def __init__(self) -> None:
        self._pushes: list[_Push] = []
        self._lock = threading.Lock()

    def withdraw(self, key: str) -> bool:
        """Cancel the pushes with a key, and return whether there were any.

        A push that callers with other keys have joined continues for them.
        """
        with self._lock:
            callers = [caller for push in self._pushes for caller in push.callers if caller.key == key]
            for caller in callers:
                caller.has_withdrawn = True
            return bool(callers)

    def run(
        self,
        target: Target,
        file: Path,
        commit: Callable[[IsWanted], Outcome],
        *,
        key: str,
        is_there: Callable[[], bool],
        may_join: bool,
    ) -> Outcome:
        """Run `commit` and return its outcome. If an identical push is in flight, wait for that one instead.

        A joined push's outcome is marked as not new. `commit` receives a function that returns whether any caller still
        waits for the push. Raises the errors of `commit`.
        """
        caller = _Caller(key=key, is_there=is_there)
        with file.open("rb") as content:
            if may_join:
                same = self._join(target, content, caller)
                if same is not None:
                    return _await(same, caller)
            push = _Push(target=target, content=content, callers=[caller])
            with self._registering(push):
                try:
                    outcome = commit(push.is_wanted)
                except BaseException as error:
                    push.outcome.set_exception(error)
                    raise
                push.outcome.set_result(outcome)
                return outcome

    def _join(self, target: Target, content: BinaryIO, caller: _Caller) -> _Push | None:
        """Join an identical push in flight and return it; None if there is none."""
        with self._lock:
            candidates = [push for push in self._pushes if push.target == target]
        for push in candidates:
            # Outside of the lock: comparing large files is slow.
            if not _are_same(push.content, content):
                continue
            with self._lock:
                # It may have ended, or lost its last caller, during the comparison.
                if push in self._pushes and push.is_wanted():
                    push.callers.append(caller)
                    return push
        return None

    @contextmanager
    def _registering(self, push: _Push) -> Iterator[None]:
        with self._lock:
            self._pushes.append(push)
        try:
            yield
        finally:
            with self._lock:
                self._pushes.remove(push)


def cancellation() -> Refused:
    """Return the error for a push that was canceled before it was committed."""
    return Refused(reason=CANCELLED, text="cancelled; nothing was committed")


def _await(push: _Push, caller: _Caller) -> Outcome:
    while caller.wants_it():
        try:
            outcome = push.outcome.result(CALLER_POLL_SECONDS)
        except NotYetError:
            continue
        return Outcome(state=outcome.state, count=0, is_new=False)
    raise cancellation()


def _are_same(left: BinaryIO, right: BinaryIO) -> bool:
    """Return whether two open files have the same bytes; their read positions stay unchanged."""
    offset = 0
    try:
        while chunk := os.pread(left.fileno(), CHUNK_BYTES, offset):
            if chunk != os.pread(right.fileno(), CHUNK_BYTES, offset):
                return False
            offset += len(chunk)
    except (ValueError, OSError):  # the other push has ended in the meantime and closed its file
        return False
    return not os.pread(right.fileno(), 1, offset)


class FileOfChanges:
    """A file of change messages in envelopes, such as Debezium's. A bad message is left out, or the file is refused."""

    def __init__(
        self, preparer: Preparer, plan: Plan, batch: MessageBatch, places: Sequence[str], *, rejects: bool
    ) -> None:
        """Read the messages of `batch`.

        `places` has the location of each message in the file; `rejects` is whether bad messages may be left out.
        """
        self._preparer = preparer
        self._plan = plan
        self._batch = batch
        self._places = places
        self._rejects = rejects

    @classmethod
    def read_from(
        cls, preparer: Preparer, plan: Plan, file: FileBatch, messages: MessageColumns, *, rejects: bool
    ) -> Self | None:
        """Return the messages of a file; None if the source does not expect messages in envelopes.

        Raises `InvalidInput`.
        """
        step = plan.source.read
        has_changes = isinstance(step, ReadStepNdJson | ReadStepJson)
        if messages.envelope is Envelope.NONE or not has_changes:
            return None
        found = split_file(step, file.file.read_bytes())
        assert found is not None
        plan = replace(plan.with_settings(messages), source=replace(plan.source, read=as_lines(found.step)))
        columns = MessageColumns(envelope=messages.envelope)
        batch = replace(as_batch(file.label, found.values, file.event_time), columns=columns)
        return cls(preparer, plan, batch, found.places, rejects=rejects)

    @property
    def count(self) -> int:
        """Return the number of messages in the file."""
        return len(self._places)

    def read(self) -> PreparedRecords:
        """Return the records; raises `InvalidInput` with the location of the bad message if the file is refused."""
        return self._allow(self._read(self._batch))

    def without(self, prepared: PreparedRecords, faults: Mapping[int, str]) -> PreparedRecords:
        """Return the records without the messages that have records in `faults`.

        Raises `InvalidInput` with the location of a bad message if the file is refused.
        """
        column = self._plan.vocab.event_time_column
        return self._allow(without_messages(prepared, self._batch, faults, column, self._read))

    def _read(self, batch: MessageBatch) -> PreparedRecords:
        if not len(batch.parts[0].values):
            return unwrap_changes(self._preparer.messages, self._plan, replace(batch, parts=()))
        return unwrap_changes(self._preparer.messages, self._plan, batch)

    def _allow(self, prepared: PreparedRecords) -> PreparedRecords:
        if prepared.bad and (not self._rejects or len(prepared.bad) == self.count):
            first = prepared.bad[0]
            raise InvalidInput(where=self._places[first.offset], text=first.reason)
        # `greatest` per partition is for topics: a file is one batch, whose watermark is computed from all its records.
        return replace(prepared, bad=tuple(map(self._with_place, prepared.bad)), greatest={})

    def _with_place(self, bad: BadRecord) -> BadRecord:
        place = self._places[bad.offset]
        return replace(bad, reason=f"{place}: {bad.reason.removeprefix(f'{place}: ')}")


def as_lines(step: ReadStep) -> ReadStep:
    """Return the read step for single messages: each object of a Json array is read as one line of NdJson."""
    if not isinstance(step, ReadStepJson) or step.sub_path is not None:
        return step
    return ReadStepNdJson(
        ddl_schema=step.ddl_schema,
        schema=step.schema,
        date_format=step.date_format,
        timestamp_format=step.timestamp_format,
    )


Rows = RejectedRows | RefusedRows | FileOfChanges


class FileCommit:
    """Port `Batch` for one file.

    A file that appends no records is still committed if the client chose its key, to record the receipt: otherwise a
    late retry could undo a later push. It is also committed if rows were rejected, to record their number.
    """

    def __init__(
        self,
        source: str,
        batch: FileBatch,
        preparer: Preparer,
        rejecting: RejectPolicy,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        """Read the file with `preparer` on the first attempt, and again only if the source's definition has changed.

        The commit is canceled once `is_wanted` returns False.
        """
        self.source = source
        self._batch = batch
        self._preparer = preparer
        self._rejecting = rejecting
        self._is_wanted = is_wanted
        self._read: tuple[Plan, PreparedRecords] | None = None
        self._content = "" if batch.is_key_generated else digest_of(batch.file)
        self._is_proposed = False
        self._dataset: DatasetId | None = None
        self._letters = RowLetters(rejecting)
        self._rows: Rows | None = None

    @property
    def may_be_empty(self) -> bool:
        """Return whether the file is committed even if it appends no records."""
        return not self._batch.is_key_generated or (self._read is not None and bool(self._read[1].bad))

    def position_in(self, state: ChainState) -> SourcePosition:
        """Return the source's position in a state of the chain."""
        return position_of(state, self.source)

    def check(self, position: SourcePosition) -> None:
        """Raise `AlreadyCommitted` if the key is among the receipts, `KeyReused` if that receipt is for other bytes.

        Raises `Refused` if the push was canceled.
        """
        if position.has_receipt(self._batch.key):
            if position.contents.get(self._batch.key, self._content) != self._content:
                raise KeyReused(key=run_of(self._batch.key))
            raise AlreadyCommitted
        self._require_wanted()

    def prepare(self, state: ChainState) -> PreparedRecords:
        """Return the file's records. Raises `InvalidInput`, `TooManyRejected`; `Refused` if the push was canceled."""
        self._dataset = state.dataset_id
        source = chosen_source(state, self.source)
        plan = plan_of(state, replace(source, read=self._batch.format.step(source.read)))
        if self._read is None or self._read[0] != plan:
            try:
                self._read = plan, self._records(replace(plan, is_wanted=self._is_wanted))
            except QueryNotWanted as error:
                raise cancellation() from error
        self._require_wanted()
        return self._read[1]

    def _records(self, plan: Plan) -> PreparedRecords:
        assert self._dataset is not None
        settings = self._rejecting.settings(self._dataset, self.source)
        plan = plan.with_settings(settings.message_columns)
        step, file = plan.source.read, self._batch.file
        rejects = rejects_rows(settings.bad_records, plan.source.merge, is_polled=False)
        changes = FileOfChanges.read_from(
            self._preparer, plan, self._batch, settings.message_columns, rejects=rejects
        )
        if changes is not None:
            self._rows = changes
            return self._allow(changes.read(), changes)
        if not rejects:
            self._rows = RefusedRows(step, file.read_bytes)
            return self._preparer.file(plan, self._batch)
        self._rows = RejectedRows(step, file)
        return self._allow(self._preparer.file(plan, self._batch, self._rows), self._rows)

    def _allow(self, prepared: PreparedRecords, rows: Rows) -> PreparedRecords:
        """Return the records. Raises `TooManyRejected` if the share of bad rows is above the source's limit."""
        assert self._dataset is not None
        settings = self._rejecting.settings(self._dataset, self.source)
        require_share(settings, f"rows of {self._batch.label}", prepared.bad, rows.count)
        return prepared

    def reduce_after(self, error: InvalidInput) -> PreparedRecords:
        """Reject the rows whose operations do not fit the current records of their keys. Raise any other error."""
        assert self._read is not None
        plan, prepared = self._read
        if isinstance(error, OperationsMismatched):
            assert self._rows is not None
            if isinstance(self._rows, FileOfChanges):
                left = self._rows.without(prepared, error.faults)
            else:
                left = without_rows(prepared, error.faults, self._rows)
            left = self._allow(left, self._rows)
            self._read = plan, left
            return left
        raise with_places(error, plan.source, self._batch.file.read_bytes) from error

    def advance(
        self, position: SourcePosition, prepared: PreparedRecords
    ) -> tuple[SourcePosition, NewWatermark]:
        """Return the position with the file's receipt. Its bad rows are durable dead letters when the call returns."""
        self._require_wanted()
        assert self._dataset is not None
        rejected = RejectedOfFile(
            dataset=self._dataset,
            source=self.source,
            label=self._batch.label,
            event_time=self._batch.event_time,
            # Rows of a table are kept as Arrow data.
            input_format=ARROW
            if isinstance(prepared.source.read, ReadStepParquet)
            else self._batch.format.text,
            push=self._batch.key,
        )
        self._letters.write(rejected, prepared.bad, position.progress(self.source))
        after = position.with_rejected_rows(len(prepared.bad))
        return after.with_receipt(self._batch.key, self._content), None

    def before_proposal(self) -> None:
        """Raise `Refused` if no caller waits for the push any more."""
        self._require_wanted()
        self._is_proposed = True

    def commit(self, queues: CommitQueues, dataset: DatasetId) -> Outcome:
        """Commit the file; raises `NothingCommitted` if storage failed before the proposal."""
        try:
            outcome = queues.commit(dataset, self)
        except StorageUnavailable as error:
            if self._is_proposed:
                raise
            raise NothingCommitted.because(error) from error
        self._rejecting.announce(outcome.state, self.source, self._letters.rows)
        return replace(outcome, rejected=self._letters.rows)

    def _require_wanted(self) -> None:
        if not self._is_wanted():
            raise cancellation()


def digest_of(file: Path) -> str:
    """Return the BLAKE2b digest of a file, which shows whether two pushes with the same key have the same bytes."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, lambda: hashlib.blake2b(digest_size=8)).hexdigest()


def chosen_source(state: ChainState, name: str) -> AddPushSource:
    """Return the push source with this name, or the dataset's only push source if the name is empty.

    Raises `NotFound`, and `InvalidInput` for a derivative or if the name is empty and there is not exactly one source.
    """
    if state.kind is not DatasetKind.Root:
        raise InvalidInput(text="a derivative takes no pushed data")
    sources = state.push_sources
    if name:
        if name not in sources:
            raise NotFound(what=f"push source {name}")
        return sources[name]
    if not sources:
        raise InvalidInput(text="the dataset has no push source")
    if len(sources) > 1:
        names = ", ".join(sorted(sources))
        raise InvalidInput(
            text=f"the dataset has several push sources: {names}; name one (--source, ?sourceName=)"
        )
    return next(iter(sources.values()))
