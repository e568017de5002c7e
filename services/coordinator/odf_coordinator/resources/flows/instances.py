"""An instance of a flow, which is one for each target: what its triggers have gathered, and which run is due. Pure.

An instance has at most one run. What fires meanwhile is merged into one follow-up.
"""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final, Self, assert_never

from odf_common.metadata.scalars import Timestamp
from odf_common.resources.node_events import EventType, concerns, event_matches, filter_of_types
from odf_common.resources.references import AccountHandle
from odf_common.resources.schedule import advance_schedule
from odf_common.resources.selectors import Candidate
from odf_common.resources.specs import (
    FlowTrigger,
    FlowTriggerDataset,
    FlowTriggerEvent,
    FlowTriggerSchedule,
    FlowTriggerSource,
)
from odf_common.resources.trigger_states import (
    NO_EVENTS,
    EventPolicy,
    EventState,
    RecordsPolicy,
    RecordsState,
    advance_events,
    advance_records,
)

MAX_FAILURES: Final = 10  # runs in a row, after which an instance pauses
MAX_DEPTH: Final = 16  # of runs that caused each other
RETRY_SECONDS, MAX_RETRY_SECONDS = 10, 300  # after failed runs, until waiting records start another one
MAX_GATHERED: Final = 100  # ids of events, if no number of them fires
Json = dict[str, Any]


class RunOutcome(StrEnum):
    """The end of a run, or of one of its tasks."""

    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    CANCELLED = "Cancelled"
    SKIPPED = "Skipped"


class Trigger(StrEnum):
    """The kind of what starts a run."""

    SCHEDULE = "Schedule"
    EVENT = "Event"
    SOURCE = "Source"
    DATASET = "Dataset"
    MANUAL = "Manual"


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedEvent:
    """An event of the node that may start runs."""

    plain: Mapping[str, Any]
    """As `NodeEvent.plain` returns it."""
    dataset: Candidate | None = None
    """The Dataset that it is about."""
    depth: int = 0
    """Number of runs that led to it, one by another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCause:
    """The reason of a run."""

    trigger: Trigger
    event: Mapping[str, Any] | None = None
    """The newest event that led to it."""
    depth: int = 0

    def merge(self, newer: "RunCause") -> "RunCause":
        """Return the reason of one run in place of two."""
        return RunCause(
            trigger=Trigger.MANUAL if self.trigger is Trigger.MANUAL else newer.trigger,
            event=newer.event or self.event,
            depth=max(self.depth, newer.depth),
        )

    def plain(self) -> Json:
        """Return the object that is stored."""
        return {"trigger": self.trigger.value, "event": self.event, "depth": self.depth}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Self:
        """Read what `plain` returns."""
        return cls(trigger=Trigger(plain["trigger"]), event=plain["event"], depth=plain["depth"])


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowInstance:
    """The state of an instance, as it is stored."""

    since: Timestamp
    """Times of schedules before it do not count."""
    triggers: Mapping[str, Json] = field(default_factory=dict)
    """States of the triggers, by their text."""
    pending: RunCause | None = None
    """The next run."""
    run: int | None = None
    """Number of the run in progress."""
    cause: RunCause | None = None
    """That of the run in progress."""
    failures: int = 0
    """Failed runs in a row."""
    last: Mapping[str, Any] | None = None
    """Number, outcome and end of the last run."""

    def is_newer_than(self, asked: Timestamp) -> bool:
        """Return whether a run has ended since a time."""
        return self.last is not None and Timestamp.parse(self.last["finishedAt"]) >= asked

    @property
    def retry_at(self) -> Timestamp:
        """Return the time from which the records of a failed run may start another one."""
        if not self.failures or self.last is None:
            return self.since
        pause = min(RETRY_SECONDS * 2 ** (self.failures - 1), MAX_RETRY_SECONDS)
        return Timestamp(Timestamp.parse(self.last["finishedAt"]).ns + pause * 10**9)

    @property
    def is_paused(self) -> bool:
        """Return whether too many runs have failed."""
        return self.failures >= MAX_FAILURES

    def fire(self, cause: RunCause) -> Self:
        """Return the instance with another reason to run."""
        return replace(self, pending=cause if self.pending is None else self.pending.merge(cause))

    def is_due(self, *, is_paused: bool) -> bool:
        """Return whether a run can start; `is_paused`: the user has paused the flow. Manual runs ignore pauses."""
        if self.pending is None or self.run is not None:
            return False
        return self.pending.trigger is Trigger.MANUAL or not (is_paused or self.is_paused)

    def start(self, number: int) -> Self:
        """Return the instance with the due run in progress."""
        assert self.run is None
        return replace(self, run=number, cause=self.pending, pending=None)

    def finish(self, outcome: RunOutcome, now: Timestamp) -> Self:
        """Return the instance after its run."""
        failures = {RunOutcome.FAILED: self.failures + 1, RunOutcome.SUCCEEDED: 0}.get(outcome, self.failures)
        last = {"run": self.run, "outcome": outcome.value, "finishedAt": str(now)}
        return replace(self, run=None, cause=None, failures=failures, last=last)

    def plain(self) -> Json:
        """Return the object that is stored."""
        return {
            "since": str(self.since),
            "triggers": self.triggers,
            "pending": self.pending and self.pending.plain(),
            "run": self.run,
            "cause": self.cause and self.cause.plain(),
            "failures": self.failures,
            "last": self.last,
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Self:
        """Read what `plain` returns."""
        causes = {key: plain[key] and RunCause.from_plain(plain[key]) for key in ("pending", "cause")}
        return cls(**{**plain, **causes, "since": Timestamp.parse(plain["since"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingRecords:
    """Records of a Source that a target does not have yet."""

    records: int
    asked: Timestamp
    """When they were counted, or before."""
    is_last: bool = False
    """Whether no more follow, since the source is being deleted."""


SourceRecords = Mapping[tuple[str, str], WaitingRecords]
"""By the ids of a source and of a target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Audience:
    """The instance that events are compared with."""

    target: str
    targets: Container[str]
    """All targets of the flow: an update of one concerns its own instance only."""
    owner: AccountHandle
    """Of the flow."""
    records: SourceRecords = field(default_factory=dict)

    def is_fired(self, trigger: FlowTrigger, event: ObservedEvent) -> bool:
        """Return whether an event is one that a trigger waits for."""
        if event.depth > MAX_DEPTH:
            return False
        match trigger:
            case FlowTriggerEvent(events=filter):
                return concerns(event.plain, self.target) and event_matches(filter, event.plain)
            case FlowTriggerDataset(dataset=selector, events=types):
                dataset = event.dataset
                return (
                    dataset is not None
                    and (dataset.id == self.target or dataset.id not in self.targets)
                    and event_matches(filter_of_types(types or (EventType.REF_UPDATED,)), event.plain)
                    and selector.matches(dataset, self.owner)
                )
            case _:
                return False


@dataclass(frozen=True, slots=True)
class Advanced:
    """An instance after its triggers were looked at."""

    instance: FlowInstance
    wake_at: Timestamp | None = None
    """The time when a trigger fires without another event; None: never."""


def advance(
    instance: FlowInstance,
    triggers: Mapping[str, FlowTrigger],
    now: Timestamp,
    events: Sequence[ObservedEvent],
    audience: Audience,
) -> Advanced:
    """Return the instance at a time and after events; states of triggers that the flow no longer has are dropped."""
    states: dict[str, Json] = {}
    wake_times = []
    for key, trigger in triggers.items():
        before = instance.triggers.get(key)
        match trigger:
            case FlowTriggerSchedule():
                states[key], cause, wake_at = _advance_schedule(trigger, before, now)
            case FlowTriggerEvent() | FlowTriggerDataset():
                own = [event for event in events if audience.is_fired(trigger, event)]
                states[key], cause, wake_at = _advance_events(trigger, before, now, own)
            case FlowTriggerSource():
                waiting = audience.records.get((str(trigger.source.id), audience.target))
                states[key], cause = _advance_source(trigger, before, now, waiting, instance)
                wake_at = None  # records are counted again soon
            case _:
                assert_never(trigger)
        if cause is not None:
            instance = instance.fire(cause)
        if wake_at is not None:
            wake_times.append(wake_at)
    return Advanced(replace(instance, triggers=states), min(wake_times, default=None))


def _advance_source(
    trigger: FlowTriggerSource,
    state: Json | None,
    now: Timestamp,
    waiting: WaitingRecords | None,
    instance: FlowInstance,
) -> tuple[Json, RunCause | None]:
    """Fire for the records that wait, unless a run is about to take them; after a failed run, only after a pause."""
    state = state or {"waitingSince": None}
    if waiting is None or instance.is_newer_than(waiting.asked):
        return state, None
    since = state["waitingSince"]
    before = RecordsState(position=0, end=0, waiting_since=None if since is None else Timestamp.parse(since))
    minimum = 1 if waiting.is_last or trigger.min_records_to_await is None else trigger.min_records_to_await
    policy = RecordsPolicy(min_records=minimum, max_await=trigger.max_await_interval)
    step = advance_records(policy, before, now, waiting.records)
    is_busy = instance.run is not None or instance.pending is not None or now < instance.retry_at
    if step.firings and not is_busy:
        return {"waitingSince": None}, RunCause(trigger=Trigger.SOURCE)
    if not waiting.records:
        return {"waitingSince": None}, None
    return {"waitingSince": since or str(now)}, None


Result = tuple[Json, RunCause | None, Timestamp | None]


def _advance_schedule(trigger: FlowTriggerSchedule, state: Json | None, now: Timestamp) -> Result:
    handled = now if state is None else Timestamp.parse(state["handledUntil"])
    step = advance_schedule(trigger.cron, handled, now)
    cause = None if step.firing is None else RunCause(trigger=Trigger.SCHEDULE)
    return {"handledUntil": str(step.handled_until)}, cause, step.wake_at


def _advance_events(
    trigger: FlowTriggerEvent | FlowTriggerDataset,
    state: Json | None,
    now: Timestamp,
    events: Sequence[ObservedEvent],
) -> Result:
    policy, kind = EventPolicy(), Trigger.DATASET
    if isinstance(trigger, FlowTriggerEvent):
        policy = EventPolicy(cooldown=trigger.cooldown, max_batch=trigger.cooldown_max_batch)
        kind = Trigger.EVENT
    gathered, newest, depth = _read_events(state)
    cause: RunCause | None = None
    for event in (None, *events):
        if event is not None:
            newest, depth = event.plain, max(depth, event.depth)
        step = advance_events(policy, gathered, now, None if event is None else event.plain["id"])
        gathered = step.state
        if step.firings:
            cause, depth = RunCause(trigger=kind, event=newest, depth=depth), 0
    if policy.max_batch is None:
        gathered = replace(gathered, gathered=gathered.gathered[-MAX_GATHERED:])
    is_open = bool(gathered.gathered)
    plain = {
        "cooldownEnd": gathered.cooldown_end and str(gathered.cooldown_end),
        "gathered": [*gathered.gathered],
        "event": newest if is_open else None,
        "depth": depth if is_open else 0,
    }
    return plain, cause, gathered.cooldown_end if is_open else None


def _read_events(state: Json | None) -> tuple[EventState, Mapping[str, Any] | None, int]:
    if state is None:
        return NO_EVENTS, None, 0
    end = state["cooldownEnd"]
    events = EventState(
        cooldown_end=None if end is None else Timestamp.parse(end), gathered=tuple(state["gathered"])
    )
    return events, state["event"], state["depth"]
