"""Task resources, which record the runs of flows: how they are created, changed, and read as runs."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from odf_common.metadata.scalars import Timestamp
from odf_common.resources.conditions import FALSE, TRUE, UNKNOWN, StatusCondition
from odf_common.resources.labels import labels_by_key
from odf_common.resources.phases import Cause, Phase, next_phase
from odf_common.resources.registry import TASK, Types
from odf_common.resources.scalar_formats import ResourceId, TypeUri
from odf_common.resources.spec_values import EXTENSIONS
from odf_coordinator.resources.attempts import with_status
from odf_coordinator.resources.callers import new_id
from odf_coordinator.resources.documents import Json, type_id
from odf_coordinator.resources.flow_checks import flow_spec, task_name
from odf_coordinator.resources.flows.instances import RunCause, RunOutcome
from odf_coordinator.resources.store import (
    Change,
    EventKind,
    FencingToken,
    NewEvent,
    Query,
    Snapshot,
    StoredResource,
    Transaction,
)

TASK_RUN: Final = TypeUri(base=EXTENSIONS, context="flow", name="TaskRun")
"""Key of the condition with which run and place a task has, and how it ended."""
FLOWS: Final = "flows"  # the subject of events
_LOOKUP: Final = Types().uri_of
_SUCCESSES: Final = (RunOutcome.SUCCEEDED, RunOutcome.SKIPPED)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRun:
    """One task of a run."""

    resource: StoredResource
    run: int
    index: int
    target: ResourceId
    details: Mapping[str, Any]

    @property
    def is_finished(self) -> bool:
        """Return whether it has an outcome."""
        return "outcome" in self.details

    @property
    def outcome(self) -> RunOutcome:
        """Return the outcome of a finished task."""
        return RunOutcome(self.details["outcome"])


def new_run(
    flow: StoredResource,
    target: StoredResource,
    cause: RunCause,
    number: int,
    now: Timestamp,
) -> list[Change]:
    """Return the changes that record a run: a pending Task for each task of the flow."""
    tasks = flow.document["spec"]["tasks"]
    kinds = [task_name(task) for task in flow_spec(flow.document["spec"]).tasks]
    changes = []
    for n, task in enumerate(tasks):
        details = {
            "run": number,
            "index": n,
            "kind": kinds[n],
            "flow": flow.name,
            "target": {"id": target.id, "type": _type_name(target), "name": target.name, "did": target.did},
            "trigger": cause.trigger.value,
            "depth": cause.depth,
            "requestedAt": str(now),
        }
        changes.append(_new_task(flow, f"{flow.name}.{number}.{n}", task, details, now))
    return changes


def _new_task(flow: StoredResource, name: str, task: Json, details: Json, now: Timestamp) -> Change:
    id_, headers = new_id(), flow.document["headers"]
    owner = {"type": _type_name(flow), "id": flow.id, "name": flow.name}
    labels = {"flow": flow.id, "target": details["target"]["id"]}
    condition = StatusCondition(value=UNKNOWN, last_transition_time=now, details=details)
    document = {
        "$schema": str(TASK.uri),
        "headers": {
            "id": id_,
            "name": name,
            "account": headers["account"],
            "labels": labels,
            "annotations": {},
            "generation": 1,
            "createdAt": str(now),
            "updatedAt": str(now),
            "ownerReferences": [owner],
        },
        "spec": task,
        "status": {"phase": Phase.PENDING.value, "conditions": {str(TASK_RUN): condition.plain()}},
    }
    resource = StoredResource(
        id=id_,
        type=type_id(TASK.uri),
        schema=str(TASK.uri),
        account=flow.account,
        name=name,
        document=document,
        labels=labels_by_key(labels, _LOOKUP),
        generation=1,
        phase=Phase.PENDING.value,
        created_ms=now.ms,
        updated_ms=now.ms,
    )
    event = NewEvent(kind=EventKind.CREATED, subject=FLOWS, time_ms=now.ms, payload={"spec": task})
    return Change(resource=resource, events=[event], references=())


def start_task(task: TaskRun, now: Timestamp, token: FencingToken) -> Change:
    """Return the change to a running task; one whose runner has died is begun again."""
    phase: Phase | None = Phase(task.resource.phase)
    if phase is Phase.RECONCILING:
        phase = next_phase(phase, Cause.LEASE_EXPIRED)
    phase = next_phase(phase, Cause.ATTEMPT_STARTED)
    details = {**task.details, "startedAt": str(now)}
    condition = StatusCondition(value=UNKNOWN, last_transition_time=now, details=details)
    return _with_condition(task, phase, condition, EventKind.RECONCILE_STARTED, token)


def end_task(
    task: TaskRun,
    outcome: RunOutcome,
    message: str,
    now: Timestamp,
    *,
    token: FencingToken | None = None,
    run_outcome: RunOutcome | None = None,
) -> Change:
    """Return the change to a finished task; `run_outcome`: its run ends with it."""
    is_success = outcome in _SUCCESSES
    phase: Phase | None = Phase(task.resource.phase)
    if phase is Phase.PENDING:
        phase = next_phase(phase, Cause.ATTEMPT_STARTED)
    phase = next_phase(phase, Cause.ATTEMPT_SUCCEEDED if is_success else Cause.ATTEMPT_FAILED)
    details = {**task.details, "outcome": outcome.value, "finishedAt": str(now)}
    if run_outcome is not None:
        details["runOutcome"] = run_outcome.value
    condition = StatusCondition(
        value=TRUE if is_success else FALSE,
        code=outcome.value.lower(),
        message=message or None,
        observed_generation=1,
        last_transition_time=now,
        details=details,
    )
    kind = EventKind.RECONCILE_SUCCEEDED if is_success else EventKind.RECONCILE_FAILED
    change = _with_condition(task, phase, condition, kind, token)
    labels = {**change.resource.document["headers"]["labels"], "outcome": outcome.value}
    document = change.resource.document
    document = {**document, "headers": {**document["headers"], "labels": labels}}
    resource = replace(change.resource, document=document, labels=labels_by_key(labels, _LOOKUP))
    return replace(change, resource=resource)


def _with_condition(
    task: TaskRun,
    phase: Phase | None,
    condition: StatusCondition,
    kind: EventKind,
    token: FencingToken | None,
) -> Change:
    assert phase is not None
    now = condition.last_transition_time
    status: Json = {"phase": phase.value, "conditions": {str(TASK_RUN): condition.plain()}}
    if condition.observed_generation is not None:
        status |= {"observedGeneration": condition.observed_generation, "reconciledAt": str(now)}
    return with_status(task.resource, status, kind, now.ms, token, subject=FLOWS)


def remove_task(transaction: Transaction, task: StoredResource, now_ms: int) -> None:
    """Remove the record of a task."""
    event = NewEvent(kind=EventKind.DELETED, subject=FLOWS, time_ms=now_ms)
    (saved,) = transaction.save([Change(resource=task, events=[event])])
    transaction.remove(saved, now_ms)


def task_run(resource: StoredResource) -> TaskRun:
    """Return a Task as part of its run."""
    details = resource.document["status"]["conditions"][str(TASK_RUN)]["details"]
    return TaskRun(
        resource=resource,
        run=details["run"],
        index=details["index"],
        target=ResourceId(details["target"]["id"]),
        details=details,
    )


def tasks_of(
    snapshot: Snapshot, flow: ResourceId, target: ResourceId | None = None, *, run: int | None = None
) -> list[TaskRun]:
    """Return the tasks of a flow in the order of their runs, also those whose deletion was requested."""
    labels = {"flow": flow} | ({} if target is None else {"target": target})
    query = Query(types=(type_id(TASK.uri),), labels=labels_by_key(labels, _LOOKUP), include_deleted=True)
    found: list[TaskRun] = []
    while True:
        page = snapshot.find(query)
        found += map(task_run, page.resources)
        if page.next is None:
            break
        query = replace(query, after=page.next)
    return sorted((one for one in found if run in (None, one.run)), key=lambda one: (one.run, one.index))


def finished_tasks(snapshot: Snapshot, flow: StoredResource) -> list[StoredResource]:
    """Return the finished tasks of a flow; none for a resource of another type."""
    return [task.resource for task in tasks_of(snapshot, flow.id) if task.is_finished]


def is_owned(task: TaskRun, flow: ResourceId) -> bool:
    """Return whether a task goes with its flow."""
    owners = task.resource.document["headers"].get("ownerReferences", ())
    return any(one["id"] == flow for one in owners)


def runs_of(tasks: Iterable[TaskRun]) -> list[Json]:
    """Return runs as objects of answers, newest first."""
    by_run: dict[int, list[TaskRun]] = {}
    for task in tasks:
        by_run.setdefault(task.run, []).append(task)
    return [_run_plain(tasks) for _, tasks in sorted(by_run.items(), reverse=True)]


def _run_plain(tasks: Sequence[TaskRun]) -> Json:
    first = tasks[0].details
    ends = [task.details["runOutcome"] for task in tasks if "runOutcome" in task.details]
    state = ends[0] if ends else "Running" if "startedAt" in first else "Waiting"
    return {
        "run": first["run"],
        "target": first["target"],
        "trigger": first["trigger"],
        "state": state,
        "requestedAt": first["requestedAt"],
        "startedAt": first.get("startedAt"),
        "finishedAt": max(task.details.get("finishedAt", "") for task in tasks) if ends else None,
        "tasks": [_task_plain(task) for task in tasks],
    }


def _task_plain(task: TaskRun) -> Json:
    condition = task.resource.document["status"]["conditions"][str(TASK_RUN)]
    state = {Phase.PENDING: "Waiting", Phase.RECONCILING: "Running"}.get(Phase(task.resource.phase), "")
    return {
        "id": task.resource.id,
        "name": task.resource.name,
        "kind": task.details["kind"],
        "state": task.details.get("outcome", state),
        "message": condition.get("message"),
        "startedAt": task.details.get("startedAt"),
        "finishedAt": task.details.get("finishedAt"),
    }


def _type_name(resource: StoredResource) -> str:
    return TypeUri.parse(resource.schema).name
