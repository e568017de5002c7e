"""States of triggers of flows, between events: cooldown and batches, and records to wait for.

Each function takes a state and what happened, and returns the new state, what fires now, and when to ask again. States
are stored by the caller, so nothing that was gathered is lost when a node restarts.
"""

from dataclasses import dataclass, replace
from typing import Final, Generic, TypeVar

from odf_common.metadata.scalars import Timestamp
from odf_common.resources.scalar_formats import Duration

State = TypeVar("State")
Firing = TypeVar("Firing")


@dataclass(frozen=True, slots=True)
class Step(Generic[State, Firing]):
    """The result of an event or of a time."""

    state: State
    firings: tuple[Firing, ...] = ()
    wake_at: Timestamp | None = None
    """The time when something fires without another event; None: never."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventPolicy:
    """Limits of an event trigger."""

    cooldown: Duration | None = None
    """The shortest time between firings; None: each event fires."""
    max_batch: int | None = None
    """So many gathered events fire before the cooldown ends; None: no number does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventState:
    """State of an event trigger."""

    cooldown_end: Timestamp | None = None
    """None: there was no firing yet."""
    gathered: tuple[str, ...] = ()
    """Ids of events since the last firing."""


NO_EVENTS: Final = EventState()
Batch = tuple[str, ...]
EventStep = Step[EventState, Batch]


def advance_events(
    policy: EventPolicy, state: EventState, now: Timestamp, event: str | None = None
) -> EventStep:
    """Return the batches of ids that fire at a time, or for an event at a time.

    The first event fires at once and starts the cooldown; those that follow within it fire together at its end, or as
    soon as they are a full batch. Each firing starts the cooldown again.
    """
    ended = _end_cooldown(policy, state, now)
    if event is None:
        return ended
    state = ended.state
    if state.cooldown_end is None:
        arrived = _fire(policy, (event,), now)
    else:
        gathered = (*state.gathered, event)
        is_full = policy.max_batch is not None and len(gathered) >= policy.max_batch
        arrived = _fire(policy, gathered, now) if is_full else _wait(replace(state, gathered=gathered))
    return replace(arrived, firings=ended.firings + arrived.firings)


def _end_cooldown(policy: EventPolicy, state: EventState, now: Timestamp) -> EventStep:
    if state.cooldown_end is None or now < state.cooldown_end:
        return _wait(state)
    return _fire(policy, state.gathered, now) if state.gathered else Step(NO_EVENTS)


def _wait(state: EventState) -> EventStep:
    return Step(state, wake_at=state.cooldown_end if state.gathered else None)


def _fire(policy: EventPolicy, events: Batch, now: Timestamp) -> EventStep:
    cooldown = policy.cooldown
    return Step(EventState(cooldown_end=Timestamp(now.ns + cooldown)) if cooldown else NO_EVENTS, (events,))


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordsPolicy:
    """Limits of a source trigger."""

    min_records: int = 1
    max_await: Duration | None = None
    """The longest time that a record waits for others; None: for the number alone."""

    @property
    def warning(self) -> str | None:
        """Return a warning if records may wait forever."""
        if self.min_records > 1 and self.max_await is None:
            return f"fewer than {self.min_records} records wait without limit; maxAwaitInterval sets one"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordsState:
    """State of a source trigger."""

    position: int
    """Records before it were consumed, or are by the runs that fired."""
    end: int
    """The end of the source's records when it was last known."""
    waiting_since: Timestamp | None = None
    """The time when the oldest record after the position was seen; None: there is none."""


@dataclass(frozen=True, slots=True)
class RecordRange:
    """Records that a run is fired for: from `start`, before `end`."""

    start: int
    end: int


RecordsStep = Step[RecordsState, RecordRange]


def advance_records(
    policy: RecordsPolicy, state: RecordsState, now: Timestamp, end: int | None = None
) -> RecordsStep:
    """Return the records that a run is fired for at a time, or for a new end of the source's records at a time."""
    state = replace(state, end=max(state.end, state.end if end is None else end))
    count = state.end - state.position
    if count <= 0:
        return Step(replace(state, waiting_since=None))
    since = now if state.waiting_since is None else state.waiting_since
    due = None if policy.max_await is None else Timestamp(since.ns + policy.max_await)
    if count >= policy.min_records or (due is not None and now >= due):
        fired = RecordsState(position=state.end, end=state.end)
        return Step(fired, (RecordRange(state.position, state.end),))
    return Step(replace(state, waiting_since=since), wake_at=due)
