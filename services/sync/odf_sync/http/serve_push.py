"""The server's end of a push (wire-facts §8.5). Readers see no part of it before the head moves."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Final, Self

from aiohttp import web

from odf_common.adapters.local.faults import size_of
from odf_common.codec.flatbuffers import decode_block
from odf_common.dataset.node_datasets import NodeDatasets
from odf_common.errors import InvalidInput
from odf_common.hashing.multihash import Multihash
from odf_common.identity.dataset_refs import DatasetId
from odf_common.metadata.events import Seed
from odf_common.ports.store import BlobStore, CatalogEntry
from odf_common.service.request_reply import Replies
from odf_sync.access.rules import Action
from odf_sync.http.connections import connection_of
from odf_sync.http.endpoints import counted_caller
from odf_sync.http.object_uploads import OpenPushes, upload_file
from odf_sync.http.serve_pull import url_of
from odf_sync.smart import messages as msg
from odf_sync.smart.archive import (
    PUSHED_BYTES_LIMIT,
    PUSHED_COUNTED_BYTES,
    SpooledBlocks,
    read_signed_archive,
    require_countable,
    spool_file,
)
from odf_sync.smart.channel import (
    PROMPT_SECONDS,
    SMALL_BYTES,
    Channel,
    LargeMessages,
    archive_bytes,
    expect_in_pace,
    message_bytes,
)
from odf_sync.smart.exchange import TransferRefused, fits_close_frame
from odf_sync.transfer.accept_push import Acceptance, PushedChain
from odf_sync.transfer.push_source import OFFSET

PROGRESS_SECONDS: Final = 10.0
LIST_BYTES: Final = 64 * 1024**2  # of a list of objects, some 250,000, and of answers until the next one
NOT_BY_FORCE: Final = "a forced push needs the role of a maintainer or owner, and a token that may manage"
# Of a name that is being pushed to, and of a dataset under another name that the caller may not know of.
NOT_FREE: Final = "it cannot be created under this name now"
# Questions about the progress, and answers to them, while no byte of an object arrives: 10 minutes.
MAX_FRUITLESS_MESSAGES: Final = 120
MAX_UNANSWERED_QUESTIONS: Final = 12  # in a row, while no byte of an object arrives: 2 minutes
# Of the blocks of open pushes, on disk: of all, and of each caller half. An archive is there besides its blocks.
MAX_HELD_BYTES: Final = 4 * 1024**3
SMALL_HELD_BYTES: Final = 1024**2  # pushes up to this size are not counted
HELD_BLOCK_BYTES: Final = (
    4096  # of each block besides, at most: headers, its signature, and its place in memory
)
TOO_MUCH_HELD: Final = "open pushes hold too many bytes of blocks; try again later"
# A chain with a longer one is admitted while no other such is: decoded, it may take ten times its size.
LARGE_BLOCK_BYTES: Final = 256 * 1024
MAX_SEED_BYTES: Final = 64 * 1024  # of a block that is decoded before the chain is admitted
OBJECTS_OF_BLOCK: Final = 2  # a slice and a checkpoint
MORE_OBJECTS: Final = 1000  # that a client may list too many


def held_blocks() -> LargeMessages:
    """Return the disk budget for the blocks of pushes in progress."""
    refusal = msg.Internal(phase=msg.Phase.PUSH_METADATA, error_message=TOO_MUCH_HELD)
    return LargeMessages(MAX_HELD_BYTES, small=SMALL_HELD_BYTES, refusal=refusal)


def held_bytes(plan: msg.TransferPlan) -> int:
    """Return the maximum bytes of disk that the blocks of a plan take until the push ends."""
    return 2 * plan.bytes_in_raw_blocks + HELD_BLOCK_BYTES * plan.num_blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class PushTarget:
    """The target of a push: the name in its URL, the dataset that has this name, and its head at the start."""

    datasets: NodeDatasets
    home: Path
    public_url: str | None
    replies: Replies
    alias: str
    entry: CatalogEntry | None
    head: Multihash | None
    pushes: OpenPushes
    large: LargeMessages
    held: LargeMessages
    decoding: AbstractContextManager[object]
    """A lock that a push holds while it decodes large blocks."""
    creating: Callable[[DatasetId, msg.DatasetVisibility], AbstractContextManager[str]]
    """Returns a context with the creation id of a new dataset, which has the visibility if the creation succeeds."""
    may_replace: Callable[[], Awaitable[bool]]
    """Returns whether the caller may replace the chain of the dataset."""
    may_find: Callable[[CatalogEntry], bool]
    """Returns whether the caller may learn that a dataset exists."""
    require_allowed: Callable[[Action], None]
    """Raises `TransferRefused` unless the caller may still perform an action on the dataset."""

    def dataset_of(self, blocks: SpooledBlocks, *, is_forced: bool) -> DatasetId | None:
        """Return the dataset that the blocks belong to; None if it is new and the blocks do not begin with a Seed.

        Raises `TransferRefused` if a forced push would change the dataset's id or kind.
        """
        # Only this block is decoded here, unless it is too long for a Seed; `Acceptance` admits all of them.
        first = next(iter(blocks))
        event = decode_block(blocks[first]).block.event if blocks.size(first) <= MAX_SEED_BYTES else None
        if self.entry is None:
            return event.dataset_id if isinstance(event, Seed) else None
        dataset = self.entry.dataset_id
        if is_forced and isinstance(event, Seed):
            here = self.datasets.states.current(dataset)
            if here is None or (event.dataset_id, event.dataset_kind) != (dataset, here.kind):
                raise TransferRefused(fault=msg.SeedBlockOverwriteRestricted())
        return dataset

    def require_target(self, dataset: DatasetId | None) -> DatasetId:
        """Return the dataset; raises `TransferRefused` if it cannot have the name, or if it is None."""
        if dataset is None:
            raise _refusal(msg.Phase.PUSH_UPLOADS, "the first block is not a Seed")
        if self.entry is not None:
            return dataset
        entry = self.datasets.catalog.by_id(dataset)
        if entry is not None and self.may_find(entry):
            raise _other_name_refusal(entry.alias)
        if entry is not None or self.pushes.are_of_others(self.alias, dataset):
            raise _refusal(msg.Phase.PUSH_TARGET, NOT_FREE)
        return dataset

    def complete(self, acceptance: Acceptance, dataset: DatasetId, push: msg.PushRequest) -> None:
        """Move the head, or create the dataset with its visibility from the start.

        Permissions are checked again: sending and checking the objects may have taken hours, and the token may have
        been revoked.
        """
        acceptance.await_checks()
        self.require_allowed(Action.CREATE)
        if push.force_update_if_diverged and self.entry is not None:
            self.require_allowed(Action.MANAGE)
        is_new = self.entry is None
        visibility = push.visibility_for_created_dataset
        with self.creating(dataset, visibility) if is_new else nullcontext("") as creation:
            acceptance.complete(self.replies, creation=creation)

    def uploads(
        self, request: web.Request, dataset: DatasetId, files: tuple[msg.ObjectFile, ...]
    ) -> msg.UploadsReply:
        """Return the upload instructions for objects: URLs for those that this node does not have."""
        return msg.UploadsReply(
            object_transfer_strategies=tuple(self._upload(request, dataset, file) for file in files)
        )

    def _upload(self, request: web.Request, dataset: DatasetId, file: msg.ObjectFile) -> msg.Upload:
        if self.datasets.blobs.has(dataset, file.object_type.kind, file.physical_hash):
            return msg.Upload(object_file=file, push_strategy=msg.PushStrategy.SKIP_UPLOAD)
        upload_to, path = url_of(self.public_url, request, file), self.stored_path(file.physical_hash)
        arrived = size_of(path) or 0
        if arrived:  # other clients send this header with the whole object
            upload_to = replace(
                upload_to, headers=(*upload_to.headers, msg.HttpHeader(name=OFFSET, value=str(arrived)))
            )
        return msg.Upload(object_file=file, push_strategy=msg.PushStrategy.HTTP_UPLOAD, upload_to=upload_to)

    def stored_path(self, name: Multihash) -> Path:
        """Return the file for a partial upload of an object or archive."""
        return upload_file(self.home, self.alias, name)

    def archive_bytes(self) -> int:
        """Return the number of bytes received of the archives to which pushes to this name may refer."""
        return sum(size_of(self.stored_path(name)) or 0 for name in self.pushes.archives(self.alias))


async def serve_push(channel: Channel, target: PushTarget, request: web.Request) -> None:
    """Receive blocks and objects, check them all, and move the head."""
    push = await channel.expect(msg.PushRequest, PROMPT_SECONDS)
    # Before anything is sent. The head may still move during the transfer, so it is compared again at the end.
    if push.current_head != target.head:
        fault = msg.InvalidHead(actual_head=push.current_head, expected_head=target.head)
        await channel.send(msg.Refusal(fault=fault))
        return
    is_forced = push.force_update_if_diverged
    if is_forced and target.entry is not None and not await target.may_replace():
        await channel.send(
            msg.Refusal(fault=msg.Internal(phase=msg.Phase.PUSH_INITIAL, error_message=NOT_BY_FORCE))
        )
        return
    plan = push.transfer_plan
    async with _refusing(channel):
        require_countable(plan, limit=PUSHED_BYTES_LIMIT, counted=PUSHED_COUNTED_BYTES)
    async with target.held.receiving(held_bytes(plan), counted_caller(request)):
        with (
            target.pushes.exchanging(target.alias, archive_bytes(plan)),
            await _received_blocks(channel, target, request, plan) as received,
        ):
            await _receive(channel, target, request, push, received)
    await channel.send(msg.PushConfirmed())


@asynccontextmanager
async def _refusing(channel: Channel) -> AsyncIterator[None]:
    """Send a refusal if the block raises `InvalidInput`. The close frame only has room for 50 characters of it."""
    try:
        yield
    except InvalidInput as error:
        await channel.send(msg.Refusal(fault=msg.Internal(phase=channel.end.phase, error_message=str(error))))
        raise


@dataclass(frozen=True, slots=True, kw_only=True)
class _ReceivedPush:
    """The blocks of a push, and the file of the archive that contained them, if it was uploaded."""

    blocks: SpooledBlocks
    archive: Path | None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.blocks.__exit__(*error)


async def _received_blocks(
    channel: Channel, target: PushTarget, request: web.Request, plan: msg.TransferPlan
) -> _ReceivedPush:
    """Receive the blocks of a push; a large message waits for room in the memory budget."""
    size = message_bytes(plan)
    async with target.large.receiving(size, counted_caller(request)):
        connection_of(request).limit(size + SMALL_BYTES)
        await channel.send(msg.PushAccepted())

        def count_received() -> int:
            return connection_of(request).received + target.archive_bytes()

        message = await expect_in_pace(channel, msg.NewBlocks, count_received, size)
        batch = message.new_blocks
        archive = None if batch.archive is None else target.stored_path(batch.archive)
        async with _refusing(channel):
            blocks = await asyncio.to_thread(_unpack, target.datasets.blobs, batch, plan, archive)
    return _ReceivedPush(blocks=blocks, archive=archive)


async def _receive(
    channel: Channel, target: PushTarget, request: web.Request, push: msg.PushRequest, received: _ReceivedPush
) -> None:
    """Receive the objects that the blocks refer to, check everything, and move the head."""
    blocks, is_forced = received.blocks, push.force_update_if_diverged

    def count_received() -> int:
        return connection_of(request).received

    if not blocks:
        await channel.send(msg.BlocksAccepted())
        await expect_in_pace(channel, msg.CompleteRequest, count_received)
        return
    seeded = await asyncio.to_thread(target.dataset_of, blocks, is_forced=is_forced)
    connection_of(request).limit(LIST_BYTES)
    await channel.send(msg.BlocksAccepted())
    uploads = await expect_in_pace(channel, msg.UploadsRequest, count_received)
    dataset = await asyncio.to_thread(target.require_target, seeded)
    chain = PushedChain(
        alias=target.alias,
        head=target.head,
        blocks=blocks,
        signature=blocks.signature,
        is_forced=is_forced,
        decoding=target.decoding if blocks.largest > LARGE_BLOCK_BYTES else nullcontext(),
    )
    with (
        target.pushes.pushing(target.alias, dataset),
        Acceptance(target.datasets, chain) as acceptance,
        target.pushes.listening(dataset, acceptance.note_object),
    ):
        most = OBJECTS_OF_BLOCK * len(blocks) + MORE_OBJECTS
        await _receive_objects(channel, target, request, dataset, uploads, most=most)
        await expect_in_pace(channel, msg.CompleteRequest, count_received)
        await asyncio.to_thread(target.complete, acceptance, dataset, push)
    # Not earlier: a push that is interrupted refers to it again, instead of sending it once more.
    if received.archive is not None:
        received.archive.unlink(missing_ok=True)


def _unpack(
    blobs: BlobStore, batch: msg.BlocksBatch, plan: msg.TransferPlan, archive: Path | None = None
) -> SpooledBlocks:
    """Return the blocks of an archive, spooled to a file; raises `InvalidInput` unless they match the plan."""
    if batch.num_blocks != plan.num_blocks:
        text = f"{batch.num_blocks} blocks, but {plan.num_blocks} planned"
        raise InvalidInput(text=text, where="new_blocks")
    if archive is not None and not archive.is_file():
        raise InvalidInput(text=f"archive {batch.archive} was not sent", where="new_blocks")
    with BytesIO(batch.payload) if archive is None else archive.open("rb") as packed:
        signed = read_signed_archive(packed, count=plan.num_blocks, limit=plan.bytes_in_raw_blocks)
        try:
            return SpooledBlocks(spool_file(blobs), signed)
        except InvalidInput:
            if archive is not None:
                archive.unlink(missing_ok=True)  # no push can use it
            raise


async def _receive_objects(
    channel: Channel,
    target: PushTarget,
    request: web.Request,
    dataset: DatasetId,
    uploads: msg.UploadsRequest,
    *,
    most: int,
) -> None:
    """Answer each list of objects with upload URLs, and wait until its objects have been uploaded.

    The lists may have up to `most` objects in total.
    """
    count = 0
    while True:
        count += len(uploads.object_files)
        if count > most:
            raise _refusal(msg.Phase.PUSH_UPLOADS, f"{count} objects for blocks that refer to fewer")
        connection_of(request).limit(LIST_BYTES)
        await channel.send(await asyncio.to_thread(target.uploads, request, dataset, uploads.object_files))
        await _await_uploads(channel, lambda: target.pushes.bytes_received(target.alias))
        if not uploads.is_truncated:
            return
        uploads = await expect_in_pace(channel, msg.UploadsRequest, lambda: connection_of(request).received)


async def _await_uploads(channel: Channel, received: Callable[[], int]) -> None:
    """Wait until the client reports that all objects of a list were uploaded; meanwhile, ask for the progress.

    `received` returns the number of bytes of objects received so far. Raises `TimeoutError` once none arrive any more.
    """
    before, fruitless, unanswered = received(), 0, 0
    while fruitless < MAX_FRUITLESS_MESSAGES:
        try:
            message = await channel.receive(PROGRESS_SECONDS)
        except TimeoutError as error:
            if unanswered == MAX_UNANSWERED_QUESTIONS:
                text = f"no answer to {unanswered} questions about the progress, and no byte of an object"
                raise TimeoutError(text) from error
            await channel.send(msg.ProgressRequest())
            unanswered += 1
        else:
            if isinstance(message, msg.UploadsComplete):
                return
            unanswered = 0
        now = received()
        if now != before:
            before, fruitless, unanswered = now, 0, 0
        else:
            fruitless += 1
    raise TimeoutError(
        f"no byte of an object arrived for {MAX_FRUITLESS_MESSAGES} questions and answers about the progress"
    )


def _other_name_refusal(alias: str) -> TransferRefused:
    """Return the refusal of a dataset that exists under another name, with the name if a close frame has room."""
    texts = (
        f"it has this dataset as {alias}",
        f"it has this as {alias}",
        "it has this dataset under another name",
    )
    refusals = [_refusal(msg.Phase.PUSH_TARGET, text) for text in texts]
    fitting = (refusal for refusal in refusals if fits_close_frame(msg.Refusal(fault=refusal.fault)))
    return next(fitting, refusals[-1])


def _refusal(phase: msg.Phase, text: str) -> TransferRefused:
    return TransferRefused(fault=msg.Internal(phase=phase, error_message=text))
