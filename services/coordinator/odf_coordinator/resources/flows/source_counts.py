"""Records that wait at sources: counted each second for flows with a trigger of kind Source."""

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import structlog

from odf_common.errors import OdfError
from odf_common.metadata.events import DatasetKind
from odf_common.ports.clock import Clock
from odf_common.resources import specs
from odf_common.resources.scalar_formats import ResourceId
from odf_coordinator.resources.flow_checks import flow_spec
from odf_coordinator.resources.flows.flow_runs import FLOW_KEY
from odf_coordinator.resources.flows.flow_targets import MaySelect, all_flows
from odf_coordinator.resources.flows.instances import SourceRecords, WaitingRecords
from odf_coordinator.resources.lookups import account_of
from odf_coordinator.resources.store import Position, ResourceStore, Snapshot, StoredResource

log = structlog.stdlib.get_logger(__name__)

COUNT_INTERVAL_SECONDS: Final = 1.0
ROOT: Final = DatasetKind.Root.name
_POLLED: Final = (
    specs.IngressUrl,
    specs.IngressFilesGlob,
    specs.IngressContainer,
    specs.IngressMqtt,
    specs.IngressEvmLogs,
)
CountRecords = Callable[[bytes, Sequence[str]], Sequence[int]]
"""Takes the document of a Source, and ids of chains; returns the number of records that each lacks."""
NoteRecords = Callable[[Sequence[ResourceId], SourceRecords], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedSource:
    """A source that a flow waits for."""

    flow: ResourceId
    source: StoredResource
    targets: dict[ResourceId, str]
    """Ids of the chains of its targets."""


def is_polled(source: Mapping[str, Any]) -> bool:
    """Return whether a Source is polled, so that only a poll shows whether it has new data."""
    return "ingress" in source["spec"] and source["spec"]["ingress"]["kind"] in {
        kind.__name__.removeprefix("Ingress") for kind in _POLLED
    }


def targets_of(snapshot: Snapshot, flow: StoredResource) -> dict[ResourceId, str]:
    """Return the ids of the chains of a flow's targets that take records, by target."""
    keys = [ResourceId(key) for key in snapshot.notes(flow.id) if key != FLOW_KEY]
    found = snapshot.by_ids(keys)
    roots = {key: one for key, one in found.items() if one.document["spec"].get("kind") == ROOT}
    return {key: one.did for key, one in roots.items() if one.did}


def consumers_of(snapshot: Snapshot, source: str) -> list[str]:
    """Return the ids of all chains that flows feed from a source."""
    consumers = set()
    for flow in all_flows(snapshot):
        tasks = flow_spec(flow.document["spec"]).tasks
        if any(isinstance(task, specs.TaskIngest) and task.source.id == source for task in tasks):
            consumers |= {*targets_of(snapshot, flow).values()}
    return sorted(consumers)


class SourceCounter:
    """Counts the records that wait, and has flows look at them."""

    def __init__(
        self,
        store: ResourceStore,
        clock: Clock,
        count: CountRecords,
        note: NoteRecords,
        may_select: MaySelect,
    ) -> None:
        """Count with `count`, and report to `note`."""
        self._store, self._clock, self._count, self._note = store, clock, count, note
        self._may_select = may_select
        self._waiting: set[ResourceId] = set()
        self._flows: tuple[StoredResource, ...] = ()
        self._position: Position | None = None
        self._problem = ""

    def run(self, stop: threading.Event) -> None:
        """Count until stopped."""
        while not stop.wait(COUNT_INTERVAL_SECONDS):
            problem = ""
            try:
                self.work()
            except OdfError as error:
                problem = str(error)
            if problem and problem != self._problem:
                log.warning("records of sources cannot be counted now", why=problem)
            self._problem = problem

    def work(self) -> None:
        """Count once. The error of a source is raised after the others were counted."""
        with self._store.read() as snapshot:
            watched = [*self._list_sources(snapshot)]
        failed: OdfError | None = None
        for one in watched:
            try:
                self._count_one(one)
            except OdfError as error:
                failed = error
        if failed is not None:
            raise failed

    def _count_one(self, watched: WatchedSource) -> None:
        asked = self._clock.now()
        document = json.dumps(watched.source.document).encode()
        counts = self._count(document, [*watched.targets.values()])
        is_last = watched.source.deleted_ms is not None
        records = {
            (str(watched.source.id), str(target)): WaitingRecords(records=count, asked=asked, is_last=is_last)
            for target, count in zip(watched.targets, counts, strict=True)
        }
        if any(counts):
            self._waiting.add(watched.flow)
        elif watched.flow not in self._waiting:
            return
        else:
            self._waiting.discard(watched.flow)
        self._note([watched.flow], records)

    def _list_sources(self, snapshot: Snapshot) -> Iterator[WatchedSource]:
        position = snapshot.position()
        if position != self._position:
            self._flows = tuple(flow for flow in all_flows(snapshot) if [*_trigger_sources(flow)])
            self._position = position
        for flow in self._flows:
            targets = targets_of(snapshot, flow)
            for id_ in _trigger_sources(flow):
                source = snapshot.by_id(id_)
                is_usable = source is not None and self._may_select(account_of(flow), source)
                if source is not None and is_usable and targets and not is_polled(source.document):
                    yield WatchedSource(flow=flow.id, source=source, targets=targets)


def _trigger_sources(flow: StoredResource) -> Iterator[ResourceId]:
    for trigger in flow_spec(flow.document["spec"]).triggers:
        if isinstance(trigger, specs.FlowTriggerSource) and trigger.source.id:
            yield ResourceId(trigger.source.id)
