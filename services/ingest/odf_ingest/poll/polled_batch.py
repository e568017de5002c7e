"""What was fetched, to commit: its records, and its place in the source's position."""

from dataclasses import replace

from odf_common.chain.state import DEFAULT_SOURCE, ChainState
from odf_common.errors import InvalidInput
from odf_common.metadata.events import AddPushSource, SetPollingSource
from odf_common.ports.engine import IsWanted, QueryNotWanted
from odf_ingest.commit.watermark import NewWatermark
from odf_ingest.errors import AlreadyCommitted
from odf_ingest.poll.errors import PollCancelled, SourceRedefined
from odf_ingest.poll.fetch import Fetched, FetchedMessages
from odf_ingest.poll.position import PollPosition, ReadFiles
from odf_ingest.prepare.batch import FileBatch
from odf_ingest.prepare.plan import Plan, plan_of
from odf_ingest.prepare.preparer import Prepared, Preparer


class PolledBatch:
    """Port `Batch` for what was fetched, committed even if it appends nothing: its state says that it was read."""

    source = DEFAULT_SOURCE
    may_be_empty = True

    def __init__(
        self,
        defined: SetPollingSource,
        fetched: Fetched | FetchedMessages,
        *,
        read_files: ReadFiles | None,
        preparer: Preparer,
        is_wanted: IsWanted,
    ) -> None:
        """`read_files` is for sources whose position is a set of files."""
        self._defined = defined
        self._fetched = fetched
        self._read_files = read_files
        self._preparer = preparer
        self._is_wanted = is_wanted
        self._read: tuple[Plan, Prepared] | None = None

    def position_in(self, state: ChainState) -> PollPosition:
        """Return what the chain says was read."""
        return position_of(state, self._read_files)

    def check(self, position: PollPosition) -> None:
        """Raise `AlreadyCommitted` if the content, or newer, is in the chain; see `is_read` of what was fetched."""
        if self._fetched.is_read(position):
            raise AlreadyCommitted
        self._require_wanted()

    def prepare(self, state: ChainState) -> Prepared:
        """Return the records; raises `InvalidInput` with the place, `SourceRedefined`."""
        if state.polling_source != self._defined:
            raise SourceRedefined
        plan = plan_of(state, as_push_source(self._defined))
        if self._read is None or self._read[0] != plan:
            try:
                self._read = plan, self._records(replace(plan, is_wanted=self._is_wanted))
            except QueryNotWanted as error:
                raise PollCancelled from error
        self._require_wanted()
        return self._read[1]

    def _records(self, plan: Plan) -> Prepared:
        match self._fetched:
            case Fetched(is_empty=True, event_time=event_time):
                return Prepared(source=plan.source, records=None, moment=event_time, greatest={})
            case Fetched(file=file, event_time=event_time):
                return self._preparer.file(plan, FileBatch(file=file, event_time=event_time, key=""))
            case FetchedMessages() as fetched:
                prepared = self._preparer.messages(plan, fetched.batch())
                for one in prepared.bad:
                    raise InvalidInput(where=fetched.places[one.offset], text=one.reason)
                return prepared

    def left_of(self, error: InvalidInput) -> Prepared:
        """Raise the error: what was fetched is committed as a whole or not at all."""
        raise error

    def advance(self, position: PollPosition, prepared: Prepared) -> tuple[PollPosition, NewWatermark]:
        """Return the position with what was fetched; the watermark is the greatest event time of its records."""
        del prepared
        return replace(position, last=self._fetched.state), None

    def before_proposal(self) -> None:
        """Raise `PollCancelled` if no caller wants the poll any more."""
        self._require_wanted()

    def _require_wanted(self) -> None:
        if not self._is_wanted():
            raise PollCancelled


def position_of(state: ChainState, read_files: ReadFiles | None) -> PollPosition:
    """Return what a chain says was read; `read_files` is for sources whose position is a set of files."""
    files = {} if read_files is None else read_files.at(state.head)
    return PollPosition(last=state.source_states.get(DEFAULT_SOURCE), files=files)


def as_push_source(defined: SetPollingSource) -> AddPushSource:
    """Return the push source that reads, preprocesses and merges in the same way."""
    return AddPushSource(
        source_name=DEFAULT_SOURCE, read=defined.read, preprocess=defined.preprocess, merge=defined.merge
    )
