"""The local side of a copy that comes in, by a pull or by a push from another node: stores it, then commits it.

Only the coordinator moves a head: `commit` asks it to admit the chain.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from odf_common.chain.state import ChainState
from odf_common.codec.envelopes import body_of
from odf_common.dataset.node_datasets import NodeDatasets
from odf_common.errors import AlreadyExists, HeadMoved, Refused, Unavailable
from odf_common.hashing.multihash import Multihash
from odf_common.identity.branch_names import HEAD
from odf_common.identity.did import DatasetId
from odf_common.ports.bus import COORDINATOR_COMMANDS
from odf_common.ports.store import BlobStore, Catalog, ObjectKind
from odf_common.proto.odf.bus.v1 import bus_pb2
from odf_common.service.request_reply import Replies
from odf_sync.transfer.privacy import Privacy

STORED_TOGETHER: Final = 1024  # blocks or signatures in memory
STORED_BYTES: Final = 4 * 1024**2  # of them, and one more block
REPLY_TIMEOUT_SECONDS: Final = 60.0  # for the coordinator to admit a chain, then the request is repeated
MAX_REQUEST_ATTEMPTS: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalCopy:
    """The target of a copy: the dataset's local name, its state if it exists, and the reference that is moved."""

    name: str
    ref: str
    here: ChainState | None
    expected: DatasetId | None = None
    """The dataset that the source was asked for by its id."""
    is_forced: bool = False
    """Replace the chain if it has diverged, or is ahead."""
    trusts_records: bool = False
    """Do not compare the records of slices with their blocks."""
    creation: str = ""
    """Of a new dataset; empty: the coordinator chooses one."""

    privacy: Privacy | None = None
    """Makes a new dataset private if it is so there."""

    @property
    def may_diverge(self) -> bool:
        """Return whether the reference may move to another chain than that of the head."""
        return self.is_forced or self.ref != HEAD


def store(
    blobs: BlobStore, dataset: DatasetId, kind: ObjectKind, waiting: Iterator[tuple[Multihash, bytes]]
) -> None:
    """Store blocks or signatures durably, many at a time, unless they exist."""
    some: list[tuple[Multihash, bytes]] = []
    size = 0
    for name, raw in waiting:
        some.append((name, raw))
        size += len(raw)
        if len(some) == STORED_TOGETHER or size >= STORED_BYTES:
            blobs.put_all(dataset, kind, some)
            some, size = [], 0
    if some:
        blobs.put_all(dataset, kind, some)


class HasAnotherName(AlreadyExists):
    """A copy of the dataset exists under another name."""

    MESSAGE = "{what}, locally named {alias}, already exists"
    ADVICE = "pull it under that name: add `--as {alias}`, or rename it with `odf rename {alias} NEW`"

    alias: str


def check_identity(catalog: Catalog, dataset: DatasetId, alias: str) -> None:
    """Raise `AlreadyExists` if the dataset has another name here, or the name another dataset."""
    entry = catalog.by_id(dataset)
    if entry is not None and entry.alias.lower() != alias.lower():
        raise HasAnotherName(what="this dataset", alias=entry.alias)
    other = catalog.by_alias(alias)
    if other is not None and other.dataset_id != dataset:
        raise AlreadyExists(what=f"another dataset named {alias}")


def commit(datasets: NodeDatasets, replies: Replies, state: ChainState, copy: LocalCopy) -> None:
    """Ask the coordinator to admit the chain; if its reply is lost, the reference shows the outcome.

    Raises `HeadMoved`, `Refused` and `Unavailable`, and `AlreadyExists` if a new dataset has just got another name.
    """
    dataset = state.dataset_id
    expected = copy.here.head if copy.here is not None else None
    if copy.ref != HEAD:
        expected = datasets.refs.head(dataset, copy.ref)
    command = bus_pb2.ImportChain(
        expected_head=b"" if expected is None else expected.raw,
        new_head=state.head.raw,
        alias=copy.name,
        ref="" if copy.ref == HEAD else copy.ref,
        is_forced=copy.is_forced,
        creation=copy.creation,
    )
    for _ in range(MAX_REQUEST_ATTEMPTS):
        answer = replies.request(COORDINATOR_COMMANDS, dataset, command, timeout=REPLY_TIMEOUT_SECONDS)
        body = None if answer is None else body_of(answer)
        is_moved = isinstance(body, bus_pb2.Committed) or datasets.refs.head(dataset, copy.ref) == state.head
        if copy.here is None and (is_moved or isinstance(body, bus_pb2.HeadMoved)):
            check_identity(datasets.catalog, dataset, copy.name)
        if is_moved:
            return
        if isinstance(body, bus_pb2.HeadMoved):
            actual = str(Multihash.from_bytes(body.head)) if body.head else None
            raise HeadMoved(dataset=str(dataset), expected=str(expected), actual=actual)
        if isinstance(body, bus_pb2.Refused):
            raise Refused(reason=body.code, text=body.text)
    raise Unavailable(what="the coordinator", why="no reply to the import")
