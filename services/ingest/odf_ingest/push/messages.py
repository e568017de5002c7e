"""A batch of messages as something to commit: where it belongs in the topic, and how its bad records leave."""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future

from odf_common.errors import InvalidInput, Unavailable
from odf_common.metadata.chain_state import ChainState
from odf_common.ports.bus import Bus, DeadLetter
from odf_ingest.batch import BadRecord, MessageBatch
from odf_ingest.errors import AlreadyCommitted, PositionMoved, SourceGone, TopicReplaced
from odf_ingest.position import SourcePosition, TopicPosition
from odf_ingest.prepare import Plan, Prepared, plan_of
from odf_ingest.slices import HELD, Reached

Read = Callable[[Plan, MessageBatch], Prepared]


class KafkaBatch:
    """Port `Batch` for messages of one topic; `reading` is the batch being read already, by `plan`."""

    may_be_empty = True

    def __init__(
        self,
        source: str,
        batch: MessageBatch,
        *,
        plan: Plan,
        reading: "Future[Prepared]",
        read: Read,
        bus: Bus,
    ) -> None:
        """Read anew with `read` if that has failed for a moment, or the source has changed meanwhile."""
        self.source = source
        self._batch = batch
        self._plan = plan
        self._reading = reading
        self._read = read
        self._bus = bus
        self._has_buried = False
        self._dataset = ""

    def check(self, position: SourcePosition) -> None:
        """Raise unless the chain stands where the batch begins."""
        batch = self._batch
        known = position.topics.get(batch.topic)
        if known is not None and known.topic_id != batch.topic_id:
            raise TopicReplaced(topic=batch.topic, expected=known.topic_id, actual=batch.topic_id)
        at = {} if known is None else known.next
        if all(at.get(number, -1) >= end for number, end in batch.end.items()):
            raise AlreadyCommitted
        if any(at.get(number, batch.beginning[number]) != start for number, start in batch.start.items()):
            raise PositionMoved(source=self.source)

    def prepare(self, state: ChainState) -> Prepared:
        """Return the records; bad ones are dead letters then, durably."""
        source = state.push_sources.get(self.source)
        if source is None:
            raise SourceGone(source=self.source)
        prepared = self._first_reading()
        plan = plan_of(state, source)
        if plan != self._plan:
            if plan.needs_timestamps and not self._plan.needs_timestamps:
                # They were not kept: the messages have to be taken again.
                raise PositionMoved(source=self.source)
            prepared = self._read(plan, self._batch)
        self._dataset = str(state.dataset_id)
        self._bury(prepared.bad)
        return prepared

    def without_records(self, error: InvalidInput) -> Prepared:
        """Return nothing for a message that is a batch which contradicts itself: it is a dead letter then."""
        prepared = self._first_reading()
        if not self._plan.takes_whole_batches:
            raise error
        (part,) = self._batch.parts
        bad = BadRecord(
            partition=part.partition, offset=part.offsets[0], value=part.values[0], reason=str(error)
        )
        self._bury((bad,))
        return Prepared(source=prepared.source, records=None, moment=prepared.moment, greatest={})

    def _bury(self, bad: Sequence[BadRecord]) -> None:
        if bad and not self._has_buried:
            bury(self._bus, self._batch.topic, bad, source=self.source, dataset=self._dataset)
            self._has_buried = True

    def _first_reading(self) -> Prepared:
        try:
            return self._reading.result()
        except Unavailable:
            return self._read(self._plan, self._batch)

    def advance(self, position: SourcePosition, prepared: Prepared) -> tuple[SourcePosition, Reached]:
        """Return the position behind the last message, and for several partitions the least of their greatest times.

        A partition that has records nobody has looked at yet holds the watermark: they may be older than all others.
        """
        batch = self._batch
        known = position.topics.get(batch.topic, TopicPosition(topic_id=batch.topic_id))
        greatest = dict(known.greatest)
        if batch.partitions > 1:
            for number, moment in prepared.greatest.items():
                greatest[number] = max(moment, greatest.get(number, moment))
        topic = TopicPosition(topic_id=batch.topic_id, next={**known.next, **batch.end}, greatest=greatest)
        is_held = batch.partitions > 1 and not batch.unread <= greatest.keys()
        reached: Reached = HELD if is_held else min(greatest.values(), default=None)
        return position.with_topic(batch.topic, topic), reached


def bury(bus: Bus, topic: str, bad: Iterable[BadRecord], *, source: str, dataset: str) -> None:
    """Write dead letters; they are durable when this returns. Raises `Unavailable`."""
    for number, record in enumerate(bad, start=1):
        bus.send_dead_letter(
            DeadLetter(
                topic=topic,
                partition=record.partition,
                offset=record.offset,
                reason=record.reason,
                key=dataset.encode(),
                value=record.value or b"",
                facts={"dataset": dataset, "source": source},
            )
        )
        if number % 1000 == 0:
            bus.flush()
    bus.flush()
