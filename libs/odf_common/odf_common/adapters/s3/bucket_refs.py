"""References as objects such as `refs/head`, moved by conditional PUT."""

from time import sleep
from typing import Final

from odf_common.adapters.local.refs import CorruptRef
from odf_common.adapters.s3.bucket import Bucket, StoredObject
from odf_common.errors import InvalidInput, StorageUnavailable
from odf_common.hashing.multihash import Multihash
from odf_common.identity.branch_names import HEAD, check_ref_name, is_ref_name
from odf_common.identity.did import DatasetId
from odf_common.ports.clock import Backoff
from odf_common.ports.store import MAX_REFERENCE_BYTES, RefStore, require_unmoved

MAX_WRITE_ATTEMPTS: Final = 10
WRITE_BACKOFF: Final = Backoff(first=0.01, most=0.5)
REMEDY: Final = "check that no proxy in front of the S3 server changes ETag headers"
REMOVED: Final = b""


class S3RefStore(RefStore):
    """References in a bucket; any number of processes and nodes may use it at once.

    Not every S3 server can delete on a condition, so a removed reference stays as an empty object until its dataset is
    deleted.
    """

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    def head(self, dataset: DatasetId, ref: str = HEAD) -> Multihash | None:
        """Return the hash; None if the reference does not exist; raises `CorruptRef`."""
        return _hash_of(self._read_stored(dataset, ref), dataset, ref)

    def compare_and_set(
        self, dataset: DatasetId, *, expected: Multihash | None, new: Multihash, ref: str = HEAD
    ) -> None:
        """Move the reference; raises `HeadMoved`, changing nothing, unless it is `expected` (None: absent)."""
        self._replace(dataset, ref, expected, str(new).encode())

    def remove(self, dataset: DatasetId, ref: str, *, expected: Multihash | None) -> None:
        """Remove a reference; with `expected=None` unconditionally, even if it is damaged.

        Raises `HeadMoved` if it is not `expected`; then nothing has changed.
        """
        if expected is None:
            self._bucket.remove([_name(dataset, ref)])
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
            if self._bucket.put(_name(dataset, ref), content, replacing=stored.etag if stored else None):
                return
            # Another process moved it in between, perhaps back to where it was: compare again.
            sleep(WRITE_BACKOFF.pause(failures))
        why = f"{MAX_WRITE_ATTEMPTS} conditional PUTs failed, though the reference is what it was"
        raise StorageUnavailable(file=_name(dataset, ref), why=why, remedy=REMEDY)

    def _read_stored(self, dataset: DatasetId, ref: str) -> StoredObject | None:
        return self._bucket.read(_name(dataset, ref), limit=MAX_REFERENCE_BYTES)


def _hash_of(stored: StoredObject | None, dataset: DatasetId, ref: str) -> Multihash | None:
    if stored is None or stored.content == REMOVED:
        return None
    try:
        return Multihash.parse(stored.content.decode("ascii").strip())
    except (InvalidInput, UnicodeDecodeError) as error:
        why = str(error) if isinstance(error, InvalidInput) else "its content is not a hash"
        raise CorruptRef(file=_name(dataset, ref), why=why, ref=ref) from error


def _folder(dataset: DatasetId) -> str:
    return f"{dataset.folder}/refs/"


def _name(dataset: DatasetId, ref: str) -> str:
    return _folder(dataset) + check_ref_name(ref)
