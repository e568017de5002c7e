"""Which sources are read here: those of datasets whose partition of the ingest commands is this instance's.

New ones are noticed by notifications and by looking through the catalog; every change happens on the reader's thread.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

import structlog

from odf_common.errors import NotFound, OdfError, Refused, Unavailable
from odf_common.identity.did import DatasetId
from odf_common.metadata.chain_state import ChainState
from odf_common.metadata.events import AddPushSource
from odf_common.ports.bus import Topics
from odf_common.ports.store import Catalog, CatalogEntry
from odf_ingest import metrics
from odf_ingest.commit import position_of
from odf_ingest.errors import SourceStopped, SourceWaits
from odf_ingest.push.lanes import Lanes
from odf_ingest.push.opening import open_source
from odf_ingest.push.source import Limits, PushSource, Wait

log = structlog.stdlib.get_logger(__name__)

RESCAN: Final = 15.0  # seconds between two looks through the catalog
VERIFY: Final = 1.0  # seconds between two sources whose topic is looked at
AGAIN: Final = 0.2  # seconds before a dataset that is not complete yet is looked at again
Key = tuple[DatasetId, str]
PartitionOf = Callable[[DatasetId], int]


class Reading(Protocol):
    """The reader, as seen from here."""

    @property
    def sources(self) -> Mapping[Key, PushSource]:
        """Return what is being read."""

    def open(self, source: PushSource) -> None:
        """Begin to read a source."""

    def close(self, key: Key) -> None:
        """Read a source no longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stop:
    """Why a source stands still, and what the chain said then."""

    why: SourceStopped
    chain: object


class OwnedSources:
    """Opens and closes sources; used by the reader's thread, but for `reason` and `stuck`."""

    def __init__(
        self,
        *,
        reading: Reading,
        lanes: Lanes,
        catalog: Catalog,
        topics: Topics,
        limits: Limits,
        partition_of: PartitionOf,
    ) -> None:
        """Own nothing yet."""
        self._reading = reading
        self._lanes = lanes
        self._catalog = catalog
        self._topics = topics
        self._limits = limits
        self._partition_of = partition_of
        self._partitions: frozenset[int] = frozenset()
        self._stops: dict[Key, _Stop] = {}
        self._waits: dict[Key, Wait] = {}
        self._again: dict[DatasetId, float] = {}
        self._missing: set[Key] = set()
        self._scanned = 0.0
        self._verified = 0.0
        self._turn = 0

    def own(self, partitions: frozenset[int]) -> None:
        """Read what belongs to these partitions, and nothing else."""
        self._partitions = partitions
        for key in [key for key in self._reading.sources if self._partition_of(key[0]) not in partitions]:
            self._reading.close(key)
        self._scan()

    def look_again(self) -> None:
        """Look at datasets that were not complete, and now and then at all."""
        now = time.monotonic()
        for dataset in [dataset for dataset, at in self._again.items() if at <= now]:
            del self._again[dataset]
            self.look(dataset)
        if now - self._scanned > RESCAN:
            self._scan()
        if now - self._verified > VERIFY:
            self._verify_next(now)

    def verify(self, key: Key) -> None:
        """Read a source anew if its topic was deleted or made anew, which leads to a stop; else nothing happens."""
        source = self._reading.sources.get(key)
        if source is None:
            return
        try:
            is_same = self._topics.topic_id(source.topic) == source.topic_id
        except NotFound:
            is_same = False
        if not is_same:
            self.reopen(source)

    def look(self, dataset: DatasetId, alias: str | None = None) -> None:
        """Open, close or mend the sources of a dataset, if it is owned here."""
        if self._partition_of(dataset) not in self._partitions:
            return
        entry = self._catalog.by_alias(alias) if alias else None
        if entry is None or entry.dataset_id != dataset:
            entry = self._catalog.by_id(dataset)
        if entry is None:
            # Blocks come before the name: it may follow in a moment.
            if alias is not None:
                self.look_soon(dataset)
            return
        self._look_at(entry)

    def look_soon(self, dataset: DatasetId) -> None:
        """Look at a dataset again in a moment."""
        self._again[dataset] = time.monotonic() + AGAIN

    def removed(self, dataset: DatasetId) -> None:
        """Leave a dataset that has gone."""
        for key in [key for key in self._reading.sources if key[0] == dataset]:
            self._reading.close(key)
        for key in [key for key in self._stops if key[0] == dataset]:
            del self._stops[key]
        for key in [key for key in self._waits if key[0] == dataset]:
            del self._waits[key]
        self._lanes.forget(dataset)

    def reopen(self, source: PushSource, wait: Wait | None = None) -> None:
        """Read a source anew from where the chain stands; with a `wait`, into a longer batch."""
        key = (source.dataset, source.name)
        if self._reading.sources.get(key) is source:
            why = wait.why if wait else None
            log.info("source is read anew", dataset=source.alias, source=source.name, why=why)
            self._reading.close(key)
            if wait is not None:
                self._waits[key] = wait
            self.look(source.dataset)

    def stopped(self, key: Key, why: SourceStopped) -> None:
        """Keep in mind why a source stands still."""
        try:
            chain = _as_of(self._lanes.state(key[0]), key[1])
        except NotFound:
            return
        self._stops[key] = _Stop(why=why, chain=chain)
        entry = self._catalog.by_id(key[0])
        metrics.STOPPED.labels(str(key[0]) if entry is None else entry.alias, key[1]).set(1)
        log.error("source stopped", dataset=str(key[0]), source=key[1], reason=why.reason, why=why.text)

    def reason(self, dataset: DatasetId, source: str) -> SourceStopped | None:
        """Return why a source stands still, None if it does not."""
        stop = self._stops.get((dataset, source))
        return None if stop is None else stop.why

    def stuck(self) -> Mapping[Key, Refused]:
        """Return why sources stand still, or wait for what has not come."""
        waits = {
            key: SourceWaits(source=key[1], reason="HalfMissing", text=wait.why)
            for key, source in list(self._reading.sources.items())
            if source.is_waiting and (wait := source.wait) is not None
        }
        return waits | {key: stop.why for key, stop in list(self._stops.items())}

    def _verify_next(self, now: float) -> None:
        self._verified = now
        keys = list(self._reading.sources)
        if keys:
            self._turn = (self._turn + 1) % len(keys)
            self.verify(keys[self._turn])

    def _scan(self) -> None:
        self._scanned = time.monotonic()
        for entry in self._catalog.entries():
            if entry.push_topics and self._partition_of(entry.dataset_id) in self._partitions:
                self._look_at(entry)

    def _look_at(self, entry: CatalogEntry) -> None:
        dataset = entry.dataset_id
        try:
            state = self._lanes.state(dataset)
        except NotFound:
            self.removed(dataset)
            return
        except Unavailable:
            raise
        except OdfError as error:
            log.error("dataset cannot be read", dataset=entry.alias, why=str(error))  # noqa: TRY400 - no traceback is needed
            return
        for key in [key for key in self._reading.sources if key[0] == dataset]:
            if key[1] not in state.push_sources:
                self._reading.close(key)
        for source in state.push_sources.values():
            if source.source_name in entry.push_topics:
                self._mend(entry, state, source)
            else:
                self.look_soon(dataset)

    def _mend(self, entry: CatalogEntry, state: ChainState, source: AddPushSource) -> None:
        """See to it that a source is read from where the chain stands, unless it is stopped for a reason that lasts."""
        key = (entry.dataset_id, source.source_name)
        known = self._reading.sources.get(key)
        if known is not None and not (known.is_idle or known.is_waiting):
            # Where it stands is known when its work is done; a reset meanwhile must not be overlooked.
            self.look_soon(entry.dataset_id)
            return
        if known is not None and not _is_elsewhere(known, state):
            return
        stop = self._stops.get(key)
        if stop is not None and stop.chain == _as_of(state, source.source_name):
            return
        self._open(entry, state, source)

    def _open(self, entry: CatalogEntry, state: ChainState, source: AddPushSource) -> None:
        key = (entry.dataset_id, source.source_name)
        try:
            opened = open_source(
                self._topics, entry, state, source, limits=self._limits, wait=self._waits.get(key)
            )
        except Unavailable:
            raise
        except NotFound as error:
            if key not in self._missing:
                log.warning("no push topic yet", dataset=entry.alias, source=key[1], why=str(error))
            self._missing.add(key)
            self._again[entry.dataset_id] = time.monotonic() + 5 * AGAIN
        except OdfError as error:
            self._reading.close(key)
            self.stopped(key, SourceStopped(source=source.source_name, reason=error.code, text=str(error)))
        else:
            self._stops.pop(key, None)
            self._waits.pop(key, None)
            self._missing.discard(key)
            metrics.STOPPED.labels(entry.alias, source.source_name).set(0)
            self._reading.open(opened)


def _as_of(state: ChainState, source: str) -> object:
    return state.push_sources.get(source), state.source_states.get(source)


def _is_elsewhere(source: PushSource, state: ChainState) -> bool:
    """Tell whether an idle or waiting source is at another position than the chain: a reset, or another writer."""
    if source.plan.source != state.push_sources[source.name]:
        return True
    known = position_of(state, source.name).topics.get(source.topic)
    at = {} if known is None else known.next
    return any(at.get(number, source.beginning[number]) != next_ for number, next_ in source.position.items())
