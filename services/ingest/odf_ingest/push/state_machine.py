"""The phases of a push source, and which event leads from which to which. Pure: the reader's thread applies it."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from odf_common.errors import OdfError


class Phase(StrEnum):
    """What is done with a source."""

    OPENING = "opening"  # its chain and its topic are being looked at
    READING = "reading"
    PAUSED = "paused"  # it is ahead of its commits
    WAITING = "waiting"  # for the other half of a correction
    RETRYING = "retrying"  # it could not be opened or read, and is tried again
    STOPPED = "stopped"  # until the chain changes, or someone resumes it
    CLOSED = "closed"  # it is gone, or read by another instance


class Event(StrEnum):
    """What happens to a source."""

    OPENED = "opened"  # its messages are taken, from where the chain stands
    OPENED_SHORT = "opened-short"  # the same, after a batch that ended too early
    AHEAD = "ahead"  # more batches are full than are committed
    CAUGHT_UP = "caught-up"
    MORE = "more"  # something new came for a source that waits
    REOPEN = "reopen"  # it must be read again from where the chain stands
    FAIL = "fail"  # it cannot be opened or read for now
    RETRY = "retry"
    STOP = "stop"  # it cannot continue before someone acts
    RESUME = "resume"  # someone acted
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


@dataclass(eq=False, kw_only=True)
class IllegalTransition(OdfError):
    """A push source got an event that its phase does not know."""

    phase: Phase
    event: Event


def after(phase: Phase, event: Event) -> Phase:
    """Return the phase that the event leads to; raises `IllegalTransition`."""
    found = TRANSITIONS[phase].get(event)
    if found is None:
        raise IllegalTransition(phase=phase, event=event)
    return found
