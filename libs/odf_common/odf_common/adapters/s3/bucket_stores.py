"""Objects in a bucket, read through a cache in the node's home, and references such as `refs/head` in the bucket.

References are changed by conditional PUT.
"""

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from time import sleep
from typing import BinaryIO, Final

import structlog

from odf_common.adapters.local.faults import guarded_methods, open_to_read, read_file
from odf_common.adapters.local.stores import CorruptRef
from odf_common.adapters.s3.bucket import Bucket, StoredObject
from odf_common.adapters.s3.cache import ObjectCache
from odf_common.errors import Damaged, InvalidInput, NotFound, StorageUnavailable
from odf_common.hashing.multihash import Multihash, physical_hash, physical_hash_of
from odf_common.identity.dataset_refs import HEAD, PREFIX, DatasetId, check_ref_name, is_ref_name
from odf_common.ports.clock import Backoff
from odf_common.ports.store import (
    MAX_REFERENCE_BYTES,
    NAMED_BY_CONTENT,
    BlobStore,
    DownloadUrl,
    ObjectKind,
    RefStore,
    require_unmoved,
    scratch_folder,
)

log = structlog.stdlib.get_logger(__name__)

PARALLEL_WRITES: Final = 32  # requests at a time


@guarded_methods
class S3BlobStore(BlobStore):
    """Objects in a bucket; any number of processes and nodes may use it at the same time.

    An object exists if the bucket has it. Its bytes are read from the cache if this node has stored or read them
    recently; bytes from the bucket are verified against the object's name. Data that only this node uses, such as
    notes, indexes, locks and scratch folders, is in the `local` store.
    """

    def __init__(
        self, bucket: Bucket, *, local: BlobStore, cache: ObjectCache, gives_urls: bool = False
    ) -> None:
        """Use a bucket and a cache; if `gives_urls`, other nodes download objects by presigned URLs of the bucket."""
        self._bucket = bucket
        self._gives_urls = gives_urls
        self._local = local
        self._cache = cache
        self._fetches = _Fetches()

    def has(self, dataset: DatasetId, kind: ObjectKind, name: Multihash) -> bool:
        """Return whether the object exists in the bucket."""
        return self._bucket.size(_name(dataset, kind, name)) is not None

    def size(self, dataset: DatasetId, kind: ObjectKind, name: Multihash) -> int:
        """Return the size of an object in bytes; raises `NotFound`."""
        size = self._bucket.size(_name(dataset, kind, name))
        if size is None:
            raise _missing(kind, name)
        return size

    def read(self, dataset: DatasetId, kind: ObjectKind, name: Multihash) -> bytes:
        """Return the bytes of an object; raises `NotFound`, or `Damaged` if they do not match the object's name."""
        if kind not in NAMED_BY_CONTENT:  # a copy of it could not be checked
            return self._read(dataset, kind, name)
        copy = self._cache.find(_name(dataset, kind, name))
        if copy is not None:
            with contextlib.suppress(FileNotFoundError):  # removed in the meantime
                return read_file(copy)
        content = self._read(dataset, kind, name)
        _require_named(physical_hash_of(content), dataset, kind, name)
        self._cache.put(_name(dataset, kind, name), content)
        return content

    def open(self, dataset: DatasetId, kind: ObjectKind, name: Multihash) -> BinaryIO:
        """Open a cached copy of an object, which can be read completely even if it is evicted while it is open.

        The object is fetched if it is not cached. Raises `NotFound` and `Damaged`.
        """
        with contextlib.suppress(FileNotFoundError):
            return open_to_read(self.local_path(dataset, kind, name))
        return open_to_read(self._fetch(dataset, kind, name))

    def open_stored(self, dataset: DatasetId, kind: ObjectKind, name: Multihash) -> BinaryIO:
        """Fetch an object from the bucket, even if it is cached, and open it; raises `NotFound` and `Damaged`."""
        return open_to_read(self._download(dataset, kind, name))

    def local_path(self, dataset: DatasetId, kind: ObjectKind, name: Multihash) -> Path:
        """Return the path of a cached copy; the object is fetched if necessary. Raises `NotFound` and `Damaged`.

        The copy stays cached for some minutes, or for a shorter time if many other objects are added to the cache.
        """
        return self.local_copy(dataset, kind, name) or self._fetch(dataset, kind, name)

    def local_copy(self, dataset: DatasetId, kind: ObjectKind, name: Multihash) -> Path | None:
        """Return the path of the cached copy, None if the object is not cached; the bucket is not accessed."""
        return self._cache.find(_name(dataset, kind, name))

    def names(self, dataset: DatasetId, kind: ObjectKind) -> Iterator[Multihash]:
        """Iterate over all objects of a kind; keys that are not a hash are ignored."""
        folder = f"{dataset.folder}/{kind.value}/"
        for obj in self._bucket.objects(folder):
            with contextlib.suppress(InvalidInput):
                text = obj.name.removeprefix(folder)
                name = Multihash.parse(text)
                if str(name) == text:
                    yield name

    def put(self, dataset: DatasetId, kind: ObjectKind, name: Multihash, content: bytes) -> None:
        """Store an object, unless it exists."""
        if self._bucket.put(_name(dataset, kind, name), content):
            self._cache.put(_name(dataset, kind, name), content)

    def put_all(
        self, dataset: DatasetId, kind: ObjectKind, contents: Sequence[tuple[Multihash, bytes]]
    ) -> None:
        """Store objects, except those that exist, up to `PARALLEL_WRITES` at the same time."""
        with ThreadPoolExecutor(PARALLEL_WRITES, thread_name_prefix="store") as pool:
            for stored in [pool.submit(self.put, dataset, kind, *content) for content in contents]:
                stored.result()

    def put_file(self, dataset: DatasetId, kind: ObjectKind, name: Multihash, file: Path) -> None:
        """Store a local file, unless the object exists; the file is gone in either case."""
        if self._bucket.upload(_name(dataset, kind, name), file):
            self._cache.take(_name(dataset, kind, name), file)
        else:
            file.unlink()

    def download_url(self, dataset: DatasetId, kind: ObjectKind, name: Multihash) -> DownloadUrl | None:
        """Return a presigned URL, None if URLs are not enabled; whether the object exists is not checked."""
        return self._bucket.presign(_name(dataset, kind, name)) if self._gives_urls else None

    def remove(self, dataset: DatasetId, kind: ObjectKind, names: Iterable[Multihash]) -> None:
        """Remove objects and their cached copies; objects that do not exist are ignored."""
        keys = [_name(dataset, kind, name) for name in names]
        self._bucket.remove(keys)
        for key in keys:
            self._cache.drop(key)

    def note(self, dataset: DatasetId, name: str) -> str | None:
        """Return the text of a note of this node; None if the note does not exist."""
        return self._local.note(dataset, name)

    def set_note(self, dataset: DatasetId, name: str, text: str | None) -> None:
        """Write a note of this node durably; remove the note if `text` is None."""
        self._local.set_note(dataset, name, text)

    def lock_notes(self, dataset: DatasetId) -> AbstractContextManager[object]:
        """Hold this node's lock on the dataset."""
        return self._local.lock_notes(dataset)

    def index_folder(self, dataset: DatasetId) -> Path:
        """Return the folder for indexes, which is in the home."""
        return self._local.index_folder(dataset)

    def scratch(self) -> Path:
        """Return a new empty folder in the home; the caller must remove it."""
        return self._local.scratch()

    def datasets(self) -> Iterator[DatasetId]:
        """Iterate over all datasets that have objects in the bucket, including those of other nodes."""
        for text in self._bucket.folders():
            with contextlib.suppress(InvalidInput):
                dataset = DatasetId.parse(PREFIX + text)
                if dataset.folder == text:
                    yield dataset

    def delete_dataset(self, dataset: DatasetId) -> None:
        """Delete a dataset: its head, then its other objects in the bucket, then this node's local files of it."""
        self._bucket.remove([f"{dataset.folder}/refs/{HEAD}"])
        self._bucket.remove([obj.name for obj in self._bucket.objects(f"{dataset.folder}/")])
        self._cache.drop(dataset.folder)
        self._local.delete_dataset(dataset)

    def sweep(self, untouched_since: float) -> None:
        """Remove local files of interrupted writes that were last written before `untouched_since` (epoch seconds)."""
        self._local.sweep(untouched_since)
        self._cache.sweep(untouched_since)

    def finish_deletions(self) -> None:
        """Finish local deletions; an interrupted deletion in the bucket is repeated because of the dataset's claim."""
        self._local.finish_deletions()

    def _read(self, dataset: DatasetId, kind: ObjectKind, name: Multihash) -> bytes:
        stored = self._bucket.read(_name(dataset, kind, name))
        if stored is None:
            raise _missing(kind, name)
        return stored.content

    def _fetch(self, dataset: DatasetId, kind: ObjectKind, name: Multihash) -> Path:
        """Return a cached copy of an object; threads that need it at the same time share one download."""
        key = _name(dataset, kind, name)

        def fetch() -> Path:
            # Another thread may have finished since the caller looked.
            return self._cache.find(key) or self._download(dataset, kind, name)

        return self._fetches.fetch_once(key, fetch)

    def _download(self, dataset: DatasetId, kind: ObjectKind, name: Multihash) -> Path:
        with scratch_folder(self) as folder:
            file = folder / str(name)
            if not self._bucket.download(_name(dataset, kind, name), file):
                raise _missing(kind, name)
            if kind in NAMED_BY_CONTENT:
                with file.open("rb") as content:
                    _require_named(physical_hash(content), dataset, kind, name)
            size = file.stat().st_size
            log.debug("object fetched into the cache", key=_name(dataset, kind, name), bytes=size)
            return self._cache.take(_name(dataset, kind, name), file)


class _Fetches:
    """Downloads in progress, by key; thread-safe."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._running: dict[str, Future[Path]] = {}

    def fetch_once(self, key: str, fetch: Callable[[], Path]) -> Path:
        """Return the result of `fetch`, or raise its error; concurrent callers with the same key share one call."""
        mine: Future[Path] = Future()
        with self._guard:
            running = self._running.setdefault(key, mine)
        if running is not mine:
            return running.result()
        try:
            mine.set_result(fetch())
        except BaseException as error:
            mine.set_exception(error)
            raise
        finally:
            with self._guard:
                del self._running[key]
        return mine.result()


def _require_named(actual: Multihash, dataset: DatasetId, kind: ObjectKind, name: Multihash) -> None:
    if actual != name:
        raise Damaged(file=_name(dataset, kind, name), why=f"the hash of its bytes is {actual}")


def _missing(kind: ObjectKind, name: Multihash) -> NotFound:
    return NotFound(what=f"object {kind.value}/{name}")


def _name(dataset: DatasetId, kind: ObjectKind, name: Multihash) -> str:
    return f"{dataset.folder}/{kind.value}/{name}"


MAX_WRITE_ATTEMPTS: Final = 10
WRITE_BACKOFF: Final = Backoff(first=0.01, most=0.5)
REMEDY: Final = "check that no proxy in front of the S3 server changes ETag headers"
REMOVED: Final = b""


class S3RefStore(RefStore):
    """References in a bucket; any number of processes and nodes may use it at the same time.

    Not every S3 server supports conditional deletes. A removed reference therefore remains as an empty object until its
    dataset is deleted.
    """

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    def head(self, dataset: DatasetId, ref: str = HEAD) -> Multihash | None:
        """Return the hash that a reference contains, None if it does not exist; raises `CorruptRef`."""
        return _hash_of(self._read_stored(dataset, ref), dataset, ref)

    def compare_and_set(
        self, dataset: DatasetId, *, expected: Multihash | None, new: Multihash, ref: str = HEAD
    ) -> None:
        """Set a reference to `new` if it is `expected` (None: does not exist); otherwise raise `HeadMoved`."""
        self._replace(dataset, ref, expected, str(new).encode())

    def remove(self, dataset: DatasetId, ref: str, *, expected: Multihash | None) -> None:
        """Remove a reference if it is `expected`; if that is None, in any case, even if it is damaged.

        Raises `HeadMoved` if it is not `expected`; nothing has changed then.
        """
        if expected is None:
            self._bucket.remove([_ref_key(dataset, ref)])
        else:
            self._replace(dataset, ref, expected, REMOVED)

    def names(self, dataset: DatasetId) -> tuple[str, ...]:
        """Return the names of all references of a dataset, ascending."""
        folder = _folder(dataset)
        refs = [obj for obj in self._bucket.objects(folder) if obj.size > len(REMOVED)]
        names = (obj.name.removeprefix(folder) for obj in refs)
        return tuple(sorted(name for name in names if is_ref_name(name)))

    def _replace(self, dataset: DatasetId, ref: str, expected: Multihash | None, content: bytes) -> None:
        for failures in range(1, MAX_WRITE_ATTEMPTS + 1):
            stored = self._read_stored(dataset, ref)
            require_unmoved(dataset, ref, expected, _hash_of(stored, dataset, ref))
            if self._bucket.put(_ref_key(dataset, ref), content, replacing=stored.etag if stored else None):
                return
            # Another process moved it in between, perhaps back to where it was: compare again.
            sleep(WRITE_BACKOFF.pause(failures))
        why = f"{MAX_WRITE_ATTEMPTS} conditional PUTs failed, though the reference is what it was"
        raise StorageUnavailable(file=_ref_key(dataset, ref), why=why, remedy=REMEDY)

    def _read_stored(self, dataset: DatasetId, ref: str) -> StoredObject | None:
        return self._bucket.read(_ref_key(dataset, ref), limit=MAX_REFERENCE_BYTES)


def _hash_of(stored: StoredObject | None, dataset: DatasetId, ref: str) -> Multihash | None:
    if stored is None or stored.content == REMOVED:
        return None
    try:
        return Multihash.parse(stored.content.decode("ascii").strip())
    except (InvalidInput, UnicodeDecodeError) as error:
        why = str(error) if isinstance(error, InvalidInput) else "its content is not a hash"
        raise CorruptRef(file=_ref_key(dataset, ref), why=why, ref=ref) from error


def _folder(dataset: DatasetId) -> str:
    return f"{dataset.folder}/refs/"


def _ref_key(dataset: DatasetId, ref: str) -> str:
    return _folder(dataset) + check_ref_name(ref)
