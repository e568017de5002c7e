"""Migrates a derivative's state from one query to the next, so that the new query continues where the old one stopped.

The migration's block directly follows that of the SetTransform, in the same commit, so no crash leaves a query with
another query's state. The block reads nothing new from any input, which is how a replay recognizes it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog

from odf_common.adapters.local.faults import translating_os_errors
from odf_common.chain.state import ChainState, InputProgress
from odf_common.chain.transform_inputs import empty_step
from odf_common.chain.transform_request import changes_nothing, next_event
from odf_common.dataset.replay import migrate_request, request_files
from odf_common.errors import InvalidInput, InvalidQuery, NotFound, name_dataset
from odf_common.identity.did import DatasetId
from odf_common.metadata.events import ExecuteTransform, KnownEvent, SetDataSchema, SetTransform
from odf_common.metadata.scalars import Timestamp
from odf_common.ports.engine import Engine
from odf_common.ports.store import scratch_folder
from odf_coordinator.catalog.datasets import DatasetHandle, Datasets
from odf_coordinator.storage.availability import why_missing
from odf_coordinator.transforms.engine_output import store, validate

log = structlog.stdlib.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryMigrator:
    """Builds the events that migrate a derivative's state to a new query."""

    datasets: Datasets
    engine: Engine

    @translating_os_errors
    def with_migration(
        self, handle: DatasetHandle, events: Sequence[KnownEvent], system_time: Timestamp
    ) -> tuple[KnownEvent, ...]:
        """Return the events, with those of a migration inserted if one is needed; its objects are stored.

        Raises `InvalidQuery` with the engine's message if the state cannot be migrated, and `DataDropped` if it was
        dropped; then nothing is stored.
        """
        new = next((event for event in events if isinstance(event, SetTransform)), None)
        old = handle.state.transform
        if new is None or old is None or handle.state.checkpoint is None:
            return tuple(events)
        with scratch_folder(self.datasets.blobs) as scratch:
            try:
                migration = self._migrate(handle, old, new, system_time, scratch)
            except NotFound as error:
                raise why_missing(self.datasets, (handle,), error) from error
        if migration is None:
            return tuple(events)
        schemas, executed = migration
        log.info("query migrated", **handle.log_facts, records=executed.new_data is not None)
        index = list(events).index(new) + 1
        # The schema goes first: nothing may come between the SetTransform and its migration.
        return (*schemas, *events[:index], executed, *events[index:])

    def _migrate(
        self,
        handle: DatasetHandle,
        old: SetTransform,
        new: SetTransform,
        system_time: Timestamp,
        scratch: Path,
    ) -> tuple[tuple[SetDataSchema, ...], ExecuteTransform] | None:
        """Return the new schema of the migration's records, if changed, and the migration's event."""
        state = handle.state
        states = {progress.dataset_id: self._input(progress) for progress in state.input_progress}
        files = request_files(self.datasets.blobs, state, scratch)
        request = migrate_request(state, old, new, states, system_time=system_time, files=files)
        try:
            response = self.engine.migrate(request)
        except InvalidQuery as error:
            raise self._refusal(handle.alias, states, error) from error
        written = validate(state, response, scratch)
        if written.checkpoint is None:
            raise InvalidInput(text="the engine migrated the query, but wrote no checkpoint for the new one")
        event = next_event(
            state, empty_step(state), response, new_data=written.data, new_checkpoint=written.checkpoint
        )
        # The new query continues from the same state, so its SetTransform alone is enough.
        if changes_nothing(state, event):
            return None
        store(self.datasets.blobs, state.dataset_id, written, scratch)
        schemas = () if written.data is None or written.schema is None else (written.schema,)
        return schemas, event

    def _refusal(
        self, alias: str, states: Mapping[DatasetId, ChainState], error: InvalidQuery
    ) -> InvalidQuery:
        """Return the reason why a derivative's state cannot be migrated, or the input that has to be pulled first."""
        for dataset, state in states.items():
            handle = self.datasets.by_id(dataset)
            if handle is not None and handle.state.schema != state.schema:
                text = f"{error}; the schema of {handle.alias} has changed: pull the derivative, then change its query"
                return InvalidQuery(text=text)
        return InvalidQuery(text=name_dataset(str(error), alias))

    def _input(self, done: InputProgress) -> ChainState:
        """Return an input's state at the block where the old query stopped."""
        if done.last_block is None:
            raise NotFound(what=f"a block of {done.dataset_id}")
        handle = self.datasets.by_id(done.dataset_id)
        if handle is not None and handle.state.head == done.last_block:
            return handle.state
        return self.datasets.states.state_at(done.dataset_id, done.last_block)
