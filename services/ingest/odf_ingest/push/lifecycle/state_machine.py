"""The state machine of a push source: phases, events, transitions. Pure; applied on the reader's thread."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from odf_common.errors import InternalError


class Phase(StrEnum):
    """The phase of a source."""

    OPENING = "opening"  # its chain and topic are being inspected
    READING = "reading"
    PAUSED = "paused"  # it is ahead of its commits
    WAITING = "waiting"  # for the other half of a correction
    RETRYING = "retrying"  # it could not be opened or read; it is retried
    STOPPED = "stopped"  # until the chain changes, or a user resumes it
    CLOSED = "closed"  # removed, or read by another instance


class Event(StrEnum):
    """An event of a source."""

    OPENED = "opened"  # it is being read from the chain's position
    OPENED_SHORT = "opened-short"  # the same, after a batch that was too short
    AHEAD = "ahead"  # full batches are waiting for commits
    CAUGHT_UP = "caught-up"
    MORE = "more"  # a message arrived for a waiting source
    REOPEN = "reopen"  # it must be read again from the chain's position
    FAIL = "fail"  # it cannot be opened or read for now
    RETRY = "retry"
    STOP = "stop"  # it cannot continue without a user
    RESUME = "resume"  # a user or a change of the chain resumes it
    CLOSE = "close"


TRANSITIONS: Final[Mapping[Phase, Mapping[Event, Phase]]] = {
    Phase.OPENING: {
        Event.OPENED: Phase.READING,
        Event.OPENED_SHORT: Phase.WAITING,
        Event.FAIL: Phase.RETRYING,
        Event.STOP: Phase.STOPPED,
        Event.CLOSE: Phase.CLOSED,
    },
    Phase.READING: {
        Event.AHEAD: Phase.PAUSED,
        Event.REOPEN: Phase.OPENING,
        Event.FAIL: Phase.RETRYING,
        Event.STOP: Phase.STOPPED,
        Event.CLOSE: Phase.CLOSED,
    },
    Phase.PAUSED: {
        Event.CAUGHT_UP: Phase.READING,
        Event.REOPEN: Phase.OPENING,
        Event.FAIL: Phase.RETRYING,
        Event.STOP: Phase.STOPPED,
        Event.CLOSE: Phase.CLOSED,
    },
    Phase.WAITING: {
        Event.MORE: Phase.READING,
        Event.REOPEN: Phase.OPENING,
        Event.FAIL: Phase.RETRYING,
        Event.STOP: Phase.STOPPED,
        Event.CLOSE: Phase.CLOSED,
    },
    Phase.RETRYING: {
        Event.RETRY: Phase.OPENING,
        Event.CLOSE: Phase.CLOSED,
    },
    Phase.STOPPED: {
        Event.RESUME: Phase.OPENING,
        Event.CLOSE: Phase.CLOSED,
    },
    Phase.CLOSED: {},
}
LIVE: Final = frozenset({Phase.READING, Phase.PAUSED, Phase.WAITING})  # its partitions are assigned


class IllegalTransition(InternalError):
    """A push source got an event that is invalid in its phase."""

    phase: Phase
    event: Event


def after(phase: Phase, event: Event) -> Phase:
    """Return the next phase; raises `IllegalTransition`."""
    following = TRANSITIONS[phase].get(event)
    if following is None:
        raise IllegalTransition(phase=phase, event=event)
    return following
