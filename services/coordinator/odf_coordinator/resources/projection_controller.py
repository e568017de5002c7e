"""Projections (RFC-018): results of queries over datasets, computed again after each change of an input."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

import structlog

from odf_common.chain.state import ChainState
from odf_common.errors import InvalidInput, OdfError, Refused
from odf_common.identity.dataset_refs import DatasetId, Name
from odf_common.metadata.events import DatasetKind, DatasetSnapshot, SetTransform
from odf_common.metadata.normalize import normalize
from odf_common.ports.store import DatasetUnknown, find_entry
from odf_common.resources.conditions import PROJECTION_STATE, TRUE
from odf_common.resources.failures import DependencyMissing, DependencyNotReady
from odf_common.resources.registry import PROJECTION
from odf_common.resources.scalar_formats import ResourceId
from odf_common.resources.specs import ProjectionSpec
from odf_coordinator.catalog.datasets import DatasetHandle
from odf_coordinator.definitions.drafts import resolve
from odf_coordinator.operations.projection_files import Origin
from odf_coordinator.operations.read import NoColumns, RecordReader
from odf_coordinator.resources.documents import Json
from odf_coordinator.resources.lookups import NODE_ACCOUNT, dataset_alias, input_alias

log = structlog.stdlib.get_logger(__name__)

ENGINE: Final = "spark"
REFRESH_SECONDS: Final = 2.0
REST: Final = 4  # times as long as it took to compute a result passes until it is computed again
_PATHS: Final = (("content.metadata[0].transform", "spec.project"), ("content.metadata[0]", "spec"))


def check_projection(spec: Mapping[str, Any]) -> None:
    """Raise `InvalidInput`, with the path, for a spec that no engine has to see."""
    read_query(spec, NODE_ACCOUNT)


def read_query(spec: Mapping[str, Any], account: Name) -> SetTransform:
    """Return the normalized query of a projection; inputs without an account belong to its account."""
    typed = PROJECTION.read_spec(dict(spec), [])
    assert isinstance(typed, ProjectionSpec)
    if not typed.inputs:
        raise InvalidInput(text="a projection needs at least one input", where="spec.inputs")
    if typed.project.engine.lower() != ENGINE:
        text = f"this node computes projections by {ENGINE}, not by {typed.project.engine}"
        raise InvalidInput(text=text, where="spec.project.engine")
    if typed.project.temporal_tables:
        hint = "write an aggregate: the newest value by time is `max_by(column, event_time)`"
        text = "a projection has no temporal tables"
        raise InvalidInput(text=text, where="spec.project.temporalTables", hint=hint)
    inputs = tuple(replace(one, alias=one.alias or one.dataset_ref) for one in typed.inputs)
    event = SetTransform(inputs=inputs, transform=typed.project)
    with _paths_of_spec():
        snapshot = normalize(
            DatasetSnapshot(name="projection", kind=DatasetKind.Derivative, metadata=(event,))
        )
    (normal,) = snapshot.metadata
    assert isinstance(normal, SetTransform)
    owned = tuple(replace(one, dataset_ref=input_alias(one.dataset_ref, account)) for one in normal.inputs)
    return replace(normal, inputs=owned)


@contextmanager
def _paths_of_spec() -> Iterator[None]:
    try:
        yield
    except InvalidInput as error:
        for path, own in _PATHS:
            if error.where is not None and error.where.startswith(path):
                raise error.with_facts(where=own + error.where.removeprefix(path)) from error
        raise


def sql_of(query: SetTransform) -> str:
    """Return the steps of a query as one statement."""
    *steps, last = query.transform.queries or ()
    if not steps:
        return last.query
    named = ", ".join(
        f"`{step.alias}` AS (\n{step.query}\n)" for step in (*steps, replace(last, alias="result"))
    )
    return f"WITH {named} SELECT * FROM result"  # noqa: S608 - the engine runs no statements but queries


@dataclass(frozen=True, slots=True, kw_only=True)
class _Followed:
    inputs: frozenset[DatasetId]
    not_before: float


class ProjectionController:
    """Computes projections, again and again."""

    def __init__(
        self,
        reader: RecordReader,
        request: Callable[[ResourceId], None],
        stored: Callable[[], Iterable[ResourceId]] = tuple,
    ) -> None:
        """Read datasets, publish files, and call `request` for an attempt after a change of an input.

        `stored` returns all projections, whose inputs may have changed while the coordinator did not run.
        """
        self._stored = stored
        self._reader, self._files, self._request = reader, reader.projections, request
        self._followed: dict[ResourceId, _Followed] = {}
        self._missing: dict[ResourceId, str] = {}
        """The name of an input that does not exist, by projection."""
        self._moved: set[DatasetId] = set()
        self._lock = threading.Lock()

    def reconcile(self, resource: Json) -> Mapping[str, Json | None]:
        """Compute a result unless it is up to date; raises `DependencyMissing` for an unknown input."""
        headers = resource["headers"]
        id_, account = ResourceId(headers["id"]), Name(headers["account"]["name"])
        alias = dataset_alias(account, headers["name"])
        if self._reader.datasets.catalog.by_alias(alias) is not None:
            raise Refused(text=f"the dataset {alias} exists; rename it, or the projection")
        query = read_query(resource["spec"], account)
        with self._lock:
            self._missing.pop(id_, None)
        handles = self._open_inputs(id_, query)
        self._follow(id_, handles, pause=0)
        heads = {str(one.id): str(one.state.head) for one in handles.values()}
        origin = Origin(alias=alias, sql=sql_of(query), heads=heads)
        result = self._files.of_projection(id_)
        if result is None or result.origin != origin:
            begun = time.monotonic()
            self._compute(id_, origin, handles)
            self._follow(id_, handles, pause=REST * (time.monotonic() - begun))
        return {str(PROJECTION_STATE): self._condition(id_, handles)}

    def finalize(self, resource: Json) -> None:
        """Remove the result."""
        id_ = ResourceId(resource["headers"]["id"])
        with self._lock:
            self._followed.pop(id_, None)
            self._missing.pop(id_, None)
        self._files.remove(id_)

    def on_committed(self, state: ChainState) -> None:
        """Note that a dataset has changed."""
        with self._lock:
            self._moved.add(state.dataset_id)

    def run(self, stop: threading.Event) -> None:
        """Request attempts for all projections, then for those whose inputs have changed or appeared, until stopped."""
        is_listed = False
        while not stop.wait(REFRESH_SECONDS):
            is_listed = is_listed or self._request_stored()
            for due in (*self._take_due(), *self._take_found()):
                self._request(due)

    def _request_stored(self) -> bool:
        """Request attempts for all projections; return whether the store could be read."""
        try:
            stored = tuple(self._stored())
        except OdfError as error:
            log.warning("projections cannot be listed now", code=error.code, why=str(error))
            return False
        for id_ in stored:
            self._request(id_)
        return True

    def _take_due(self) -> list[ResourceId]:
        """Return the projections to compute; those that rest are taken later."""
        now = time.monotonic()
        with self._lock:
            moved = {id_: one for id_, one in self._followed.items() if one.inputs & self._moved}
            resting = [one.inputs for one in moved.values() if one.not_before > now]
            self._moved &= frozenset[DatasetId]().union(*resting)
        return [id_ for id_, one in moved.items() if one.not_before <= now]

    def _take_found(self) -> list[ResourceId]:
        """Return the projections whose missing input exists now."""
        entries = self._reader.datasets.catalog
        with self._lock:
            found = [id_ for id_, ref in self._missing.items() if find_entry(entries, ref) is not None]
            for id_ in found:
                del self._missing[id_]
        return found

    def _open_inputs(self, id: ResourceId, query: SetTransform) -> dict[str, DatasetHandle]:
        """Return the inputs by their names in the query."""
        datasets = self._reader.datasets
        try:
            resolved = resolve(query, {}, datasets.catalog)
            return {str(one.alias): datasets.find(one.dataset_ref) for one in resolved.inputs}
        except DatasetUnknown as error:
            with self._lock:
                self._missing[id] = error.what
            raise DependencyMissing(text=f"the input {error.what} does not exist") from error

    def _compute(self, id: ResourceId, origin: Origin, handles: Mapping[str, DatasetHandle]) -> None:
        try:
            tables = tuple(self._reader.table(name, handle) for name, handle in handles.items())
        except NoColumns as error:
            raise DependencyNotReady(text=str(error)) from error
        self._files.publish(id, origin, self._reader.engine.query_stream(origin.sql, tables))

    def _follow(self, id: ResourceId, handles: Mapping[str, DatasetHandle], *, pause: float) -> None:
        inputs = frozenset(one.id for one in handles.values())
        with self._lock:
            self._followed[id] = _Followed(inputs=inputs, not_before=time.monotonic() + pause)

    def _condition(self, id: ResourceId, handles: Mapping[str, DatasetHandle]) -> Json:
        result = self._files.of_projection(id)
        assert result is not None
        inputs = [
            {"alias": one.alias, "datasetId": str(one.id), "head": result.origin.heads[str(one.id)]}
            for one in handles.values()
        ]
        return {
            "value": TRUE,
            "details": {"table": result.origin.alias, "records": result.records, "inputs": inputs},
        }
