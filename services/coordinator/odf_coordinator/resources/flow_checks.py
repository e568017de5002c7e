"""Checks of flows before they are stored: what can never work is refused (RFC-018). Pure."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, cast

from odf_common.errors import InvalidInput
from odf_common.metadata.events import DatasetKind
from odf_common.resources import specs
from odf_common.resources.filters import Filter, ValueIn, required_values
from odf_common.resources.node_events import EventType
from odf_common.resources.references import DATASET_TYPE
from odf_common.resources.registry import FLOW, TASK
from odf_common.resources.selectors import DATASET_KIND, Selector
from odf_common.resources.templates import IN_PAYLOAD, Template

# Tasks and triggers that this node does not carry out, with the reason.
MISSING: Final[Mapping[type, str]] = MappingProxyType(
    {
        specs.TaskCompaction: "this node cannot compact datasets yet",
        specs.TaskGarbageCollection: "this node cannot collect garbage yet",
    }
)
_KINDS: Final[Mapping[type, DatasetKind]] = MappingProxyType(
    {specs.TaskIngest: DatasetKind.Root, specs.TaskTransform: DatasetKind.Derivative}
)
_WRITING: Final = (specs.TaskIngest, specs.TaskCompaction, specs.TaskTransform, specs.TaskPull)
_OWN_EVENTS: Final = frozenset((EventType.RUN_FINISHED.value,))


class NotCarriedOut(InvalidInput):
    """This node cannot do what a flow asks for."""


def flow_spec(plain: Any) -> specs.FlowSpec:
    """Return the typed spec of a stored flow, or of one with its references resolved."""
    problems: list[InvalidInput] = []
    spec = FLOW.read_spec(plain, problems)
    if problems:
        raise problems[0]
    assert isinstance(spec, specs.FlowSpec)
    return spec


def task_spec(plain: Any) -> specs.TaskSpec:
    """Return the typed spec of a Task."""
    problems: list[InvalidInput] = []
    spec = TASK.read_spec(plain, problems)
    if problems:
        raise problems[0]
    return cast("specs.TaskSpec", spec)


def check_flow(spec: specs.FlowSpec) -> None:
    """Raise `InvalidInput` for a flow that can never run, or that starts itself."""
    if not spec.tasks:
        raise InvalidInput(where="spec.tasks", text="a flow needs a task")
    for n, task in enumerate(spec.tasks):
        where = f"spec.tasks[{n}]"
        if isinstance(task, specs.TaskWebhookCall):
            _check_payload(task, f"{where}.payload")
        _require_carried_out(task, where)
        _check_target(task, spec.target, where)
    for n, trigger in enumerate(spec.triggers):
        where = f"spec.triggers[{n}]"
        _require_carried_out(trigger, where)
        _check_loop(trigger, spec, where)


def _check_payload(task: specs.TaskWebhookCall, where: str) -> None:
    try:
        Template.parse(task.payload or "", IN_PAYLOAD)
    except InvalidInput as error:
        raise error.with_facts(where=where) from error


def is_applicable(task: specs.TaskSpec, kind: object) -> bool:
    """Return whether a task can be done on a Dataset with this label `datasetKind`."""
    wanted = _KINDS.get(type(task))
    return wanted is None or kind == wanted.name


def task_name(task: object) -> str:
    """Return the kind of a task as a user reads it."""
    return type(task).__name__.removeprefix("Task")


def _require_carried_out(part: object, where: str) -> None:
    text = MISSING.get(type(part))
    if text is not None:
        raise NotCarriedOut(where=f"{where}.kind", text=text)


def _check_target(task: specs.TaskSpec, target: Selector, where: str) -> None:
    if isinstance(task, specs.TaskWebhookCall):
        return
    if target.type != DATASET_TYPE.identity:
        text = f"{task_name(task)} needs a Dataset; the target selects {target.type.name}"
        raise InvalidInput(where=where, text=text)
    for one in required_values(target.labels):
        kinds = [value for value in one.values if is_applicable(task, value)]
        if one.key == str(DATASET_KIND.identity) and not kinds:
            text = f"{task_name(task)} is impossible for {' and '.join(map(str, one.values))} datasets"
            raise InvalidInput(where=where, text=text)


def _check_loop(trigger: specs.FlowTrigger, spec: specs.FlowSpec, where: str) -> None:
    is_writing = any(isinstance(task, _WRITING) for task in spec.tasks)
    match trigger:
        case specs.FlowTriggerDataset(dataset=selector) if is_writing and _is_same(selector, spec.target):
            text = "the flow starts itself: its tasks update the datasets that this trigger waits for"
            raise InvalidInput(where=where, text=f"{text}; wait for their inputs instead")
        case specs.FlowTriggerEvent(events=filter) if _is_of_own_runs(filter):
            text = "the flow starts itself: each of its runs ends with this event; name another flow in `data.flow`"
            raise InvalidInput(where=where, text=text)
        case _:
            pass


def _is_same(left: Selector, right: Selector) -> bool:
    fields = ("type", "account", "id", "name", "labels")
    return all(getattr(left, name) == getattr(right, name) for name in fields)


def _is_of_own_runs(filter: Filter) -> bool:
    return (
        isinstance(filter, ValueIn) and filter.key == "type" and _OWN_EVENTS.issubset(map(str, filter.values))
    )
