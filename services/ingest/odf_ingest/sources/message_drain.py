"""Commits the messages that a feed has when a run begins: in batches, each once, from the chain's position on."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import structlog

from odf_common.chain.state import ChainState
from odf_common.errors import Conflict, InvalidInput
from odf_common.identity.dataset_refs import DatasetId
from odf_common.metadata.events import AddPushSource, DatasetKind
from odf_ingest.commit.committer import CommitQueues, position_of
from odf_ingest.commit.rejects import RejectPolicy
from odf_ingest.errors import AwaitingCorrection, PositionChanged
from odf_ingest.message_columns import Envelope
from odf_ingest.poll.poll_errors import PollCancelled
from odf_ingest.prepare.batch import MessageBatch
from odf_ingest.prepare.debezium import unwrap_changes
from odf_ingest.prepare.message_values import require_possible
from odf_ingest.prepare.plan import Plan, plan_of
from odf_ingest.prepare.preparer import PreparedRecords, Preparer
from odf_ingest.push.batches.kafka_batch import KafkaBatch
from odf_ingest.push.batches.source import BatchLimits, PushSource
from odf_ingest.push.source_topics import Key
from odf_ingest.registry import Registries, decode_batch
from odf_ingest.source_settings import DEFAULTS, SourceSettings
from odf_ingest.sources.message_feeds import MessageFeed

log = structlog.stdlib.get_logger(__name__)

Report = Callable[[str], None]
IsWanted = Callable[[], bool]
MAX_RESTARTS: Final = 100  # from a position that another run has moved


class MessagesUncommitted(Conflict):
    """Another run of the same source keeps moving the position."""

    MESSAGE = "another run commits the messages of {source}"
    ADVICE = "they are committed by that run; run the flow again afterwards"

    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """The messages of a source to commit to a dataset."""

    dataset: DatasetId
    definition: AddPushSource
    settings: SourceSettings = DEFAULTS
    report: Report = lambda _: None
    is_wanted: IsWanted = lambda: True


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageDrain:
    """Commits messages of Source resources; thread-safe."""

    queues: CommitQueues
    preparer: Preparer
    rejecting: RejectPolicy
    registries: Registries
    slice_max_bytes: int

    def run(self, drain: Drain, feed: MessageFeed, others: Sequence[str] = ()) -> int:
        """Commit all messages up to the ends of a feed; return the number of records.

        `others` are the source's other topics, which hold back the watermark. Raises the error of the first batch that
        fails.
        """
        records = 0
        for _ in range(MAX_RESTARTS):
            try:
                for count in self._pass(drain, feed, others):
                    records += count
            except PositionChanged:
                continue
            except AwaitingCorrection as error:  # its other half may come with the next run
                log.info("a correction is incomplete", dataset_id=str(drain.dataset), why=error.why)
            return records
        raise MessagesUncommitted(source=drain.definition.source_name)

    def _pass(self, drain: Drain, feed: MessageFeed, others: Sequence[str]) -> Iterator[int]:
        """Commit from the chain's position; yield the number of records of each batch."""
        source = self._open(drain, feed, others)
        for chunk in feed.chunks(dict(source.position)):
            source.add(chunk)
            while source.ready:
                yield self._commit(drain, source.plan, source.ready.popleft())
        source.cut()
        while source.ready:
            yield self._commit(drain, source.plan, source.ready.popleft())

    def _open(self, drain: Drain, feed: MessageFeed, others: Sequence[str]) -> PushSource:
        state = self.queues.state(drain.dataset)
        _require_free(state, drain.definition)
        committed = position_of(state, drain.definition.source_name).topics.get(feed.topic)
        start = feed.start(committed)
        plan = plan_of(state, drain.definition, feed.columns)
        require_possible(feed.columns, plan)
        source = PushSource(
            dataset=drain.dataset,
            alias=self.rejecting.name_of(drain.dataset),
            plan=plan,
            topic=feed.topic,
            is_own=False,
            columns=feed.columns,
            topic_id=start.topic_id,
            positions=start.positions,
            beginning=start.beginning,
            limits=BatchLimits(size=self.slice_max_bytes, delay=0.0),
        )
        source.siblings = frozenset(Key(drain.dataset, source.name, other) for other in others)
        return source

    def _commit(self, drain: Drain, plan: Plan, batch: MessageBatch) -> int:
        if not drain.is_wanted():
            raise PollCancelled
        read = partial(self._read, drain)
        reading: Future[PreparedRecords] = Future()
        reading.set_result(read(plan, batch))
        source = drain.definition.source_name
        work = KafkaBatch(
            source,
            batch,
            plan=plan,
            reading=reading,
            read=read,
            rejecting=self.rejecting,
            definition=drain.definition,
        )
        outcome = self.queues.commit(drain.dataset, work, merge=drain.definition.merge)
        self.rejecting.announce(outcome.state, source, work.rejected)
        drain.report(f"{batch.count} messages, {outcome.count} records")
        if work.batch is not batch:
            raise PositionChanged(source=source)  # the rest is read again
        return outcome.count

    def _read(self, drain: Drain, plan: Plan, batch: MessageBatch) -> PreparedRecords:
        prepare = self.preparer.messages
        if batch.columns.envelope is Envelope.DEBEZIUM:
            prepare = partial(unwrap_changes, prepare)
        plan = replace(plan, is_wanted=drain.is_wanted)
        decoder = self.registries.decoder(drain.settings)
        return prepare(plan, batch) if decoder is None else decode_batch(decoder, plan, batch, prepare)


def _require_free(state: ChainState, definition: AddPushSource) -> None:
    """Raise `InvalidInput` for a dataset that takes no records, or has a source of the same name itself."""
    if state.kind is not DatasetKind.Root:
        raise InvalidInput(text="a derivative takes no pushed data")
    if definition.source_name in state.push_sources:
        text = f"the dataset has a push source {definition.source_name} itself; remove it, or the annotation"
        raise InvalidInput(where="headers.annotations.legacySourceName", text=text)
