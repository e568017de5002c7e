"""Creates and replaces datasets from manifests, each dataset atomically."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import structlog

from odf_common.errors import AlreadyExists
from odf_common.hashing.multihash import Multihash
from odf_common.identity.dataset_refs import HEAD, DatasetId
from odf_common.metadata.events import AddPushSource, KnownEvent
from odf_common.ports.clock import Clock
from odf_common.ports.engine import Engine
from odf_common.ports.store import CatalogEntry, new_creation
from odf_coordinator.catalog.datasets import DatasetHandle, Datasets, KeyStore, hold_inputs, require_no_cycle
from odf_coordinator.commit.committer import Committer, require_committed, retry_on_conflict
from odf_coordinator.definitions.diff import (
    changed_events,
    dropped_sources,
    event_at,
    keep_engine_version,
    kept_events,
    require_admitted,
    require_replaceable,
    require_settable,
    with_current_schema,
)
from odf_coordinator.definitions.drafts import Draft, Manifest, drafts_of
from odf_coordinator.definitions.query_validation import Validation
from odf_coordinator.lifecycle import Claims
from odf_coordinator.transforms.engine_output import QueryMigrator

log = structlog.stdlib.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class AddResult:
    """The result for one dataset of a manifest; `outcome` is added, unchanged or replaced."""

    alias: str
    dataset_id: DatasetId
    head: Multihash
    outcome: str


class NameTaken(AlreadyExists):
    """The name belongs to another dataset, or to another definition of this one."""

    MESSAGE = "dataset {what} already exists and differs in {changed}"
    ADVICE = "use --replace to change its definition, or choose another name"

    changed: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetCreator:
    """Creates datasets and changes their definitions."""

    datasets: Datasets
    committer: Committer
    claims: Claims
    engine: Engine
    clock: Clock
    keys: KeyStore

    def add(self, manifests: Sequence[Manifest], *, is_replacing: bool) -> tuple[AddResult, ...]:
        """Create or replace the datasets of all manifests. All are checked before the first one is created."""
        drafts = drafts_of(manifests, self.datasets.catalog)
        validation = Validation(datasets=self.datasets, engine=self.engine, drafts=drafts)
        checked = []
        for written in drafts:
            handle = self._find_existing(written)
            draft = (
                written
                if handle is None
                else written.with_events(keep_engine_version(handle.state, written.events))
            )
            if handle is not None:
                self._require_changeable(handle, draft, is_replacing=is_replacing)
            with draft.locate_errors():
                require_admitted(None if handle is None else handle.state, draft.seed, draft.events)
            checked.append(validation.check(draft))
        return tuple(self._make(draft) for draft in checked)

    def put(self, draft: Draft) -> DatasetHandle:
        """Create the dataset of a draft, or append what differs; definitions that the draft does not have stay."""
        handle = self.datasets.by_id(draft.dataset_id)
        if handle is not None:
            return retry_on_conflict(lambda: self._put(draft))
        require_admitted(None, draft.seed, draft.events)
        return self._create(
            Validation(datasets=self.datasets, engine=self.engine, drafts=(draft,)).check(draft)
        )

    def _put(self, draft: Draft) -> DatasetHandle:
        handle = self.datasets.find(str(draft.dataset_id))
        state = handle.state
        events = with_current_schema(state, keep_engine_version(state, draft.events))
        if not changed_events(state, events):
            return handle
        self.committer.require_owned(handle.id)
        whole = draft.with_events((*events, *kept_events(state, events)))
        for event in changed_events(state, events):
            with event_at(events.index(event)):
                require_settable(state, event)
        require_admitted(state, whole.seed, whole.events)
        checked = Validation(datasets=self.datasets, engine=self.engine, drafts=(whole,)).check(whole)
        return self.amend(handle, changed_events(state, checked.events))

    def amend(self, handle: DatasetHandle, events: Sequence[KnownEvent]) -> DatasetHandle:
        """Append events to a dataset's chain, and, if it is at its head, create topics for new push sources.

        A new query is committed together with the migration of the previous query's state. Raises `NotOwned` for a
        copy, before anything is created, and `InvalidQuery` if the state cannot be migrated.
        """
        self.committer.require_owned(handle.id)
        time = self.committer.next_system_time(handle.state)
        events = QueryMigrator(datasets=self.datasets, engine=self.engine).with_migration(
            handle, events, time
        )
        entry = self.ensure_push_topics(handle, events) if handle.ref == HEAD else handle.entry
        with hold_inputs(self.datasets, handle.entry, events, are_here=True):
            outcome = self.committer.commit(
                handle.id, expected_head=handle.state.head, events=events, system_time=time, ref=handle.ref
            )
        return replace(handle, entry=entry, state=require_committed(handle.id, outcome).state)

    def ensure_push_topics(self, handle: DatasetHandle, events: Iterable[KnownEvent]) -> CatalogEntry:
        """Create a topic for each push source of `events`, and return the dataset's updated entry."""
        sources = _sources_of(events)
        entry = self.claims.entry(handle.id)
        if entry.push_topics.keys() >= set(sources):
            return entry
        with self.claims.adding_topics(handle.id, sources) as topics, self.datasets.catalog.lock():
            now = self.claims.entry(handle.id)  # it may have been renamed in the meantime
            entry = replace(now, push_topics={**now.push_topics, **topics})
            self.datasets.catalog.replace(entry)
        return entry

    def create_missing_topics(self, handle: DatasetHandle) -> None:
        """Create missing topics for the push sources of a dataset, for example after `odf key import`."""
        sources = handle.state.push_sources
        if sources.keys() - handle.entry.push_topics.keys():
            self.ensure_push_topics(handle, sources.values())
            self.committer.announce(handle.state)

    def _require_changeable(self, handle: DatasetHandle, draft: Draft, *, is_replacing: bool) -> None:
        require_compatible(handle, draft, is_replacing=is_replacing)
        if changed_events(handle.state, draft.events):
            self.committer.require_owned(handle.id)

    def _find_existing(self, draft: Draft) -> DatasetHandle | None:
        entry = self.datasets.catalog.by_alias(draft.name)
        return None if entry is None else self.datasets.open(entry)

    def _make(self, draft: Draft) -> AddResult:
        handle = self._find_existing(draft)
        if handle is None:
            dataset, outcome = self._create(draft), "added"
        else:
            dataset = retry_on_conflict(lambda: self._replace(draft))
            outcome = "replaced" if changed_events(handle.state, draft.events) else "unchanged"
        log.info("manifest added", **dataset.log_facts, outcome=outcome)
        return AddResult(alias=dataset.alias, dataset_id=dataset.id, head=dataset.state.head, outcome=outcome)

    def _replace(self, draft: Draft) -> DatasetHandle:
        handle = self.datasets.find(draft.name)
        changed = changed_events(handle.state, draft.events)
        return self.amend(handle, changed) if changed else handle

    def _create(self, draft: Draft) -> DatasetHandle:
        """Write the key, the chain, the topics, and last the name, which makes the dataset exist."""
        dataset, catalog = draft.dataset_id, self.datasets.catalog
        with self.claims.creating(dataset, draft.name, _sources_of(draft.events)) as topics:
            entry = CatalogEntry(
                alias=draft.name, dataset_id=dataset, push_topics=topics, creation=new_creation()
            )
            self.keys.save(draft.key)
            handle = self._write(draft, entry)
            with catalog.lock():
                require_no_cycle(self.datasets, entry, draft.events, are_here=True)
                catalog.add(entry)
        self.committer.announce(handle.state)
        return handle

    def _write(self, draft: Draft, entry: CatalogEntry) -> DatasetHandle:
        events = (draft.seed, *draft.events)
        outcome = self.committer.commit(
            draft.dataset_id, expected_head=None, events=events, system_time=self.clock.now()
        )
        state = require_committed(draft.dataset_id, outcome).state
        return DatasetHandle(entry=entry, state=state)


def _sources_of(events: Iterable[KnownEvent]) -> list[str]:
    return [event.source_name for event in events if isinstance(event, AddPushSource)]


def require_compatible(handle: DatasetHandle, draft: Draft, *, is_replacing: bool) -> None:
    """Raise `NameTaken` unless the manifest is equal to the dataset's definition, or may replace it."""
    changed = [type(event).__name__ for event in changed_events(handle.state, draft.events)]
    if draft.snapshot.kind is not handle.state.kind:
        changed.append("kind")
    changed += [f"source {name}" for name in dropped_sources(handle.state, draft.events)]
    if not changed:
        return
    if not is_replacing:
        raise NameTaken(what=handle.alias, changed=", ".join(changed))
    with draft.locate_errors():
        require_replaceable(handle.state, draft.snapshot.kind, draft.events)
