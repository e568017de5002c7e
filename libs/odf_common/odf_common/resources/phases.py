"""Phases of a resource: the table of its transitions, and when it is settled.

Every change of a phase goes through `next_phase`, so no other move can happen. Storing the result, with a
lease and an expected revision, is left to the store.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from odf_common.errors import InternalError


class Phase(StrEnum):
    """Progress of the main controller of a resource."""

    PENDING = "Pending"
    RECONCILING = "Reconciling"
    READY = "Ready"
    FAILED = "Failed"


class Cause(StrEnum):
    """Reason for a transition."""

    CREATED = "created"
    CHANGED = "changed"  # headers or spec, so the generation grew
    ATTEMPT_STARTED = "attempt started"
    ATTEMPT_SUCCEEDED = "attempt succeeded"
    ATTEMPT_FAILED = "attempt failed"
    ATTEMPT_OUTDATED = "attempt outdated"  # the generation grew while it ran: its outcome is only a condition
    LEASE_EXPIRED = "lease expired"  # the controller died
    RETRIED = "retried"  # after a transient failure, or a change of a dependency
    RECHECKED = "rechecked"  # a dependency changed, drift was found, a period is over, or a user asked
    DELETED = "deleted"


# None: the resource does not exist.
TRANSITIONS: Final[Mapping[tuple[Phase | None, Cause], Phase | None]] = MappingProxyType(
    {
        (None, Cause.CREATED): Phase.PENDING,
        (Phase.PENDING, Cause.ATTEMPT_STARTED): Phase.RECONCILING,
        (Phase.RECONCILING, Cause.ATTEMPT_SUCCEEDED): Phase.READY,
        (Phase.RECONCILING, Cause.ATTEMPT_FAILED): Phase.FAILED,
        (Phase.READY, Cause.CHANGED): Phase.PENDING,
        (Phase.FAILED, Cause.CHANGED): Phase.PENDING,
        (Phase.READY, Cause.DELETED): None,
        (Phase.FAILED, Cause.DELETED): None,
        (Phase.PENDING, Cause.DELETED): None,
        (Phase.RECONCILING, Cause.ATTEMPT_OUTDATED): Phase.PENDING,
        (Phase.RECONCILING, Cause.LEASE_EXPIRED): Phase.PENDING,
        (Phase.FAILED, Cause.RETRIED): Phase.RECONCILING,
        (Phase.READY, Cause.RECHECKED): Phase.RECONCILING,
        (Phase.RECONCILING, Cause.DELETED): None,
    }
)
# A change does not wait for the attempt that runs: its end is outdated then.
_UNMOVED_BY_CHANGES: Final = (Phase.PENDING, Phase.RECONCILING)


class TransitionRefused(InternalError):
    """A phase was to change in a way that the table of transitions does not have."""

    MESSAGE = "a resource cannot leave the phase {phase} by: {cause}"

    phase: str
    cause: str


def next_phase(phase: Phase | None, cause: Cause) -> Phase | None:
    """Return the phase after a transition, None if the resource is gone; raises `TransitionRefused` for others."""
    if cause is Cause.CHANGED and phase in _UNMOVED_BY_CHANGES:
        return phase
    if (phase, cause) not in TRANSITIONS:
        raise TransitionRefused(phase=phase or "none", cause=cause)
    return TRANSITIONS[phase, cause]


def end_of_attempt(*, attempted_generation: int, generation: int, has_succeeded: bool) -> Cause:
    """Return the cause by which an attempt ends, given the generation that it began with and the stored one."""
    if generation > attempted_generation:
        return Cause.ATTEMPT_OUTDATED
    return Cause.ATTEMPT_SUCCEEDED if has_succeeded else Cause.ATTEMPT_FAILED


def needs_attempt(phase: Phase, *, generation: int, observed_generation: int | None) -> bool:
    """Return whether the main controller has not tried the current generation yet."""
    return phase is Phase.PENDING and (observed_generation or 0) < generation


def is_settled(phase: Phase, *, generation: int, observed_generation: int | None) -> bool:
    """Return whether the current generation was tried to the end; the phase alone may be of an earlier one."""
    return phase in (Phase.READY, Phase.FAILED) and observed_generation == generation
