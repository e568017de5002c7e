"""A dataset below a prefix of an S3 bucket, in the common layout (wire-facts §6.1), to pull from and to push to.

The head moves by a conditional PUT. So one of two concurrent pushes fails, if the server supports conditions.
"""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import BinaryIO, Final

from odf_common.adapters.s3.bucket import PART_BYTES, Bucket, ObjectDenied
from odf_common.adapters.s3.location import S3Access, S3Location
from odf_common.codec.signature import SIZE_LIMIT
from odf_common.errors import Damaged, InvalidInput, NotFound
from odf_common.hashing.multihash import Multihash, physical_hash
from odf_common.identity.dataset_refs import HEAD, DatasetId
from odf_common.ports.store import MAX_REFERENCE_BYTES, NAMED_BY_CONTENT, ObjectKind, require_unmoved
from odf_sync.access.remote_login import ObjectForbidden
from odf_sync.repositories.remote_dataset import BLOCK_LIMIT, RemoteDataset, Sink

PARALLEL_READS: Final = 16  # signatures at a time
READ_AHEAD_SIGNATURES: Final = 256


class S3Dataset(RemoteDataset):
    """A dataset in a bucket, to pull from; a public bucket needs no credentials."""

    def __init__(self, location: S3Location, access: S3Access) -> None:
        """Use a prefix in a bucket. No request is sent yet."""
        self.url = str(location)
        self._bucket = Bucket(location, access)

    def head(self) -> Multihash:
        """Return the head; raises `NotFound` if the prefix has none."""
        return parse_head(self._read("refs/head", MAX_REFERENCE_BYTES), self.url)

    def is_private(self) -> bool:
        """Return whether credentials are used for the bucket, in which case others may not be able to read it."""
        return not self._bucket.is_anonymous

    def block(self, name: Multihash) -> bytes:
        """Return the bytes of a block; raises `NotFound`, and `InvalidInput` if they exceed `BLOCK_LIMIT`."""
        path = f"{ObjectKind.BLOCK}/{name}"
        with self._files_may_be_missing(path):
            return self._read(path, BLOCK_LIMIT)

    def signatures(self, blocks: Sequence[Multihash], after: Multihash | None) -> Iterator[bytes]:
        """Yield the signature of each block, or empty bytes; nothing if a listing shows no signatures."""
        del after
        if not self._bucket.has_any(f"{ObjectKind.SIGNATURE}/"):
            return
        for first in range(0, len(blocks), READ_AHEAD_SIGNATURES):
            with ThreadPoolExecutor(PARALLEL_READS, thread_name_prefix="signatures") as pool:
                yield from list(pool.map(self._signature, blocks[first : first + READ_AHEAD_SIGNATURES]))

    def _signature(self, block: Multihash) -> bytes:
        stored = self._bucket.read(f"{ObjectKind.SIGNATURE}/{block}", limit=SIZE_LIMIT + 1)
        return b"" if stored is None else stored.content

    def fetch(self, kind: ObjectKind, name: Multihash, out: Sink, limit: int) -> None:
        """Append the bytes of an object to `out`, from the position of `out` on."""
        path, position = f"{kind}/{name}", out.tell()
        # No range starts at the end of an object; the hash shows whether it is complete.
        if position == limit:
            return
        with self._files_may_be_missing(path):
            chunks = self._bucket.chunks(path, position)
        if chunks is None:
            raise NotFound(what=f"{self.url}/{path}")
        for chunk in chunks:
            position += len(chunk)
            if position > limit:
                raise InvalidInput(text=f"more than the declared {limit} bytes", where=f"{self.url}/{path}")
            out.write(chunk)

    @contextmanager
    def _files_may_be_missing(self, path: str) -> Iterator[None]:
        """Raise `ObjectForbidden` if access is denied: the head was readable, so the file may be missing instead."""
        try:
            yield
        except ObjectDenied as error:
            raise ObjectForbidden(what=f"{self.url}/{path}") from error

    def _read(self, path: str, limit: int) -> bytes:
        stored = self._bucket.read(path, limit=limit + 1)
        if stored is None:
            raise NotFound(what=f"{self.url}/{path}")
        if len(stored.content) > limit:
            raise InvalidInput(text=f"longer than {limit} bytes", where=f"{self.url}/{path}")
        return stored.content


def parse_head(text: bytes, url: str) -> Multihash:
    """Return the hash in the content of a reference; raises `InvalidInput`."""
    try:
        return Multihash.parse(text.decode())
    except (UnicodeDecodeError, InvalidInput) as error:
        raise InvalidInput(text=f"not a hash: {text[:80]!r}", where=f"{url}/refs/head") from error


HEAD_FILE = f"refs/{HEAD}"


class S3Target:
    """A dataset in a bucket, to push to; several processes may push at the same time."""

    def __init__(self, location: S3Location, access: S3Access) -> None:
        """Use a prefix in an existing bucket. No request is sent yet."""
        self.url = str(location)
        self.held_bytes = PART_BYTES
        self._there = S3Dataset(location, access)
        self._bucket = Bucket(location, access)

    def head(self) -> Multihash | None:
        """Return the head, None if nothing has been pushed yet."""
        try:
            return self._there.head()
        except NotFound:
            return None

    def block(self, name: Multihash) -> bytes:
        """Return the bytes of a block, which are not checked against its hash; raises `NotFound`."""
        return self._there.block(name)

    def has(self, kind: ObjectKind, name: Multihash) -> bool:
        """Return whether an object exists."""
        return self._bucket.size(f"{kind}/{name}") is not None

    def blocks(self) -> Iterator[Multihash]:
        """Yield the hashes of the stored blocks."""
        start = f"{ObjectKind.BLOCK}/"
        for obj in self._bucket.objects(start):
            with suppress(InvalidInput):  # a file of another program
                yield Multihash.parse(obj.name.removeprefix(start))

    def put(self, kind: ObjectKind, name: Multihash, content: BinaryIO) -> None:
        """Store an object unless it exists; raises `Damaged` if its bytes do not match its name.

        The object is hashed before the upload. The server compares the bytes that arrive with the digest of each
        request.
        """
        actual = physical_hash(content)
        if kind in NAMED_BY_CONTENT and actual != name:
            raise Damaged(file=f"{kind}/{name}", why=f"its bytes hash to {actual}")
        self._bucket.upload_from(f"{kind}/{name}", content, content.seek(0, os.SEEK_END))

    def move_head(self, dataset: DatasetId, *, expected: Multihash | None, new: Multihash) -> None:
        """Move `refs/head`; raises `HeadMoved`, without changes, if the head is not `expected`."""
        while True:
            stored = self._bucket.read(HEAD_FILE, limit=MAX_REFERENCE_BYTES)
            head = None if stored is None else parse_head(stored.content, self.url)
            require_unmoved(dataset, HEAD, expected, head)
            if self._bucket.put(HEAD_FILE, str(new).encode(), replacing=stored.etag if stored else None):
                return
            # Another process moved it in between, perhaps back to where it was: compare again.
