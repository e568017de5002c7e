"""Pushes a dataset to another node by the Smart Transfer Protocol (wire-facts §8.5).

The other node checks everything before its head moves. Objects that the other node has, including those of an
interrupted push, are not sent again.
"""

import sys
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from odf_common.chain.compare_chains import Behind, Equal, compare
from odf_common.chain.walk import Link
from odf_common.errors import InvalidInput, NotFound
from odf_common.hashing.multihash import Multihash, physical_hash
from odf_common.metadata.events import DatasetKind
from odf_common.ports.store import block_reader, scratch_folder
from odf_sync.access.remote_login import authorization
from odf_sync.repositories import HttpDataset
from odf_sync.smart import messages as msg
from odf_sync.smart.archive import BLOCKS_BYTES_LIMIT, Range, in_parts, no_signature, objects_of, pack
from odf_sync.smart.channel import (
    AROUND_BYTES,
    JSON_BYTES_PER_ARCHIVE_BYTE,
    MAX_SENT_MESSAGE_BYTES,
    PeerClosed,
)
from odf_sync.smart.connection import CLOSED_SECONDS, Connection
from odf_sync.smart.exchange import CLOSE_OK, PUSH
from odf_sync.transfer.local_copy import Step, require_accounts
from odf_sync.transfer.push_source import (
    DataNotHere,
    File,
    NoPlaceThere,
    Push,
    PushSource,
    PushSummary,
    Uploader,
    at_a_time,
    block_reader_of,
    head_of,
)
from odf_sync.transfer.remote_chain import own_signatures

# Of the archive in a message, which is sent again as a whole if it is interrupted.
MAX_INLINE_ARCHIVE_BYTES: Final = 32 * 1024
# Of the blocks in one message, with their headers: as JSON they have up to four times as many, which is all that other
# nodes take; 16 MiB.
PART_BYTES: Final = (MAX_SENT_MESSAGE_BYTES - AROUND_BYTES) // JSON_BYTES_PER_ARCHIVE_BYTE
UPLOADS: Final = 8  # objects at a time
# A list that is sent before its turn is shorter, as the other node keeps it until then.
LISTED_EARLY: Final = 1_000
# Of one list to a node of another kind, whose URLs may expire, as those of object stores do: at 2.4 Mbit/s, these bytes
# are sent within an hour.
EXPIRING_LISTED: Final = 1_000
EXPIRING_BYTES: Final = 1024**3
POLL_SECONDS: Final = 1.0  # between two looks at the other node's questions
GLANCE_SECONDS: Final = 0.01
# The end of longer uploads may cross with a question of the other node, which asks every 10 s.
CROSSING_SECONDS: Final = 9.0
SUCCEEDED: Final = b"Client push flow succeeded"


def send_to_node(
    source: PushSource, there: HttpDataset, request: Push, blocks: Range, head: Multihash | None
) -> Generator[Step, None, PushSummary]:
    """Send the blocks in parts, each in an exchange of its own that moves the remote head.

    So each node has only one part in memory, and an interrupted push continues with the part that it had reached.
    Meanwhile readers of the remote dataset may see some of the parts, which form a valid chain. A chain is replaced in
    a single exchange, because a part alone would leave the other node with fewer blocks than before.
    """
    links = blocks.links(block_reader(source.datasets.blobs, source.state.dataset_id))
    replaces = head is not None and blocks.after is None
    summary = PushSummary(blocks=0, records=0)
    # The chain is walked back before there is a connection, which would have to wait for it.
    for part in map(_Part, in_parts(links, sys.maxsize if replaces else PART_BYTES)):
        plan = yield from _send_part(source, there, request, part, head)
        summary = PushSummary(
            blocks=summary.blocks + plan.num_blocks, records=summary.records + plan.num_records
        )
        head = part.head
    return summary


class _Part:
    """The blocks of one exchange, which can be read once; `head` and `objects` (newest first) are set by reading."""

    def __init__(self, links: Iterable[Link]) -> None:
        self._links = links
        self._objects: dict[msg.ObjectFile, None] = {}
        self.head: Multihash | None = None

    def links(self) -> Iterator[Link]:
        for link in self._links:
            name, decoded, _ = link
            for file in objects_of(decoded.block.event):
                self._objects.pop(file, None)  # its newest block decides its turn
                self._objects[file] = None
            self.head = name
            yield link

    @property
    def objects(self) -> tuple[msg.ObjectFile, ...]:
        return tuple(reversed(self._objects))


def _send_part(
    source: PushSource, there: HttpDataset, request: Push, part: _Part, head: Multihash | None
) -> Generator[Step, None, msg.TransferPlan]:
    headers = authorization(source.token)
    if request.is_chosen:
        headers[msg.CHOSEN_HEADER] = msg.YES
    is_private = request.is_chosen and request.visibility is msg.DatasetVisibility.PRIVATE
    with ExitStack() as stack:
        try:
            connection = stack.enter_context(source.session.exchange(f"{there.url}push", PUSH, headers))
        except NotFound as error:
            raise NoPlaceThere(what=error.what) from error
        # A server that is single-tenant and does not promise this would show the dataset to all its callers.
        if head is None and is_private and not connection.keeps_visibility:
            require_accounts(source.alias, there.url, source.token)
        started = time.monotonic()  # as the list of objects may be sent with the blocks
        plan = _send_blocks(source, connection, request, part, head)
        yield from _send_objects(source, connection, part)
        yield Step(alias=source.alias, state="committing")
        connection.send(msg.CompleteRequest())
        connection.expect(msg.PushConfirmed)
        if time.monotonic() - started > CROSSING_SECONDS:
            assert part.head is not None, "a part has a block"
            _require_confirmed(source, there, connection, part.head, before=head)
        # A node of this kind has nothing to add after its confirmation: that would be one more round trip.
        connection.close(SUCCEEDED, 0 if connection.continues_uploads else CLOSED_SECONDS)
    return plan


def _require_confirmed(
    source: PushSource,
    there: HttpDataset,
    connection: Connection,
    pushed: Multihash,
    *,
    before: Multihash | None,
) -> None:
    """Return once the remote head has moved; raises `TransferRefused` and `Unavailable`.

    The confirmation cannot be distinguished from a late question about the progress, so the head itself is read. Other
    clients may have moved it since, to later blocks or by force.
    """
    while not _has_moved(source, there, pushed, before):
        try:
            connection.expect(msg.PushConfirmed)
        except PeerClosed as closed:
            if closed.close_code != CLOSE_OK:
                raise
            return  # as a node of this kind closes after the confirmation


def _has_moved(source: PushSource, there: HttpDataset, pushed: Multihash, before: Multihash | None) -> bool:
    head = head_of(there)
    if head == before:
        return False
    read = block_reader(source.datasets.blobs, source.state.dataset_id)
    return isinstance(compare(read, pushed, block_reader_of(there, pushed), head), Equal | Behind)


def _send_blocks(
    source: PushSource, connection: Connection, request: Push, part: _Part, head: Multihash | None
) -> msg.TransferPlan:
    datasets, dataset = source.datasets, source.state.dataset_id
    signature = (
        own_signatures(datasets, dataset, source.alias) if connection.takes_signatures else no_signature
    )
    with scratch_folder(datasets.blobs) as scratch:
        archive = scratch / "blocks"
        with archive.open("wb") as out:
            plan = pack(part.links(), out, signature)
        if plan.bytes_in_raw_blocks > BLOCKS_BYTES_LIMIT:
            size = plan.bytes_in_raw_blocks
            text = f"{size} bytes of blocks; a chain of at most {BLOCKS_BYTES_LIMIT} can replace another"
            raise InvalidInput(text=text, where=source.alias)
        connection.send(
            msg.PushRequest(
                current_head=head,
                transfer_plan=plan,
                force_update_if_diverged=request.is_forced,
                visibility_for_created_dataset=request.visibility,
            )
        )
        if connection.continues_uploads and archive.stat().st_size <= MAX_INLINE_ARCHIVE_BYTES:
            _send_early(source, connection, archive, plan, part)
        connection.expect(msg.PushAccepted)
        batch = _batch(source, connection, archive, plan.num_blocks)
    connection.send(msg.NewBlocks(new_blocks=batch))
    connection.expect(msg.BlocksAccepted)
    return plan


def _send_early(
    source: PushSource, connection: Connection, archive: Path, plan: msg.TransferPlan, part: _Part
) -> None:
    """Send blocks, list of objects and the completion without waiting for the answers, to save round trips.

    The node processes one message after another.
    """
    connection.send_early(msg.NewBlocks(new_blocks=_batch(source, connection, archive, plan.num_blocks)))
    if plan.num_objects > min(msg.LISTED, LISTED_EARLY):
        return
    connection.send_early(msg.UploadsRequest(object_files=part.objects, is_truncated=False))
    if not plan.num_objects:
        connection.send_early(msg.UploadsComplete())
        connection.send_early(msg.CompleteRequest())


def _batch(source: PushSource, connection: Connection, archive: Path, count: int) -> msg.BlocksBatch:
    """Return the archive for the message: its bytes, or only its hash after a long archive has been uploaded."""
    size = archive.stat().st_size
    if not connection.continues_uploads or size <= MAX_INLINE_ARCHIVE_BYTES:
        return msg.BlocksBatch(num_blocks=count, payload=archive.read_bytes())
    with archive.open("rb") as content:
        name = physical_hash(content)
        url, headers = f"{source.there.url}archives/{name}", authorization(source.token)
        _uploader(source, connection).complete(File(url=url, headers=headers, content=content, size=size))
    return msg.BlocksBatch(num_blocks=count, payload=b"", archive=name)


def _uploader(source: PushSource, connection: Connection) -> Uploader:
    return Uploader(
        source.datasets.blobs,
        source.state.dataset_id,
        source.there.url,
        source.networks,
        headers=authorization(source.token),
        may_continue=connection.continues_uploads,
    )


def _send_objects(source: PushSource, connection: Connection, part: _Part) -> Iterator[Step]:
    """Send the objects of the new blocks, one list after another."""
    total, done = len(part.objects), 0
    lists = list(_lists(part.objects, may_expire=not connection.continues_uploads))
    for number, files in enumerate(lists, 1):
        connection.send(msg.UploadsRequest(object_files=files, is_truncated=number < len(lists)))
        uploads = connection.expect(msg.UploadsReply).object_transfer_strategies
        for count in _upload(source, connection, uploads):
            yield Step(alias=source.alias, state="objects", done=done + count, total=total)
        done += len(files)
        connection.send(msg.UploadsComplete())


def _lists(files: Iterable[msg.ObjectFile], *, may_expire: bool) -> Iterator[tuple[msg.ObjectFile, ...]]:
    """Yield the objects in lists; without objects, one empty list, because the protocol requires a list."""
    most, most_bytes = (EXPIRING_LISTED, EXPIRING_BYTES) if may_expire else (msg.LISTED, sys.maxsize)
    part: list[msg.ObjectFile] = []
    size = 0
    for file in files:
        if part and (len(part) == most or size + file.size > most_bytes):
            yield tuple(part)
            part, size = [], 0
        part.append(file)
        size += file.size
    yield tuple(part)


def _upload(source: PushSource, connection: Connection, uploads: Sequence[msg.Upload]) -> Iterator[int]:
    """Upload objects, answer questions about the progress, and yield the number of objects that the node has."""
    missing = [upload for upload in uploads if upload.push_strategy is msg.PushStrategy.HTTP_UPLOAD]
    if not missing:
        return
    done = len(uploads) - len(missing)
    sender = _uploader(source, connection)
    workers = at_a_time([upload.object_file.size for upload in missing], UPLOADS)
    with ThreadPoolExecutor(workers, thread_name_prefix="upload") as pool:
        pending: set[Future[None]] = {pool.submit(sender.send, upload) for upload in missing}
        try:
            while pending:
                finished, pending = wait(pending, POLL_SECONDS, FIRST_COMPLETED)
                for future in finished:
                    try:
                        future.result()
                    except NotFound as error:
                        if source.state.kind is DatasetKind.Derivative:
                            raise DataNotHere(what=source.alias) from error
                        raise
                    done += 1
                if finished:
                    yield done
                if pending and isinstance(connection.poll(GLANCE_SECONDS), msg.ProgressRequest):
                    connection.send(msg.UploadsRunning(uploaded_objects_count=done))
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
