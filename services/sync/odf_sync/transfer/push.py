"""Sends a dataset to another node by the Smart Transfer Protocol (wire-facts §8.5), to a folder or to a bucket.

The other node checks everything before its head moves. Objects that it has, from an attempt that was cut off too, are
not sent again.
"""

import time
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from odf_common.adapters.local.repositories import LocalRepositories
from odf_common.adapters.networks import Networks
from odf_common.chain.compare_chains import Ahead, Behind, Diverged, Equal, common_block, compare
from odf_common.chain.state import ChainState
from odf_common.chain.walk import ReadBlock, blocks_between, raw_blocks
from odf_common.dataset.node_datasets import NodeDatasets
from odf_common.dataset.object_markers import dropped_blocks
from odf_common.dataset.remote_aliases import change_aliases, remote_aliases
from odf_common.errors import InvalidInput, NotFound
from odf_common.hashing.multihash import Multihash
from odf_common.hashing.physical import physical_hash
from odf_common.identity.dataset_refs import Alias, parse_alias, parse_ref_any
from odf_common.metadata.events import DatasetKind
from odf_common.ports.store import CatalogEntry, ObjectKind, block_reader, scratch_folder
from odf_common.service.connections import trusted_networks
from odf_common.service.settings import Settings
from odf_sync.access.sent_tokens import TokenFor, authorization, no_token
from odf_sync.repositories import HttpDataset, Target, target
from odf_sync.repositories.locate import locate, name_in_repository
from odf_sync.repositories.smart import plain_url
from odf_sync.smart.archive import BLOCKS_BYTES_LIMIT, no_signature
from odf_sync.smart.channel import PeerClosed
from odf_sync.smart.connection import Connection, connected
from odf_sync.smart.exchange import CLOSE_OK, PUSH
from odf_sync.smart.messages import (
    CHOSEN,
    CHOSEN_HEADER,
    SERVER_CLOSES,
    SERVER_CLOSES_HEADER,
    BlocksAccepted,
    BlocksBatch,
    CompleteRequest,
    DatasetVisibility,
    NewBlocks,
    ObjectFile,
    ProgressRequest,
    PushAccepted,
    PushConfirmed,
    PushRequest,
    PushStrategy,
    TransferPlan,
    Upload,
    UploadsComplete,
    UploadsReply,
    UploadsRequest,
    UploadsRunning,
)
from odf_sync.smart.ranges import Range, objects_of, pack
from odf_sync.transfer.block_signatures import own_signatures
from odf_sync.transfer.privacy import Privacy, require_accounts
from odf_sync.transfer.pull import Step
from odf_sync.transfer.push_errors import (
    DataNotHere,
    NoPlaceThere,
    NoVisibilityThere,
    PushDiverged,
    RemoteAhead,
)
from odf_sync.transfer.push_files import require_same_dataset, send_blocks, send_objects
from odf_sync.transfer.remote_blocks import BlockSpool
from odf_sync.transfer.upload import File, Uploader, at_a_time

MESSAGE_BYTES: Final = (
    32 * 1024
)  # of an archive in a message, which is sent again as a whole if it is cut off
PART_BYTES: Final = 16 * 1024**2  # of blocks in one message, which takes several times as much memory
UPLOADS: Final = 8  # objects at a time
LISTED: Final = 10_000  # objects in one list
LISTED_EARLY: Final = (
    1_000  # objects in a list that is sent before its turn: the other node keeps it until then
)
POLL_SECONDS: Final = 1.0  # between two looks at the other node's questions
GLANCE_SECONDS: Final = 0.01
CROSSING_SECONDS: Final = (
    9.0  # of uploads, from which on a question may cross with their end: it comes every 10 s
)
SUCCEEDED: Final = b"Client push flow succeeded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Push:
    """What is pushed, and where."""

    dataset: str
    target: str = ""
    """URL of the remote dataset, its name in a named repository, or that repository's name alone.

    Empty: its first push alias, which is where it was pushed last.
    """
    is_forced: bool = False
    """Replace a chain that has diverged."""
    visibility: DatasetVisibility = DatasetVisibility.PRIVATE
    """Of a dataset that is created."""
    is_chosen: bool = False
    """Whether that was chosen, or is to be kept as it is here; a single-tenant node ignores what is only a default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    datasets: NodeDatasets
    networks: Networks
    entry: CatalogEntry
    state: ChainState
    target: str
    there: HttpDataset | Target
    token: str | None

    @property
    def alias(self) -> str:
        return self.entry.alias

    @property
    def head(self) -> Multihash:
        return self.state.head


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sent:
    blocks: int
    records: int
    dropped_objects: int = 0
    """Of a derivative: dropped here, and so not sent."""


def push(
    datasets: NodeDatasets,
    settings: Settings,
    request: Push,
    token_for: TokenFor = no_token,
    privacy: Privacy | None = None,
) -> Iterator[Step]:
    """Bring a dataset there up to date with the local one; the last step is `updated` or `up-to-date`.

    The target is kept as the first push alias.

    Dropped data of a derivative is left out of a folder or a bucket, and counted in the last step.

    Raises `PushDiverged` and `RemoteAhead` unless forced, `AnotherDataset`, `NotFound`, `DataNotHere`,
    `NotPrivateThere`, `NoVisibilityThere`, `SignatureRefused` for a damaged signature here, `TransferRefused`,
    `Unavailable`.
    """
    source = _source(datasets, settings, request, token_for)
    if request.is_chosen and not isinstance(source.there, HttpDataset):
        raise NoVisibilityThere(url=source.there.url)
    if not request.is_chosen and privacy is not None and privacy.is_private(source.entry):
        request = replace(request, is_chosen=True)
    there = source.there
    yield Step(alias=source.alias, state="comparing")
    head = _head(there)
    if head == source.head:
        _remember(source, request)  # a push that was killed may have moved the head
        yield Step(alias=source.alias, state="up-to-date", head=head, target=source.target)
        return
    blocks = _range(source, there, head, is_forced=request.is_forced)
    replaced = head if blocks.after is None else None
    if replaced is not None:
        if not isinstance(there, HttpDataset):  # a node checks that itself
            require_same_dataset(there.block, replaced, source.state.dataset_id, there.url)
        yield Step(alias=source.alias, state="replacing", replaced=replaced)
    yield Step(alias=source.alias, state="blocks")
    if isinstance(there, HttpDataset):
        sent = yield from _send_to_node(source, there, request, blocks, head)
    else:
        sent = yield from _send_files(source, there, blocks, head)
    _remember(source, request)
    yield Step(
        alias=source.alias,
        state="updated",
        head=source.head,
        new_blocks=sent.blocks,
        new_records=sent.records,
        replaced=replaced,
        missing_objects=sent.dropped_objects,
        target=source.target,
    )


def _remember(source: _Source, request: Push) -> None:
    if request.target:
        dataset = source.state.dataset_id
        change_aliases(source.datasets.blobs, dataset, lambda known: known.pushed_to(source.target))


def _send_to_node(
    source: _Source, there: HttpDataset, request: Push, blocks: Range, head: Multihash | None
) -> Generator[Step, None, _Sent]:
    """Send the blocks in parts, each in an exchange of its own that moves the head there.

    So both nodes hold one part in memory, and a push that is cut off continues with the part that it was at. A chain
    is replaced in one exchange: a part would leave the other node with less than it had.
    """
    replaces = head is not None and blocks.after is None
    sent = _Sent(blocks=0, records=0)
    for part in (blocks,) if replaces else _parts(source, blocks):
        plan = yield from _send_part(source, there, request, part, head)
        sent = _Sent(blocks=sent.blocks + plan.num_blocks, records=sent.records + plan.num_records)
        head = part.head
    return sent


def _parts(source: _Source, blocks: Range) -> Iterator[Range]:
    """Yield a range in parts of at most `PART_BYTES`, oldest first; a block may be larger."""
    heads, size = [blocks.head], 0
    for name, raw, _ in raw_blocks(block_reader(source.datasets.blobs, source.state.dataset_id), blocks.head):
        if name == blocks.after:
            break
        if size and size + len(raw) > PART_BYTES:
            heads.append(name)
            size = 0
        size += len(raw)
    after = blocks.after
    for head in reversed(heads):
        yield Range(after=after, head=head)
        after = head


def _send_part(
    source: _Source, there: HttpDataset, request: Push, blocks: Range, head: Multihash | None
) -> Generator[Step, None, TransferPlan]:
    headers = {**authorization(source.token), SERVER_CLOSES_HEADER: SERVER_CLOSES}
    if request.is_chosen:
        headers[CHOSEN_HEADER] = CHOSEN
    is_private = request.is_chosen and request.visibility is DatasetVisibility.PRIVATE
    with ExitStack() as stack:
        try:
            connection = stack.enter_context(connected(f"{there.url}push", PUSH, headers))
        except NotFound as error:
            raise NoPlaceThere(what=error.what) from error
        if head is None and is_private and not connection.keeps_visibility:
            require_accounts(source.alias, there.url, source.token)
        plan = _send_blocks(source, connection, request, blocks, head)
        started = time.monotonic()
        yield from _send_objects(source, connection, blocks)
        yield Step(alias=source.alias, state="committing")
        connection.send(CompleteRequest())
        connection.expect(PushConfirmed)
        if time.monotonic() - started > CROSSING_SECONDS:
            _require_confirmed(source, there, connection, blocks.head, before=head)
        connection.close(SUCCEEDED)
    return plan


def _require_confirmed(
    source: _Source,
    there: HttpDataset,
    connection: Connection,
    pushed: Multihash,
    *,
    before: Multihash | None,
) -> None:
    """Return once the head was moved: what came may be a question about the progress, which looks the same.

    Others may have moved it since, to blocks after ours or by force. Raises `TransferRefused` and `Unavailable`.
    """
    while not _has_moved(source, there, pushed, before):
        try:
            connection.expect(PushConfirmed)
        except PeerClosed as closed:
            if closed.close_code != CLOSE_OK:
                raise
            return  # as a node of this kind closes after the confirmation


def _has_moved(source: _Source, there: HttpDataset, pushed: Multihash, before: Multihash | None) -> bool:
    head = _head(there)
    if head == before:
        return False
    read = block_reader(source.datasets.blobs, source.state.dataset_id)
    return isinstance(compare(read, pushed, _reader(there, pushed), head), Equal | Behind)


def _reader(there: HttpDataset, after: Multihash | None = None) -> ReadBlock:
    return BlockSpool(there, after=after).read


def _send_files(
    source: _Source, there: Target, blocks: Range, head: Multihash | None
) -> Generator[Step, None, _Sent]:
    """Send objects, except dropped ones, then blocks, then the head."""
    dataset, blobs = source.state.dataset_id, source.datasets.blobs
    declared = _objects(source, blocks)[::-1]
    dropped = _dropped(source, blocks)
    objects = [obj for obj in declared if obj not in dropped]
    for done in send_objects(blobs, dataset, there, objects):
        yield Step(alias=source.alias, state="objects", done=done, total=len(objects))
    yield Step(alias=source.alias, state="committing")
    signature = own_signatures(source.datasets, dataset, source.alias)
    count = send_blocks(blobs, dataset, there, blocks.head, blocks.after, signature=signature)
    there.move_head(dataset, expected=head, new=blocks.head)
    past = None if blocks.after is None else source.datasets.states.state_at(dataset, blocks.after)
    records = source.state.next_offset - (0 if past is None else past.next_offset)
    return _Sent(blocks=count, records=records, dropped_objects=len(dropped))


def _source(datasets: NodeDatasets, settings: Settings, request: Push, token_for: TokenFor) -> _Source:
    entry = datasets.catalog.by_alias(request.dataset)
    state = None if entry is None else datasets.states.current(entry.dataset_id)
    if entry is None or state is None:
        raise NotFound(what=f"dataset {request.dataset}")
    destination = request.target or next(iter(remote_aliases(datasets.blobs, entry.dataset_id).push), "")
    if not destination:
        raise InvalidInput(text=f"{entry.alias} has no push alias: give its destination with --to")
    repositories = LocalRepositories(settings.home)
    named = parse_ref_any(destination)
    if isinstance(named, Alias):  # a repository
        name = parse_alias(entry.alias).dataset
        destination = str(name_in_repository(repositories, named.dataset, entry.dataset_id, name, token_for))
    url = locate(repositories, destination, token_for).url
    token = token_for(url)
    networks = trusted_networks(settings)
    there = target(url, settings) or HttpDataset(plain_url(url), token, networks)
    return _Source(
        datasets=datasets,
        networks=networks,
        entry=entry,
        state=state,
        target=destination,
        there=there,
        token=token,
    )


def _head(there: HttpDataset | Target) -> Multihash | None:
    with suppress(NotFound):
        return there.head()
    return None


def _range(source: _Source, there: HttpDataset | Target, head: Multihash | None, *, is_forced: bool) -> Range:
    """Return the blocks to send: those after the other head; all to replace the chain there."""
    dataset, blobs = source.state.dataset_id, source.datasets.blobs
    everything = Range(after=None, head=source.head)
    if head is None:
        return everything
    read = read_there = block_reader(blobs, dataset)
    if not blobs.has(dataset, ObjectKind.BLOCK, head):
        if is_forced:
            return everything
        read_there = _reader(there) if isinstance(there, HttpDataset) else there.block
    relation = compare(read, source.head, read_there, head)
    if isinstance(relation, Ahead):
        return Range(after=head, head=source.head)
    if is_forced:
        return everything
    if isinstance(relation, Behind):
        raise RemoteAhead(url=there.url, blocks=relation.blocks)
    assert isinstance(relation, Diverged), "the heads differ"
    common = common_block(relation, source.head, head)
    if common is None:
        require_same_dataset(read_there, head, dataset, there.url)
    raise PushDiverged(
        repository=there.url,
        common_block=None if common is None else str(common),
        blocks_here=relation.ours,
        blocks_there=relation.theirs,
    )


def _send_blocks(
    source: _Source, connection: Connection, request: Push, blocks: Range, head: Multihash | None
) -> TransferPlan:
    datasets, dataset = source.datasets, source.state.dataset_id
    signature = (
        own_signatures(datasets, dataset, source.alias) if connection.takes_signatures else no_signature
    )
    with scratch_folder(datasets.blobs) as scratch:
        archive = scratch / "blocks"
        with archive.open("wb") as out:
            plan = pack(block_reader(datasets.blobs, dataset), blocks, out, signature)
        if plan.bytes_in_raw_blocks > BLOCKS_BYTES_LIMIT:
            size = plan.bytes_in_raw_blocks
            text = f"{size} bytes of blocks; a chain of at most {BLOCKS_BYTES_LIMIT} can replace another"
            raise InvalidInput(text=text, where=source.alias)
        connection.send(
            PushRequest(
                current_head=head,
                transfer_plan=plan,
                force_update_if_diverged=request.is_forced,
                visibility_for_created_dataset=request.visibility,
            )
        )
        if connection.continues_uploads and archive.stat().st_size <= MESSAGE_BYTES:
            _send_early(source, connection, archive, plan, blocks)
        connection.expect(PushAccepted)
        batch = _batch(source, connection, archive, plan.num_blocks)
    connection.send(NewBlocks(new_blocks=batch))
    connection.expect(BlocksAccepted)
    return plan


def _send_early(
    source: _Source, connection: Connection, archive: Path, plan: TransferPlan, blocks: Range
) -> None:
    """Send a node of this kind what follows at any rate, all in one round trip; it reads one message after another."""
    connection.send_early(NewBlocks(new_blocks=_batch(source, connection, archive, plan.num_blocks)))
    if plan.num_objects > min(LISTED, LISTED_EARLY):
        return
    files = _objects(source, blocks)
    connection.send_early(UploadsRequest(object_files=files, is_truncated=False))
    if not files:
        connection.send_early(UploadsComplete())
        connection.send_early(CompleteRequest())


def _batch(source: _Source, connection: Connection, archive: Path, count: int) -> BlocksBatch:
    """Return what the message has of an archive: its bytes, or its hash if it is long and could be uploaded."""
    size = archive.stat().st_size
    if not connection.continues_uploads or size <= MESSAGE_BYTES:
        return BlocksBatch(num_blocks=count, payload=archive.read_bytes())
    with archive.open("rb") as content:
        name = physical_hash(content)
        url, headers = f"{source.there.url}archives/{name}", authorization(source.token)
        _uploader(source, connection).complete(File(url=url, headers=headers, content=content, size=size))
    return BlocksBatch(num_blocks=count, payload=b"", archive=name)


def _uploader(source: _Source, connection: Connection) -> Uploader:
    networks, dataset = source.networks, source.state.dataset_id
    return Uploader(
        source.datasets.blobs, dataset, source.there.url, networks, may_continue=connection.continues_uploads
    )


def _send_objects(source: _Source, connection: Connection, blocks: Range) -> Iterator[Step]:
    """Send the objects of the new blocks, newest first, in lists of `LISTED`."""
    files = _objects(source, blocks)
    done = 0
    for start in range(0, max(len(files), 1), LISTED):
        part = files[start : start + LISTED]
        is_truncated = start + LISTED < len(files)
        connection.send(UploadsRequest(object_files=part, is_truncated=is_truncated))
        uploads = connection.expect(UploadsReply).object_transfer_strategies
        for count in _uploaded(source, connection, uploads):
            yield Step(alias=source.alias, state="objects", done=done + count, total=len(files))
        done += len(part)
        connection.send(UploadsComplete())


def _objects(source: _Source, blocks: Range) -> tuple[ObjectFile, ...]:
    read = block_reader(source.datasets.blobs, source.state.dataset_id)
    links = blocks_between(read, blocks.head, blocks.after)
    files = [file for _, decoded, _ in links for file in objects_of(decoded.block.event)]
    return tuple(dict.fromkeys(reversed(files)))


def _dropped(source: _Source, blocks: Range) -> frozenset[ObjectFile]:
    """Return the objects that this node does not have since they were dropped, or were copied without."""
    dataset, blobs = source.state.dataset_id, source.datasets.blobs
    dropped = dropped_blocks(blobs, dataset) if source.state.kind is DatasetKind.Derivative else None
    if dropped is None:
        return frozenset()
    return frozenset(
        file
        for name, decoded, _ in blocks_between(block_reader(blobs, dataset), blocks.head, blocks.after)
        for file in objects_of(decoded.block.event)
        if not blobs.has(dataset, file.object_type.kind, file.physical_hash) and dropped.contains(name)
    )


def _uploaded(source: _Source, connection: Connection, uploads: Sequence[Upload]) -> Iterator[int]:
    """Send objects, and answer questions about the progress meanwhile; yield how many have arrived."""
    wanted = [upload for upload in uploads if upload.push_strategy is PushStrategy.HTTP_UPLOAD]
    if not wanted:
        return
    done = len(uploads) - len(wanted)
    sender = _uploader(source, connection)
    workers = at_a_time([upload.object_file.size for upload in wanted], UPLOADS)
    with ThreadPoolExecutor(workers, thread_name_prefix="upload") as pool:
        pending: set[Future[None]] = {pool.submit(sender.send, upload) for upload in wanted}
        try:
            while pending:
                finished, pending = wait(pending, POLL_SECONDS, FIRST_COMPLETED)
                for upload in finished:
                    try:
                        upload.result()
                    except NotFound as error:
                        if source.state.kind is DatasetKind.Derivative:
                            raise DataNotHere(what=source.alias) from error
                        raise
                    done += 1
                if finished:
                    yield done
                if pending and isinstance(connection.poll(GLANCE_SECONDS), ProgressRequest):
                    connection.send(UploadsRunning(uploaded_objects_count=done))
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
