"""The server's end of a pull (wire-facts §8.4).

A list of objects takes several times its size in memory. So long lists wait for each other before they are received, no
list may have many more objects than the chain, and responses are written in parts.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import BinaryIO, Final

from aiohttp import web

from odf_common.adapters.local.faults import translate_os_errors
from odf_common.hashing.multihash import Multihash
from odf_common.identity.dataset_refs import DatasetId
from odf_common.ports.store import BlobStore, ObjectKind, block_reader
from odf_sync.http.connections import connection_of
from odf_sync.http.endpoints import counted_caller
from odf_sync.smart import messages as msg
from odf_sync.smart.archive import Range, is_ancestor, pack, plan_of, spool_file
from odf_sync.smart.channel import (
    AROUND_BYTES,
    IDLE_SECONDS,
    PROMPT_SECONDS,
    SMALL_BYTES,
    Channel,
    LargeMessages,
    expect_in_pace,
    seconds_for,
)
from odf_sync.smart.exchange import TransferRefused

# A client's longest message lists objects, some 230,000: more than those whose URLs fit into an answer of 64 MiB.
PULL_MESSAGE_BYTES: Final = 32 * 1024**2
SMALL_LIST_BYTES: Final = (
    1024**2
)  # lists up to this size are not counted; our own clients send no longer ones
LISTS_BYTES: Final = 2 * PULL_MESSAGE_BYTES  # of longer ones that are received, or answered, at a time
OBJECT_BYTES: Final = 512  # of an object in a list, at most; all implementations write some 140
LOOK_SECONDS: Final = 1.0  # between two looks at how much of a list has come
TIMES_LISTED: Final = 3  # each object of the chain: a URL may have expired
MORE_OBJECTS: Final = 1000  # that a client may list
ANSWER_BYTES: Final = (
    1024  # of an object in the answer to a list, of which 64 KiB have to be read in a second
)
TOO_MANY_LISTS: Final = "too many long lists of objects at a time; try again later"
TOO_LONG: Final = "a list of more objects than the chain refers to"


def large_lists() -> LargeMessages:
    """Return the memory budget for long lists of objects. It is separate from that of pushes, as everyone may pull."""
    refusal = msg.Internal(phase=msg.Phase.PULL_OBJECTS, error_message=TOO_MANY_LISTS)
    return LargeMessages(LISTS_BYTES, small=SMALL_LIST_BYTES, refusal=refusal)


@dataclass(frozen=True, slots=True, kw_only=True)
class PullSource:
    """The dataset that a client pulls, and its head at the start."""

    blobs: BlobStore
    public_url: str | None
    dataset: DatasetId
    head: Multihash
    lists: LargeMessages

    def range_of(self, request: msg.PullRequest) -> Range | msg.Fault:
        """Return the range of blocks that a client requests, or the fault if it does not exist."""
        head = request.stop_at or self.head
        if head != self.head and not self._is_ancestor(head, self.head):
            text = f"no block {head}" if not self._has(head) else f"{head} is not in the chain"
            return msg.Internal(phase=msg.Phase.PULL_INITIAL, error_message=text)
        after = request.begin_after
        if after is None or self._is_ancestor(after, head):
            return Range(after=after, head=head)
        if request.force_update_if_diverged:
            return Range(after=None, head=head)
        return msg.InvalidInterval(head=head, tail=after)

    def plan(self, blocks: Range) -> msg.TransferPlan:
        """Return the number of blocks, objects and records in a range, and the bytes of its blocks and objects."""
        return plan_of(block_reader(self.blobs, self.dataset), blocks)

    def pack(self, blocks: Range) -> BinaryIO:
        """Return a file with the archive of a range; the caller closes it."""
        out = spool_file(self.blobs)
        try:
            with translate_os_errors():
                pack(blocks.links(block_reader(self.blobs, self.dataset)), out)
        except BaseException:
            out.close()
            raise
        return out

    def _is_ancestor(self, block: Multihash, head: Multihash) -> bool:
        return is_ancestor(block_reader(self.blobs, self.dataset), self._has, block, head)

    def _has(self, block: Multihash) -> bool:
        return self.blobs.has(self.dataset, ObjectKind.BLOCK, block)


async def serve_pull(channel: Channel, source: PullSource, request: web.Request) -> None:
    """Accept a pull, send its blocks, and answer lists of objects with their URLs, until the client closes."""
    pull = await channel.expect(msg.PullRequest, PROMPT_SECONDS)
    blocks = await asyncio.to_thread(source.range_of, pull)
    if not isinstance(blocks, Range):
        await channel.send(msg.Refusal(fault=blocks))
        return
    plan = await asyncio.to_thread(source.plan, blocks)
    await channel.send(msg.PullAccepted(transfer_plan=plan))
    await channel.expect(msg.MetadataRequest, PROMPT_SECONDS)  # not sent by clients that read packs
    with await asyncio.to_thread(source.pack, blocks) as archive:
        reply = msg.MetadataReply(blocks=msg.BlocksBatch(num_blocks=plan.num_blocks, payload=b""))
        await channel.send_archive(reply, archive)
    lists = _Lists(channel, source, request, blocks, plan)
    while True:
        await _answer_next(channel, source, request, lists)


async def _answer_next(channel: Channel, source: PullSource, request: web.Request, lists: "_Lists") -> None:
    """Receive and answer a list of objects; its memory is freed afterwards."""
    try:
        async with lists.next() as files, asyncio.timeout(seconds_for(ANSWER_BYTES * len(files))):
            # A client that reads slowly would keep the room that others wait for.
            await channel.send_downloads(
                msg.Download(object_file=file, download_from=_location(source, request, file))
                for file in files
            )
    except TransferRefused:
        connection_of(request).limit(SMALL_LIST_BYTES)  # that its close frame is read
        raise


class _Lists:
    """Receives the lists of objects of an exchange. Each object of the chain may be listed `TIMES_LISTED` times."""

    def __init__(
        self,
        channel: Channel,
        source: PullSource,
        request: web.Request,
        blocks: Range,
        plan: msg.TransferPlan,
    ) -> None:
        self._channel = channel
        self._source = source
        self._caller = counted_caller(request)
        self._connection = connection_of(request)
        self._is_part = blocks.after is not None
        self._most = _most_listed(plan)
        self._count = 0

    @asynccontextmanager
    async def next(self) -> AsyncIterator[tuple[msg.ObjectFile, ...]]:
        """Receive a list, and yield it for the answer; a long list waits for room in the memory budget.

        Raises `TransferRefused` if the lists have too many objects, or there is no room.
        """
        downloads = await self._small()
        if downloads is not None:
            yield await self._count_files(downloads)
            return
        await self._widen()
        size = min(PULL_MESSAGE_BYTES, AROUND_BYTES + OBJECT_BYTES * (self._most - self._count))
        if size <= SMALL_LIST_BYTES:
            raise _refusal(TOO_LONG)
        async with self._source.lists.receiving(size, self._caller):
            self._connection.limit(size)
            downloads = await expect_in_pace(
                self._channel, msg.DownloadsRequest, lambda: self._connection.received, SMALL_BYTES + 1
            )
            self._connection.hold(SMALL_LIST_BYTES)
            yield await self._count_files(downloads)

    async def _small(self) -> msg.DownloadsRequest | None:
        """Return the next list if it is short; None once it turns out to be long, when reading is paused."""
        now = asyncio.get_running_loop().time
        until = now() + IDLE_SECONDS
        self._connection.hold(SMALL_LIST_BYTES)
        while now() < until:
            try:
                return await self._channel.expect(msg.DownloadsRequest, LOOK_SECONDS)
            except TimeoutError:
                if self._connection.is_held:
                    return None
        raise TimeoutError(f"no list of objects in {IDLE_SECONDS:g} s")

    async def _count_files(self, downloads: msg.DownloadsRequest) -> tuple[msg.ObjectFile, ...]:
        self._count += len(downloads.object_files)
        if self._count > self._most:
            await self._widen()
        if self._count > self._most:
            raise _refusal(TOO_LONG)
        return downloads.object_files

    async def _widen(self) -> None:
        """Also allow objects of blocks before the range, because the client may have lost its copies of them."""
        if self._is_part:
            self._is_part = False
            chain = Range(after=None, head=self._source.head)
            self._most = _most_listed(await asyncio.to_thread(self._source.plan, chain))


def _most_listed(plan: msg.TransferPlan) -> int:
    return TIMES_LISTED * plan.num_objects + MORE_OBJECTS


def _refusal(text: str) -> TransferRefused:
    return TransferRefused(fault=msg.Internal(phase=msg.Phase.PULL_OBJECTS, error_message=text))


def _location(source: PullSource, request: web.Request, file: msg.ObjectFile) -> msg.TransferUrl:
    """Return the download URL of an object, from the store if it has one, else from this node.

    The store must not see the client's token.
    """
    download = source.blobs.download_url(source.dataset, file.object_type.kind, file.physical_hash)
    if download is None:
        return url_of(source.public_url, request, file)
    return msg.TransferUrl(url=download.url, headers=(), expires_at=str(download.expires_at))


def url_of(public_url: str | None, request: web.Request, file: msg.ObjectFile) -> msg.TransferUrl:
    """Return this node's own URL of an object, for the client that sent the request."""
    origin = public_url or f"{request.scheme}://{request.host}"
    base = request.rel_url.raw_path.rpartition("/")[0]
    url = f"{origin}{base}/{file.object_type.kind}/{file.physical_hash}"
    headers = [msg.HttpHeader(name=msg.VERSION_HEADER, value=str(msg.VERSION))]
    token = request.headers.get("Authorization")
    if token is not None:
        headers.append(msg.HttpHeader(name="authorization", value=token))
    return msg.TransferUrl(url=url, headers=tuple(headers))
