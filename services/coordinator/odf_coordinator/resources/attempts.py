"""Attempts of controllers to make a resource what its manifest says (RFC-018)."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import structlog

from odf_common.metadata.scalars import Timestamp
from odf_common.ports.clock import Clock
from odf_common.resources.conditions import (
    DELETION_BLOCKED,
    RECONCILIATION_ERROR,
    TRUE,
    StatusCondition,
    with_condition,
    without_condition,
)
from odf_common.resources.failures import FailureClass, retry_delay_ms
from odf_common.resources.phases import Cause, Phase, end_of_attempt, next_phase
from odf_common.resources.registry import WITH_SECRETS
from odf_common.resources.scalar_formats import ResourceId, TypeUri
from odf_coordinator.resources import documents
from odf_coordinator.resources.documents import Json
from odf_coordinator.resources.store import (
    Change,
    EventKind,
    FencingToken,
    LeaseLost,
    NewEvent,
    ResourceStore,
    StoredResource,
    Transaction,
)

log = structlog.stdlib.get_logger(__name__)

CONTROLLER: Final = "controller"
IN_USE: Final = "in-use"
_WITH_SECRETS: Final = frozenset(str(kind.uri) for kind in WITH_SECRETS)
Conditions = Mapping[str, StatusCondition]


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """A resource that was leased for an attempt."""

    resource: StoredResource
    token: FencingToken

    @property
    def is_deleting(self) -> bool:
        """Whether its deletion was requested: the attempt is to clean up."""
        return self.resource.deleted_ms is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptEnd:
    """The outcome of an attempt."""

    token: FencingToken
    generation: int
    """Of the resource that was reconciled."""
    failure: str = ""
    """Code of the failure; empty: success."""
    message: str = ""
    failure_class: FailureClass = FailureClass.PERMANENT
    conditions: Mapping[str, Json | None] = field(default_factory=dict)
    """Conditions by their URI; None removes one."""
    is_cleanup: bool = False
    """Whether the attempt has cleaned up after a resource whose deletion was requested."""


@dataclass(slots=True, kw_only=True)
class Attempts:
    """Leases resources to controllers, and writes their reports."""

    store: ResourceStore
    clock: Clock
    changed: Callable[[], None] = lambda: None
    requested: Callable[[ResourceId], None] = lambda _: None
    random: Callable[[], float] = random.random

    def request(self, id: ResourceId) -> None:
        """Request another attempt."""
        self.requested(id)

    def note(self, conditions: Mapping[ResourceId, Mapping[str, Json | None]]) -> None:
        """Write conditions that have changed without an attempt; equal ones are not written."""
        now = self.clock.now()
        with self.store.transaction() as transaction:
            changes = []
            for resource, noted in conditions.items():
                found = transaction.by_id(resource)
                if found is None:
                    continue
                before = found.document["status"]["conditions"]
                after = _plain(_with(_conditions(found), noted, now))
                if after != before:
                    status = {**found.document["status"], "conditions": after}
                    changes.append(with_status(found, status, EventKind.CONDITION_CHANGED, now.ms))
            if changes:
                transaction.save(changes)
        if changes:
            self.changed()

    def begin(
        self, ids: Sequence[ResourceId], holder: str, *, ttl_ms: int
    ) -> tuple[list[Begun], list[ResourceId]]:
        """Lease resources; return those that were, and the ids of those that others have. The rest is gone."""
        now_ms = self.clock.now().ms
        with self.store.transaction() as transaction:
            found = transaction.by_ids(ids)
            tokens = transaction.lease_many([*found], holder, ttl_ms=ttl_ms, now_ms=now_ms)
            living = [found[id_] for id_ in tokens if found[id_].deleted_ms is None]
            started = transaction.save([_start(one, holder, now_ms, tokens[one.id]) for one in living])
        self.changed()
        current = {**found, **{one.id: one for one in started}}
        begun = [Begun(resource=current[id_], token=token) for id_, token in tokens.items()]
        return begun, [id_ for id_ in found if id_ not in tokens]

    def end(self, ends: Mapping[ResourceId, AttemptEnd]) -> dict[str, int]:
        """Write the outcomes of attempts, and end their leases; return the delays in ms of those to repeat.

        An attempt whose lease was lost changes nothing, since another one has begun.
        """
        left, delays = dict(ends), dict[str, int]()
        while left:
            try:
                delays = self._end_all(left)
            except LeaseLost as error:
                log.info("an attempt came too late", resource=error.resource, why=str(error))
                del left[ResourceId(error.resource)]
            else:
                break
        self.changed()
        return delays

    def _end_all(self, ends: Mapping[ResourceId, AttemptEnd]) -> dict[str, int]:
        now, changes, delays = self.clock.now(), list[Change](), dict[str, int]()
        with self.store.transaction() as transaction:
            for id_, found in transaction.by_ids([*ends]).items():
                end = ends[id_]
                if found.deleted_ms is not None and not end.is_cleanup:
                    delays[id_] = 0  # its deletion was requested meanwhile: nothing is cleaned up yet
                    continue
                change_of = self._outcome if found.deleted_ms is None else self._removal
                change, delay = change_of(found, end, now)
                changes.append(change)
                if delay is not None:
                    delays[id_] = delay
            for saved in transaction.save(changes):
                if saved.deleted_ms is not None and not ends[saved.id].failure:
                    _remove(transaction, saved, now.ms)
            transaction.release_many({id_: end.token for id_, end in ends.items()})
        return delays

    def _outcome(self, found: StoredResource, end: AttemptEnd, now: Timestamp) -> tuple[Change, int | None]:
        conditions, delay = self._with_failure(_conditions(found), RECONCILIATION_ERROR, end, now)
        conditions = _with(conditions, end.conditions, now)
        cause = end_of_attempt(
            attempted_generation=end.generation,
            generation=found.generation,
            has_succeeded=not end.failure,
        )
        status = {
            "phase": next_phase(Phase(found.phase), cause),
            "observedGeneration": end.generation,
            "reconciledAt": str(now),
            "conditions": _plain(conditions),
        }
        kind = EventKind.RECONCILE_FAILED if end.failure else EventKind.RECONCILE_SUCCEEDED
        change = with_status(found, status, kind, now.ms, end.token)
        return change, 0 if cause is Cause.ATTEMPT_OUTDATED else delay

    def _removal(self, found: StoredResource, end: AttemptEnd, now: Timestamp) -> tuple[Change, int | None]:
        """Return the last change after controllers have cleaned up, or the reason why they could not."""
        if not end.failure:
            event = NewEvent(kind=EventKind.DELETED, subject=CONTROLLER, time_ms=now.ms)
            return Change(resource=found, events=[event], token=end.token), None
        blocked = replace(end, failure=IN_USE if end.failure == IN_USE else "cleanup-failed")
        conditions, delay = self._with_failure(_conditions(found), DELETION_BLOCKED, blocked, now)
        status = {**found.document["status"], "conditions": _plain(conditions)}
        return with_status(found, status, EventKind.CONDITION_CHANGED, now.ms, end.token), delay

    def _with_failure(
        self, conditions: Conditions, key: TypeUri, end: AttemptEnd, now: Timestamp
    ) -> tuple[Conditions, int | None]:
        """Return the conditions with a failure, or without the former one, and the delay of a retry in ms."""
        if not end.failure:
            return without_condition(conditions, key), None
        former = conditions.get(str(key))
        earlier = 0 if former is None or former.details is None else former.details.get("failures", 0)
        assert isinstance(earlier, int)
        delay = retry_delay_ms(end.failure_class, earlier, self.random())
        condition = StatusCondition(
            value=TRUE,
            code=end.failure,
            message=end.message,
            observed_generation=end.generation,
            last_transition_time=now,
            retry_at=None if delay is None else Timestamp.from_ms(now.ms + delay),
            details={"failures": earlier + 1},
        )
        return with_condition(conditions, key, condition), delay


def _remove(transaction: Transaction, resource: StoredResource, now_ms: int) -> None:
    if resource.schema in _WITH_SECRETS:
        transaction.erase_payloads(resource.id)
    transaction.remove(resource, now_ms)


def _conditions(found: StoredResource) -> Conditions:
    plain = found.document["status"]["conditions"]
    return {key: StatusCondition.from_plain(condition) for key, condition in plain.items()}


def _with(conditions: Conditions, noted: Mapping[str, Json | None], now: Timestamp) -> Conditions:
    """Return the conditions with those that a controller has noted; None removes one."""
    for key, plain in noted.items():
        uri = TypeUri.parse(key)
        if plain is None:
            conditions = without_condition(conditions, uri)
        else:
            stamped = {**plain, "lastTransitionTime": str(now)}
            conditions = with_condition(conditions, uri, StatusCondition.from_plain(stamped))
    return conditions


def _plain(conditions: Conditions) -> Json:
    return {key: condition.plain() for key, condition in conditions.items()}


def _start(found: StoredResource, holder: str, now_ms: int, token: FencingToken) -> Change:
    """Return the change to Reconciling; an attempt whose lease has expired is given up first."""
    phase: Phase | None = Phase(found.phase)
    if phase is Phase.RECONCILING:
        phase = next_phase(phase, Cause.LEASE_EXPIRED)
    cause = {Phase.FAILED: Cause.RETRIED, Phase.READY: Cause.RECHECKED}.get(phase or Phase.PENDING)
    status = {**found.document["status"], "phase": next_phase(phase, cause or Cause.ATTEMPT_STARTED)}
    return with_status(found, status, EventKind.RECONCILE_STARTED, now_ms, token, subject=holder)


def with_status(
    found: StoredResource,
    status: Json,
    kind: EventKind,
    now_ms: int,
    token: FencingToken | None = None,
    *,
    subject: str = CONTROLLER,
) -> Change:
    """Return the change of a resource's status."""
    headers = {**found.document["headers"], "updatedAt": documents.timestamp(now_ms)}
    document = {**found.document, "headers": headers, "status": status}
    resource = replace(found, document=document, phase=status["phase"], updated_ms=now_ms)
    event = NewEvent(kind=kind, subject=subject, time_ms=now_ms, payload={"status": status})
    return Change(resource=resource, events=[event], token=token)
