"""Looks up this node's datasets: catalog entries, chain states and blocks. Also ownership, stalls, and dependencies.

`hold_inputs` guarantees that dependencies have no cycle, and that no input is deleted while a transform is committed.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path

import structlog

from odf_common.adapters.local.faults import translating_os_errors
from odf_common.adapters.local.key_files import (
    IMPORTED,
    dataset_key,
    has_dataset_key,
    keep_dataset_key,
    require_owned,
)
from odf_common.chain.dependency_order import in_order
from odf_common.chain.state import ChainState
from odf_common.dataset.node_datasets import require_stored_block
from odf_common.dataset.open_rejects import Rejects, current_rejects, polling_sources
from odf_common.dataset.state_cache import ChainStates
from odf_common.errors import (
    Damaged,
    InvalidInput,
    NotFound,
    OdfError,
    Unavailable,
    advice_while_retried,
    nearest,
)
from odf_common.hashing.multihash import Multihash
from odf_common.identity.dataset_refs import HEAD, DatasetId, split_ref
from odf_common.identity.keys import PrivateKey
from odf_common.metadata.events import DatasetKind, MetadataEvent, SetTransform
from odf_common.metadata.scalars import Timestamp
from odf_common.ports.store import (
    BlobStore,
    Catalog,
    CatalogEntry,
    DatasetUnknown,
    RefReader,
    block_reader,
    require_entry,
)


@dataclass(frozen=True, slots=True)
class KeyStore:
    """Stores the keys of datasets. The node that has the key of a dataset owns the dataset; other nodes have copies."""

    folder: Path

    def save(self, key: PrivateKey) -> None:
        """Store a key durably."""
        keep_dataset_key(self.folder, key)

    def load(self, dataset: DatasetId) -> PrivateKey:
        """Return a key; raises `NoPrivateKey`."""
        return dataset_key(self.folder, dataset)

    def has(self, dataset: DatasetId) -> bool:
        """Return whether this node has the dataset's key."""
        return has_dataset_key(self.folder, dataset)

    @translating_os_errors
    def remove(self, dataset: DatasetId) -> None:
        """Delete a key, if it exists."""
        self._path(dataset).unlink(missing_ok=True)
        self._path(dataset).with_name(f"{dataset.folder}{IMPORTED}").unlink(missing_ok=True)

    def _path(self, dataset: DatasetId) -> Path:
        return self.folder / dataset.folder


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnershipCheck:
    """Checks which datasets this node may commit to."""

    keys: KeyStore
    catalog: Catalog

    def require(self, dataset: DatasetId) -> None:
        """Raise `NotOwned` unless this node has the dataset's key."""
        require_owned(self.keys.folder, self.catalog, dataset)


class Activity(Enum):
    """An activity of a dataset that may stall."""

    READ = auto()
    """Reading: the dataset could not be read when it was listed last."""
    COMMIT = auto()
    """Committing: the last commit could not be attempted, for example because the dataset was locked."""
    TRANSFORM = auto()
    """Transforming: the last transform failed."""
    DEPENDENCY = auto()
    """A service that transforms need: it was unavailable for the last one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """The reason why a dataset makes no progress."""

    reason: str
    remedy: str = ""
    cause: object = None
    """A value that has to change before an automatic retry; None: retries do not depend on it."""
    since: Timestamp = field(compare=False)


class Stalls:
    """The current stall of each activity of each dataset; thread-safe."""

    def __init__(self) -> None:
        self._stalls: dict[
            DatasetId, dict[Activity, tuple[Stall, float]]
        ] = {}  # and when it was last recorded
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Return the number of stalled datasets."""
        return len(self._stalls)

    def get(self, dataset: DatasetId, *activities: Activity) -> Stall | None:
        """Return the stall of the first of these activities that is stalled; None if none is."""
        with self._lock:
            stalls = self._stalls.get(dataset, {})
            return next((stalls[activity][0] for activity in activities if activity in stalls), None)

    def record(
        self, dataset: DatasetId, activity: Activity, reason: str, *, remedy: str = "", cause: object = None
    ) -> bool:
        """Record a stall, and return whether it differs from the recorded one. An unchanged stall keeps its `since`."""
        new = Stall(reason=reason, remedy=remedy, cause=cause, since=Timestamp(time.time_ns()))
        with self._lock:
            stalls = self._stalls.setdefault(dataset, {})
            before = stalls[activity][0] if activity in stalls else None
            stalls[activity] = (before if before == new else new, time.monotonic())
        return before != new

    def clear(self, dataset: DatasetId, *activities: Activity) -> None:
        """Remove the stalls of these activities of a dataset; of all activities if none is given."""
        with self._lock:
            stalls = self._stalls.get(dataset, {})
            for activity in activities or Activity:
                stalls.pop(activity, None)
            if not stalls:
                self._stalls.pop(dataset, None)

    def recent(self, dataset: DatasetId, activity: Activity, seconds: float) -> Stall | None:
        """Return the stall of an activity if it was recorded in the last `seconds`; an older one is removed."""
        with self._lock:
            stall, recorded = self._stalls.get(dataset, {}).get(activity, (None, 0.0))
        if stall is not None and time.monotonic() - recorded > seconds:
            self.clear(dataset, activity)
            return None
        return stall

    def keep(self, datasets: Iterable[DatasetId]) -> None:
        """Remove the stalls of all datasets except these."""
        kept = frozenset(datasets)
        with self._lock:
            for dataset in self._stalls.keys() - kept:
                del self._stalls[dataset]


def remedy_of(error: Exception, otherwise: str) -> str:
    """Return the remedy for an error of an operation that is retried: the error's own advice, or else `otherwise`."""
    advice = advice_while_retried(error) if isinstance(error, OdfError) else ""
    if advice:
        return advice
    if isinstance(error, Unavailable):
        return "it is retried automatically; `odf status` shows which part of the node is down"
    return otherwise


log = structlog.stdlib.get_logger(__name__)


class ReferenceUnknown(NotFound):
    """The dataset has no reference with this name."""

    ADVICE = (
        "`odf ref list DATASET` shows the references of a dataset, `odf ref set DATASET@NAME` creates one"
    )


class HeadMissing(Damaged):
    """A dataset has a name but no head, as after an incomplete restore."""

    ADVICE = (
        "restore the file from a backup, or remove the dataset with `odf delete {alias} --yes`; other "
        "datasets are not affected"
    )

    alias: str
    why: str = "the file is missing"


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetHandle:
    """A dataset with a name and blocks, at one of its references."""

    entry: CatalogEntry
    state: ChainState
    ref: str = HEAD

    @property
    def id(self) -> DatasetId:
        """Return the dataset's id."""
        return self.entry.dataset_id

    @property
    def alias(self) -> str:
        """Return the dataset's name in its original spelling."""
        return self.entry.alias

    @property
    def log_facts(self) -> Mapping[str, str]:
        """Return the fields that identify the dataset in log messages."""
        return self.entry.log_facts

    @property
    def is_derivative(self) -> bool:
        """Return whether its data is derived from other datasets."""
        return self.state.kind is DatasetKind.Derivative

    def inputs(self) -> tuple[DatasetId, ...]:
        """Return the datasets that the transform reads, without repetition."""
        return self.state.inputs


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable:
    """A dataset whose chain cannot be read, with the reason."""

    entry: CatalogEntry
    why: str
    remedy: str = ""
    since: Timestamp | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Datasets:
    """Looks up datasets. A dataset for which `has_key` returns False is a copy."""

    catalog: Catalog
    states: ChainStates
    blobs: BlobStore
    refs: RefReader
    has_key: Callable[[DatasetId], bool] = lambda _: True
    stalls: Stalls = field(default_factory=Stalls)
    roots: set[DatasetId] = field(default_factory=set)
    """A cache of datasets that are known to be roots, which have no inputs. An import removes its dataset."""

    def find(self, ref: str) -> DatasetHandle:
        """Return the dataset with this alias or id.

        Raises `HeadMissing`, and `DatasetUnknown`, which suggests a similar name.
        """
        handle = self.open(self.entry(ref))
        if handle is None:
            raise DatasetUnknown(what=ref)
        return handle

    def rejects(self, handle: DatasetHandle) -> Rejects:
        """Return the number of rejected messages that await a decision, and the first reason; copies have none."""
        polled = polling_sources(handle.state) if self.has_key(handle.id) else ()
        return current_rejects(self.blobs, handle.state, (*handle.entry.push_topics, *polled))

    def open_at(self, ref: str) -> DatasetHandle:
        """Return the dataset at the reference in `DATASET@NAME`, by default its head.

        Raises `DatasetUnknown` and `NotFound`.
        """
        text, name = split_ref(ref)
        if name == HEAD:
            return self.find(text)
        entry = self.entry(text)
        block = self.require_ref(entry, name)
        return DatasetHandle(entry=entry, state=self.states.state_at(entry.dataset_id, block), ref=name)

    def require_ref(self, entry: CatalogEntry, name: str) -> Multihash:
        """Return the block of a dataset's reference; raises `ReferenceUnknown`."""
        block = self.refs.head(entry.dataset_id, name)
        if block is None:
            raise ReferenceUnknown(what=f"reference {name} of {entry.alias}")
        return block

    def entry(self, ref: str) -> CatalogEntry:
        """Return the catalog entry of this alias or id; raises `DatasetUnknown`, which suggests a similar name."""
        return require_entry(self.catalog, ref)

    def by_id(self, dataset: DatasetId) -> DatasetHandle | None:
        """Return the dataset with this id; None if it is not in this node's catalog. Raises `HeadMissing`."""
        entry = self.catalog.by_id(dataset)
        return None if entry is None else self.open(entry)

    def open(self, entry: CatalogEntry) -> DatasetHandle | None:
        """Return the dataset of an entry; None if it was deleted. Raises `HeadMissing`."""
        state = self.states.current(entry.dataset_id)
        if state is None:
            # The name is taken last and freed first, so only an outdated entry may have no head.
            if not self._is_current(entry):
                return None
            state = self.states.current(entry.dataset_id)
        if state is None:
            raise HeadMissing(file=f"datasets/{entry.dataset_id.folder}/refs/{HEAD}", alias=entry.alias)
        return DatasetHandle(entry=entry, state=state)

    def all(self) -> Iterator[DatasetHandle]:
        """Iterate over all readable datasets by name."""
        return (dataset for dataset in self.scan() if isinstance(dataset, DatasetHandle))

    def scan(self) -> Iterator[DatasetHandle | Unreadable]:
        """Iterate over all datasets by name, including unreadable ones."""
        entries = tuple(self.catalog.entries())
        if self.stalls:
            self.stalls.keep(entry.dataset_id for entry in entries)
        for entry in entries:
            dataset = self.read(entry)
            if dataset is not None:
                yield dataset

    def read(self, entry: CatalogEntry) -> DatasetHandle | Unreadable | None:
        """Return the dataset of an entry, or the reason why it cannot be read; None if it was deleted."""
        dataset = self._attempt(entry, self._open_stored)
        if not isinstance(dataset, Unreadable):
            self.stalls.clear(entry.dataset_id, Activity.READ)
        return dataset

    def _attempt(
        self, entry: CatalogEntry, read: Callable[[CatalogEntry], DatasetHandle | None]
    ) -> DatasetHandle | Unreadable | None:
        try:
            return read(entry)
        except Exception as error:  # noqa: BLE001 - any error concerns this dataset only
            return self.unreadable(entry, error) if self._is_current(entry) else None

    def _open_stored(self, entry: CatalogEntry) -> DatasetHandle | None:
        """Return the dataset as `open` does, but raise `Damaged` if the head's block is no longer stored."""
        handle = self.open(entry)
        if handle is not None:
            # Its state may be cached, which does not prove that the chain is still there.
            require_stored_block(self.blobs, handle.id, handle.state.head)
        return handle

    def _is_current(self, entry: CatalogEntry) -> bool:
        """Return whether the dataset still has this name; True if the name cannot be read."""
        try:
            named = self.catalog.by_alias(entry.alias)
        except OdfError:
            return True
        return named is not None and named.dataset_id == entry.dataset_id

    def unreadable(self, entry: CatalogEntry, error: Exception) -> Unreadable:
        """Record and return the reason why a dataset cannot be read; a new reason is logged."""
        why = str(error) if isinstance(error, OdfError) else f"{type(error).__name__}: {error}"
        remedy = remedy_of(
            error, f"`odf verify {entry.alias}` shows what is damaged; restore it, or delete the dataset"
        )
        if self.stalls.record(entry.dataset_id, Activity.READ, why, remedy=remedy):
            log.error(
                "dataset cannot be read", **entry.log_facts, why=why, exc_info=not isinstance(error, OdfError)
            )
        stall = self.stalls.get(entry.dataset_id, Activity.READ)
        return Unreadable(entry=entry, why=why, remedy=remedy, since=None if stall is None else stall.since)

    def forget(self, dataset: DatasetId) -> None:
        """Drop everything cached about a deleted dataset."""
        self.states.forget(dataset)
        self.stalls.clear(dataset)
        self.roots.discard(dataset)

    def dependants(self, dataset: DatasetId) -> tuple[DatasetHandle, ...]:
        """Return the derivatives that read the dataset directly, without the dataset itself."""
        entries = tuple(self.catalog.entries())
        self.roots.intersection_update({entry.dataset_id for entry in entries})
        derived = [
            handle
            for entry in entries
            if entry.dataset_id not in self.roots
            # `open` uses cached states: the inputs of a damaged derivative must not be deleted either.
            and isinstance(handle := self._attempt(entry, self.open), DatasetHandle)
        ]
        self.roots.update(handle.id for handle in derived if not handle.is_derivative)
        return tuple(handle for handle in derived if dataset in handle.inputs() and handle.id != dataset)

    def is_derived_from(self, dataset: DatasetId, origin: DatasetId) -> bool:
        """Return whether a dataset is `origin`, or reads it directly or indirectly, as far as this node knows."""
        seen: set[DatasetId] = set()
        waiting = [dataset]
        while waiting:
            candidate = waiting.pop()
            if candidate == origin:
                return True
            if candidate not in seen:
                seen.add(candidate)
                handle = self.by_id(candidate)
                waiting.extend(() if handle is None else handle.inputs())
        return False

    def nearest(self, ref: str) -> str | None:
        """Return the name of a dataset that is most similar to `ref`; None if no name is similar."""
        return nearest(ref, (entry.alias for entry in self.catalog.entries()))

    def reader(self, dataset: DatasetId) -> Callable[[Multihash], bytes]:
        """Return a function that reads the dataset's blocks."""
        return block_reader(self.blobs, dataset)


def inputs_among(chosen: Mapping[DatasetId, DatasetHandle]) -> dict[DatasetId, list[DatasetId]]:
    """Return for each of the datasets its inputs that are among them."""
    return {
        dataset: [input_ for input_ in handle.inputs() if input_ in chosen]
        for dataset, handle in chosen.items()
    }


def inputs_first(chosen: Mapping[DatasetId, DatasetHandle]) -> Iterator[DatasetHandle]:
    """Yield the datasets, each after its inputs."""
    return (chosen[dataset] for dataset in in_order(inputs_among(chosen)))


@contextmanager
def hold_inputs(
    datasets: Datasets, entry: CatalogEntry, events: Iterable[MetadataEvent | None], *, are_here: bool = False
) -> Iterator[None]:
    """Lock the catalog during the `with` block if `events` have a transform, so that its inputs cannot be deleted.

    Raises `InvalidInput` for a cycle, and, with `are_here`, `DatasetUnknown` for an input that this node does not have.
    Acquire it before `Committer.lock`, never inside of it, or two commits could deadlock.
    """
    events = tuple(events)
    if not any(isinstance(event, SetTransform) for event in events):
        yield
        return
    with datasets.catalog.lock():
        require_no_cycle(datasets, entry, events, are_here=are_here)
        yield


def require_no_cycle(
    datasets: Datasets, entry: CatalogEntry, events: Iterable[MetadataEvent | None], *, are_here: bool
) -> None:
    """Raise the errors of `hold_inputs`; the caller holds the catalog's lock."""
    for input_ in (input_ for event in events if isinstance(event, SetTransform) for input_ in event.inputs):
        dataset, name = DatasetId.parse(input_.dataset_ref), input_.alias or input_.dataset_ref
        if datasets.is_derived_from(dataset, entry.dataset_id):
            text = f"{entry.alias} cannot read {name}, which is {entry.alias} itself or derived from it"
            raise InvalidInput(text=text)
        if are_here and datasets.catalog.by_id(dataset) is None:
            raise DatasetUnknown(what=name)
