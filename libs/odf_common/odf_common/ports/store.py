"""Stores of datasets: objects by hash, heads by compare-and-set, names by put-if-absent."""

import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import BinaryIO, Final, NewType, Protocol

from odf_common.errors import HeadMoved, NotFound, nearest
from odf_common.hashing.multihash import Multihash
from odf_common.identity.dataset_refs import HEAD, DatasetId, parse_ref
from odf_common.metadata.scalars import Timestamp


class ObjectKind(StrEnum):
    """The folder of an object (wire-facts §6.1)."""

    BLOCK = "blocks"
    DATA = "data"
    CHECKPOINT = "checkpoints"
    SIGNATURE = "signatures"  # named like its block, not by the hash of its own bytes


# What other nodes fetch, and what can be checked by its name alone.
NAMED_BY_CONTENT: Final = (ObjectKind.BLOCK, ObjectKind.DATA, ObjectKind.CHECKPOINT)
CREATION_BYTES: Final = 8
MAX_REFERENCE_BYTES: Final = 1024  # of a stored reference: it is one hash
NAME_RECORD: Final = "name"  # the note with a copy of the dataset's entry in the catalog
PRIVATE_MARK: Final = "private"  # the note of a private dataset
PUBLIC_MARK: Final = "public"  # the note of one that someone has made public


@dataclass(frozen=True, slots=True, kw_only=True)
class DownloadUrl:
    """A URL at which a store itself serves an object to anyone."""

    url: str
    expires_at: Timestamp


class BlobReader(Protocol):
    """Immutable objects, named by the SHA3-256 multihash of their bytes; a signature, by that of its block."""

    def has(self, dataset: DatasetId, kind: ObjectKind, name: Multihash) -> bool:
        """Return whether the object exists."""

    def size(self, dataset: DatasetId, kind: ObjectKind, name: Multihash) -> int:
        """Return its size in bytes; raises `NotFound`."""

    def read(self, dataset: DatasetId, kind: ObjectKind, name: Multihash) -> bytes:
        """Return its bytes as stored, unchecked; raises `NotFound`."""

    def open(self, dataset: DatasetId, kind: ObjectKind, name: Multihash) -> BinaryIO:
        """Open an object for reading; raises `NotFound`."""

    def open_stored(self, dataset: DatasetId, kind: ObjectKind, name: Multihash) -> BinaryIO:
        """Open what the store itself has, and no copy of it; raises `NotFound`, and `Damaged` if it differs."""
        return self.open(dataset, kind, name)

    def local_path(self, dataset: DatasetId, kind: ObjectKind, name: Multihash) -> Path:
        """Return a local path to read it from; raises `NotFound`."""

    def local_copy(self, dataset: DatasetId, kind: ObjectKind, name: Multihash) -> Path | None:
        """Return the result of `local_path` if that needs no transfer, else None.

        Raises `NotFound` if that is known.
        """

    def names(self, dataset: DatasetId, kind: ObjectKind) -> Iterator[Multihash]:
        """Yield the names of all objects of a kind, in no particular order."""


class BlobStore(BlobReader, Protocol):
    """A blob store of this node."""

    def put(self, dataset: DatasetId, kind: ObjectKind, name: Multihash, content: bytes) -> None:
        """Store bytes; on return they are durable. An existing object is left unchanged."""

    def put_all(
        self, dataset: DatasetId, kind: ObjectKind, contents: Sequence[tuple[Multihash, bytes]]
    ) -> None:
        """Store many objects as `put` does, in less time; on return all are durable. On an error, some may be."""

    def put_file(self, dataset: DatasetId, kind: ObjectKind, name: Multihash, file: Path) -> None:
        """Store a local file by moving it; on return the object is durable and `file` is gone."""

    def download_url(self, dataset: DatasetId, kind: ObjectKind, name: Multihash) -> DownloadUrl | None:
        """Return a URL at which the store itself serves the object for a while; None if it does not."""
        del dataset, kind, name
        return None

    def remove(self, dataset: DatasetId, kind: ObjectKind, names: Iterable[Multihash]) -> None:
        """Remove objects; on return they are gone durably. Missing ones are ignored."""

    def note(self, dataset: DatasetId, name: str) -> str | None:
        """Return this node's note about a dataset under this name, None if there is none."""

    def set_note(self, dataset: DatasetId, name: str, text: str | None) -> None:
        """Store a note durably, or remove it (None); it is not part of the dataset, but is deleted with it."""

    def lock_notes(self, dataset: DatasetId) -> AbstractContextManager[object]:
        """Lock out other threads and processes that change the dataset's notes, from reading them to writing.

        Not reentrant. Raises `Unavailable` if the lock is not free in time.
        """

    def index_folder(self, dataset: DatasetId) -> Path:
        """Return a folder for indexes of the dataset that can be rebuilt; it is deleted with the dataset.

        It need not exist. Its parent does, unless the dataset was deleted: then it must not be created.
        """

    def scratch(self) -> Path:
        """Return a new empty folder from which `put_file` can rename; the caller removes it."""

    def datasets(self) -> Iterator[DatasetId]:
        """Yield the datasets that have a local folder, committed or not."""

    def delete_dataset(self, dataset: DatasetId) -> None:
        """Remove a dataset and everything in it, its head first; nothing happens if it does not exist."""

    def sweep(self, untouched_since: float) -> None:
        """Remove unfinished writes of killed processes that were last touched before a time (epoch seconds)."""

    def finish_deletions(self) -> None:
        """Finish deletions of killed processes; their remains belong to no dataset any more."""


@contextmanager
def scratch_folder(blobs: BlobStore) -> Iterator[Path]:
    """Yield a new empty folder from which `put_file` is a rename; it is removed afterwards."""
    folder = blobs.scratch()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class RefReader(Protocol):
    """Heads, and other named references."""

    def head(self, dataset: DatasetId, ref: str = HEAD) -> Multihash | None:
        """Return the hash that the reference points to, None if it does not exist."""


class RefStore(RefReader, Protocol):
    """References of this node; moved only by compare-and-set."""

    def compare_and_set(
        self, dataset: DatasetId, *, expected: Multihash | None, new: Multihash, ref: str = HEAD
    ) -> None:
        """Move the reference, durably; None as `expected` means that it must not exist.

        Raises `HeadMoved` if it is not `expected`; then nothing has changed.
        """

    def remove(self, dataset: DatasetId, ref: str, *, expected: Multihash | None) -> None:
        """Remove a reference, durably; with None unconditionally, even if it is not a valid hash.

        Raises `HeadMoved` if it is not `expected`; then nothing has changed.
        """

    def names(self, dataset: DatasetId) -> tuple[str, ...]:
        """Return the names of all references of a dataset, ascending."""


def require_unmoved(
    dataset: DatasetId, ref: str, expected: Multihash | None, actual: Multihash | None
) -> None:
    """Raise `HeadMoved` unless a reference is where its mover saw it."""
    if actual != expected:
        was, is_now = (None if hash_ is None else str(hash_) for hash_ in (expected, actual))
        raise HeadMoved(dataset=str(dataset), ref=None if ref == HEAD else ref, expected=was, actual=is_now)


class DatasetReader(Protocol):
    """One dataset, wherever it is: in this node's stores, or in a folder."""

    def head(self, ref: str = HEAD) -> Multihash | None:
        """Return the hash the reference points to; None if it does not exist."""

    def has(self, kind: ObjectKind, name: Multihash) -> bool:
        """Return whether the object exists."""

    def size(self, kind: ObjectKind, name: Multihash) -> int:
        """Return its size in bytes; raises `NotFound`."""

    def read_block(self, name: Multihash) -> bytes:
        """Return a block's bytes, unverified; raises `NotFound`."""

    def open(self, kind: ObjectKind, name: Multihash) -> BinaryIO:
        """Open an object for reading; raises `NotFound`."""

    def open_stored(self, kind: ObjectKind, name: Multihash) -> BinaryIO:
        """Open what the store itself has, and no copy of it; raises `NotFound`, and `Damaged` if it differs."""

    def local_path(self, kind: ObjectKind, name: Multihash) -> Path:
        """Return a local path to read it from; raises `NotFound`."""

    def names(self, kind: ObjectKind) -> Iterator[Multihash]:
        """Iterate over all objects of a kind, unordered."""


def block_reader(blobs: BlobReader, dataset: DatasetId) -> Callable[[Multihash], bytes]:
    """Return a function that reads a dataset's blocks."""
    return lambda name: blobs.read(dataset, ObjectKind.BLOCK, name)


Incarnation = NewType("Incarnation", str)
"""A dataset from its creation to its deletion on this node, `did:odf:…#creation`; a later one of its id is another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogEntry:
    """A dataset's local name: alias in its original spelling, id, and the topic of each push source."""

    alias: str
    dataset_id: DatasetId
    push_topics: Mapping[str, str] = field(default_factory=dict)
    formerly: str = field(default="", compare=False)
    """The name before the last rename, so that a rename can be repeated."""
    creation: str = field(default="", compare=False)
    """Random, and another for each creation of a dataset; empty if it was created by an earlier release."""

    @property
    def log_facts(self) -> Mapping[str, str]:
        """Return the facts that name the dataset in log lines."""
        return {"dataset": self.alias, "dataset_id": str(self.dataset_id)}

    @property
    def incarnation(self) -> Incarnation:
        """Return the key of the dataset's access rules; a recreated dataset has another key, so it inherits none."""
        return incarnation(self.dataset_id, self.creation)


def incarnation(dataset: DatasetId, creation: str) -> Incarnation:
    """Return the incarnation of a dataset that one creation begins."""
    return Incarnation(f"{dataset}#{creation}" if creation else str(dataset))


def id_of(incarnation: Incarnation) -> DatasetId:
    """Return the id of the dataset that this is an incarnation of."""
    return DatasetId.parse(incarnation.partition("#")[0])


def new_creation() -> str:
    """Return a random text for a dataset that is created now."""
    return secrets.token_hex(CREATION_BYTES)


class Claim(Protocol):
    """A dataset that one operation is creating or removing, with a durable record of what it may leave behind.

    The claim ends with its process, however that ends; the record stays until the claim is settled.
    """

    @property
    def entry(self) -> CatalogEntry:
        """Return the dataset, with the alias recorded last and all topics that were ever recorded."""

    def write(self, entry: CatalogEntry) -> None:
        """Add to the record, durably; hold the catalog's lock, so that no topic is recorded by two claims."""

    def settle(self) -> None:
        """Remove the record, durably, and release the claim: nothing is left behind."""

    def release(self) -> None:
        """Release the claim; its record stays for the next one that takes it."""


class Catalog(Protocol):
    """Names of this node's datasets; matched without regard to ASCII case.

    The name makes the dataset: one without a name is still being created, or already removed. A caller that changes a
    name holds `locked` from reading to writing it.
    """

    def entries(self) -> Iterator[CatalogEntry]:
        """Yield all entries, by lower-case alias."""

    def by_alias(self, alias: str) -> CatalogEntry | None:
        """Return the entry of a name, None if there is none."""

    def by_id(self, dataset: DatasetId) -> CatalogEntry | None:
        """Return the entry of an id, None if there is none."""

    def add(self, entry: CatalogEntry) -> None:
        """Take the name, durably; raises `AlreadyExists` if it is taken."""

    def replace(self, entry: CatalogEntry) -> None:
        """Rewrite the entry of an existing alias, durably; raises `NotFound`."""

    def rename(self, alias: str, entry: CatalogEntry) -> None:
        """Move the entry of `alias` to another name, in one step and durably.

        Raises `NotFound`, and `AlreadyExists` if the new name is taken.
        """

    def remove(self, alias: str) -> None:
        """Free the name; nothing happens if it is free."""

    def lock(self) -> AbstractContextManager[None]:
        """Hold the lock that excludes all other threads and processes that take it; it never expires."""

    def claim(self, dataset: DatasetId) -> Claim | None:
        """Claim a dataset, with the record of a killed process; None while another claim is held, or being settled."""

    def claims(self) -> tuple[CatalogEntry, ...]:
        """Return the records of all claims, also abandoned ones, on datasets that are being created or removed."""

    def unreadable(self) -> tuple[str, ...]:
        """Return the names of unreadable entries, whose datasets are unknown."""

    def strays(self, untouched_since: float, among: Iterable[DatasetId] | None = None) -> Iterator[DatasetId]:
        """Yield datasets that have objects, never had a name, and were last written before a time (epoch seconds).

        Considers all datasets, or only those `among`.
        """

    def repair_names(self) -> None:
        """Repair names after damage, or after a process of an earlier release was killed."""


class DatasetUnknown(NotFound):
    """No dataset has this name or id."""

    ADVICE = "`odf list` shows the datasets of this node"

    nearest: str | None = None

    def __str__(self) -> str:
        """Return the unknown name or id, and the nearest name."""
        return f"dataset {self.what} does not exist" + (
            f"; did you mean {self.nearest}?" if self.nearest else ""
        )


def unknown_dataset(ref: str, names: Iterable[str]) -> DatasetUnknown:
    """Return the error for a reference that is none of the names, with the nearest of them."""
    return DatasetUnknown(what=ref, nearest=nearest(ref, names))


def find_entry(catalog: Catalog, ref: str) -> CatalogEntry | None:
    """Return the entry with this alias or id, None if there is none; raises `InvalidInput` if it is neither."""
    parsed = parse_ref(ref)
    return catalog.by_id(parsed) if isinstance(parsed, DatasetId) else catalog.by_alias(str(parsed))


def require_entry(catalog: Catalog, ref: str) -> CatalogEntry:
    """Return the entry with this alias or id; raises `DatasetUnknown`, and `InvalidInput` if it is neither."""
    entry = find_entry(catalog, ref)
    if entry is None:
        raise unknown_dataset(ref, (entry.alias for entry in catalog.entries()))
    return entry


class Lock(Protocol):
    """A lock that is held."""

    def release(self) -> None:
        """Release the lock, unless it has expired and belongs to another process."""


class Locks(Protocol):
    """One lock per dataset."""

    def acquire(self, dataset: DatasetId, ttl_ms: int) -> Lock | None:
        """Return the dataset's lock, which expires after `ttl_ms`; None while another process holds it."""
