"""A dataset that a node serves by the Smart Transfer Protocol (wire-facts §8.4).

The new blocks arrive in one message or in a pack. Everything else is read by the Simple Transfer Protocol at the same
URL: the head, the blocks down to the common one if the chains have diverged, and objects without a URL.
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
    """A remote dataset that is read by the Smart Transfer Protocol."""

    def __init__(self, url: str, token: str | None = None, networks: Networks = PUBLIC) -> None:
        """Use the dataset at a URL, with a bearer token if one is given. No request is sent yet.

        URLs of objects at other origins must lead to public addresses or into `networks`.
        """
        super().__init__(plain_url(url), token, networks)
        self.url = url
        self._blocks: dict[Multihash, bytes] = {}
        self._urls: dict[tuple[ObjectKind, Multihash], msg.TransferUrl] = {}
        self._connection: Connection | None = None
        self._refused: TransferRefused | None = None

    @contextmanager
    def exchange(self, begin_after: Multihash | None, *, is_forced: bool) -> Iterator[None]:
        """Open a Smart exchange, receive the blocks after `begin_after`, and keep it open for the `with` block.

        While it is open, `request` can obtain the URLs of objects. If `begin_after` is not in the remote chain, all
        blocks are received if `is_forced`, else none. With a node that sends packs no exchange is opened, unless it
        gives URLs of its bucket: a pack and direct downloads need fewer round trips.
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
        """Request the download URLs of objects, given with their sizes in bytes.

        Without an exchange this does nothing: `fetch` then reads each object by the Simple protocol.
        """
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
        """Return the bytes of a block; raises `NotFound`, or `TransferRefused` if the exchange was refused."""
        raw = self._blocks.get(name)
        if raw is not None:
            return raw
        try:
            return super().block(name)
        except NotFound as error:
            raise self._refused or error from error

    def pack(self, newest: Multihash, after: Multihash | None) -> Iterator[bytes]:
        """Yield the blocks that the exchange has received, newest first.

        If there are none, a pack by the Simple protocol.
        """
        if newest in self._blocks:
            yield from reversed(self._blocks.values())
            self._blocks = {}  # the caller keeps them
        else:
            yield from super().pack(newest, after)

    def fetch(self, kind: ObjectKind, name: Multihash, out: Sink, limit: int) -> None:
        """Append the bytes of an object to `out`, by the URL that `request` has obtained or by the Simple protocol."""
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
    """Datasets cannot be pushed to URLs with this scheme."""

    MESSAGE = "{url} cannot be pushed to: expected odf+http(s)://, file:// or s3://"

    url: str

    def advice(self) -> str:
        """Return advice with the URL for a push to a node at the same address, empty unless the scheme is http(s)."""
        if urlsplit(self.url).scheme not in WEB:
            return ""
        return f"for a node, use the same address as {SMART_PREFIX}{self.url}, with `odf repo add` too"


def require_pushable(url: str) -> None:
    """Raise `NotPushable` unless datasets can be pushed to URLs with this scheme."""
    if urlsplit(url).scheme not in (*SMART, *BUCKETS, "file"):
        raise NotPushable(url=url)


def plain_url(url: str) -> str:
    """Return the HTTP URL of a dataset, with a final slash; raises `NotPushable` unless its scheme is odf+http(s)."""
    if urlsplit(url).scheme not in SMART:
        raise NotPushable(url=url)
    return url.removeprefix(SMART_PREFIX).rstrip("/") + "/"
