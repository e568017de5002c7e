"""A fetched batch to commit: its records, and the source's position after it."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from odf_common.chain.state import DEFAULT_SOURCE, ChainState
from odf_common.dataset.open_rejects import POLLED, SourceProgress, source_progress
from odf_common.errors import InvalidInput
from odf_common.identity.dataset_refs import DatasetId
from odf_common.metadata.events import AddPushSource, SetPollingSource
from odf_common.metadata.fetching import FetchStepFilesGlob, FetchStepMqtt, FetchStepUrl
from odf_common.ports.engine import IsWanted, QueryNotWanted
from odf_ingest.commit.rejects import (
    RejectedOfFile,
    RejectPolicy,
    RowLetters,
    rejects_messages,
    rejects_rows,
    require_share,
    without_messages,
    without_rows,
)
from odf_ingest.commit.watermark import NewWatermark
from odf_ingest.errors import AlreadyCommitted, OperationsMismatched
from odf_ingest.merge.strategies import takes_whole_batches
from odf_ingest.poll.fetch import FetchedFile, FetchedMessages
from odf_ingest.poll.poll_errors import PollCancelled, SourceRedefined
from odf_ingest.poll.polled_position import PollPosition, ReadFiles, without_count
from odf_ingest.poll.polled_source import PolledSource
from odf_ingest.prepare.bad_rows import RefusedRows, RejectedRows, with_places
from odf_ingest.prepare.batch import BadRecord, FileBatch
from odf_ingest.prepare.plan import Plan, plan_of
from odf_ingest.prepare.preparer import PreparedRecords, Preparer
from odf_ingest.source_settings import BadRecords, SourceSettings


class PolledBatch:
    """Port `Batch` for a fetched file or messages.

    It is committed even if no records are appended, because the source state records that it was read.
    """

    may_be_empty = True

    def __init__(
        self,
        polled: PolledSource,
        fetched: FetchedFile | FetchedMessages,
        *,
        read_files: ReadFiles | None,
        preparer: Preparer,
        rejecting: RejectPolicy,
        is_wanted: IsWanted,
    ) -> None:
        """`read_files` is for sources whose position is a set of files."""
        self.source = polled.name
        self._rejecting = rejecting
        self._polled = polled
        self._fetched = fetched
        self._read_files = read_files
        self._preparer = preparer
        self._is_wanted = is_wanted
        self._read: tuple[Plan, PreparedRecords] | None = None
        self._dataset: DatasetId | None = None
        self._letters = RowLetters(rejecting)
        self._rows: RejectedRows | RefusedRows | None = None

    @property
    def rejected(self) -> Sequence[BadRecord]:
        """Return the fetched rows or messages that became dead letters."""
        return self._letters.rows

    def position_in(self, state: ChainState) -> PollPosition:
        """Return the source's position in a state of the chain."""
        return position_of(state, self._read_files, self.source)

    def check(self, position: PollPosition) -> None:
        """Raise `AlreadyCommitted` if the content, or newer, is in the chain; see `is_read` of what was fetched."""
        if self._fetched.is_read(position):
            raise AlreadyCommitted
        self._require_wanted()

    def prepare(self, state: ChainState) -> PreparedRecords:
        """Return the records; raises `InvalidInput` with the place, `SourceRedefined`."""
        if self._polled.is_in_chain and state.polling_source != self._polled.definition:
            raise SourceRedefined
        self._dataset = state.dataset_id
        plan = plan_of(state, as_push_source(self._polled.definition, self.source))
        if self._read is None or self._read[0] != plan:
            try:
                self._read = plan, self._records(replace(plan, is_wanted=self._is_wanted))
            except QueryNotWanted as error:
                raise PollCancelled from error
        self._require_wanted()
        return self._read[1]

    def _records(self, plan: Plan) -> PreparedRecords:
        plan = plan.with_settings(self._settings().message_columns)
        match self._fetched:
            case FetchedFile(is_empty=True, event_time=event_time):
                return PreparedRecords(source=plan.source, default_event_time=event_time)
            case FetchedFile(file=file, event_time=event_time):
                batch = FileBatch(
                    file=file, event_time=event_time, fills_event_times=self._gives_event_time(), key=""
                )
                if not self._rejects_bad():
                    self._rows = RefusedRows(plan.source.read, file.read_bytes)
                    return self._preparer.file(plan, batch)
                self._rows = RejectedRows(plan.source.read, file)
                prepared = self._preparer.file(plan, batch, self._rows)
                return self._admit(prepared, "rows", self._rows.count)
            case FetchedMessages() as fetched:
                return self._with_places(fetched, self._preparer.messages(plan, fetched.batch()))

    def _with_places(self, fetched: FetchedMessages, prepared: PreparedRecords) -> PreparedRecords:
        """Return messages with the places of bad ones in their reasons, or raise `InvalidInput` with the first.

        So are bad rows of a message that is a table.
        """
        bad = prepared.bad or prepared.bad_rows
        places = [fetched.places[0 if prepared.bad_rows else row.offset] for row in bad]
        if bad and not self._rejects_bad():
            raise InvalidInput(where=places[0], text=bad[0].reason)
        named = (
            replace(row, reason=f"{where}: {row.reason}") for row, where in zip(bad, places, strict=True)
        )
        what, count = ("rows", prepared.row_count) if prepared.bad_rows else ("messages", len(fetched.values))
        return self._admit(replace(prepared, bad=tuple(named), bad_rows=()), what, count)

    def _admit(self, prepared: PreparedRecords, what: str, count: int) -> PreparedRecords:
        """Raise `TooManyRejected` unless the source's settings allow what was rejected."""
        require_share(self._settings(), f"{what} of {self._fetched.label}", prepared.bad, count)
        return prepared

    def _gives_event_time(self) -> bool:
        fetch = self._polled.definition.fetch
        return isinstance(fetch, FetchStepUrl | FetchStepFilesGlob) and fetch.event_time is not None

    def _rejects_bad(self) -> bool:
        choice = self._settings().bad_records
        if isinstance(self._fetched, FetchedMessages):
            return rejects_messages(choice)
        return rejects_rows(choice, self._polled.definition.merge, is_polled=True)

    def _settings(self) -> SourceSettings:
        assert self._dataset is not None
        return self._rejecting.settings(self._dataset, self.source)

    def reduce_after(self, error: InvalidInput) -> PreparedRecords:
        """Reject what does not fit: one message that is an invalid batch of its own, or some records; or raise it."""
        assert self._read is not None
        plan, prepared = self._read
        fetched = self._fetched
        is_one = isinstance(fetched, FetchedMessages) and plan.takes_whole_batches
        if isinstance(error, OperationsMismatched) and not is_one:
            left = self._without(plan, prepared, error)
            self._read = plan, left
            return left
        if isinstance(fetched, FetchedFile):
            raise with_places(error, plan.source, fetched.file.read_bytes) from error
        if not is_one or prepared.records is None or not self._rejects_bad():
            raise error
        assert isinstance(fetched, FetchedMessages)
        reason = f"{fetched.places[0]}: {error}"
        bad = BadRecord(partition=0, offset=0, value=fetched.values[0], reason=reason)
        left = PreparedRecords(source=plan.source, default_event_time=prepared.default_event_time, bad=(bad,))
        self._read = plan, self._admit(left, "messages", 1)
        return left

    def _without(self, plan: Plan, prepared: PreparedRecords, error: OperationsMismatched) -> PreparedRecords:
        if isinstance(self._fetched, FetchedMessages):
            left = without_messages(
                prepared,
                self._fetched.batch(),
                error.faults,
                plan.vocab.event_time_column,
                partial(self._preparer.messages, plan),
            )
            return self._with_places(self._fetched, left)
        assert self._rows is not None
        left = without_rows(prepared, error.faults, self._rows)
        return self._admit(left, "rows", self._rows.count)

    def advance(self, position: PollPosition, prepared: PreparedRecords) -> tuple[PollPosition, NewWatermark]:
        """Return the position with what was fetched; the watermark is the greatest event time of its records.

        Bad records are durable dead letters on return.
        """
        assert self._dataset is not None
        file = RejectedOfFile(
            dataset=self._dataset,
            source=self.source,
            label=self._fetched.label,
            event_time=self._fetched.event_time,
        )
        self._letters.write(file, prepared.bad, position.progress(self.source))
        rejected = position.rejected + len(prepared.bad)
        return replace(position, last=self._fetched.state, rejected=rejected), None

    def before_proposal(self) -> None:
        """Raise `PollCancelled` if no caller wants the poll any more."""
        self._require_wanted()

    def _require_wanted(self) -> None:
        if not self._is_wanted():
            raise PollCancelled


def require_rejectable(state: ChainState, settings: SourceSettings) -> None:
    """Raise `InvalidInput` if bad rows of the polling source are to be left out, and cannot be."""
    source = state.polling_source
    if source is None or isinstance(source.fetch, FetchStepMqtt):
        return
    if settings.bad_records is BadRecords.DEAD_LETTER and takes_whole_batches(source.merge):
        text = "a snapshot without its bad rows would retract them: choose auto or stop"
        raise InvalidInput(where="badRecords", text=text)


def position_of(
    state: ChainState, read_files: ReadFiles | None, source: str = DEFAULT_SOURCE
) -> PollPosition:
    """Return the position in a chain; `read_files` is for sources whose position is a set of files."""
    files = {} if read_files is None else read_files.at(state.head)
    source_state = state.source_states.get(source)
    progress = (
        source_progress(source_state)
        if source_state is not None and source_state.kind == POLLED
        else SourceProgress()
    )
    return PollPosition(
        last=without_count(source_state), files=files, rejected=progress.rejected, retried=progress.retried
    )


def as_push_source(defined: SetPollingSource, name: str = DEFAULT_SOURCE) -> AddPushSource:
    """Return the push source that reads, preprocesses and merges in the same way."""
    return AddPushSource(
        source_name=name, read=defined.read, preprocess=defined.preprocess, merge=defined.merge
    )
