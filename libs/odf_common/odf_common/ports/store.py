"""Stores of datasets: objects by hash, references by compare-and-set, names by put-if-absent."""

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
    """The kind of an object; its value is the name of the folder (wire-facts §6.1)."""

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
    """A URL at which the store itself serves an object to anyone, until it expires."""

    url: str
    expires_at: Timestamp


class BlobReader(Protocol):
    """Immutable objects, named by the SHA3-256 multihash of their bytes; a signature is named by its block's hash."""

    def has(self, dataset: DatasetId, kind: ObjectKind, name: Multihash) -> bool:
        """Return whether the object exists."""

    def size(self, dataset: DatasetId, kind: ObjectKind, name: Multihash) -> int:
        """Return the size of an object in bytes; raises `NotFound`."""

    def read(self, dataset: DatasetId, kind: ObjectKind, name: Multihash) -> bytes:
        """Return the bytes of an object without verifying its hash; raises `NotFound`."""

    def open(self, dataset: DatasetId, kind: ObjectKind, name: Multihash) -> BinaryIO:
        """Open an object for reading; raises `NotFound`."""

    def open_stored(self, dataset: DatasetId, kind: ObjectKind, name: Multihash) -> BinaryIO:
        """Open an object as the store has it, bypassing caches; raises `NotFound`, or `Damaged` if it is corrupt."""
        return self.open(dataset, kind, name)

    def local_path(self, dataset: DatasetId, kind: ObjectKind, name: Multihash) -> Path:
        """Return a local path from which an object can be read; raises `NotFound`."""

    def local_copy(self, dataset: DatasetId, kind: ObjectKind, name: Multihash) -> Path | None:
        """Return the result of `local_path` if no transfer is needed for it, otherwise None.

        Raises `NotFound` if it is known without a transfer that the object does not exist.
        """

    def names(self, dataset: DatasetId, kind: ObjectKind) -> Iterator[Multihash]:
        """Yield the names of all objects of a kind, in no order."""


class BlobStore(BlobReader, Protocol):
    """A writable store of objects and notes of this node."""

    def put(self, dataset: DatasetId, kind: ObjectKind, name: Multihash, content: bytes) -> None:
        """Store an object durably. An existing object is not changed."""

    def put_all(
        self, dataset: DatasetId, kind: ObjectKind, contents: Sequence[tuple[Multihash, bytes]]
    ) -> None:
        """Store several objects durably, faster than by `put`. After an error, some of them may be stored."""

    def put_file(self, dataset: DatasetId, kind: ObjectKind, name: Multihash, file: Path) -> None:
        """Store a local file durably by moving it into the store; the file is gone on return."""

    def download_url(self, dataset: DatasetId, kind: ObjectKind, name: Multihash) -> DownloadUrl | None:
        """Return a temporary URL at which the store itself serves an object; None if it does not serve objects."""
        del dataset, kind, name
        return None

    def remove(self, dataset: DatasetId, kind: ObjectKind, names: Iterable[Multihash]) -> None:
        """Remove objects durably; objects that do not exist are ignored."""

    def note(self, dataset: DatasetId, name: str) -> str | None:
        """Return the text of this node's note about a dataset; None if the note does not exist."""

    def set_note(self, dataset: DatasetId, name: str, text: str | None) -> None:
        """Store a note durably, or remove it if `text` is None; the note is deleted with the dataset."""

    def lock_notes(self, dataset: DatasetId) -> AbstractContextManager[object]:
        """Lock the notes of a dataset in a `with` block that reads and changes them; it excludes threads and processes.

        The lock is not reentrant. Raises `Unavailable` if the lock does not become free in time.
        """

    def index_folder(self, dataset: DatasetId) -> Path:
        """Return a folder for indexes of the dataset that can be rebuilt; it is deleted with the dataset.

        It need not exist. If its parent does not exist, the dataset was deleted, and the folder must not be created.
        """

    def scratch(self) -> Path:
        """Return a new empty folder on the same file system as the store; the caller must remove it."""

    def datasets(self) -> Iterator[DatasetId]:
        """Yield all datasets that have a folder, even if nothing has been committed to them."""

    def delete_dataset(self, dataset: DatasetId) -> None:
        """Delete a dataset with all its objects, if it exists; its head is removed first."""

    def sweep(self, untouched_since: float) -> None:
        """Remove files of interrupted writes that were last written before `untouched_since` (epoch seconds)."""

    def finish_deletions(self) -> None:
        """Finish deletions that were interrupted, because no dataset refers to their remains."""


@contextmanager
def scratch_folder(blobs: BlobStore) -> Iterator[Path]:
    """Yield a new empty folder on the same file system as the store; it is removed after the `with` block."""
    folder = blobs.scratch()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class RefReader(Protocol):
    """Reads references of datasets: the head, and other named references."""

    def head(self, dataset: DatasetId, ref: str = HEAD) -> Multihash | None:
        """Return the hash that a reference contains; None if the reference does not exist."""


class RefStore(RefReader, Protocol):
    """The references of this node's datasets, which are changed only by compare-and-set."""

    def compare_and_set(
        self, dataset: DatasetId, *, expected: Multihash | None, new: Multihash, ref: str = HEAD
    ) -> None:
        """Set a reference durably to `new` if it is `expected`; None means that it does not exist.

        Raises `HeadMoved` if it is not `expected`; nothing has changed then.
        """

    def remove(self, dataset: DatasetId, ref: str, *, expected: Multihash | None) -> None:
        """Remove a reference durably if it is `expected`; if that is None, in any case, even if it is damaged.

        Raises `HeadMoved` if it is not `expected`; nothing has changed then.
        """

    def names(self, dataset: DatasetId) -> tuple[str, ...]:
        """Return the names of all references of a dataset, ascending."""


def require_unmoved(
    dataset: DatasetId, ref: str, expected: Multihash | None, actual: Multihash | None
) -> None:
    """Raise `HeadMoved` unless `actual`, the hash in a reference, is `expected`."""
    if actual != expected:
        was, is_now = (None if hash_ is None else str(hash_) for hash_ in (expected, actual))
        raise HeadMoved(dataset=str(dataset), ref=None if ref == HEAD else ref, expected=was, actual=is_now)


class DatasetReader(Protocol):
    """Reads one dataset, from this node's stores or from a folder."""

    def head(self, ref: str = HEAD) -> Multihash | None:
        """Return the hash that a reference contains; None if the reference does not exist."""

    def has(self, kind: ObjectKind, name: Multihash) -> bool:
        """Return whether the object exists."""

    def size(self, kind: ObjectKind, name: Multihash) -> int:
        """Return the size of an object in bytes; raises `NotFound`."""

    def read_block(self, name: Multihash) -> bytes:
        """Return the bytes of a block without verifying its hash; raises `NotFound`."""

    def open(self, kind: ObjectKind, name: Multihash) -> BinaryIO:
        """Open an object for reading; raises `NotFound`."""

    def open_stored(self, kind: ObjectKind, name: Multihash) -> BinaryIO:
        """Open an object as the store has it, bypassing caches; raises `NotFound`, or `Damaged` if it is corrupt."""

    def local_path(self, kind: ObjectKind, name: Multihash) -> Path:
        """Return a local path from which an object can be read; raises `NotFound`."""

    def names(self, kind: ObjectKind) -> Iterator[Multihash]:
        """Iterate over all objects of a kind, in no order."""


def block_reader(blobs: BlobReader, dataset: DatasetId) -> Callable[[Multihash], bytes]:
    """Return a function that reads blocks of a dataset by their hash."""
    return lambda name: blobs.read(dataset, ObjectKind.BLOCK, name)


Incarnation = NewType("Incarnation", str)
"""A dataset from its creation to its deletion on this node: `did:odf:…#creation`. Recreation begins another one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogEntry:
    """The local name of a dataset in its original spelling, its id, and the topic of each push source."""

    alias: str
    dataset_id: DatasetId
    push_topics: Mapping[str, str] = field(default_factory=dict)
    formerly: str = field(default="", compare=False)
    """The name before the last rename; it makes an interrupted rename repeatable."""
    creation: str = field(default="", compare=False)
    """A random text that identifies this creation of the dataset; empty if an earlier release created it."""

    @property
    def log_facts(self) -> Mapping[str, str]:
        """Return the fields that identify the dataset in log lines."""
        return {"dataset": self.alias, "dataset_id": str(self.dataset_id)}

    @property
    def incarnation(self) -> Incarnation:
        """Return the key for access rules; a recreated dataset has another key, so it does not inherit old rules."""
        return incarnation(self.dataset_id, self.creation)


def incarnation(dataset: DatasetId, creation: str) -> Incarnation:
    """Return the incarnation of a dataset that begins with this creation."""
    return Incarnation(f"{dataset}#{creation}" if creation else str(dataset))


def id_of(incarnation: Incarnation) -> DatasetId:
    """Return the id of the dataset to which an incarnation belongs."""
    return DatasetId.parse(incarnation.partition("#")[0])


def new_creation() -> str:
    """Return a random text that identifies a new creation of a dataset."""
    return secrets.token_hex(CREATION_BYTES)


class Claim(Protocol):
    """A claim of one operation on a dataset that it creates or deletes, with a record of what it may leave behind.

    The claim ends when its process ends, in whatever way. The record is durable and stays until the claim is settled.
    """

    @property
    def entry(self) -> CatalogEntry:
        """Return the recorded dataset: the alias that was recorded last, and all topics that were ever recorded."""

    def write(self, entry: CatalogEntry) -> None:
        """Add to the record durably; the caller holds the catalog's lock, so that only one claim records a topic."""

    def settle(self) -> None:
        """Remove the record durably and release the claim, because nothing is left behind."""

    def release(self) -> None:
        """Release the claim; its record stays for the next claim on the dataset."""


class Catalog(Protocol):
    """The names of this node's datasets, matched without regard to ASCII case.

    A dataset exists if it has a name: without one it is still being created or has been removed. A caller that changes
    a name must hold `lock` from reading the name to writing it.
    """

    def entries(self) -> Iterator[CatalogEntry]:
        """Yield all entries, sorted by lower-case alias."""

    def by_alias(self, alias: str) -> CatalogEntry | None:
        """Return the entry of a name; None if no dataset has the name."""

    def by_id(self, dataset: DatasetId) -> CatalogEntry | None:
        """Return the entry of a dataset; None if the dataset has no name."""

    def add(self, entry: CatalogEntry) -> None:
        """Add an entry durably; raises `AlreadyExists` if its name is taken."""

    def replace(self, entry: CatalogEntry) -> None:
        """Replace the entry of an existing name durably; raises `NotFound`."""

    def rename(self, alias: str, entry: CatalogEntry) -> None:
        """Rename the dataset `alias` to the name in `entry`, atomically and durably.

        Raises `NotFound` if `alias` does not exist, `AlreadyExists` if the new name is taken.
        """

    def remove(self, alias: str) -> None:
        """Remove a name, if it exists."""

    def lock(self) -> AbstractContextManager[None]:
        """Hold the catalog's lock in a `with` block; it excludes other threads and processes, and never expires."""

    def claim(self, dataset: DatasetId) -> Claim | None:
        """Claim a dataset; return None while another claim is held or being settled.

        A claim contains what an earlier holder has recorded, if that holder was killed.
        """

    def claims(self) -> tuple[CatalogEntry, ...]:
        """Return the records of all claims, held and abandoned, on datasets that are being created or deleted."""

    def unreadable(self) -> tuple[str, ...]:
        """Return the names whose entries cannot be read, so that their datasets are unknown."""

    def strays(self, untouched_since: float, among: Iterable[DatasetId] | None = None) -> Iterator[DatasetId]:
        """Yield datasets with objects that never had a name and were last written before `untouched_since`.

        The time is in epoch seconds. Only datasets in `among` are examined, if it is given.
        """

    def repair_names(self) -> None:
        """Repair names that are damaged, or that a killed process of an earlier release has left inconsistent."""


class DatasetUnknown(NotFound):
    """No dataset has this name or id."""

    ADVICE = "`odf list` shows the datasets of this node"

    nearest: str | None = None

    def __str__(self) -> str:
        """Return a message with the unknown name or id, and the most similar name."""
        return f"dataset {self.what} does not exist" + (
            f"; did you mean {self.nearest}?" if self.nearest else ""
        )


def unknown_dataset(ref: str, names: Iterable[str]) -> DatasetUnknown:
    """Return the error for a name or id that does not exist; it suggests the most similar of `names`."""
    return DatasetUnknown(what=ref, nearest=nearest(ref, names))


def find_entry(catalog: Catalog, ref: str) -> CatalogEntry | None:
    """Return the entry with this alias or id, None if it does not exist; raises `InvalidInput` if it is neither."""
    parsed = parse_ref(ref)
    return catalog.by_id(parsed) if isinstance(parsed, DatasetId) else catalog.by_alias(str(parsed))


def require_entry(catalog: Catalog, ref: str) -> CatalogEntry:
    """Return the entry with this alias or id; raises `DatasetUnknown`, or `InvalidInput` if it is neither."""
    entry = find_entry(catalog, ref)
    if entry is None:
        raise unknown_dataset(ref, (entry.alias for entry in catalog.entries()))
    return entry


class Lock(Protocol):
    """A lock that the caller holds."""

    def release(self) -> None:
        """Release the lock; do nothing if it has expired, even if another process holds it now."""


class Locks(Protocol):
    """Locks that expire, one per dataset."""

    def acquire(self, dataset: DatasetId, ttl_ms: int) -> Lock | None:
        """Return the lock of a dataset, which expires after `ttl_ms`; None while another process holds it."""
