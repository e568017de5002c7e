"""Controllers of resources that the coordinator owns, and its loop over them."""

import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from odf_common.resources.registry import DATASET, SECRET_SET, SOURCE, VARIABLE_SET, WEBHOOK_TARGET, Types
from odf_common.resources.scalar_formats import ResourceId
from odf_common.service.reconcile_loop import Controller, Json, Report, Work
from odf_coordinator.resources.attempts import AttemptEnd, Attempts
from odf_coordinator.resources.documents import type_id
from odf_coordinator.resources.store import FencingToken, ResourceStore
from odf_coordinator.resources.watch import Watch

ELSEWHERE: Final = frozenset((str(SOURCE.uri), str(WEBHOOK_TARGET.uri)))
"""The `$schema` of types whose controllers are in other services."""


class ValueSets:
    """Sets of variables and secrets: they are what they say, and those who use them read them at each run."""

    def reconcile(self, _: Json) -> Mapping[str, Json | None]:
        """Do nothing."""
        return {}

    def finalize(self, _: Json) -> None:
        """Do nothing: secrets are erased with the resource."""


def own_controllers(datasets: Controller) -> dict[str, Controller]:
    """Return the controllers by the `$schema` of their types."""
    sets = {str(kind.uri): ValueSets() for kind in (VARIABLE_SET, SECRET_SET)}
    return {**sets, str(DATASET.uri): datasets}


class LocalStore:
    """The store of this process, as controllers use it."""

    def __init__(
        self, store: ResourceStore, attempts: Attempts, watch: Watch, types: Callable[[], Types]
    ) -> None:
        """Work with the attempts and changes of this process."""
        self._store, self._attempts, self._watch, self._types = store, attempts, watch, types
        self._holder = f"coordinator@{socket.gethostname()}"

    def due_ids(self, types: Sequence[str], is_wanted: Callable[[], bool]) -> Iterator[str]:
        """Return the ids of resources that have to be reconciled."""
        known = frozenset(type_id(self._types().of_schema(schema).uri) for schema in types)
        yield from (due for due in self._watch.due_ids(known, is_wanted) if due is not None)

    def begin(self, id: str, *, lease_ms: int) -> Work | None:
        """Lease a resource."""
        begun = self._attempts.begin(ResourceId(id), self._holder, ttl_ms=lease_ms)
        if begun is None:
            return None
        is_deleting = begun.resource.deleted_ms is not None
        return Work(resource=dict(begun.resource.document), token=begun.token, is_deleting=is_deleting)

    def end(self, id: str, token: int, report: Report) -> int | None:
        """Write an outcome."""
        end = AttemptEnd(
            generation=report.generation,
            failure=report.failure,
            message=report.message,
            failure_class=report.failure_class,
            conditions=report.conditions,
        )
        return self._attempts.end(ResourceId(id), FencingToken(token), end)
