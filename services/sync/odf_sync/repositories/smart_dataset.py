"""A dataset served by the Smart Transfer Protocol (wire-facts §8.4): its new blocks come in one message, or in a pack.

Everything else is read over the Simple Transfer Protocol at the same URL: the head, the blocks down to the common one
if the chains have diverged, and objects that were not requested.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final
from urllib.parse import urlsplit

from odf_common.adapters.networks import PUBLIC, Networks
from odf_common.adapters.repository_urls import BUCKETS, SMART, SMART_PREFIX, WEB
from odf_common.errors import InvalidInput, NotFound
from odf_common.hashing.multihash import Multihash
from odf_common.ports.store import ObjectKind
from odf_sync.repositories.http_dataset import HttpDataset, by_url_or_place
from odf_sync.repositories.remote_dataset import Sink
from odf_sync.smart import messages as msg
from odf_sync.smart.archive import BLOCKS_BYTES_LIMIT
from odf_sync.smart.channel import PeerClosed
from odf_sync.smart.connection import PULLED, Connection, connect, received_blocks
from odf_sync.smart.exchange import PULL, TransferRefused

# Of blocks in one message, which is sent again as a whole if it is interrupted, and is twice as long. A pack is
# continued.
MAX_INLINE_PULL_BYTES: Final = 64 * 1024


class SmartDataset(HttpDataset):
    """A node's Smart Transfer Protocol."""

    def __init__(self, url: str, token: str | None = None, networks: Networks = PUBLIC) -> None:
        """Use the dataset at a URL, with a bearer token if there is one; sends no request yet.

        Objects at other origins have to be at public addresses, or in `networks`.
        """
        super().__init__(plain_url(url), token, networks)
        self.url = url
        self._blocks: dict[Multihash, bytes] = {}
        self._urls: dict[tuple[ObjectKind, Multihash], msg.TransferUrl] = {}
        self._connection: Connection | None = None
        self._refused: TransferRefused | None = None

    @contextmanager
    def exchange(self, begin_after: Multihash | None, *, is_forced: bool) -> Iterator[None]:
        """Receive the blocks after one, and keep the exchange open for objects until the copy is made.

        If that block is not in the chain there, no block is received unless `is_forced`: then all are. There is no
        exchange with a node that sends packs, unless it gives URLs of its bucket: pack and objects take fewer trips.
        """
        if self.sends_packs and not self.gives_urls:
            yield
            return
        with connect(f"{self._base}pull", PULL, self._headers) as connection:
            connection.send(msg.PullRequest(begin_after=begin_after, force_update_if_diverged=is_forced))
            try:
                plan = connection.expect(msg.PullAccepted).transfer_plan
            except TransferRefused as refused:
                if not isinstance(refused.fault, msg.InvalidInterval):
                    raise
                self._refused = refused
                yield
                return
            limit = MAX_INLINE_PULL_BYTES if self.sends_packs else BLOCKS_BYTES_LIMIT
            if 0 < plan.bytes_in_raw_blocks <= limit:  # more are read by the Simple protocol
                self._blocks = received_blocks(connection, plan)
                self._connection = connection
            try:
                yield
            finally:
                self._connection = None
            connection.close(PULLED)

    def request(self, objects: Iterable[tuple[ObjectKind, Multihash, int]]) -> None:
        """Ask where objects, given with their sizes in bytes, are; without an exchange they are read one by one."""
        files = tuple(
            msg.ObjectFile(object_type=msg.ObjectType.for_kind(kind), physical_hash=name, size=size)
            for kind, name, size in objects
        )
        if self._connection is None or not files:
            return
        try:
            for start in range(0, len(files), msg.LISTED):
                self._connection.send(msg.DownloadsRequest(object_files=files[start : start + msg.LISTED]))
                for strategy in self._connection.expect(msg.DownloadsReply).object_transfer_strategies:
                    file = strategy.object_file
                    self._urls[file.object_type.kind, file.physical_hash] = strategy.download_from
        except PeerClosed:  # such as an exchange that was idle while the first objects were downloaded
            self._connection = None

    def block(self, name: Multihash) -> bytes:
        """Return a block's bytes."""
        raw = self._blocks.get(name)
        if raw is not None:
            return raw
        try:
            return super().block(name)
        except NotFound as error:
            raise self._refused or error from error

    def pack(self, newest: Multihash, after: Multihash | None) -> Iterator[bytes]:
        """Yield the blocks that the exchange brought, newest first; without one, those of the Simple protocol."""
        if newest in self._blocks:
            yield from reversed(self._blocks.values())
            self._blocks = {}  # the caller keeps them
        else:
            yield from super().pack(newest, after)

    def fetch(self, kind: ObjectKind, name: Multihash, out: Sink, limit: int) -> None:
        """Download an object."""
        address = self._urls.get((kind, name))
        if address is None:
            super().fetch(kind, name, out, limit)
            return
        headers = {header.name: header.value for header in address.headers}
        by_url_or_place(
            address,
            lambda: self.download(address.url, headers, out, limit),
            lambda: super(SmartDataset, self).fetch(kind, name, out, limit),
        )


class NotPushable(InvalidInput):
    """Nothing can be pushed to a URL of this kind."""

    MESSAGE = "{url} cannot be pushed to: expected odf+http(s)://, file:// or s3://"

    url: str

    def advice(self) -> str:
        """Return the URL of a node at the same address."""
        if urlsplit(self.url).scheme not in WEB:
            return ""
        return f"for a node, use the same address as {SMART_PREFIX}{self.url}, with `odf repo add` too"


def require_pushable(url: str) -> None:
    """Raise `NotPushable` unless datasets are pushed to URLs of this scheme."""
    if urlsplit(url).scheme not in (*SMART, *BUCKETS, "file"):
        raise NotPushable(url=url)


def plain_url(url: str) -> str:
    """Return the HTTP URL of a dataset, ending in a slash; raises `NotPushable` unless its scheme is odf+http(s)."""
    if urlsplit(url).scheme not in SMART:
        raise NotPushable(url=url)
    return url.removeprefix(SMART_PREFIX).rstrip("/") + "/"
