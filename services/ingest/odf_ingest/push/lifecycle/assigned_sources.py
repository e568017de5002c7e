"""The sources that this instance reads: those of datasets in its assigned partitions of the ingest command topic.

New sources are found by notifications and catalog scans. Datasets are inspected in the background; the sources are
changed on the reader's thread only. A source that fails does not block others: it is retried, and `stuck` reports it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, Protocol

import structlog

from odf_common.chain.state import ChainState
from odf_common.errors import NotFound, OdfError, Refused, Unavailable
from odf_common.identity.dataset_refs import DatasetId
from odf_common.ports.bus import TopicInfo
from odf_common.ports.store import Catalog, CatalogEntry
from odf_ingest import metrics
from odf_ingest.commit.committer import CommitQueues
from odf_ingest.errors import NoMessageToSkip, SourceStopped
from odf_ingest.prepare.batch import SkipSearch
from odf_ingest.push.batches.source import BATCH_BACKOFF, BatchLimits, PushSource, Trouble, Wait
from odf_ingest.push.lifecycle import start_position
from odf_ingest.push.lifecycle.inspector import Inspection, InspectionSchedule, Inspector
from odf_ingest.push.lifecycle.source_record import Event, Phase, SourceRecord, Span, Stop
from odf_ingest.push.lifecycle.start_position import (
    ReportWaiting,
    WaitingReports,
    has_moved,
    is_elsewhere,
    open_source,
)
from odf_ingest.push.source_topics import Key, SourceTopic, SourceTopics, as_of, existing

log = structlog.stdlib.get_logger(__name__)

SILENT_SECONDS: Final = 10.0  # with messages in the topic, after which an idle source is opened again
BUSY_RECHECK_SECONDS: Final = 0.5  # until a dataset with batches in flight is inspected again
PartitionOf = Callable[[DatasetId], int]


class SourceReader(Protocol):
    """The methods of the reader that `AssignedSources` needs."""

    def open(self, sources: Sequence[PushSource]) -> None:
        """Start reading these sources. If `Unavailable` is raised, none of them is read."""

    def close(self, source: PushSource) -> None:
        """Stop reading a source and drop its buffered messages."""

    def renew(self) -> None:
        """Continue reading all sources with a new client."""

    def request(self, action: Callable[[], None]) -> None:
        """Run the action on the reader's thread, between two polls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Dataset:
    """An assigned dataset: its catalog entry, the sources that have a record, and the reason if it cannot be read."""

    entry: CatalogEntry | None = None
    sources: frozenset[Key] = frozenset()
    trouble: Trouble | None = None


class AssignedSources:
    """Opens and closes the sources of assigned datasets.

    Only `record`, `reason` and `stuck` may be called by other threads than the reader's.
    """

    def __init__(  # noqa: PLR0913 - all by name
        self,
        *,
        reading: SourceReader,
        queues: CommitQueues,
        catalog: Catalog,
        topics: SourceTopics,
        limits: BatchLimits,
        partition_of: PartitionOf,
        pool: Executor,
        report_waiting: ReportWaiting = lambda _key, _count: None,
    ) -> None:
        """Begin without assigned datasets. Datasets are inspected on `pool`; `WaitingReports` call `report_waiting`."""
        self._reading = reading
        self._queues = queues
        self._limits = limits
        self._partition_of = partition_of
        self._waiting = WaitingReports(report_waiting)
        self._partitions: frozenset[int] = frozenset()
        self._records: dict[Key, SourceRecord] = {}
        self._datasets: dict[DatasetId, _Dataset] = {}
        self._unchecked: set[DatasetId] = set()  # changed, and not inspected since
        self._inspector = Inspector(
            catalog=catalog,
            current=queues.current,
            topics=topics,
            pool=pool,
            deliver=lambda inspections: reading.request(lambda: self.apply_inspections(inspections)),
        )
        self._schedule = InspectionSchedule(
            inspector=self._inspector,
            catalog=catalog,
            pool=pool,
            request=reading.request,
            is_owned=self.is_owned,
            snapshot=lambda: {dataset: owned.entry for dataset, owned in self._datasets.items()},
        )

    def is_owned(self, dataset: DatasetId) -> bool:
        """Return whether the sources of a dataset are assigned to this instance."""
        return self._partition_of(dataset) in self._partitions

    def own(self, partitions: frozenset[int]) -> None:
        """Read the sources of the datasets in these partitions of the ingest command topic, and no others."""
        self._partitions = partitions
        for dataset in [dataset for dataset in self._datasets if not self.is_owned(dataset)]:
            self._drop(dataset)
        self._schedule.start()

    def run_due_inspections(self) -> None:
        """Inspect the datasets that are due; each dataset is due periodically."""
        self._schedule.step()

    def inspect(self, dataset: DatasetId, alias: str | None = None) -> None:
        """Open, close or update the sources of a changed dataset, if it is assigned to this instance."""
        if self.is_owned(dataset):
            self._unchecked.add(dataset)
            self._inspector.ask((dataset,), alias)

    def remove(self, dataset: DatasetId) -> None:
        """Close the sources of a deleted dataset, and drop its commit queue."""
        self._drop(dataset)
        self._queues.forget(dataset)

    def reopen(self, source: PushSource, wait: Wait | None = None, search: SkipSearch | None = None) -> None:
        """Read a source again from the chain's position. With a `wait`, the next batch is longer.

        `search` replaces the source's search for a message to skip; by default that continues.
        """
        record = self._records.get(source.key)
        if record is None or record.source is not source:
            return
        source.log.info("reopening source", why=wait.why if wait else None)
        self._reading.close(source)
        self._records[source.key] = record.move(Event.REOPEN, wait=wait, search=search or source.search)
        self._inspector.ask((source.dataset,))

    def resume(self, key: Key, search: SkipSearch | None = None) -> None:
        """Reopen a stopped or waiting source. With a `search`, one message is skipped."""
        record = self._records.get(key)
        if record is not None and record.phase is Phase.WAITING and record.source is not None:
            self.reopen(record.source, search=search)
        elif record is not None and record.phase is Phase.STOPPED:
            log.info("source resumed", dataset=record.alias, dataset_id=str(record.key[0]), source=key[1])
            self._set(record.move(Event.RESUME, search=search))
            self._inspector.ask((key[0],))
        else:
            if record is not None and record.phase is Phase.RETRYING:
                self._inspector.ask((key[0],))
            if search is not None:  # two commands at once
                search.finish(NoMessageToSkip(text=f"push source {key[1]} has been resumed in the meantime"))

    def retry_later(self, source: PushSource, error: OdfError) -> None:
        """Close a source whose topic or dataset cannot be read, and retry it later."""
        record = self._records.get(source.key)
        if record is not None and record.source is source:
            self._reading.close(source)
            last = record.last_trouble
            if last is not None and last.is_recent:
                record = replace(record, trouble=last)  # although messages have arrived in the meantime
            self._fail(replace(record, search=source.search), error)

    def stop(self, source: PushSource, error: Exception, chain: object, batch: Span | None = None) -> None:
        """Stop a source whose batch cannot be committed. It continues once the chain differs from `chain`."""
        record = self._records.get(source.key)
        if record is not None and record.source is source:
            self._reading.close(source)
            self._stop(record, error, chain, batch)

    def apply_event(self, source: PushSource, event: Event) -> None:
        """Apply an event to a source that is being read."""
        record = self._records[source.key]
        after = self._records[source.key] = record.move(event)
        source.log.debug("source changed phase", change=str(event), phase=str(after.phase))

    def phase(self, key: Key) -> Phase:
        """Return the phase of a source."""
        record = self._records.get(key)
        return Phase.CLOSED if record is None else record.phase

    def readable(self, key: Key) -> None:
        """Record that a source's topic can be read; this ends a trouble with the topic."""
        record = self._records.get(key)
        if record is not None and record.trouble is not None and not record.trouble.lasts_until_commit:
            self._records[key] = replace(record, trouble=None)

    def end_trouble(self, key: Key) -> None:
        """Record that messages of a source were committed; this ends any trouble."""
        record = self._records.get(key)
        if record is not None and record.trouble is not None:
            self._records[key] = replace(record, trouble=None)

    def record(self, key: Key) -> SourceRecord | None:
        """Return the record of a source; None if the source is not assigned to this instance."""
        return self._records.get(key)

    def reason(self, key: Key) -> SourceStopped | None:
        """Return the reason why a source is stopped; None if it is not."""
        record = self._records.get(key)
        return None if record is None or record.stop is None else record.stop.why

    def stuck(self) -> Mapping[Key, Refused]:
        """Return the reason for each source that is stalled, and for each dataset that cannot be read.

        The key of a dataset has an empty source name.
        """
        refusals: dict[Key, Refused] = {}
        for dataset, assigned in list(self._datasets.items()):
            if assigned.trouble is not None:
                refusals[Key(dataset, "")] = start_position.stall_of_dataset(assigned.trouble)
        for key, record in list(self._records.items()):
            why = start_position.stall_of_source(record, self._queues.index_progress)
            if why is not None:
                refusals[key] = why
        return refusals

    def stuck_since(self, key: Key) -> int | None:
        """Return the time since which a source is stalled in ns since the epoch; None if unknown.

        A key with an empty source name means the dataset.
        """
        assigned, record = self._datasets.get(key[0]), self._records.get(key)
        if record is None:
            since = assigned.trouble.since if assigned is not None and assigned.trouble is not None else None
        else:
            since = start_position.since_of(record, self._queues.index_progress)
        return None if since is None else int(since * 1e9)

    def apply_inspections(self, inspections: Iterable[Inspection]) -> None:
        """Open, close or update sources after their datasets were inspected."""
        ready: list[PushSource] = []
        for inspection in inspections:
            try:
                ready += self._apply(inspection)
            except Exception as error:  # for example an invalid source state: only this dataset fails
                if not isinstance(error, OdfError):
                    log.exception(
                        "cannot read a dataset because of a bug", dataset_id=str(inspection.dataset)
                    )
                    error = Unavailable(
                        what=f"dataset {inspection.dataset}", why=f"a bug in the node: {error!r}"
                    )
                self._unreadable(
                    inspection.dataset, self._datasets.get(inspection.dataset, _Dataset()), error
                )
        if not ready:
            return
        try:
            self._reading.open(ready)
        except Unavailable as error:
            for source in ready:
                self._fail(self._records[source.key], error)
            return
        for source in ready:
            record = self._records[source.key]
            event = Event.OPENED if source.wait is None else Event.OPENED_SHORT
            self._records[source.key] = record.move(event, source=source)

    def _apply(self, inspection: Inspection) -> Iterable[PushSource]:
        """Update a dataset's records after an inspection, and yield the sources to open."""
        dataset = inspection.dataset
        if not self.is_owned(dataset):
            return
        assigned = self._datasets.get(dataset, _Dataset())
        if inspection.error is not None:
            self._unreadable(dataset, assigned, inspection.error)
            return
        if inspection.entry is None or inspection.state is None or not inspection.entry.push_topics:
            if dataset in self._datasets:
                self.remove(dataset)
            elif inspection.entry is None and dataset in self._unchecked:
                # Blocks are written before the name, which may follow at once.
                self._schedule.later(dataset, BATCH_BACKOFF.first)
            self._unchecked.discard(dataset)
            return
        topics = {topic.key(dataset): topic for topic in inspection.topics}
        for key in assigned.sources - topics.keys():
            self._close(key)
        self._datasets[dataset] = _Dataset(entry=inspection.entry, sources=frozenset(topics))
        was_unchecked = dataset in self._unchecked
        self._unchecked.discard(dataset)
        read = {topic.key(dataset) for topic in existing(inspection.topics)}
        for key, topic in sorted(topics.items()):
            source = self._source_to_reopen(
                inspection.entry, inspection.state, topic, is_changed=was_unchecked
            )
            source_now = source or self._records[key].source
            if source_now is not None:
                source_now.siblings = frozenset(other for other in read - {key} if other.source == key.source)
            if source is not None:
                yield source

    def _source_to_reopen(
        self,
        entry: CatalogEntry,
        state: ChainState,
        topic: SourceTopic,
        *,
        is_changed: bool,
    ) -> PushSource | None:
        """Return a source to open at the chain's position; None if nothing has to be done."""
        key, described = topic.key(entry.dataset_id), topic.described
        record = self._records.get(key) or SourceRecord(key=key, alias=entry.alias)
        self._records[key] = record = self._rename(record, entry.alias)
        source = record.source
        if source is not None:
            is_mended = source.in_flight.querying_since is not None and not source.is_as_defined(state)
            if not (source.is_idle or source.is_waiting or is_mended):
                # Batches in flight check the chain themselves; inspect again later for changes that they do not notice.
                if is_changed:
                    self._unchecked.add(key[0])
                    self._schedule.later(key[0], BUSY_RECHECK_SECONDS)
                return None
            if not self._has_moved(record, source, state, topic):
                if (
                    isinstance(described, TopicInfo)
                    and source.offsets.silence(described.high, is_idle=source.is_idle) > SILENT_SECONDS
                ):
                    self._renew(source)
                return None
            self._reading.close(source)
            record = record.move(Event.REOPEN, search=source.search)
        elif record.phase is Phase.STOPPED:
            if record.stop is not None and record.stop.chain == as_of(state, key):
                self._waiting.report_stopped(key, state, topic)
                return None
            record = record.move(Event.RESUME)
        elif record.phase is Phase.RETRYING:
            record = record.move(Event.RETRY)
        self._set(record)
        return self._open(record, entry, state, topic)

    def _open(
        self, record: SourceRecord, entry: CatalogEntry, state: ChainState, topic: SourceTopic
    ) -> PushSource | None:
        try:
            source = open_source(entry, state, topic, limits=self._limits, record=record)
            self._waiting.report_opened(record.key, state, topic)
            return source
        except (NotFound, Unavailable) as error:
            self._fail(record, error)
        except OdfError as error:
            self._stop(record, error, as_of(state, record.key))
        return None

    def _has_moved(
        self, record: SourceRecord, source: PushSource, state: ChainState, topic: SourceTopic
    ) -> bool:
        """Return whether the chain's position, the source or its topic differs from what is being read."""
        if has_moved(source, state, topic):
            return True
        if not is_elsewhere(source, state):
            return False
        if record.suspect == source.position:
            return True
        # The inspection may be older than the source's last commit: confirm it before reopening.
        self._records[source.key] = replace(record, suspect=dict(source.position))
        self._inspector.ask((source.dataset,))
        return False

    def _renew(self, source: PushSource) -> None:
        """Open a source again with a new client: a client may stop reading a partition whose topic was replaced."""
        why = "it has messages that Kafka's client does not deliver"
        with suppress(Unavailable):  # tried again if the source stays silent
            self._reading.renew()
        self.retry_later(source, Unavailable(what=f"topic {source.topic}", why=why))

    def _rename(self, record: SourceRecord, alias: str) -> SourceRecord:
        if record.alias == alias:
            return record
        metrics.forget(record.alias, record.key[1])
        if record.source is not None:
            record.source.alias = alias
        return replace(record, alias=alias)

    def _unreadable(self, dataset: DatasetId, assigned: _Dataset, error: OdfError) -> None:
        """Retry a dataset that cannot be read later; its open sources continue as long as they can."""
        trouble = Trouble.after_try(error, assigned.trouble)
        if trouble.tries == 1:
            log.error("cannot read dataset", dataset_id=str(dataset), why=trouble.why)
        self._datasets[dataset] = replace(assigned, trouble=trouble)
        self._schedule.later(dataset, trouble.delay)

    def _fail(self, record: SourceRecord, error: OdfError) -> None:
        trouble = Trouble.after_try(error, record.trouble)
        if trouble.tries == 1:
            log.warning(
                "source cannot be read yet",
                dataset=record.alias,
                dataset_id=str(record.key[0]),
                source=record.key[1],
                why=trouble.why,
            )
        self._records[record.key] = record.move(Event.FAIL, trouble=trouble)
        self._schedule.later(record.key[0], trouble.delay)

    def _stop(self, record: SourceRecord, error: Exception, chain: object, batch: Span | None = None) -> None:
        name = record.key[1]
        reason = getattr(error, "code", type(error).__name__)
        topic = record.key.topic
        why = SourceStopped(dataset=record.alias, source=name, reason=reason, text=str(error), topic=topic)
        if (search := record.ongoing_search) is not None:
            search.finish(why)
        self._set(record.move(Event.STOP, stop=Stop(why=why, chain=chain, batch=batch)))
        log.error(
            "source stopped",
            dataset=record.alias,
            dataset_id=str(record.key[0]),
            source=name,
            code=reason,
            why=why.text,
        )

    def _set(self, record: SourceRecord) -> None:
        """Store a record, and update the metric of topics at which the source is stopped."""
        self._records[record.key] = record
        dataset, source, _ = record.key
        phases = (
            self.phase(key) for key in self._datasets.get(dataset, _Dataset()).sources if key.source == source
        )
        metrics.STOPPED.labels(record.alias, source).set(sum(phase is Phase.STOPPED for phase in phases))

    def _drop(self, dataset: DatasetId) -> None:
        assigned = self._datasets.pop(dataset, _Dataset())
        self._schedule.forget(dataset)
        self._unchecked.discard(dataset)
        for key in assigned.sources:
            self._close(key)

    def _close(self, key: Key) -> None:
        self._waiting.forget(key)
        record = self._records.pop(key, None)
        if record is None:
            return
        if record.source is not None:
            self._reading.close(record.source)
        if (search := record.ongoing_search) is not None:
            search.finish(NoMessageToSkip(text=f"push source {key[1]} is no longer read on this instance"))
        record.move(Event.CLOSE)
        metrics.forget(record.alias, key[1])
