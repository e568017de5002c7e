"""A prefix in a bucket that a dataset is pushed to, in the common layout (wire-facts §6.1).

The head moves by conditional PUT, so one of two concurrent pushes succeeds, if the server supports conditions.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from typing import BinaryIO

from odf_common.adapters.s3.bucket import PART_BYTES, Bucket
from odf_common.adapters.s3.location import S3Access, S3Location
from odf_common.errors import Damaged, InvalidInput, NotFound
from odf_common.hashing.multihash import Multihash
from odf_common.hashing.physical import physical_hash
from odf_common.identity.branch_names import HEAD
from odf_common.identity.did import DatasetId
from odf_common.ports.store import MAX_REFERENCE_BYTES, NAMED_BY_CONTENT, ObjectKind, require_unmoved
from odf_sync.repositories.s3_dataset import S3Dataset, parse_head

HEAD_FILE = f"refs/{HEAD}"


class S3Target:
    """One dataset's prefix; several processes may push to it at once."""

    def __init__(self, location: S3Location, access: S3Access) -> None:
        """Use a prefix in an existing bucket; sends no request yet."""
        self.url = str(location)
        self.held_bytes = PART_BYTES
        self._there = S3Dataset(location, access)
        self._bucket = Bucket(location, access)

    def head(self) -> Multihash | None:
        """Return the head; None if nothing was pushed yet."""
        try:
            return self._there.head()
        except NotFound:
            return None

    def block(self, name: Multihash) -> bytes:
        """Return a block's bytes, unchecked; raises `NotFound`."""
        return self._there.block(name)

    def has(self, kind: ObjectKind, name: Multihash) -> bool:
        """Return whether an object exists."""
        return self._bucket.size(f"{kind}/{name}") is not None

    def blocks(self) -> Iterator[Multihash]:
        """Yield the names of the blocks that exist."""
        start = f"{ObjectKind.BLOCK}/"
        for obj in self._bucket.objects(start):
            with suppress(InvalidInput):  # a file of another program
                yield Multihash.parse(obj.name.removeprefix(start))

    def put(self, kind: ObjectKind, name: Multihash, content: BinaryIO) -> None:
        """Store an object, unless it exists; raises `Damaged` if its bytes do not match its name.

        It is hashed before it is sent; the server compares what arrives with the digest of each request.
        """
        actual = physical_hash(content)
        if kind in NAMED_BY_CONTENT and actual != name:
            raise Damaged(file=f"{kind}/{name}", why=f"its bytes hash to {actual}")
        self._bucket.upload_from(f"{kind}/{name}", content, content.seek(0, os.SEEK_END))

    def move_head(self, dataset: DatasetId, *, expected: Multihash | None, new: Multihash) -> None:
        """Move `refs/head`; raises `HeadMoved` if it is not `expected`, and then nothing has changed."""
        while True:
            stored = self._bucket.read(HEAD_FILE, limit=MAX_REFERENCE_BYTES)
            head = None if stored is None else parse_head(stored.content, self.url)
            require_unmoved(dataset, HEAD, expected, head)
            if self._bucket.put(HEAD_FILE, str(new).encode(), replacing=stored.etag if stored else None):
                return
            # Another process moved it in between, perhaps back to where it was: compare again.
