"""Commits a batch: draft, propose, and retry if another commit came first.

Only the chain decides whether a batch is committed: by the position, or the receipt, in its source state, which
`Batch.check` reads. That makes ingestion exactly-once.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

import structlog

from odf_common.chain.state import ChainState
from odf_common.codec.envelopes import Body, body_of
from odf_common.codec.flatbuffers import encode_event
from odf_common.codec.times import time_message
from odf_common.dataset.open_rejects import KIND
from odf_common.dataset.state_cache import ChainStates
from odf_common.errors import InvalidInput, Refused
from odf_common.ports.bus import COORDINATOR_COMMANDS
from odf_common.proto.odf.bus.v1 import bus_pb2 as bus
from odf_common.service.request_reply import Replies
from odf_ingest.commit.position import Position, SourcePosition
from odf_ingest.commit.slice_writer import Draft, Drafter
from odf_ingest.commit.watermark import NONE_LATE, Lateness, NewWatermark
from odf_ingest.errors import AlreadyCommitted
from odf_ingest.history.dataset_history import DatasetHistory
from odf_ingest.merge import History, MergeResult
from odf_ingest.prepare.batch import BadRecord
from odf_ingest.prepare.preparer import PreparedRecords
from odf_ingest.source_settings import SourceSettings

log = structlog.stdlib.get_logger(__name__)

REPLY_TIMEOUT_SECONDS: Final = 5.0

Current = Callable[[], ChainState]
P = TypeVar("P", bound=Position)


class Batch(Protocol[P]):
    """A batch to commit to one source, whose position is a `P`."""

    @property
    def source(self) -> str:
        """Return the source's name."""

    @property
    def may_be_empty(self) -> bool:
        """Return whether it is committed even if it appends nothing, to record its position."""

    def position_in(self, state: ChainState) -> P:
        """Return the source's position in a state of the chain."""

    def check(self, position: P) -> None:
        """Raise `AlreadyCommitted`, or why the batch cannot be committed, unless it follows the position."""

    def prepare(self, state: ChainState) -> PreparedRecords:
        """Return the records, prepared for a state of the chain."""

    def reduce_after(self, error: InvalidInput) -> PreparedRecords:
        """Reduce a batch that cannot be merged as a whole, or raise the error.

        The result is smaller than before, and is the batch from then on.
        """

    def advance(self, position: P, prepared: PreparedRecords) -> tuple[P, NewWatermark]:
        """Return the position after the batch, and its watermark; write bad records to the dead letters durably."""

    def before_proposal(self) -> None:
        """Last chance to raise and leave the batch uncommitted: a proposal cannot be withdrawn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The state with the batch, the number of appended and of late records; `is_new`: this call committed it.

    `rejected`: rows of a pushed file that became dead letters.
    """

    state: ChainState
    count: int
    is_new: bool
    late: Lateness = NONE_LATE
    rejected: Sequence[BadRecord] = ()


class Proposals:
    """Sends proposals to the coordinator over the bus; replies are matched by correlation id."""

    def __init__(self, replies: Replies) -> None:
        self.replies = replies

    def propose(self, draft: Draft, wait: float = REPLY_TIMEOUT_SECONDS) -> Body | None:
        """Return `Committed`, `HeadMoved` or `Refused`; None without a reply in time. Raises `Unavailable`."""
        body = bus.Propose(
            expected_head=draft.before.head.raw,
            system_time=time_message(draft.system_time),
            events=[encode_event(event) for event in draft.events],
        )
        answer = self.replies.request(COORDINATOR_COMMANDS, draft.before.dataset_id, body, timeout=wait)
        return None if answer is None else body_of(answer)


class BatchCommitter:
    """Commits batches; one thread per dataset at a time."""

    def __init__(self, states: ChainStates, drafter: Drafter, proposals: Proposals) -> None:
        self._states = states
        self._drafter = drafter
        self._proposals = proposals

    def commit(self, current: Current, history: DatasetHistory, batch: Batch[P]) -> Outcome:
        """Commit the batch. Raises what `batch` raises, `Refused`, `Unavailable`, `NotFound`."""
        while True:
            state = current()
            position = batch.position_in(state)
            try:
                batch.check(position)
            except AlreadyCommitted:
                return Outcome(state=state, count=0, is_new=False)
            past = history.at(state)
            settings = self._drafter.settings(state, batch.source)
            prepared, merged = self._merge(state, batch, past, settings)
            if len(merged.records) == 0 and not batch.may_be_empty:
                return Outcome(state=state, count=0, is_new=False)
            advanced, watermark = batch.advance(position, prepared)
            draft = self._drafter.draft(
                state,
                merged,
                source=batch.source,
                position=advanced,
                watermark=watermark,
                settings=settings,
            )
            if not draft.events:
                return Outcome(state=state, count=0, is_new=False)
            batch.before_proposal()
            if self._is_committed(draft, current):
                if draft.slice is not None:
                    history.cache_slice(*draft.slice)
                return Outcome(state=draft.after, count=draft.count, is_new=True, late=draft.late)

    def _merge(
        self, state: ChainState, batch: Batch[P], past: History, settings: SourceSettings
    ) -> tuple[PreparedRecords, MergeResult]:
        """Return the mergeable part of the batch, and its merge result."""
        prepared = batch.prepare(state)
        while True:
            try:
                return prepared, self._drafter.merge_records(state, prepared, past, settings)
            except InvalidInput as error:
                prepared = batch.reduce_after(error)

    def _is_committed(self, draft: Draft, current: Current) -> bool:
        """Propose until there is a reply; return False if the batch has to be drafted again."""
        while True:
            log.debug(
                "proposing a block", dataset_id=str(draft.before.dataset_id), block=str(draft.after.head)
            )
            answer = self._proposals.propose(draft)
            log.debug(
                "proposal answered",
                dataset_id=str(draft.before.dataset_id),
                block=str(draft.after.head),
                answer=type(answer).__name__,
            )
            match answer:
                case bus.Committed():
                    # Another commit may have followed, whose state is not known here.
                    if answer.head == draft.after.head.raw:
                        self._states.remember(draft.after)
                    return True
                case bus.Refused():
                    raise Refused(reason=answer.code, text=answer.text)
                case None:
                    log.warning("no reply to a proposal", dataset_id=str(draft.before.dataset_id))
                    # Perhaps by this proposal: drafting again finds the position in the chain then, and ends.
                    if current().head != draft.before.head:
                        return False
                case _:
                    return False


def position_of(state: ChainState, source: str) -> SourcePosition:
    """Return a source's position in a state of the chain."""
    source_state = state.source_states.get(source)
    if source_state is None or source_state.kind != KIND:
        return SourcePosition()
    return SourcePosition.parse(source_state.value)
