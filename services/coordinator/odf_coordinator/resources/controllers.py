"""Controllers of resources that the coordinator owns, and its loop over them."""

import socket
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Final

from odf_common.resources.registry import (
    ACCOUNT,
    DATASET,
    RELATIONS,
    SECRET_SET,
    SOURCE,
    VARIABLE_SET,
    WEBHOOK_TARGET,
    Types,
)
from odf_common.resources.scalar_formats import ResourceId
from odf_common.service.reconcile_loop import REGISTERED, Controller, Json, Leased, Report, Work
from odf_coordinator.resources.attempts import AttemptEnd, Attempts
from odf_coordinator.resources.documents import type_id
from odf_coordinator.resources.relations import RelationsController
from odf_coordinator.resources.store import FencingToken, ResourceStore, TypeId
from odf_coordinator.resources.watch import Watch

ELSEWHERE: Final = frozenset(str(kind.uri) for kind in (ACCOUNT, SOURCE, WEBHOOK_TARGET))
"""The `$schema` of types whose controllers are in other services."""


class PlainResources:
    """Resources that are what they say: sets of values, and those of registered types."""

    def reconcile(self, _: Json) -> Mapping[str, Json | None]:
        """Do nothing."""
        return {}

    def finalize(self, _: Json) -> None:
        """Do nothing: secrets are erased with the resource."""


def own_controllers(datasets: Controller, store: ResourceStore) -> dict[str, Controller]:
    """Return the controllers by the `$schema` of their types."""
    sets = {str(kind.uri): PlainResources() for kind in (VARIABLE_SET, SECRET_SET)}
    relations = RelationsController(store=store)
    return {
        **sets,
        str(DATASET.uri): datasets,
        str(RELATIONS.uri): relations,
        REGISTERED: PlainResources(),
    }


class _KnownTypes(Collection[TypeId]):
    """The types of controllers, among them those that are registered later."""

    def __init__(self, schemas: Sequence[str], types: Callable[[], Types]) -> None:
        self._types, self._has_registered = types, REGISTERED in schemas
        self._own = frozenset(type_id(types().of_schema(one).uri) for one in schemas if one != REGISTERED)

    def __iter__(self) -> Iterator[TypeId]:
        yield from self._own
        if self._has_registered:
            yield from dict.fromkeys(type_id(kind.uri) for kind in self._types() if kind.spec is None)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, wanted: object) -> bool:
        return wanted in self._own or any(wanted == one for one in self)


class LocalStore:
    """The store of this process, as controllers use it."""

    def __init__(
        self, store: ResourceStore, attempts: Attempts, watch: Watch, types: Callable[[], Types]
    ) -> None:
        """Work with the attempts and changes of this process, and release the leases of the former one.

        If that is not dead but slow, its outcomes are refused, since the tokens of its leases are outdated.
        """
        self._store, self._attempts, self._watch, self._types = store, attempts, watch, types
        self._holder = f"coordinator@{socket.gethostname()}"
        with store.transaction() as transaction:
            transaction.release_all(self._holder)

    def due_ids(self, types: Sequence[str], is_wanted: Callable[[], bool]) -> Iterator[str]:
        """Return the ids of resources that have to be reconciled."""
        known = _KnownTypes(types, self._types)
        yield from (due for due in self._watch.due_ids(known, is_wanted) if due is not None)

    def begin(self, ids: Sequence[str], *, lease_ms: int) -> Leased:
        """Lease resources."""
        begun, held = self._attempts.begin([*map(ResourceId, ids)], self._holder, ttl_ms=lease_ms)
        works = [
            Work(resource=dict(one.resource.document), token=one.token, is_deleting=one.is_deleting)
            for one in begun
        ]
        return Leased(works=works, held=held)

    def end(self, reports: Mapping[str, Report]) -> Mapping[str, int]:
        """Write outcomes."""
        return self._attempts.end(
            {
                ResourceId(id_): AttemptEnd(
                    token=FencingToken(report.token),
                    generation=report.generation,
                    failure=report.failure,
                    message=report.message,
                    failure_class=report.failure_class,
                    conditions=report.conditions,
                    is_cleanup=report.is_cleanup,
                )
                for id_, report in reports.items()
            }
        )
