"""Runs of flows in the store: how they start, continue and end. Each function is part of a transaction."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from odf_common.metadata.scalars import Timestamp
from odf_common.resources.registry import TASK
from odf_common.resources.scalar_formats import ResourceId
from odf_common.resources.selectors import DATASET_KIND
from odf_coordinator.resources.documents import type_id
from odf_coordinator.resources.flow_checks import flow_spec, is_applicable, task_name
from odf_coordinator.resources.flows.instances import FlowInstance, RunOutcome
from odf_coordinator.resources.flows.task_records import (
    TaskRun,
    end_task,
    is_owned,
    new_run,
    remove_task,
    task_run,
    tasks_of,
)
from odf_coordinator.resources.store import FencingToken, StoredResource, Transaction

FLOW_KEY: Final = "flow"
"""The note with the number of a flow's last run; the others are of instances, by their targets."""


@dataclass(frozen=True, slots=True)
class RunKey:
    """An instance of a flow."""

    flow: ResourceId
    target: ResourceId


def instance_of(transaction: Transaction, key: RunKey) -> FlowInstance | None:
    """Return the instance; None if it was dropped."""
    plain = transaction.notes(key.flow, [key.target]).get(key.target)
    return None if plain is None else FlowInstance.from_plain(plain)


def start_run(
    transaction: Transaction,
    flow: StoredResource,
    target: StoredResource,
    instance: FlowInstance,
    now: Timestamp,
) -> tuple[FlowInstance, bool]:
    """Record the run that is due; return the instance, and whether the run was skipped at once."""
    number = _next_number(transaction, flow)
    transaction.save_notes(flow.id, {FLOW_KEY: _flow_note(transaction, flow) | {"runs": number}})
    cause = instance.pending
    assert cause is not None
    tasks = flow_spec(flow.document["spec"]).tasks
    changes = new_run(flow, target, cause, number, now)
    saved = [task_run(resource) for resource in transaction.save(changes)]
    instance = instance.start(number)
    kind = target.labels.get(str(DATASET_KIND.identity))
    unfit = next((task for task in tasks if not is_applicable(task, kind)), None)
    if unfit is None:
        return instance, False
    text = f"{task_name(unfit)} is impossible for a {kind} dataset"
    _end_all(transaction, saved, RunOutcome.SKIPPED, text, now, is_run_end=True)
    return instance.finish(RunOutcome.SKIPPED, now), True


def _next_number(transaction: Transaction, flow: StoredResource) -> int:
    """Return the number of the next run, for which no tasks exist: those of a renamed flow keep their names."""
    number: int = _flow_note(transaction, flow).get("runs", 0) + 1
    while transaction.by_name(type_id(TASK.uri), flow.account, f"{flow.name}.{number}.0") is not None:
        number += 1
    return number


def _flow_note(transaction: Transaction, flow: StoredResource) -> dict[str, Any]:
    return dict(transaction.notes(flow.id, [FLOW_KEY]).get(FLOW_KEY, {}))


def unfinished_tasks(transaction: Transaction, key: RunKey) -> tuple[FlowInstance | None, list[TaskRun]]:
    """Return an instance, and the tasks of its run that are left, in order."""
    instance = instance_of(transaction, key)
    if instance is None or instance.run is None:
        return None, []
    tasks = tasks_of(transaction, key.flow, key.target, run=instance.run)
    return instance, [task for task in tasks if not task.is_finished]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskEnd:
    """The end of a task."""

    task: TaskRun
    outcome: RunOutcome
    message: str = ""
    token: FencingToken
    """That of the lease under which it ran."""


def finish_task(
    transaction: Transaction, key: RunKey, end: TaskEnd, now: Timestamp, retained_runs: int
) -> RunOutcome | None:
    """Record the end of a task; return the outcome of the run if it ends with it, None if other tasks follow.

    Raises `LeaseLost` if another runner has begun the task again.
    """
    found = transaction.by_id(end.task.resource.id)
    if found is None:
        return end.outcome
    instance, left = unfinished_tasks(transaction, key)
    others = [one for one in left if one.resource.id != found.id]
    is_end = end.outcome is not RunOutcome.SUCCEEDED or not others
    run_outcome = end.outcome if is_end else None
    task = task_run(found)
    change = end_task(task, end.outcome, end.message, now, token=end.token, run_outcome=run_outcome)
    transaction.save([change])
    transaction.release(found.id, end.token)
    if not is_end:
        return None
    skipped = RunOutcome.CANCELLED if end.outcome is RunOutcome.CANCELLED else RunOutcome.SKIPPED
    _end_all(transaction, others, skipped, "an earlier task did not succeed", now, is_run_end=False)
    if instance is not None:
        transaction.save_notes(key.flow, {key.target: instance.finish(end.outcome, now).plain()})
    drop_history(transaction, key, retained_runs, now)
    return run_outcome


def drop_history(transaction: Transaction, key: RunKey, retained_runs: int, now: Timestamp) -> None:
    """Remove the tasks of all but the newest runs of an instance, and those that a user has deleted."""
    tasks = tasks_of(transaction, key.flow, key.target)
    finished = [task for task in tasks if task.is_finished]
    kept = sorted({task.run for task in finished})[-retained_runs:] if retained_runs else []
    for task in finished:
        if task.run not in kept or task.resource.deleted_ms is not None:
            remove_task(transaction, task.resource, now.ms)


def cancel_flow(
    transaction: Transaction, flow: ResourceId, now: Timestamp, holder: str
) -> tuple[list[str], int]:
    """End the runs of a deleted flow, and remove its tasks and notes.

    Return the names of tasks that still run, and the number of runs that were ended.
    """
    running, cancelled = [], set()
    for task in tasks_of(transaction, flow):
        if not is_owned(task, flow):
            continue
        token = transaction.lease(task.resource.id, holder, ttl_ms=1, now_ms=now.ms)
        if token is None:
            running.append(task.resource.name)
            continue
        resource = task.resource
        if not task.is_finished:
            cancelled.add(task.run)
            end = end_task(
                task, RunOutcome.CANCELLED, "the flow was deleted", now, run_outcome=RunOutcome.CANCELLED
            )
            (resource,) = transaction.save([end])
        remove_task(transaction, resource, now.ms)
    if not running:
        transaction.save_notes(flow, dict.fromkeys(transaction.notes(flow)))
    return running, len(cancelled)


def _end_all(
    transaction: Transaction,
    tasks: Iterable[TaskRun],
    outcome: RunOutcome,
    message: str,
    now: Timestamp,
    *,
    is_run_end: bool,
) -> None:
    tasks = [*tasks]
    for n, task in enumerate(tasks):
        run_outcome = outcome if is_run_end and n == len(tasks) - 1 else None
        transaction.save([end_task(task, outcome, message, now, run_outcome=run_outcome)])
