"""Pushes a dataset to another node, a folder or a bucket; only what is newer than the head there is sent.

In a folder or a bucket, data and checkpoints are written first, then blocks, and the head last (spec: Dataset Sharing),
so a reader sees either the complete old chain or the complete new one. A signature is written before its block: if
a block exists, so does its signature. A repeated push reuses what an interrupted one has written.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from io import BytesIO
from itertools import islice
from typing import Final, TypeVar

from odf_common.adapters.local.repositories import LocalRepositories
from odf_common.chain.compare_chains import Ahead, Behind, Diverged, common_block, compare
from odf_common.chain.walk import ReadBlock, raw_blocks
from odf_common.codec.flatbuffers import decode_block
from odf_common.dataset.dataset_notes import change_aliases, remote_aliases
from odf_common.dataset.node_datasets import NodeDatasets
from odf_common.errors import InvalidInput
from odf_common.hashing.multihash import Multihash
from odf_common.identity.dataset_refs import Alias, DatasetId, parse_alias, parse_ref_any
from odf_common.metadata.events import Seed
from odf_common.ports.store import BlobReader, ObjectKind, block_reader, unknown_dataset
from odf_common.service.connections import trusted_networks
from odf_common.service.settings import Settings
from odf_sync.access.remote_login import TokenFor, no_token
from odf_sync.repositories import HttpDataset, Target, target
from odf_sync.repositories.locate import locate, name_in_repository
from odf_sync.repositories.smart_dataset import plain_url
from odf_sync.smart.archive import Range, ReadSignature, no_signature
from odf_sync.smart.connection import NodeSession
from odf_sync.smart.messages import DatasetVisibility, ObjectFile
from odf_sync.transfer.local_copy import Privacy, Step
from odf_sync.transfer.push_source import (
    AnotherVisibility,
    NoVisibilityThere,
    Push,
    PushDiverged,
    PushSource,
    PushSummary,
    RemoteAhead,
    at_a_time,
    block_reader_of,
    head_of,
)
from odf_sync.transfer.push_to_node import send_to_node
from odf_sync.transfer.remote_chain import own_signatures

PARALLEL_WRITES: Final = 16  # files at a time
MAX_WAITING_BLOCKS: Final = 256  # waiting
T = TypeVar("T")


class AnotherDataset(InvalidInput):
    """The target of a push contains another dataset, which a push never replaces."""

    ADVICE = "push to another name or folder, or remove that dataset first"

    url: str
    there: str | None
    """The id of that dataset; None if its chain does not begin with a seed."""

    def __str__(self) -> str:
        """Return a sentence with the target and the id of the dataset in it."""
        return f"{self.url} has another dataset, {self.there or 'whose chain has no id'}: a push does not replace it"


def require_same_dataset(read: ReadBlock, head: Multihash, dataset: DatasetId, url: str) -> None:
    """Raise `AnotherDataset` unless the chain at `url` belongs to the same dataset."""
    *_, (_, first, _) = raw_blocks(read, head)
    event = decode_block(first).block.event
    there = event.dataset_id if isinstance(event, Seed) else None
    if there != dataset:
        raise AnotherDataset(url=url, there=None if there is None else str(there))


def send_objects(
    blobs: BlobReader, dataset: DatasetId, there: Target, objects: Sequence[ObjectFile]
) -> Iterator[int]:
    """Copy objects to the target, and yield the number that it has so far.

    Raises `NotFound` if one is not stored here.
    """

    def send(obj: ObjectFile) -> None:
        kind, name = obj.object_type.kind, obj.physical_hash
        if not there.has(kind, name):
            with blobs.open(dataset, kind, name) as content:
                there.put(kind, name, content)

    yield from _together(
        send, objects, at_a_time([obj.size for obj in objects], PARALLEL_WRITES, there.held_bytes)
    )


def send_blocks(
    blobs: BlobReader,
    dataset: DatasetId,
    there: Target,
    head: Multihash,
    after: Multihash | None,
    *,
    signature: ReadSignature = no_signature,
) -> int:
    """Copy the blocks after `after` up to `head`, oldest first, with their signatures; returns the number of blocks.

    If the target has the first block, an earlier push was interrupted: blocks that the target lists are then skipped.
    """
    names: list[Multihash] = []
    for name, _, _ in raw_blocks(block_reader(blobs, dataset), head):
        if name == after:
            break
        names.append(name)
    names.reverse()
    stored = frozenset(there.blocks()) if names and there.has(ObjectKind.BLOCK, names[0]) else frozenset()

    def send(name: Multihash) -> None:
        if name in stored:
            return
        signed = signature(name)
        if signed is not None:
            there.put(ObjectKind.SIGNATURE, name, BytesIO(signed))
        there.put(ObjectKind.BLOCK, name, BytesIO(blobs.read(dataset, ObjectKind.BLOCK, name)))

    for _ in _together(send, names, PARALLEL_WRITES):
        pass
    return len(names)


def _together(send: Callable[[T], None], items: Iterable[T], workers: int) -> Iterator[int]:
    """Call `send` for each item in up to `workers` threads, and yield the number sent so far.

    Stops at the first error.
    """
    waiting, done = iter(items), 0
    with ThreadPoolExecutor(workers, thread_name_prefix="push") as pool:
        while some := tuple(islice(waiting, MAX_WAITING_BLOCKS)):
            pending = [pool.submit(send, block) for block in some]
            try:
                for future in pending:
                    future.result()
                    done += 1
                    yield done
            finally:
                for future in pending:
                    future.cancel()


def push(
    datasets: NodeDatasets,
    settings: Settings,
    request: Push,
    token_for: TokenFor = no_token,
    privacy: Privacy | None = None,
) -> Iterator[Step]:
    """Update the dataset at the target to the local head, or create it; the last step is `updated` or `up-to-date`.

    The target is stored as the first push alias of the dataset. If the target is a folder or bucket, data of a
    derivative that this node has dropped is not sent, and is counted in the last step.

    Raises `PushDiverged` and `RemoteAhead` unless forced, `AnotherDataset`, `NotFound`, `DataNotHere`,
    `NotPrivateThere`, `NoVisibilityThere`, `AnotherVisibility`, `SignatureRefused` for a damaged local signature,
    `TransferRefused`, `Unavailable`.
    """
    with NodeSession() as session:
        source = _source(datasets, settings, session, request, token_for)
        yield from _push(source, request, privacy)


def _push(source: PushSource, request: Push, privacy: Privacy | None) -> Iterator[Step]:
    if request.is_chosen and not isinstance(source.there, HttpDataset):
        raise NoVisibilityThere(url=source.there.url)
    if not request.is_chosen and privacy is not None and privacy.is_private(source.entry):
        request = replace(request, is_chosen=True)
    there = source.there
    is_exposed = request.is_chosen and not isinstance(there, HttpDataset)
    yield Step(alias=source.alias, state="comparing", target=source.target, is_private=is_exposed)
    head = there.head_by(source.session) if isinstance(there, HttpDataset) else head_of(there)
    if head is not None and isinstance(there, HttpDataset):
        _require_visibility(source.alias, there, request)
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
        summary = yield from send_to_node(source, there, request, blocks, head)
    else:
        summary = yield from _send_files(source, there, blocks, head)
    _remember(source, request)
    yield Step(
        alias=source.alias,
        state="updated",
        head=source.head,
        new_blocks=summary.blocks,
        new_records=summary.records,
        replaced=replaced,
        missing_objects=summary.dropped_objects,
        target=source.target,
    )


def _require_visibility(alias: str, there: HttpDataset, request: Push) -> None:
    """Raise `AnotherVisibility` if the dataset at the target has another visibility than the one that was chosen."""
    is_public = request.visibility is DatasetVisibility.PUBLIC
    if request.is_chosen and there.is_read_by_everyone() is not is_public:
        raise AnotherVisibility(alias=alias, url=there.url, is_public=not is_public)


def _remember(source: PushSource, request: Push) -> None:
    if request.target:
        dataset = source.state.dataset_id
        change_aliases(source.datasets.blobs, dataset, lambda aliases: aliases.pushed_to(source.target))


def _send_files(
    source: PushSource, there: Target, blocks: Range, head: Multihash | None
) -> Generator[Step, None, PushSummary]:
    """Send the objects, except dropped ones, then the blocks, then the head."""
    dataset, blobs = source.state.dataset_id, source.datasets.blobs
    declared = source.objects(blocks)[::-1]
    dropped = source.dropped_objects(blocks)
    objects = [obj for obj in declared if obj not in dropped]
    for done in send_objects(blobs, dataset, there, objects):
        yield Step(alias=source.alias, state="objects", done=done, total=len(objects))
    yield Step(alias=source.alias, state="committing")
    signature = own_signatures(source.datasets, dataset, source.alias)
    count = send_blocks(blobs, dataset, there, blocks.head, blocks.after, signature=signature)
    there.move_head(dataset, expected=head, new=blocks.head)
    past = None if blocks.after is None else source.datasets.states.state_at(dataset, blocks.after)
    records = source.state.next_offset - (0 if past is None else past.next_offset)
    return PushSummary(blocks=count, records=records, dropped_objects=len(dropped))


def _source(
    datasets: NodeDatasets, settings: Settings, session: NodeSession, request: Push, token_for: TokenFor
) -> PushSource:
    entry = datasets.catalog.by_alias(request.dataset)
    state = None if entry is None else datasets.states.current(entry.dataset_id)
    if entry is None or state is None:
        raise unknown_dataset(request.dataset, (entry.alias for entry in datasets.catalog.entries()))
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
    return PushSource(
        datasets=datasets,
        session=session,
        networks=networks,
        entry=entry,
        state=state,
        target=destination,
        there=there,
        token=token,
    )


def _range(
    source: PushSource, there: HttpDataset | Target, head: Multihash | None, *, is_forced: bool
) -> Range:
    """Return the blocks to send: those after the target's head, or all blocks to create or replace its chain."""
    dataset, blobs = source.state.dataset_id, source.datasets.blobs
    everything = Range(after=None, head=source.head)
    if head is None:
        return everything
    read = read_there = block_reader(blobs, dataset)
    if not blobs.has(dataset, ObjectKind.BLOCK, head):
        if is_forced:
            return everything
        read_there = block_reader_of(there) if isinstance(there, HttpDataset) else there.block
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
