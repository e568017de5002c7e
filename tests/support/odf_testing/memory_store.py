"""In-memory stores, with the same contracts as the durable ones."""

import shutil
import tempfile
import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

from odf_common.adapters.local.catalog import LocalCatalog
from odf_common.adapters.local.stores import LocalBlobStore, LocalRefStore
from odf_common.dataset.node_datasets import NodeDatasets
from odf_common.dataset.state_cache import ChainStates, NoStateCache
from odf_common.errors import AlreadyExists, NotFound
from odf_common.hashing.multihash import Multihash
from odf_common.identity.dataset_refs import HEAD, DatasetId
from odf_common.ports.store import (
    BlobStore,
    Catalog,
    CatalogEntry,
    Claim,
    ObjectKind,
    RefStore,
    require_unmoved,
)
from odf_testing.builders import AChain

_Key = tuple[ObjectKind, Multihash]


class MemoryRefStore(RefStore):
    """Heads in a dictionary; threads may share it."""

    def __init__(self) -> None:
        self._heads: dict[tuple[DatasetId, str], Multihash] = {}
        self._guard = threading.Lock()

    def head(self, dataset: DatasetId, ref: str = HEAD) -> Multihash | None:
        """Return the reference's hash; None if it does not exist."""
        return self._heads.get((dataset, ref))

    def compare_and_set(
        self, dataset: DatasetId, *, expected: Multihash | None, new: Multihash, ref: str = HEAD
    ) -> None:
        """Move the reference. Raises `HeadMoved` if it is not `expected` (None: absent); then nothing has changed."""
        with self._guard:
            require_unmoved(dataset, ref, expected, self._heads.get((dataset, ref)))
            self._heads[dataset, ref] = new

    def remove(self, dataset: DatasetId, ref: str, *, expected: Multihash | None) -> None:
        """Remove a reference; with `expected=None` unconditionally. Raises `HeadMoved` if it is not `expected`."""
        with self._guard:
            if expected is not None:
                require_unmoved(dataset, ref, expected, self._heads.get((dataset, ref)))
            self._heads.pop((dataset, ref), None)

    def names(self, dataset: DatasetId) -> tuple[str, ...]:
        """Return the names of all references of a dataset, ascending."""
        with self._guard:
            return tuple(sorted(ref for of, ref in self._heads if of == dataset))

    def forget(self, dataset: DatasetId) -> None:
        """Drop all references of a dataset."""
        with self._guard:
            for key in [key for key in self._heads if key[0] == dataset]:
                del self._heads[key]


class MemoryBlobStore(BlobStore):
    """Objects in a dictionary; a temporary folder, removed with the store, holds copies for `local_path`."""

    def __init__(self, refs: MemoryRefStore | None = None) -> None:
        """Start empty; deleting a dataset also drops its heads in `refs`."""
        self._objects: dict[DatasetId, dict[_Key, bytes]] = {}
        self._notes: dict[tuple[DatasetId, str], str] = {}
        self._noting = threading.Lock()
        self._refs = refs
        self._folder = Path(tempfile.mkdtemp(prefix="odf-memory-"))
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)

    def has(self, dataset: DatasetId, kind: ObjectKind, name: Multihash) -> bool:
        """Return whether the object exists."""
        return (kind, name) in self._objects.get(dataset, {})

    def size(self, dataset: DatasetId, kind: ObjectKind, name: Multihash) -> int:
        """Return its size in bytes; raises `NotFound`."""
        return len(self.read(dataset, kind, name))

    def read(self, dataset: DatasetId, kind: ObjectKind, name: Multihash) -> bytes:
        """Return its bytes; raises `NotFound`."""
        try:
            return self._objects[dataset][kind, name]
        except KeyError as error:
            raise NotFound(what=f"object {kind.value}/{name}") from error

    def open(self, dataset: DatasetId, kind: ObjectKind, name: Multihash) -> BinaryIO:
        """Open it for reading; raises `NotFound`."""
        return BytesIO(self.read(dataset, kind, name))

    def names(self, dataset: DatasetId, kind: ObjectKind) -> Iterator[Multihash]:
        """Iterate over all objects of a kind."""
        yield from [name for of, name in self._objects.get(dataset, {}) if of == kind]

    def put(self, dataset: DatasetId, kind: ObjectKind, name: Multihash, content: bytes) -> None:
        """Store bytes, unless the object exists."""
        self._objects.setdefault(dataset, {}).setdefault((kind, name), content)

    def put_all(
        self, dataset: DatasetId, kind: ObjectKind, contents: Sequence[tuple[Multihash, bytes]]
    ) -> None:
        """Store objects, one after the other."""
        for name, content in contents:
            self.put(dataset, kind, name, content)

    def put_file(self, dataset: DatasetId, kind: ObjectKind, name: Multihash, file: Path) -> None:
        """Take a local file in; `file` is gone afterwards."""
        self.put(dataset, kind, name, file.read_bytes())
        file.unlink()

    def remove(self, dataset: DatasetId, kind: ObjectKind, names: Iterable[Multihash]) -> None:
        """Remove objects, and their copies in the temporary folder."""
        for name in names:
            self._objects.get(dataset, {}).pop((kind, name), None)
            (self._folder / dataset.folder / kind.value / str(name)).unlink(missing_ok=True)

    def note(self, dataset: DatasetId, name: str) -> str | None:
        """Return the note; None if there is none."""
        return self._notes.get((dataset, name))

    def set_note(self, dataset: DatasetId, name: str, text: str | None) -> None:
        """Store a note, or remove it."""
        if text is None:
            self._notes.pop((dataset, name), None)
        else:
            self._notes[dataset, name] = text

    def lock_notes(self, dataset: DatasetId) -> AbstractContextManager[object]:
        """Exclude other threads that change notes."""
        return self._noting

    def index_folder(self, dataset: DatasetId) -> Path:
        """Return a folder within the dataset's temporary one."""
        folder = self._folder / dataset.folder / "index"
        folder.parent.mkdir(exist_ok=True)
        return folder

    def local_path(self, dataset: DatasetId, kind: ObjectKind, name: Multihash) -> Path:
        """Return a copy in the temporary folder; raises `NotFound`."""
        content = self.read(dataset, kind, name)
        path = self._folder / dataset.folder / kind.value / str(name)
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self._folder, delete=False) as made:
                made.write(content)
            Path(made.name).replace(path)  # atomic, since other threads may read it
        return path

    def local_copy(self, dataset: DatasetId, kind: ObjectKind, name: Multihash) -> Path:
        """Return a copy in the temporary folder; raises `NotFound`."""
        return self.local_path(dataset, kind, name)

    def scratch(self) -> Path:
        """Return a new empty folder; the caller removes it."""
        return Path(tempfile.mkdtemp(dir=self._folder))

    def datasets(self) -> Iterator[DatasetId]:
        """Iterate over datasets that hold objects."""
        yield from list(self._objects)

    def delete_dataset(self, dataset: DatasetId) -> None:
        """Remove a dataset with all its objects, if it exists."""
        if self._refs is not None:
            self._refs.forget(dataset)
        self._objects.pop(dataset, None)
        for key in [key for key in self._notes if key[0] == dataset]:
            del self._notes[key]
        shutil.rmtree(self._folder / dataset.folder, ignore_errors=True)

    def sweep(self, untouched_since: float) -> None:
        """Do nothing: no write is left unfinished."""

    def finish_deletions(self) -> None:
        """Do nothing: deletions are never interrupted."""


class MemoryCatalog(Catalog):
    """Names in a dictionary; threads may share it."""

    def __init__(self) -> None:
        self._entries: dict[str, CatalogEntry] = {}
        self._guard = threading.Lock()
        self._lock = threading.Lock()
        self._records: dict[DatasetId, CatalogEntry] = {}
        self._held: set[DatasetId] = set()

    def entries(self) -> Iterator[CatalogEntry]:
        """Iterate over all, by lower-case alias."""
        yield from [self._entries[name] for name in sorted(self._entries)]

    def by_alias(self, alias: str) -> CatalogEntry | None:
        """Look a name up."""
        return self._entries.get(alias.lower())

    def by_id(self, dataset: DatasetId) -> CatalogEntry | None:
        """Look an id up."""
        return next((entry for entry in self.entries() if entry.dataset_id == dataset), None)

    def add(self, entry: CatalogEntry) -> None:
        """Take the name; raises `AlreadyExists` if it is taken."""
        with self._guard:
            if entry.alias.lower() in self._entries:
                raise AlreadyExists(what=f"dataset {entry.alias}")
            self._entries[entry.alias.lower()] = entry

    def replace(self, entry: CatalogEntry) -> None:
        """Rewrite the entry of an existing alias; raises `NotFound`."""
        with self._guard:
            if entry.alias.lower() not in self._entries:
                raise NotFound(what=f"dataset {entry.alias}")
            self._entries[entry.alias.lower()] = entry

    def rename(self, alias: str, entry: CatalogEntry) -> None:
        """Move an entry to another name; raises `NotFound`, `AlreadyExists`."""
        with self._guard:
            if alias.lower() not in self._entries:
                raise NotFound(what=f"dataset {alias}")
            if entry.alias.lower() in self._entries:
                raise AlreadyExists(what=f"dataset {entry.alias}")
            del self._entries[alias.lower()]
            self._entries[entry.alias.lower()] = entry

    def remove(self, alias: str) -> None:
        """Free the name, if it is taken."""
        with self._guard:
            self._entries.pop(alias.lower(), None)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the catalog's lock, exclusive among threads."""
        with self._lock:
            yield

    def claim(self, dataset: DatasetId) -> Claim | None:
        """Claim a dataset; None while another claim is held."""
        with self._guard:
            if dataset in self._held:
                return None
            self._held.add(dataset)
        return _MemoryClaim(dataset, self._records, self._held)

    def claims(self) -> tuple[CatalogEntry, ...]:
        """Return the records of all claims."""
        return tuple(self._records.values())

    def unreadable(self) -> tuple[str, ...]:
        """Return nothing: no file is damaged."""
        return ()

    def strays(self, untouched_since: float, among: Iterable[DatasetId] | None = None) -> Iterator[DatasetId]:
        """Iterate over nothing: this catalog has no objects."""
        del untouched_since, among
        return iter(())

    def repair_names(self) -> None:
        """Do nothing: no file is damaged."""


class _MemoryClaim(Claim):
    """A claim as a dictionary entry."""

    def __init__(
        self, dataset: DatasetId, records: dict[DatasetId, CatalogEntry], held: set[DatasetId]
    ) -> None:
        self._dataset = dataset
        self._records = records
        self._held = held

    @property
    def entry(self) -> CatalogEntry:
        """Return the record."""
        return self._records.get(self._dataset, CatalogEntry(alias="", dataset_id=self._dataset))

    def write(self, entry: CatalogEntry) -> None:
        """Add to the record."""
        topics = {topic: topic for topic in (*self.entry.push_topics.values(), *entry.push_topics.values())}
        self._records[self._dataset] = replace(entry, push_topics=topics)

    def settle(self) -> None:
        """Remove the record."""
        self._records.pop(self._dataset, None)
        self.release()

    def release(self) -> None:
        """Release the claim."""
        self._held.discard(self._dataset)


def in_memory() -> NodeDatasets:
    """Return no datasets, in memory."""
    refs = MemoryRefStore()
    return node_datasets(MemoryCatalog(), MemoryBlobStore(refs), refs)


def in_files(home: Path) -> NodeDatasets:
    """Return the datasets in a home."""
    return node_datasets(LocalCatalog(home), LocalBlobStore(home), LocalRefStore(home))


def node_datasets(catalog: Catalog, blobs: BlobStore, refs: RefStore) -> NodeDatasets:
    """Return the datasets in these stores; no state is cached."""
    states = ChainStates(blobs, refs, NoStateCache())
    return NodeDatasets(catalog=catalog, blobs=blobs, refs=refs, states=states)


def hold(datasets: NodeDatasets, name: str, chain: AChain) -> None:
    """Have a chain under a name, or its new blocks."""
    dataset = chain.state.dataset_id
    for block in chain.blocks:
        datasets.blobs.put(dataset, ObjectKind.BLOCK, block.hash, block.raw)
    datasets.refs.compare_and_set(dataset, expected=datasets.refs.head(dataset), new=chain.state.head)
    if datasets.catalog.by_alias(name) is None:
        datasets.catalog.add(CatalogEntry(alias=name, dataset_id=dataset))
