"""Rolls back derivatives whose inputs were reset.

The new head is the last block whose inputs still exist; the rest is recomputed.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import structlog

from odf_common.chain.compare_chains import BlockIndex, ConsistentBlock, find_consistent_block
from odf_common.chain.state import ChainState
from odf_common.errors import OdfError
from odf_common.hashing.multihash import Multihash
from odf_common.identity.dataset_refs import DatasetId
from odf_common.metadata.events import KnownEvent, SetTransform
from odf_coordinator.catalog.datasets import DatasetHandle, Datasets, KeyStore, inputs_first
from odf_coordinator.commit.committer import require_committed
from odf_coordinator.definitions.create import DatasetCreator
from odf_coordinator.transforms.engine_output import QueryMigrator

log = structlog.stdlib.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rollback:
    handle: DatasetHandle
    consistent: ConsistentBlock


@dataclass(frozen=True, slots=True, kw_only=True)
class DerivativeRollback:
    """Finds derivatives that have diverged from their inputs, and rolls them back."""

    datasets: Datasets
    creator: DatasetCreator
    keys: KeyStore

    def downstream(self, chosen: Iterable[DatasetHandle]) -> tuple[DatasetHandle, ...]:
        """Return the datasets and everything derived from them, directly or not, inputs first."""
        affected = {handle.id: handle for handle in chosen}
        everything = {handle.id: handle for handle in self.datasets.all()} | affected
        for handle in inputs_first(everything):
            if any(input_ in affected for input_ in handle.inputs()):
                affected.setdefault(handle.id, handle)
        return tuple(inputs_first(affected))

    def roll_back(self, chosen: Iterable[DatasetHandle]) -> Iterator[DatasetHandle]:
        """Roll back the owned derivatives that have diverged from their inputs, and yield each.

        A derivative is rolled back before its inputs, so it is never ahead of an input. `chosen` has inputs first; a
        derivative is checked as if its inputs had already been rolled back. Raises `HeadMoved` if another block was
        committed in the meantime, and `InvalidQuery` if the state of a query that is set again cannot be migrated.
        """
        for derivative in reversed(self._find_rollbacks(chosen)):
            yield self._roll_back(derivative)

    def restart(self, handle: DatasetHandle, transform: SetTransform) -> DatasetHandle:
        """Roll a derivative back to before its first transform, and set this query for all future transforms."""
        read = self.datasets.reader(handle.id)
        consistent = find_consistent_block(read, handle.state.head, lambda _, __: False)
        if consistent is None:  # nothing was derived
            return self.creator.amend(handle, (transform,))
        definitions = (*consistent.definitions_since, transform)
        return self._roll_back(
            _Rollback(handle=handle, consistent=replace(consistent, definitions_since=definitions))
        )

    def _find_rollbacks(self, chosen: Iterable[DatasetHandle]) -> list[_Rollback]:
        indexes: dict[DatasetId, BlockIndex | None] = {}
        rollbacks = []

        def holds(dataset: DatasetId, block: Multihash) -> bool:
            if dataset not in indexes:
                handle = self.datasets.by_id(dataset)
                indexes[dataset] = None if handle is None else self._index(handle.id, handle.state.head)
            index = indexes[dataset]
            return index is None or index.contains(block)  # an unknown input cannot be checked

        for derivative in chosen:
            if not derivative.is_derivative or not self.keys.has(derivative.id):
                continue
            handle = self.datasets.read(derivative.entry)  # its current state
            if not isinstance(handle, DatasetHandle):
                continue
            try:
                consistent = find_consistent_block(self.datasets.reader(handle.id), handle.state.head, holds)
            except OdfError as error:
                # An input cannot be read. Its pull will report that; continue with the others.
                log.warning("cannot compare derivative with its inputs", **handle.log_facts, why=str(error))
                continue
            if consistent is not None:
                rollbacks.append(_Rollback(handle=handle, consistent=consistent))
                indexes[handle.id] = self._index(handle.id, consistent.block)
        return rollbacks

    def _index(self, dataset: DatasetId, head: Multihash) -> BlockIndex:
        return BlockIndex(self.datasets.reader(dataset), head)

    def _roll_back(self, derivative: _Rollback) -> DatasetHandle:
        handle, committer = derivative.handle, self.creator.committer
        state = self.datasets.states.state_at(handle.id, derivative.consistent.block)
        definitions = _last_of_each(state, derivative.consistent.definitions_since)
        if definitions:
            time = committer.next_system_time(handle.state)
            # The queries that are set again continue from the state that is rolled back to, not from the current one.
            before = replace(handle, state=state)
            migrator = QueryMigrator(datasets=self.datasets, engine=self.creator.engine)
            events = migrator.with_migration(before, definitions, time)
            outcome = committer.commit(
                handle.id, expected_head=handle.state.head, events=events, system_time=time, onto=state
            )
            state = require_committed(handle.id, outcome).state
        else:
            with committer.lock(handle.id):
                committer.move_ref(handle.id, expected=handle.state.head, state=state)
        log.info("derivative rolled back", **handle.log_facts, block=str(derivative.consistent.block))
        return replace(handle, state=state)


def _last_of_each(state: ChainState, events: Iterable[KnownEvent]) -> tuple[KnownEvent, ...]:
    """Return the last event of each kind, in order, that changes `state`."""
    last: Mapping[type, KnownEvent] = {type(event): event for event in events}
    return tuple(event for event in last.values() if state.definitions.replaced_by(event) != event)
