"""Rejected rows and messages of a polling source, to commit once: read from their dead letters as the source reads now.

The block that has them also has their numbers in its source state. A row that still does not fit stays open.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from odf_common.chain.state import DEFAULT_SOURCE, ChainState
from odf_common.dataset.rejects import Numbers
from odf_common.errors import InvalidInput
from odf_common.metadata.events import SetPollingSource
from odf_common.metadata.fetching import FetchStepMqtt
from odf_common.metadata.scalars import Timestamp
from odf_common.metadata.steps import ReadStep, ReadStepCsv, ReadStepJson, ReadStepNdJson
from odf_common.ports.bus import StoredLetter
from odf_ingest.commit.watermark import NewWatermark
from odf_ingest.errors import AlreadyCommitted, CannotRetry
from odf_ingest.poll.errors import NotPolled
from odf_ingest.poll.fetch import as_batch
from odf_ingest.poll.polled_batch import as_push_source, position_of
from odf_ingest.poll.position import PollPosition
from odf_ingest.prepare.bad_rows import TextRows
from odf_ingest.prepare.plan import Plan, plan_of
from odf_ingest.prepare.preparer import Prepared, Preparer
from odf_ingest.read import FileRecords


class RetriedRows:
    """Port `Batch` for dead letters of a polling source that have the same event time.

    It is committed even if it appends nothing, since a Ledger may have the rows; not if none fits.
    """

    source = DEFAULT_SOURCE

    def __init__(self, letters: Sequence[StoredLetter], preparer: Preparer) -> None:
        """Read `letters`, all of them whole, with `preparer`."""
        self._letters = letters
        self._preparer = preparer
        self._left: Sequence[StoredLetter] = letters
        self._unfit: Mapping[int, str] = {}
        self.may_be_empty = True

    @property
    def refusals(self) -> Sequence[CannotRetry]:
        """Return why rows still do not fit."""
        return [_refusal(one, self._unfit[one.offset]) for one in self._left if one.offset in self._unfit]

    @property
    def count(self) -> int:
        """Return how many rows this commits."""
        return len(self._left) - len(self._unfit)

    def position_in(self, state: ChainState) -> PollPosition:
        """Return what the chain says was read, rejected and retried."""
        return position_of(state, None)

    def check(self, position: PollPosition) -> None:
        """Raise `AlreadyCommitted` if no row is left: the chain has it, or was reset to before it was rejected."""
        self._left = [
            one
            for one in self._letters
            if one.offset < position.rejected and one.offset not in position.retried
        ]
        self._unfit = {}
        if not self._left:
            raise AlreadyCommitted

    def prepare(self, state: ChainState) -> Prepared:
        """Return the records of rows that fit; raises `NotPolled`."""
        defined = state.polling_source
        if defined is None:
            raise NotPolled(text="the dataset has no polling source")
        plan, event_ms = plan_of(state, as_push_source(defined)), self._left[0].event_ms
        if plan.takes_whole_batches:
            return self._refused(plan, "the source takes only whole files or messages")
        if event_ms is None:
            return self._refused(
                plan, "an earlier release rejected it, and did not keep its file's event time"
            )
        prepared = self._read(defined, plan, Timestamp.from_ms(event_ms))
        self._unfit = {self._left[one.offset].offset: one.reason for one in prepared.bad}
        self.may_be_empty = self.count > 0
        return replace(prepared, bad=())

    def _refused(self, plan: Plan, why: str) -> Prepared:
        self._unfit = {one.offset: why for one in self._left}
        self.may_be_empty = False
        return Prepared(source=plan.source, records=None, moment=Timestamp(0), greatest={})

    def _read(self, defined: SetPollingSource, plan: Plan, event_time: Timestamp) -> Prepared:
        values = [one.value for one in self._left]
        if isinstance(defined.fetch, FetchStepMqtt):
            return self._preparer.messages(plan, as_batch("dead letters", values, event_time))
        step = _in_utf8(plan.source.read)
        rows = TextRows(FileRecords(step=step, values=values, places=[""] * len(values)))
        return self._preparer.rows(plan, rows, event_time)

    def left_of(self, error: InvalidInput) -> Prepared:
        """Raise the error: no row fails alone."""
        raise error

    def advance(self, position: PollPosition, prepared: Prepared) -> tuple[PollPosition, NewWatermark]:
        """Return the position with the numbers of the rows; the watermark is the greatest event time of records."""
        numbers = Numbers.of(one.offset for one in self._left if one.offset not in self._unfit)
        return replace(position, retried=position.retried | numbers), None

    def before_proposal(self) -> None:
        """Do nothing: what may be committed was checked."""


def _in_utf8(step: ReadStep) -> ReadStep:
    """Return a step that reads rows as dead letters have them, decoded."""
    match step:
        case ReadStepCsv() | ReadStepJson() | ReadStepNdJson():
            return replace(step, encoding=None)
        case _:
            return step


def _refusal(letter: StoredLetter, why: str) -> CannotRetry:
    return CannotRetry(place=f"{letter.partition}/{letter.offset}", why=why, is_polled=True)
