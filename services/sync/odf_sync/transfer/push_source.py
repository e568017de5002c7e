"""The content of a push (a local dataset, its new blocks and objects), and the upload of objects to a node.

Each object is sent by an HTTP PUT to the URL that the other node gives (wire-facts §8.5). A node that supports resuming
reports how many bytes have arrived, with the URL or when asked; only the missing bytes are sent to it.
"""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import BinaryIO, Final

import structlog
import urllib3

from odf_common.adapters.networks import CONNECT_SECONDS, PUBLIC, WHILE_IDLE, Networks
from odf_common.chain.state import ChainState
from odf_common.chain.walk import ReadBlock
from odf_common.dataset.dataset_notes import dropped_blocks
from odf_common.dataset.node_datasets import NodeDatasets
from odf_common.errors import Conflict, InvalidInput, NotFound, Unavailable, count_of
from odf_common.hashing.multihash import Multihash
from odf_common.identity.dataset_refs import DatasetId
from odf_common.metadata.events import DatasetKind
from odf_common.ports.store import BlobReader, CatalogEntry, block_reader
from odf_sync.repositories import HttpDataset, Target
from odf_sync.repositories.http_dataset import UnexpectedStatus, by_url_or_place
from odf_sync.repositories.node_client import MAX_RETRY_AFTER_SECONDS, NodeClient, discard
from odf_sync.smart.archive import Range, objects_of
from odf_sync.smart.connection import NodeSession
from odf_sync.smart.messages import DatasetVisibility, ObjectFile, Upload
from odf_sync.transfer.remote_chain import BlockSpool, ChainsDiverged


class RemoteAhead(Conflict):
    """The other node has the same chain with more blocks."""

    ADVICE = "pull it; or drop those blocks there with --force"

    url: str
    blocks: int

    def __str__(self) -> str:
        """Return a sentence with the number of additional blocks."""
        return f"the chain at {self.url} is ahead: it has {count_of(self.blocks, 'block')} more than the local one"


class PushDiverged(ChainsDiverged):
    """The local and the remote chain have different blocks after their last common block."""

    ADVICE = "look at the other chain with `odf pull URL --as NAME@REF`; --force replaces it with this chain"


class DataNotHere(NotFound):
    """Data of a derivative is missing on this node; other nodes accept a dataset only with all its data."""

    MESSAGE = (
        "the data of {what} is missing here: it was dropped, or lost; another node takes a dataset only "
        "with its data"
    )
    ADVICE = (
        "`odf pull {what}` recomputes it; a folder or a bucket takes it without data: `odf push {what} "
        "--to file:///FOLDER`"
    )


class NoPlaceThere(NotFound):
    """A node has no dataset under this name, and does not allow it to be created."""

    ADVICE = (
        "check its name, which is ACCOUNT/DATASET on a node with accounts; or you may not write it: log "
        "in with `odf login`, or ask its owner for a role"
    )


class NoVisibilityThere(InvalidInput):
    """A push to a folder or bucket was given a visibility, which only nodes support."""

    MESSAGE = "{url} has no visibility of its own: anyone who can read its files can read the dataset"
    ADVICE = "set the permissions of the folder or bucket, then push without --visibility"

    url: str


class AnotherVisibility(Conflict):
    """A push was given another visibility than the existing dataset has; a push only sets that of a new dataset."""

    alias: str
    url: str
    is_public: bool

    def __str__(self) -> str:
        """Return a sentence with both visibilities."""
        if self.is_public:
            return (
                f"{self.alias} is to be private, but everyone can read it at {self.url}: nothing was pushed"
            )
        return f"{self.alias} is to be public, but it is private at {self.url}: nothing was pushed"

    def advice(self) -> str:
        """Return the advice to change the visibility, or to push with the existing one."""
        now, other = ("public", "private") if self.is_public else ("private", "public")
        return (
            f"its owner changes that by `odf access set DATASET --visibility {other}`; or push with "
            f"`--visibility {now}`"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Push:
    """A request to push a dataset."""

    dataset: str
    target: str = ""
    """URL of the remote dataset, its name in a named repository, or the name of that repository alone.

    Empty: the first push alias of the dataset, which is its latest target.
    """
    is_forced: bool = False
    """Whether a remote chain that has diverged or is ahead is replaced."""
    visibility: DatasetVisibility = DatasetVisibility.PRIVATE
    """The visibility of the remote dataset if the push creates it."""
    is_chosen: bool = False
    """Whether the user chose the visibility, or the local dataset is private.

    A single-tenant node overrides defaults.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class PushSource:
    """The local dataset that is pushed, and its target."""

    datasets: NodeDatasets
    session: NodeSession
    """The connection to the node, for the first request and the exchanges; unused for a folder or bucket."""
    networks: Networks
    entry: CatalogEntry
    state: ChainState
    target: str
    """The target, as the user named it."""
    there: HttpDataset | Target
    token: str | None

    @property
    def alias(self) -> str:
        """Return the local name of the dataset."""
        return self.entry.alias

    @property
    def head(self) -> Multihash:
        """Return the head of the local chain, which the push sends."""
        return self.state.head

    def objects(self, blocks: Range) -> tuple[ObjectFile, ...]:
        """Return the objects that the blocks of a range declare, each once, newest first."""
        read = block_reader(self.datasets.blobs, self.state.dataset_id)
        files = [file for _, decoded, _ in blocks.links(read) for file in objects_of(decoded.block.event)]
        return tuple(dict.fromkeys(reversed(files)))

    def dropped_objects(self, blocks: Range) -> frozenset[ObjectFile]:
        """Return the objects of a derivative that this node does not have because their data was dropped."""
        dataset, blobs = self.state.dataset_id, self.datasets.blobs
        dropped = dropped_blocks(blobs, dataset) if self.state.kind is DatasetKind.Derivative else None
        if dropped is None:
            return frozenset()
        return frozenset(
            file
            for name, decoded, _ in blocks.links(block_reader(blobs, dataset))
            for file in objects_of(decoded.block.event)
            if not blobs.has(dataset, file.object_type.kind, file.physical_hash) and dropped.contains(name)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PushSummary:
    """The number of blocks and records that a push has sent."""

    blocks: int
    records: int
    dropped_objects: int = 0
    """The number of objects of a derivative that this node has dropped, and so were not sent."""


def head_of(there: HttpDataset | Target) -> Multihash | None:
    """Return the head of the remote dataset, None if it does not exist."""
    with suppress(NotFound):
        return there.head()
    return None


def block_reader_of(there: HttpDataset, after: Multihash | None = None) -> ReadBlock:
    """Return a function that reads the blocks of a remote dataset, many per request."""
    return BlockSpool(there, after=after).read


log = structlog.stdlib.get_logger(__name__)

UPLOAD_TIMEOUT: Final = urllib3.Timeout(
    connect=CONNECT_SECONDS, read=300
)  # seconds; the other node stores the object before it answers
UPLOAD_RETRY: Final = urllib3.Retry(
    total=4,
    allowed_methods=None,  # an object that was sent twice is stored once
    backoff_factor=0.3,
    status_forcelist=(502, 503, 504),
    raise_on_status=False,
    retry_after_max=MAX_RETRY_AFTER_SECONDS,
)
ONCE: Final = urllib3.Retry(0, redirect=0)
FRUITLESS: Final = 2  # attempts in a row without a byte, each after the retries of the question
SUCCESS: Final = range(200, 300)
INCOMPLETE, WRONG_BYTES, WRONG_OFFSET, BUSY = 204, 400, 409, 503
MAX_SHOWN_REASON_BYTES: Final = 300  # of an answer
RANGE: Final = "Content-Range"
OFFSET: Final = "Upload-Offset"  # how many bytes of an upload have arrived
HELD_BYTES: Final = 256 * 1024  # of an upload may be on the way, and are lost if it is interrupted
LOST: Final = 0.02  # of all bytes, at most, or those of one upload


def at_a_time(sizes: Sequence[int], most: int, held: int = HELD_BYTES) -> int:
    """Return the number of objects to send in parallel, at most `most`, such that an interruption loses few bytes.

    An interruption may lose `held` bytes of each upload in progress.
    """
    loss = min(held, max(sizes, default=0))
    return max(1, min(most, int(LOST * sum(sizes)) // max(loss, 1)))


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """The content of an upload, and its URL."""

    url: str
    headers: Mapping[str, str]
    content: BinaryIO
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    status: int
    arrived: int
    """The number of bytes of the upload that the node reports to have."""
    text: str


class Uploader:
    """Uploads objects of one dataset."""

    def __init__(
        self,
        blobs: BlobReader,
        dataset: DatasetId,
        url: str,
        networks: Networks = PUBLIC,
        *,
        headers: Mapping[str, str] | None = None,
        may_continue: bool = False,
    ) -> None:
        """Upload to the dataset's URL at a node, or to URLs that the node gives, if public or within `networks`.

        `headers` are sent to that node only; `may_continue` says that it can resume interrupted uploads.
        """
        self._base = url.rstrip("/") + "/"
        self._headers = headers or {}
        self._blobs = blobs
        self._dataset = dataset
        self._may_continue = may_continue
        self._patient = NodeClient(
            url, networks, timeout=UPLOAD_TIMEOUT, retries=UPLOAD_RETRY, sockets=WHILE_IDLE
        )
        self._once = NodeClient(url, networks, timeout=UPLOAD_TIMEOUT, retries=ONCE, sockets=WHILE_IDLE)

    def send(self, upload: Upload) -> None:
        """Upload an object; raises `NotFound` if this node does not have it, and `Unavailable` if the upload fails."""
        file, destination = upload.object_file, upload.upload_to
        name = f"{file.object_type.kind}/{file.physical_hash}"
        if destination is None:
            raise InvalidInput(text="the other node returned no URL to upload it to", where=name)
        headers = {header.name: header.value for header in destination.headers}
        offset = headers.pop(OFFSET, "0")
        arrived = int(offset) if offset.isdecimal() else 0
        try:
            content = self._blobs.open(self._dataset, file.object_type.kind, file.physical_hash)
        except NotFound as error:
            raise NotFound(what=f"{name}, which the chain declares,") from error
        with content:
            size = content.seek(
                0, os.SEEK_END
            )  # which may differ from what the chain, or the other node, says
            target = File(url=destination.url, headers=headers, content=content, size=size)
            # The headers that came with the URL are for another server.
            own = replace(target, url=f"{self._base}{name}", headers=self._headers)
            if target.url == own.url:
                self._deliver(target, arrived)
            else:
                by_url_or_place(
                    destination,
                    lambda: self._deliver(target, arrived),
                    lambda: self._deliver(own, arrived),
                )
        log.debug("object uploaded", object=name, bytes=size, continued_at=arrived)

    def _deliver(self, file: File, arrived: int) -> None:
        if self._may_continue and self._patient.is_own(file.url):
            self.complete(file, arrived)
        else:
            _require_taken(file, self._send(self._patient, file, 0))

    def complete(self, file: File, arrived: int | None = None) -> None:
        """Upload the rest of a file of which the node has `arrived` bytes; if None, the node is asked for the number.

        Reconnects after a lost connection as long as bytes arrive. Raises `Unavailable`.
        """
        reached, fruitless, why = -1, 0, "no byte arrives"
        while fruitless < FRUITLESS:
            if arrived is None or arrived >= file.size > 0:
                answer = self._request(self._patient, file, {RANGE: f"bytes */{file.size}"}, b"")
                if answer.status not in (INCOMPLETE, WRONG_BYTES):  # it has all
                    _require_taken(file, answer)
                    return
                arrived = answer.arrived
            fruitless = 0 if arrived > reached else fruitless + 1
            reached = arrived
            try:
                answer = self._send(self._once, file, arrived)
            except Unavailable as error:
                arrived, why = None, error.why or why
                continue
            if answer.status == WRONG_BYTES and arrived:
                arrived = 0  # it had other bytes, and has dropped them
            elif answer.status in (WRONG_OFFSET, BUSY):
                arrived, why = None, answer.text
            else:
                _require_taken(file, answer)
                return
        raise Unavailable(what=file.url, why=why)

    def _send(self, client: NodeClient, file: File, start: int) -> _Answer:
        """Send the bytes of a file from `start` to its end."""
        file.content.seek(start)
        part = {RANGE: f"bytes {start}-{file.size - 1}/{file.size}"} if start else {}
        headers = {"Content-Length": str(file.size - start), **part}
        return self._request(client, file, headers, file.content)

    @staticmethod
    def _request(client: NodeClient, file: File, more: Mapping[str, str], body: BinaryIO | bytes) -> _Answer:
        headers = urllib3.HTTPHeaderDict(file.headers)  # which compares names without regard to case
        headers.update({"Content-Type": "application/octet-stream", **more})
        try:
            answer = client.put(file.url, headers, body)
            text = answer.read(MAX_SHOWN_REASON_BYTES).decode(errors="replace")
            discard(answer)
        except urllib3.exceptions.HTTPError as error:
            raise Unavailable(what=file.url, why=str(error)[:MAX_SHOWN_REASON_BYTES]) from error
        arrived = answer.headers.get(OFFSET, "")
        is_number = arrived.isdecimal() and int(arrived) < file.size
        return _Answer(status=answer.status, arrived=int(arrived) if is_number else 0, text=text)


def _require_taken(file: File, answer: _Answer) -> None:
    """Raise `UnexpectedStatus` unless the node reports success."""
    if answer.status not in SUCCESS:
        why = f"status {answer.status}: {answer.text}"
        raise UnexpectedStatus(what=file.url, why=why, status=answer.status)
