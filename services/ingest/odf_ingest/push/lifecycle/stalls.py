"""Status of stalled sources: stopped, waiting or retrying, since when, what to do, and how many messages wait for them.

A source that is read reports its waiting messages with each batch; `WaitingReports` does it for a stopped one.
"""

import time
from collections.abc import Callable
from typing import Final

from odf_common.chain.state import ChainState
from odf_common.errors import Refused
from odf_common.identity.did import DatasetId
from odf_common.metadata.steps import MergeStrategy
from odf_ingest.commit.committer import position_of
from odf_ingest.errors import (
    SourceBuildsIndex,
    SourceQueries,
    SourceRetries,
    SourceStateUnreadable,
    SourceWaiting,
)
from odf_ingest.history.kept_index import BuildProgress
from odf_ingest.push.batches.batches_in_flight import Trouble
from odf_ingest.push.lifecycle.source_record import SourceRecord
from odf_ingest.push.lifecycle.start_position import messages_after
from odf_ingest.push.source_topics import Key, SourceTopic

REPORT_RETRIES_AFTER_SECONDS: Final = 2.0  # of retries, or of building an index, before they are reported
STALLED_AFTER_SECONDS: Final = 10.0  # after which a query or a commit counts as stalled

ReportWaiting = Callable[[Key, int], None]
BuildingOf = Callable[[DatasetId, MergeStrategy], BuildProgress | None]


def of_dataset(trouble: Trouble) -> Refused:
    """Return the reason why a dataset cannot be read."""
    return SourceRetries(
        source="",
        reason="DatasetUnreadable",
        text=trouble.why,
        remedy=trouble.advice
        or "Restore the dataset's folder, or delete the dataset; it is retried until then.",
    )


def of_source(record: SourceRecord, building_of: BuildingOf) -> Refused | None:
    """Return the reason why a source is stalled; None if it is not."""
    if record.stop is not None:
        return record.stop.why
    name, source = record.key[1], record.source
    if source is not None and source.is_waiting and source.wait is not None:
        return SourceWaiting(
            source=name, dataset=source.alias, reason="AwaitingCorrection", text=source.wait.why
        )
    trouble = record.trouble
    if trouble is not None and time.time() - trouble.since > REPORT_RETRIES_AFTER_SECONDS:
        return _retries(name, trouble.reason, trouble)
    if source is None:
        return None
    if _long(source.in_flight.querying_since) is not None:
        return SourceQueries(source=name)
    building = _building(record, building_of)
    if building is not None:
        return SourceBuildsIndex(source=name, done=building.done, total=building.total)
    since = _long(source.in_flight.committing_since)
    if since is not None:
        why = "the coordinator has not committed its batch"
        return _retries(name, "CommitWaits", source.in_flight.trouble or Trouble(since=since, why=why))
    return None


def since_of(record: SourceRecord, building_of: BuildingOf) -> float:
    """Return since when a source is stalled, or else in its phase (seconds since the epoch)."""
    if record.trouble is not None:
        return record.trouble.since
    building = _building(record, building_of)
    if building is not None:
        return building.since
    source = record.source
    if source is None:
        return record.since
    batches = source.in_flight
    return _long(batches.querying_since) or _long(batches.committing_since) or record.since


def _building(record: SourceRecord, building_of: BuildingOf) -> BuildProgress | None:
    """Return the progress of the source's index, if it takes long enough to be reported."""
    source = record.source
    building = None if source is None else building_of(source.dataset, source.plan.source.merge)
    if building is None or time.time() - building.since <= REPORT_RETRIES_AFTER_SECONDS:
        return None
    return building


def _long(since: float | None) -> float | None:
    """Return `since` if it is longer ago than `STALLED_AFTER_SECONDS`."""
    return since if since is not None and time.time() - since > STALLED_AFTER_SECONDS else None


def _retries(name: str, reason: str, trouble: Trouble) -> Refused:
    return SourceRetries(source=name, reason=reason, text=trouble.why, remedy=trouble.advice)


class WaitingReports:
    """Reports each inspection of a stopped source, and the next opening, which may be after those messages."""

    def __init__(self, report: ReportWaiting) -> None:
        """Call `report` with a source and the number of messages that wait for it."""
        self._report = report
        self._stopped: set[Key] = set()

    def report_stopped(self, key: Key, state: ChainState, topic: SourceTopic) -> None:
        """Report what waits for a stopped source, unless its topic cannot be described."""
        self._stopped.add(key)
        self._report_count(key, state, topic)

    def report_opened(self, key: Key, state: ChainState, topic: SourceTopic) -> None:
        """Report what waits for a source that was stopped before."""
        if key in self._stopped:
            self._stopped.discard(key)
            self._report_count(key, state, topic)

    def forget(self, key: Key) -> None:
        """Forget a source that is no longer assigned."""
        self._stopped.discard(key)

    def _report_count(self, key: Key, state: ChainState, topic: SourceTopic) -> None:
        try:
            position = position_of(state, topic.source)
        except SourceStateUnreadable:  # which is why the source is stopped
            return
        count = messages_after(position.topics.get(topic.name), topic)
        if count is not None:
            self._report(key, count)
