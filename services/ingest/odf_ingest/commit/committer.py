"""Committing a batch: draft, propose, and again when another commit was first.

Whether a batch is in the chain, the chain alone says: by the position, or the receipt, in its source state.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import structlog

from odf_common.chain.state import ChainState
from odf_common.dataset.state_cache import ChainStates
from odf_common.errors import InvalidInput, Refused
from odf_common.proto.odf.bus.v1 import bus_pb2 as bus
from odf_ingest.commit.position import KIND, SourcePosition
from odf_ingest.commit.propose import Proposals
from odf_ingest.commit.slice_writer import Draft, Drafter, Reached
from odf_ingest.errors import AlreadyCommitted
from odf_ingest.history.history import DatasetHistory
from odf_ingest.merge import History, Merged
from odf_ingest.prepare.preparer import Prepared
from odf_ingest.source_settings import SourceSettings

log = structlog.stdlib.get_logger(__name__)

Current = Callable[[], ChainState]


class Batch(Protocol):
    """What is to be committed to one source."""

    @property
    def source(self) -> str:
        """Return the source's name."""

    @property
    def may_be_empty(self) -> bool:
        """Tell whether it is committed for its position's sake when it appends nothing."""

    def check(self, position: SourcePosition) -> None:
        """Return if the batch follows on a position; raises `AlreadyCommitted`, or why it cannot be committed."""

    def prepare(self, state: ChainState) -> Prepared:
        """Return the records as a state of the chain wants them."""

    def left_of(self, error: InvalidInput) -> Prepared:
        """Return what is left of the batch, which cannot be merged as a whole, or raise the error.

        What is left is less than there was, and the batch from then on.
        """

    def advance(self, position: SourcePosition, prepared: Prepared) -> tuple[SourcePosition, Reached]:
        """Return the position behind the batch, and the watermark there; bad records are put aside, durably."""

    def before_proposal(self) -> None:
        """Raise to leave the batch uncommitted: after this it cannot be taken back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The state that holds the batch, and how many records it appended; `is_new` unless nothing was to be done."""

    state: ChainState
    count: int
    is_new: bool


class BatchCommitter:
    """Commits batches; each dataset's by one thread at a time."""

    def __init__(self, states: ChainStates, drafter: Drafter, proposals: Proposals) -> None:
        """Use these parts."""
        self._states = states
        self._drafter = drafter
        self._proposals = proposals

    def commit(self, current: Current, history: DatasetHistory, batch: Batch) -> Outcome:
        """Return when the batch is in the chain. Raises what `batch` raises, `Refused`, `Unavailable`, `NotFound`."""
        while True:
            state = current()
            position = position_of(state, batch.source)
            try:
                batch.check(position)
            except AlreadyCommitted:
                return Outcome(state=state, count=0, is_new=False)
            past = history.at(state)
            settings = self._drafter.settings(state, batch.source)
            prepared, merged = self._merged(state, batch, past, settings)
            if len(merged.records) == 0 and not batch.may_be_empty:
                return Outcome(state=state, count=0, is_new=False)
            advanced, watermark = batch.advance(position, prepared)
            draft = self._drafter.draft(
                state, merged, source=batch.source, position=advanced, watermark=watermark
            )
            batch.before_proposal()
            if self._is_committed(draft, current):
                if draft.slice is not None:
                    history.written(*draft.slice)
                return Outcome(state=draft.after, count=draft.count, is_new=True)

    def _merged(
        self, state: ChainState, batch: Batch, past: History, settings: SourceSettings
    ) -> tuple[Prepared, Merged]:
        """Return what of the batch can be merged, and that merged."""
        prepared = batch.prepare(state)
        while True:
            try:
                return prepared, self._drafter.merged(state, prepared, past, settings)
            except InvalidInput as error:
                prepared = batch.left_of(error)

    def _is_committed(self, draft: Draft, current: Current) -> bool:
        """Propose until there is an answer; False when the batch has to be drafted again."""
        while True:
            answer = self._proposals.propose(draft)
            match answer:
                case bus.Committed():
                    if answer.head == draft.after.head.raw:
                        self._states.remember(draft.after)
                    return True
                case bus.Refused():
                    raise Refused(reason=answer.code, text=answer.text)
                case None:
                    log.warning("no answer to a proposal", dataset=str(draft.before.dataset_id))
                    if current().head != draft.before.head:
                        return False
                case _:
                    return False


def position_of(state: ChainState, source: str) -> SourcePosition:
    """Return how far the source was read as of a state of the chain."""
    known = state.source_states.get(source)
    if known is None or known.kind != KIND:
        return SourcePosition()
    return SourcePosition.parse(known.value)
