"""Where datasets live: objects by hash, heads by compare-and-set, names by put-if-absent (design: store layout)."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import BinaryIO, Final, Protocol

from odf_common.errors import HeadMoved
from odf_common.hashing.multihash import Multihash
from odf_common.identity.branch_names import HEAD
from odf_common.identity.did import DatasetId


class ObjectKind(StrEnum):
    """The folder an object lies in (wire-facts §6.1)."""

    BLOCK = "blocks"
    DATA = "data"
    CHECKPOINT = "checkpoints"
    SIGNATURE = "signatures"  # beside a block, by the block's name: not the hash of its own bytes


# What others fetch, and what can be checked by its name alone.
NAMED_BY_CONTENT: Final = (ObjectKind.BLOCK, ObjectKind.DATA, ObjectKind.CHECKPOINT)


class BlobReader(Protocol):
    """Immutable objects, named by the SHA3-256 multihash of their bytes; a signature, by that of its block."""

    def has(self, dataset: DatasetId, kind: ObjectKind, name: Multihash) -> bool:
        """Tell whether the object is there."""

    def size(self, dataset: DatasetId, kind: ObjectKind, name: Multihash) -> int:
        """Return its size in bytes; raises `NotFound`."""

    def read(self, dataset: DatasetId, kind: ObjectKind, name: Multihash) -> bytes:
        """Return its bytes as they are stored, unchecked; raises `NotFound`."""

    def open(self, dataset: DatasetId, kind: ObjectKind, name: Multihash) -> BinaryIO:
        """Open it for reading; raises `NotFound`."""

    def local_path(self, dataset: DatasetId, kind: ObjectKind, name: Multihash) -> Path:
        """Return a local path to read it from; raises `NotFound`."""

    def names(self, dataset: DatasetId, kind: ObjectKind) -> Iterator[Multihash]:
        """Iterate over all objects of a kind, in no order."""


class BlobStore(BlobReader, Protocol):
    """A blob store of this node."""

    def put(self, dataset: DatasetId, kind: ObjectKind, name: Multihash, content: bytes) -> None:
        """Store bytes; when it returns they are durable. An object that is already there is left alone."""

    def put_file(self, dataset: DatasetId, kind: ObjectKind, name: Multihash, file: Path) -> None:
        """Store a local file by moving it in; when it returns the object is durable and `file` is gone."""

    def remove(self, dataset: DatasetId, kind: ObjectKind, names: Iterable[Multihash]) -> None:
        """Remove objects; when it returns they are gone for good. Nothing happens for those that are not there."""

    def note(self, dataset: DatasetId, name: str) -> str | None:
        """Return what this node noted of a dataset under this name, None where it noted nothing."""

    def set_note(self, dataset: DatasetId, name: str, text: str | None) -> None:
        """Note something, durably, or with None take it away; it is no part of the dataset, and goes with it."""

    def noting(self, dataset: DatasetId) -> AbstractContextManager[object]:
        """Exclude other threads and processes that change notes of the dataset so, each from reading them to writing.

        It must not be entered again inside. Raises `Unavailable` when it takes too long.
        """

    def scratch(self) -> Path:
        """Return a new empty folder from which `put_file` is a rename; the caller removes it."""

    def datasets(self) -> Iterator[DatasetId]:
        """Iterate over datasets that have a folder here, committed or not."""

    def delete_dataset(self, dataset: DatasetId) -> None:
        """Remove a dataset with all it holds, its head first; nothing happens when it is not there."""

    def sweep(self, untouched_since: float) -> None:
        """Remove what killed processes have left of unfinished writes, last touched before (epoch seconds)."""

    def finish_deletions(self) -> None:
        """Remove what killed deletions have left; it belongs to no dataset any more."""


class RefReader(Protocol):
    """Heads, and other named references."""

    def head(self, dataset: DatasetId, ref: str = HEAD) -> Multihash | None:
        """Return the hash the reference points to, None while there is none."""


class RefStore(RefReader, Protocol):
    """References of this node; moved only by compare-and-set."""

    def compare_and_set(
        self, dataset: DatasetId, *, expected: Multihash | None, new: Multihash, ref: str = HEAD
    ) -> None:
        """Move the reference, durably. Raises `HeadMoved` if it is not `expected`; then nothing has changed."""

    def remove(self, dataset: DatasetId, ref: str, *, expected: Multihash | None) -> None:
        """Remove a reference, durably; with None whatever it holds, also what is no hash.

        Raises `HeadMoved` if it is not `expected`; then nothing has changed.
        """

    def names(self, dataset: DatasetId) -> tuple[str, ...]:
        """Return the names of all references of a dataset, ascending."""


def require_unmoved(
    dataset: DatasetId, ref: str, expected: Multihash | None, actual: Multihash | None
) -> None:
    """Return if a reference is where its mover saw it; raises `HeadMoved`."""
    if actual != expected:
        was, is_now = (None if one is None else str(one) for one in (expected, actual))
        raise HeadMoved(dataset=str(dataset), ref=None if ref == HEAD else ref, expected=was, actual=is_now)


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogEntry:
    """A dataset's name here: alias in its original spelling, id, and the topic of each push source."""

    alias: str
    dataset_id: DatasetId
    push_topics: Mapping[str, str] = field(default_factory=dict)
    formerly: str = field(default="", compare=False)
    """The name before the last rename, so that a rename can be repeated."""


class Claim(Protocol):
    """A dataset that one operation is creating or removing, with a durable record of what it may leave behind.

    The claim ends with its process, however that ends; the record stays until the claim is settled.
    """

    @property
    def entry(self) -> CatalogEntry:
        """Return the dataset, its alias as recorded last, and all topics that were ever recorded."""

    def write(self, entry: CatalogEntry) -> None:
        """Add to the record, durably; hold the catalog's lock, so that two claims never record one topic."""

    def settle(self) -> None:
        """Remove the record, durably, and release the claim: nothing is left behind."""

    def release(self) -> None:
        """Release the claim; what it has recorded remains for the next one to take it."""


class Catalog(Protocol):
    """Names of this node's datasets; matched without regard to ASCII case.

    The name makes the dataset: what has none is still being created, or already removed. Whoever changes a name holds
    `locked` around reading and changing it.
    """

    def entries(self) -> Iterator[CatalogEntry]:
        """Iterate over all, by lower-case alias."""

    def by_alias(self, alias: str) -> CatalogEntry | None:
        """Look a name up."""

    def by_id(self, dataset: DatasetId) -> CatalogEntry | None:
        """Look an id up."""

    def add(self, entry: CatalogEntry) -> None:
        """Take the name, durably; raises `AlreadyExists` if it is taken."""

    def replace(self, entry: CatalogEntry) -> None:
        """Rewrite the entry of an alias that is there, durably; raises `NotFound`."""

    def rename(self, alias: str, entry: CatalogEntry) -> None:
        """Move the entry of `alias` to another name, in one step and durably.

        Raises `NotFound`, and `AlreadyExists` if the new name is taken.
        """

    def remove(self, alias: str) -> None:
        """Free the name; nothing happens when it is free."""

    def locked(self) -> AbstractContextManager[None]:
        """Hold the one lock that excludes all other threads and processes that hold it; it never expires."""

    def claim(self, dataset: DatasetId) -> Claim | None:
        """Claim a dataset, with the record that a killed process left of it; None while another claim is held."""

    def claims(self) -> tuple[CatalogEntry, ...]:
        """Return what is recorded of datasets that are being created or removed, held or abandoned."""

    def unreadable(self) -> tuple[str, ...]:
        """Return the names that are taken by what cannot be read: which dataset they name is unknown."""

    def strays(self, untouched_since: float, among: Iterable[DatasetId] | None = None) -> Iterator[DatasetId]:
        """Iterate over datasets that hold objects, never had a name, and were last written before (epoch seconds).

        Of all datasets, or only of those `among`.
        """

    def mend(self) -> None:
        """Repair what damage, or a process killed by an earlier release, left of names."""
