"""Events of the node for flows: commits, and changes of resources, each reported once also after a restart.

While flows wait for events, the store keeps the last head that was seen of each dataset, and the position up to which
changes of resources were read. A pass reads what is new and saves both in the transaction in which the flows take note.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from odf_common.metadata.scalars import Timestamp
from odf_common.resources.node_events import EventDataset, EventType, NodeEvent, RefUpdate
from odf_common.resources.registry import DATASET, FLOW, TASK
from odf_common.resources.scalar_formats import ResourceId, TypeUri
from odf_coordinator.resources import documents
from odf_coordinator.resources.documents import type_id
from odf_coordinator.resources.flows.instances import ObservedEvent
from odf_coordinator.resources.flows.task_records import TASK_RUN
from odf_coordinator.resources.store import (
    EventKind,
    Position,
    PositionUnknown,
    ResourceEvent,
    Snapshot,
    StoredResource,
    Transaction,
)

SCOPE: Final = "flows"
HEADS: Final = "flows/heads"
POSITION: Final = "position"
SOURCE: Final = "/resource/v1alpha1"
PHASE_CHANGES: Final = (EventKind.RECONCILE_SUCCEEDED, EventKind.RECONCILE_FAILED)
_DATASETS: Final = type_id(DATASET.uri)
_QUIET: Final = (type_id(TASK.uri), type_id(FLOW.uri))  # flows would start themselves


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetHead:
    """The head of a dataset's chain."""

    block: str
    blocks: int
    records: int

    def plain(self) -> dict[str, Any]:
        """Return the object that is stored."""
        return {"block": self.block, "blocks": self.blocks, "records": self.records}


Heads = Mapping[str, DatasetHead]
"""By the DID of the dataset."""


def is_listening(snapshot: Snapshot) -> bool:
    """Return whether flows wait for events."""
    return bool(snapshot.notes(SCOPE, [POSITION]))


def begin_listening(transaction: Transaction, heads: Heads) -> None:
    """Report events from now on; `heads` are those of all datasets."""
    transaction.save_notes(HEADS, {did: head.plain() for did, head in heads.items()})
    transaction.save_notes(SCOPE, {POSITION: transaction.position()})


def end_listening(transaction: Transaction) -> None:
    """Report no events any more."""
    transaction.save_notes(HEADS, dict.fromkeys(transaction.notes(HEADS)))
    transaction.save_notes(SCOPE, {POSITION: None})


def observe_heads(
    transaction: Transaction, heads: Heads, now: Timestamp, depth: Callable[[ResourceId], int]
) -> Iterator[ObservedEvent]:
    """Yield the events of heads that have moved since they were seen last; `depth` is that of events of a dataset."""
    seen = transaction.notes(HEADS, [*heads])
    moved = {did: head for did, head in heads.items() if seen.get(did) != head.plain()}
    transaction.save_notes(HEADS, {did: head.plain() for did, head in moved.items()})
    for did, head in moved.items():
        dataset = transaction.by_did(_DATASETS, did)
        if dataset is None:
            continue
        before = DatasetHead(**seen[did]) if did in seen else None
        update = _ref_update(before, head)
        types = [EventType.REF_UPDATED, *((EventType.DATA_ADDED,) if update.interval else ())]
        for kind in types:
            event = NodeEvent(
                id=f"{head.block}.{kind}",
                source=f"/dataset/v1alpha1/dataset/{dataset.id}",
                type=kind,
                time=now,
                subject=did,
                dataset=_event_dataset(dataset),
                ref=update,
            )
            yield _observed_event(event, dataset, depth(dataset.id))


def _ref_update(before: DatasetHead | None, head: DatasetHead) -> RefUpdate:
    first = 0 if before is None else before.records
    return RefUpdate(
        name="head",
        old_hash=None if before is None else before.block,
        new_hash=head.block,
        interval=(first, head.records - 1) if head.records > first else None,
        is_breaking=before is not None and head.blocks <= before.blocks,
    )


def read_events(transaction: Transaction) -> list[ObservedEvent]:
    """Return the events of changes of resources since the last call."""
    position = Position(transaction.notes(SCOPE, [POSITION])[POSITION])
    found: list[ObservedEvent] = []
    try:
        while changes := transaction.events_after(position):
            for change in changes:
                found += _events_of(transaction, change)
            position = changes[-1].position
    except PositionUnknown:  # changes were purged before they were read
        position = transaction.position()
    transaction.save_notes(SCOPE, {POSITION: position})
    return found


def _events_of(snapshot: Snapshot, change: ResourceEvent) -> Iterator[ObservedEvent]:
    interesting = (EventKind.CREATED, EventKind.DELETION_REQUESTED, *PHASE_CHANGES)
    resource = snapshot.by_id(change.resource) if change.kind in interesting else None
    if resource is None:
        return
    if resource.type == type_id(TASK.uri):
        yield from _run_events(snapshot, change)
    elif change.kind in PHASE_CHANGES and resource.type not in _QUIET:
        facts = {"type": TypeUri.parse(resource.schema).name, "id": resource.id, "name": resource.name}
        facts["phase"] = change.payload["status"]["phase"] if change.payload else resource.phase
        yield _event(change, EventType.PHASE_CHANGED, resource, data=facts)
    elif resource.type == _DATASETS:
        is_new = change.kind is EventKind.CREATED
        yield _event(change, EventType.DATASET_CREATED if is_new else EventType.DATASET_DELETED, resource)


def _run_events(snapshot: Snapshot, change: ResourceEvent) -> Iterator[ObservedEvent]:
    """Yield the event of a run that ended with this change of a task."""
    conditions = change.payload.get("status", {}).get("conditions", {}) if change.payload else {}
    details = conditions.get(str(TASK_RUN), {}).get("details", {})
    if "runOutcome" not in details:
        return
    target = ResourceId(details["target"]["id"])
    data = {"flow": details["flow"], "run": details["run"], "outcome": details["runOutcome"]}
    resource = snapshot.by_id(target)
    event = _event(change, EventType.RUN_FINISHED, resource, data=data)
    yield replace(event, depth=details.get("depth", 0) + 1)


def _event(
    change: ResourceEvent,
    kind: EventType,
    resource: StoredResource | None,
    data: Mapping[str, object] | None = None,
) -> ObservedEvent:
    dataset = resource if resource is not None and resource.type == _DATASETS else None
    event = NodeEvent(
        id=str(change.position),
        source=SOURCE,
        type=kind,
        time=Timestamp.from_ms(change.time_ms),
        subject=change.resource,
        dataset=None if dataset is None else _event_dataset(dataset),
        data=data,
    )
    return _observed_event(event, dataset, 0)


def _observed_event(event: NodeEvent, dataset: StoredResource | None, depth: int) -> ObservedEvent:
    # Also one that is being deleted: selectors match it for its last event.
    candidate = None if dataset is None else replace(documents.selectable(dataset), is_deleted=False)
    return ObservedEvent(plain=event.plain(), dataset=candidate, depth=depth)


def _event_dataset(resource: StoredResource) -> EventDataset:
    account = resource.document["headers"]["account"]
    return EventDataset(id=resource.id, name=resource.name, account=account.get("name", ""))
