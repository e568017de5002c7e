"""A batch of Kafka messages to commit: its position in the topic, and its bad messages."""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial

from odf_common.adapters.local.faults import waiting_helps
from odf_common.chain.state import ChainState
from odf_common.errors import InvalidInput, Unavailable
from odf_common.identity.dataset_refs import DatasetId
from odf_common.metadata.events import AddPushSource, ReadStepParquet
from odf_common.metadata.scalars import Timestamp
from odf_ingest.commit.committer import position_of
from odf_ingest.commit.position import SourcePosition, TopicPosition, key_of_message
from odf_ingest.commit.rejects import (
    RejectedOfFile,
    RejectPolicy,
    RowLetters,
    rejects_messages,
    require_share,
    without_messages,
)
from odf_ingest.commit.watermark import KEEP_WATERMARK, NewWatermark, greatest_counted
from odf_ingest.errors import (
    AlreadyCommitted,
    AwaitingCorrection,
    IncompleteCorrection,
    OperationsMismatched,
    PositionChanged,
    RegistryUnavailable,
    SourceGone,
    TopicReplaced,
)
from odf_ingest.prepare.bad_rows import with_places
from odf_ingest.prepare.batch import BadRecord, MessageBatch, TopicActivity
from odf_ingest.prepare.plan import Plan, plan_of
from odf_ingest.prepare.preparer import PreparedRecords
from odf_ingest.push.source_topics import Key, as_of
from odf_ingest.read.input_format import ARROW, SOURCE
from odf_ingest.source_settings import SourceSettings

Read = Callable[[Plan, MessageBatch], PreparedRecords]


class KafkaBatch:
    """Port `Batch` for messages of one topic."""

    may_be_empty = True

    def __init__(  # noqa: PLR0913 - all by name
        self,
        source: str,
        batch: MessageBatch,
        *,
        plan: Plan,
        reading: "Future[PreparedRecords]",
        read: Read,
        rejecting: RejectPolicy,
        definition: AddPushSource | None = None,
    ) -> None:
        """Use the records of `reading`, which reads the batch with `plan`.

        The batch is read again with `read` if `reading` failed transiently, or if the source has changed since.
        `definition` is that of a source which the chain does not define.
        """
        self.source = source
        self.batch = batch  # shortened if only its beginning can be committed
        self.whole_batch = batch
        self._state: ChainState | None = None
        self._left_out = 1
        self._plan = plan
        self._reading = reading
        self._read = read
        self._rejecting = rejecting
        self._definition = definition
        self._result: tuple[Plan, PreparedRecords] | None = None
        self._row_letters = RowLetters(rejecting)
        self._buried: set[tuple[int, int]] = set()
        self._dataset: DatasetId | None = None
        self.rejected: tuple[BadRecord, ...] = ()  # of the committed messages

    def meet(self, state: ChainState) -> None:
        """Remember the state of the chain that an attempt uses, for `chain`."""
        self._state = state

    def chain(self, key: Key) -> object:
        """Return the part of the chain's state, as of the last attempt, that may have caused a failure (`as_of`).

        None if no state could be read. The chain may have changed since: it may be reset before the failure is handled.
        """
        try:
            return None if self._state is None else as_of(self._state, key)
        except InvalidInput:
            return None

    def position_in(self, state: ChainState) -> SourcePosition:
        """Return the source's position in a state of the chain."""
        self.meet(state)
        return position_of(state, self.source)

    def check(self, position: SourcePosition) -> None:
        """Raise an error unless the batch starts at the chain's position.

        The error is `AlreadyCommitted`, `TopicReplaced` or `PositionChanged`.
        """
        batch = self.batch
        before = position.topics.get(batch.topic)
        if before is not None and before.topic_id != batch.topic_id:
            raise TopicReplaced(topic=batch.topic, expected=before.topic_id, actual=batch.topic_id)
        offsets = {} if before is None else before.next
        if all(offsets.get(number, -1) >= end for number, end in batch.end.items()):
            # Its proposal was committed, but the reply was lost, or another instance has read the same messages.
            raise AlreadyCommitted
        if any(
            offsets.get(number, batch.beginning[number]) != start for number, start in batch.start.items()
        ):
            raise PositionChanged(source=self.source)

    def prepare(self, state: ChainState) -> PreparedRecords:
        """Return the records of the batch, which is read again if the source has changed."""
        source = self._definition or state.push_sources.get(self.source)
        if source is None:
            raise SourceGone.for_source(self.source)
        self._dataset = state.dataset_id
        plan = plan_of(state, source, self.batch.columns)
        if self._result is None and plan == self._plan:
            self._result = plan, self._allow(plan, self._first_reading())
        elif self._result is None or self._result[0] != plan:
            if plan.needs_timestamps and not self._plan.needs_timestamps:
                # They were not kept, so the messages have to be polled again.
                raise PositionChanged(source=self.source)
            self._result = plan, self._allow(plan, self._read(plan, self.batch))
        return self._result[1]

    def reduce_after(self, error: InvalidInput) -> PreparedRecords:
        """Reject the message if it is a batch of its own, or the messages whose operations do not fit.

        If a correction is incomplete, shorten the batch to the messages before it. If there are none, raise
        `AwaitingCorrection` if the other half may still arrive, otherwise the error.
        """
        assert self._result is not None
        plan, prepared = self._result
        if plan.takes_whole_batches:
            value = self.batch.parts[0].values[0]
            error = with_places(error, plan.source, lambda: value or b"")
            left = self._allow(plan, self._as_bad(prepared, error))
        elif isinstance(error, OperationsMismatched):
            column = plan.vocab.event_time_column
            rest = without_messages(prepared, self.batch, error.faults, column, partial(self._read, plan))
            left = self._allow(plan, rest)
        elif isinstance(error, IncompleteCorrection):
            left = self._shorten(plan, prepared, error)
        else:
            raise error
        self._result = plan, left
        return left

    def _shorten(self, plan: Plan, prepared: PreparedRecords, error: IncompleteCorrection) -> PreparedRecords:
        if plan.source.preprocess is None:
            bad = {(row.partition, row.offset) for row in prepared.bad}
            shorter = self.batch.before(error.whole, bad)
        else:
            # The query's output rows cannot be traced to messages: drop 1, 2, 4, … messages from the end.
            shorter = self.batch.before(max(self.batch.count - self._left_out, 0), frozenset())
            self._left_out *= 2
        if shorter is not None:
            self.batch = shorter
            return self._read(plan, shorter)
        if error.may_come and self.whole_batch.may_grow:
            raise AwaitingCorrection(
                end=self.whole_batch.end, tries=self.whole_batch.tries, why=str(error)
            ) from error
        raise error

    def _as_bad(self, prepared: PreparedRecords, error: InvalidInput) -> PreparedRecords:
        (part,) = self.batch.parts
        bad = BadRecord(
            partition=part.partition, offset=part.offsets[0], value=part.values[0], reason=str(error)
        )
        return PreparedRecords(
            source=prepared.source, default_event_time=prepared.default_event_time, bad=(bad,)
        )

    def _allow(self, plan: Plan, prepared: PreparedRecords) -> PreparedRecords:
        """Shorten the batch to the messages before its first bad one if the source stops at bad messages."""
        assert self._dataset is not None
        prepared = self._with_allowed_rows(prepared)
        shorter = self._rejecting.committable(self._dataset, self.source, self.batch, prepared.bad)
        if shorter is self.batch:
            return prepared
        self.batch = shorter
        return self._read(plan, shorter)

    def _with_allowed_rows(self, prepared: PreparedRecords) -> PreparedRecords:
        """Return the records. If bad rows may not be left out, the message that has them is bad."""
        if not prepared.bad_rows:
            return prepared
        settings = self._settings()
        if self.batch.is_skipped or not rejects_messages(settings.bad_records):
            return self._as_bad(prepared, InvalidInput(text=prepared.bad_rows[0].reason))
        require_share(settings, f"rows of {self._label}", prepared.bad_rows, prepared.row_count)
        return prepared

    @property
    def _label(self) -> str:
        """Return the name of the batch's only message for reasons of rejected rows."""
        (part,) = self.batch.parts
        return f"message {part.partition}/{part.offsets[0]} of topic {self.batch.topic}"

    def _bury_rows(self, prepared: PreparedRecords, position: SourcePosition) -> None:
        """Write durable dead letters for the bad rows of the batch's only message."""
        if not prepared.bad_rows:
            return
        assert self._dataset is not None
        ((partition, end),) = self.batch.end.items()
        rows = RejectedOfFile(
            dataset=self._dataset,
            source=self.source,
            label=self._label,
            event_time=prepared.default_event_time,
            input_format=ARROW if isinstance(prepared.source.read, ReadStepParquet) else SOURCE,
            push=key_of_message(self.batch.topic, partition, end),
        )
        self._row_letters.write(rows, prepared.bad_rows, position.progress(self.source))

    def _bury(self, bad: Sequence[BadRecord], position: SourcePosition) -> None:
        """Write durable dead letters, except those that an earlier attempt has written."""
        assert self._dataset is not None
        fresh = [row for row in bad if (row.partition, row.offset) not in self._buried]
        self._rejecting.write_dead_letters(self._dataset, self.source, self.batch, fresh, position)
        self._buried |= {(row.partition, row.offset) for row in fresh}

    def _first_reading(self) -> PreparedRecords:
        try:
            with waiting_helps():  # what happened then may not happen again
                return self._reading.result()
        except RegistryUnavailable:
            raise
        except Unavailable:
            return self._read(self._plan, self.batch)

    def advance(
        self, position: SourcePosition, prepared: PreparedRecords
    ) -> tuple[SourcePosition, NewWatermark]:
        """Return the position after the batch, and its watermark.

        If the source reads several partitions, the watermark is the minimum of their greatest event times. Bad messages
        and rows are durable dead letters when the call returns.
        """
        batch = self.batch
        self._bury(prepared.bad, position)
        self._bury_rows(prepared, position)
        self.rejected = (*prepared.bad, *prepared.bad_rows)
        before = position.topics.get(batch.topic, TopicPosition(topic_id=batch.topic_id))
        greatest = dict(before.greatest)
        if batch.reads_several:
            for number, event_time in self._greatest_counted(prepared).items():
                greatest[number] = max(event_time, greatest.get(number, event_time))
        topic = TopicPosition(topic_id=batch.topic_id, next={**before.next, **batch.end}, greatest=greatest)
        after = position.with_topic(batch.topic, topic).with_rejected(len(prepared.bad))
        after = after.with_rejected_rows(len(prepared.bad_rows))
        return after, self._watermark_after(after) if batch.reads_several else None

    def _watermark_after(self, position: SourcePosition) -> NewWatermark:
        """Return the minimum of the greatest event times of all partitions that are not idle.

        The watermark does not change while a partition has unread messages and no event time: these may be older.
        """
        batch = self.batch
        own = TopicActivity(unread=batch.unread, quiet=batch.quiet)
        active: list[int] = []
        for name, activity in {**batch.others, batch.topic: own}.items():
            topic = position.topics.get(name)
            greatest = {} if topic is None else topic.greatest
            # `unread` is None for a topic that is not being read: it holds the watermark at its last event times, or
            # where it is if the chain has no event time of the topic.
            if not (bool(greatest) if activity.unread is None else activity.unread <= greatest.keys()):
                return KEEP_WATERMARK
            active += [
                event_time for number, event_time in greatest.items() if not self._is_quiet(number, activity)
            ]
        return min(active, default=None)

    def _greatest_counted(self, prepared: PreparedRecords) -> Mapping[int, int]:
        """Return per partition the greatest event time that may raise the watermark."""
        assert self._result is not None
        column = self._result[0].vocab.event_time_column
        return greatest_counted(prepared, column, self._settings(), Timestamp(time.time_ns()))

    def _settings(self) -> SourceSettings:
        assert self._dataset is not None
        return self._rejecting.settings(self._dataset, self.source)

    def _is_quiet(self, partition: int, activity: TopicActivity) -> bool:
        timeout = self._settings().idle_timeout
        return timeout.is_limited and activity.quiet.get(partition, 0) * 1000 >= timeout

    def before_proposal(self) -> None:
        """Do nothing: a batch of messages cannot be canceled."""
