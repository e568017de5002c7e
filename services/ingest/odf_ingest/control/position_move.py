"""A batch without records that moves a source's position in a topic to the one that a user has chosen."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from odf_common.chain.state import ChainState
from odf_common.dataset.resume_position import OFFSET, PARTITION_OFFSETS
from odf_common.errors import InvalidInput
from odf_common.ports.bus import TopicInfo
from odf_ingest.commit.committer import position_of
from odf_ingest.commit.file_commit import chosen_source
from odf_ingest.commit.position import SourcePosition, TopicPosition
from odf_ingest.commit.watermark import KEEP_WATERMARK, NewWatermark
from odf_ingest.errors import AlreadyCommitted
from odf_ingest.prepare.preparer import PreparedRecords


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionMove:
    """Port `Batch` for a position that the user has chosen in a topic. It has no records."""

    source: str
    topic: str
    now: TopicInfo | None
    """The topic's current description.

    None if the topic does not exist: then its position is removed, and a later topic of this name counts as new.
    """
    start: str
    may_be_empty: bool = True

    def position_in(self, state: ChainState) -> SourcePosition:
        """Return the source's position in a state of the chain."""
        return position_of(state, self.source)

    def check(self, position: SourcePosition) -> None:
        """Raise `AlreadyCommitted` if the source is at the chosen position already."""
        if self._move(position) == position:
            raise AlreadyCommitted

    def prepare(self, state: ChainState) -> PreparedRecords:
        """Return no records."""
        declared = chosen_source(state, self.source)
        return PreparedRecords(source=declared)

    def reduce_after(self, error: InvalidInput) -> PreparedRecords:
        """Raise the error."""
        raise error

    def advance(
        self, position: SourcePosition, prepared: PreparedRecords
    ) -> tuple[SourcePosition, NewWatermark]:
        """Return the chosen position. The watermark does not change."""
        return self._move(position), KEEP_WATERMARK

    def before_proposal(self) -> None:
        """Do nothing: a command cannot be canceled."""

    def _move(self, position: SourcePosition) -> SourcePosition:
        if self.now is None:
            return position.without_topic(self.topic)
        now = self.now
        before = position.topics.get(self.topic, TopicPosition(topic_id=now.topic_id))
        next_ = self._choose(before, now)
        for number, offset in next_.items():
            low, high = now.low[number], now.high[number]
            if not low <= offset <= high:
                text = f"partition {number} has offsets {low} to {high}, not {offset}"
                raise InvalidInput(where=f"topic {self.topic}", text=text)
        greatest = {number: event_time for number, event_time in before.greatest.items() if number in now.low}
        return position.with_topic(
            self.topic, TopicPosition(topic_id=now.topic_id, next=next_, greatest=greatest)
        )

    def _choose(self, before: TopicPosition, now: TopicInfo) -> dict[int, int]:
        match self.start:
            case "earliest":
                return dict(now.low)
            case "latest":
                return dict(now.high)
            case "keep":
                return {number: next_ for number, next_ in before.next.items() if number in now.low}
            case offset if re.fullmatch(OFFSET, offset) and len(now.low) == 1:
                return dict.fromkeys(now.low, int(offset))
            case offsets if re.fullmatch(PARTITION_OFFSETS, offsets):
                return self._of_each([offset.split(":") for offset in offsets.split(",")], now)
            case other:
                text = f"expected earliest, latest, keep or an offset, {_example(now)}, got {other!r}"
                raise InvalidInput(where="--from", text=text)

    def _of_each(self, pairs: Sequence[Sequence[str]], now: TopicInfo) -> dict[int, int]:
        chosen = {int(number): int(offset) for number, offset in pairs}
        if len(chosen) < len(pairs) or chosen.keys() != now.low.keys():
            text = f"give an offset for each partition of topic {self.topic}, {_example(now)}"
            raise InvalidInput(where="--from", text=text)
        return chosen


def _example(now: TopicInfo) -> str:
    """Return an example of how to write offsets of a topic."""
    numbers = sorted(now.low)
    return "such as " + ("1200" if len(numbers) == 1 else ",".join(f"{number}:1200" for number in numbers))
