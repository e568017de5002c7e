"""The server's end of a pull (wire-facts §8.4)."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import BinaryIO

from aiohttp import web

from odf_common.adapters.local.faults import translated
from odf_common.hashing.multihash import Multihash
from odf_common.identity.did import DatasetId
from odf_common.ports.store import BlobStore, ObjectKind, block_reader
from odf_sync.smart.channel import IDLE_SECONDS, PROMPT_SECONDS, Channel
from odf_sync.smart.messages import (
    VERSION,
    VERSION_HEADER,
    BlocksBatch,
    Download,
    DownloadsReply,
    DownloadsRequest,
    Fault,
    HttpHeader,
    Internal,
    InvalidInterval,
    MetadataReply,
    MetadataRequest,
    ObjectFile,
    Phase,
    PullAccepted,
    PullRequest,
    Refusal,
    TransferPlan,
    TransferUrl,
)
from odf_sync.smart.ranges import Range, is_ancestor, pack, plan_of
from odf_sync.smart.spool_files import spool_file


@dataclass(frozen=True, slots=True, kw_only=True)
class PullSource:
    """The dataset that is pulled, with its head at the start."""

    blobs: BlobStore
    public_url: str | None
    dataset: DatasetId
    head: Multihash

    def range_of(self, request: PullRequest) -> Range | Fault:
        """Return the blocks that are asked for, or why there are none such."""
        head = request.stop_at or self.head
        if head != self.head and not self._is_ancestor(head, self.head):
            text = f"no block {head}" if not self._has(head) else f"{head} is not in the chain"
            return Internal(phase=Phase.PULL_INITIAL, error_message=text)
        after = request.begin_after
        if after is None or self._is_ancestor(after, head):
            return Range(after=after, head=head)
        if request.force_update_if_diverged:
            return Range(after=None, head=head)
        return InvalidInterval(head=head, tail=after)

    def plan(self, blocks: Range) -> TransferPlan:
        """Return what a range amounts to."""
        return plan_of(block_reader(self.blobs, self.dataset), blocks)

    def pack(self, blocks: Range) -> BinaryIO:
        """Return the archive of a range, in a file that the caller closes."""
        out = spool_file(self.blobs)
        try:
            with translated():
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
    """Offer a range, send its blocks, and say where objects are, until the client closes."""
    asked = await channel.expect(PullRequest, PROMPT_SECONDS)
    blocks = await asyncio.to_thread(source.range_of, asked)
    if not isinstance(blocks, Range):
        await channel.send(Refusal(fault=blocks))
        return
    plan = await asyncio.to_thread(source.plan, blocks)
    await channel.send(PullAccepted(transfer_plan=plan))
    await channel.expect(MetadataRequest, PROMPT_SECONDS)  # not sent by clients that read packs
    with await asyncio.to_thread(source.pack, blocks) as archive:
        reply = MetadataReply(blocks=BlocksBatch(num_blocks=plan.num_blocks, payload=b""))
        await channel.send_archive(reply, archive)
    while True:
        wanted = await channel.expect(DownloadsRequest, IDLE_SECONDS)
        await channel.send(await asyncio.to_thread(_downloads, source, request, wanted.object_files))


def _downloads(source: PullSource, request: web.Request, files: Iterable[ObjectFile]) -> DownloadsReply:
    return DownloadsReply(
        object_transfer_strategies=tuple(
            Download(object_file=file, download_from=_location(source, request, file)) for file in files
        )
    )


def _location(source: PullSource, request: web.Request, file: ObjectFile) -> TransferUrl:
    """Return where an object is served: by the store, which must not see the client's token, or by this node."""
    given = source.blobs.download_url(source.dataset, file.object_type.kind, file.physical_hash)
    if given is None:
        return url_of(source.public_url, request, file)
    return TransferUrl(url=given.url, headers=(), expires_at=str(given.expires_at))


def url_of(public_url: str | None, request: web.Request, file: ObjectFile) -> TransferUrl:
    """Return where this node itself serves an object, as seen by the requesting client."""
    origin = public_url or f"{request.scheme}://{request.host}"
    base = request.rel_url.raw_path.rpartition("/")[0]
    url = f"{origin}{base}/{file.object_type.kind}/{file.physical_hash}"
    headers = [HttpHeader(name=VERSION_HEADER, value=str(VERSION))]
    token = request.headers.get("Authorization")
    if token is not None:
        headers.append(HttpHeader(name="authorization", value=token))
    return TransferUrl(url=url, headers=tuple(headers))
