"""Retries rejected rows of files and rejected polled messages: commits each exactly once, from its dead letter.

They are read with the current definition and settings of the source. The block that has them also records their numbers
in its source state. A row that still does not fit stays open. A polled message that is a file is committed only if all
its rows fit, because it was rejected as a whole.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace

from odf_common.chain.state import ChainState
from odf_common.dataset.open_rejects import Numbers, rows_part
from odf_common.errors import InvalidInput
from odf_common.metadata.events import (
    ReadStep,
    ReadStepCsv,
    ReadStepEsriShapefile,
    ReadStepJson,
    ReadStepNdJson,
    ReadStepParquet,
    SetPollingSource,
)
from odf_common.metadata.fetching import FetchStepMqtt
from odf_common.metadata.scalars import Timestamp
from odf_common.ports.bus import StoredLetter
from odf_ingest.commit.committer import position_of
from odf_ingest.commit.file_commit import as_lines
from odf_ingest.commit.position import SourcePosition
from odf_ingest.commit.watermark import NewWatermark
from odf_ingest.errors import AlreadyCommitted, CannotRetry, OperationsMismatched, SourceGone
from odf_ingest.merge.strategies import takes_whole_batches
from odf_ingest.message_columns import Envelope
from odf_ingest.poll import polled_batch
from odf_ingest.poll.polled_position import PollPosition
from odf_ingest.prepare.bad_rows import TextRows
from odf_ingest.prepare.batch import as_batch
from odf_ingest.prepare.debezium import unwrap_changes
from odf_ingest.prepare.plan import Plan, plan_of
from odf_ingest.prepare.preparer import PreparedRecords, Preparer
from odf_ingest.read import FileRecords
from odf_ingest.read.arrow_ipc import STREAM, ReadArrowIpc
from odf_ingest.read.input_format import ARROW, InputFormat
from odf_ingest.source_settings import DEFAULTS, SourceSettings

RowPosition = PollPosition | SourcePosition


def batch_key(letter: StoredLetter, polled: SetPollingSource | None) -> Hashable:
    """Return the key of the batch that a letter belongs to. A message that is a file is a batch of its own."""
    file = letter.offset if _is_file_message(letter, polled) else None
    return letter.source, letter.event_ms, letter.input_format, file


def _is_file_message(letter: StoredLetter, polled: SetPollingSource | None) -> bool:
    """Return whether a letter has a complete message that is read as a file, not a single row."""
    return (
        polled is not None
        and isinstance(polled.fetch, FetchStepMqtt)
        and isinstance(polled.read, ReadStepParquet)
        and not letter.value.startswith(STREAM)
    )


class RetriedRows:
    """Port `Batch` for dead letters with the same `batch_key`.

    It is committed even if no records are appended, because a Ledger may have them already; but not if no row fits.
    """

    def __init__(
        self, letters: Sequence[StoredLetter], preparer: Preparer, settings: SourceSettings = DEFAULTS
    ) -> None:
        """Read `letters`, which have complete values, with `preparer` and the `settings` of their source."""
        self.source = letters[0].source
        self._letters = letters
        self._preparer = preparer
        self._settings = settings
        self._left: Sequence[StoredLetter] = letters
        self._unfit: Mapping[int, str] = {}
        self.may_be_empty = True

    @property
    def refusals(self) -> Sequence[CannotRetry]:
        """Return an error for each row that still does not fit."""
        return [
            _refusal(letter, self._unfit[letter.offset])
            for letter in self._left
            if letter.offset in self._unfit
        ]

    @property
    def count(self) -> int:
        """Return the number of rows that fit."""
        return len(self._left) - len(self._unfit)

    def position_in(self, state: ChainState) -> RowPosition:
        """Return the source's position in a state of the chain, with its rejected and retried rows."""
        if state.polling_source is not None:
            return polled_batch.position_of(state, None)
        return position_of(state, self.source)

    def check(self, position: RowPosition) -> None:
        """Drop the rows that the chain has, or that were rejected after a block it was reset to.

        Raises `AlreadyCommitted` if no row is left.
        """
        count = position.progress(self.source).ends.get(rows_part(self.source), 0)
        self._left = [
            letter
            for letter in self._letters
            if letter.offset < count and letter.offset not in position.retried
        ]
        self._unfit = {}
        if not self._left:
            raise AlreadyCommitted

    def prepare(self, state: ChainState) -> PreparedRecords:
        """Return the records of the rows that fit; raises `SourceGone`."""
        plan, event_ms = self._plan(state), self._left[0].event_ms
        plan = plan.with_settings(self._settings.message_columns)
        polled = state.polling_source
        is_of_table = isinstance(plan.source.read, ReadArrowIpc | ReadStepEsriShapefile)
        is_file = len(self._left) == 1 and _is_file_message(self._left[0], polled)
        has_rows = is_of_table or is_file or not plan.takes_whole_batches
        if takes_whole_batches(plan.source.merge) or not has_rows:
            return self._refuse_all(plan, "the source takes only whole files or messages")
        if event_ms is None:
            return self._refuse_all(
                plan, "an earlier release rejected it, and did not keep its file's event time"
            )
        lines = as_lines(plan.source.read)
        if self._settings.envelope is not Envelope.NONE and isinstance(lines, ReadStepNdJson):
            plan = replace(plan, source=replace(plan.source, read=lines))
            values = [letter.value for letter in self._left]
            batch = as_batch("dead letters", values, Timestamp.from_ms(event_ms))
            prepared = unwrap_changes(self._preparer.messages, plan, batch)
        elif polled is not None and isinstance(polled.fetch, FetchStepMqtt) and not is_of_table:
            values = [letter.value for letter in self._left]
            batch = as_batch("dead letters", values, Timestamp.from_ms(event_ms))
            prepared = _without_bad_rows(self._preparer.messages(plan, batch))
        else:
            prepared = self._preparer.rows(plan, self._rows(plan.source.read), Timestamp.from_ms(event_ms))
        self._unfit = {self._left[row.offset].offset: row.reason for row in prepared.bad}
        self.may_be_empty = self.count > 0
        self._prepared = replace(prepared, bad=())
        return self._prepared

    def _plan(self, state: ChainState) -> Plan:
        """Return the source's current plan, for rows of pushed files with the file's format; raises `SourceGone`."""
        if state.polling_source is not None:
            polled = polled_batch.as_push_source(state.polling_source)
            is_file = _is_file_message(self._left[0], state.polling_source)
            if isinstance(polled.read, ReadStepParquet) and not is_file:  # its rows are kept as Arrow data
                polled = replace(polled, read=InputFormat(name=ARROW).step(polled.read))
            return plan_of(state, polled)
        source = state.push_sources.get(self.source)
        if source is None:
            raise SourceGone.for_source(self.source)
        format_ = InputFormat.parse(self._left[0].input_format or "")
        return plan_of(state, replace(source, read=format_.step(source.read)))

    def _refuse_all(self, plan: Plan, why: str) -> PreparedRecords:
        self._unfit = {letter.offset: why for letter in self._left}
        self.may_be_empty = False
        return PreparedRecords(source=plan.source)

    def _rows(self, step: ReadStep) -> TextRows:
        values = [letter.value for letter in self._left]
        return TextRows(FileRecords(step=_in_utf8(step), values=values, places=[""] * len(values)))

    def reduce_after(self, error: InvalidInput) -> PreparedRecords:
        """Leave out the rows whose operations do not fit. Raise any other error, which is not that of single rows."""
        is_traced = self._prepared.source.preprocess is None and self._settings.envelope is Envelope.NONE
        if not isinstance(error, OperationsMismatched) or not is_traced:
            raise error
        assert self._prepared.records is not None
        kept = [letter for letter in self._left if letter.offset not in self._unfit]
        self._unfit = {**self._unfit, **{kept[row].offset: why for row, why in error.faults.items()}}
        self.may_be_empty = self.count > 0
        good = [row for row in range(len(kept)) if row not in error.faults]
        self._prepared = replace(self._prepared, records=self._prepared.records.take(good))
        return self._prepared

    def advance(self, position: RowPosition, prepared: PreparedRecords) -> tuple[RowPosition, NewWatermark]:
        """Return the position with the numbers of the committed rows.

        The watermark is computed from the records.
        """
        numbers = Numbers.from_numbers(
            letter.offset for letter in self._left if letter.offset not in self._unfit
        )
        return replace(position, retried=position.retried | numbers), None

    def before_proposal(self) -> None:
        """Do nothing: a retry cannot be canceled."""


def _without_bad_rows(prepared: PreparedRecords) -> PreparedRecords:
    """Return the records of a message that is a file; the message is bad if one of its rows is."""
    if not prepared.bad_rows:
        return prepared
    bad = replace(prepared.bad_rows[0], offset=0)
    return replace(prepared, records=None, bad=(bad,), bad_rows=(), greatest={}, rows={})


def _in_utf8(step: ReadStep) -> ReadStep:
    """Return the step for rows in UTF-8: dead letters have rows that were already decoded."""
    match step:
        case ReadStepCsv() | ReadStepJson() | ReadStepNdJson():
            return replace(step, encoding=None)
        case _:
            return step


def _refusal(letter: StoredLetter, why: str) -> CannotRetry:
    return CannotRetry(place=letter.location, why=why, is_row=True)
