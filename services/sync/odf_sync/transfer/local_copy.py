"""The local side of a copy that comes in, by a pull or by a push from another node: stores it, then commits it.

Only the coordinator moves a head: `commit` asks it to admit the chain. Private datasets stay private when they are
copied, even where datasets are public by default. A pull or a push reports its steps while it runs; the last one states
its outcome.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final
from urllib.parse import urljoin

from odf_common.chain.state import ChainState
from odf_common.codec.envelopes import body_of
from odf_common.dataset.node_datasets import NodeDatasets
from odf_common.errors import AlreadyExists, HeadMoved, InvalidInput, Refused, Unavailable
from odf_common.hashing.multihash import Multihash
from odf_common.identity.dataset_refs import HEAD, DatasetId, parse_alias
from odf_common.ports.bus import COORDINATOR_COMMANDS
from odf_common.ports.store import BlobStore, Catalog, CatalogEntry, ObjectKind
from odf_common.proto.odf.bus.v1 import bus_pb2
from odf_common.resources.registry import require_free_path
from odf_common.service.request_reply import Replies
from odf_sync.access.directory import Directory
from odf_sync.access.rules import Visibility
from odf_sync.repositories import RemoteDataset
from odf_sync.repositories.locate import is_multi_tenant


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The progress of a copy: comparing, blocks, replacing, objects, committing, updated, restored, up-to-date."""

    alias: str
    state: str
    done: int = 0
    total: int = 0
    head: Multihash | None = None
    new_blocks: int = 0
    new_records: int = 0
    replaced: Multihash | None = None
    """The head of a chain that is replaced by one that does not contain it: before that, and of the last step."""
    missing_objects: int = 0
    """Of a derivative: neither the repository nor this node has them, so they are to be rebuilt from the inputs.

    Of a push: those that were not sent, since they were dropped here.
    """
    missing_inputs: tuple[str, ...] = ()
    """Inputs that have to be pulled before that: ids, with the names that the query gives them."""
    is_private: bool = False
    """The dataset is private here from now on, since it may be so there, or comes from what is private here.

    Push, in the first step: the dataset is private on this node, and all readers of the target can read it there.
    """
    target: str = ""
    """Of a push: where it went, as the user named it."""


BASES: Final = ("../../", "../")  # of a node, from the URL of a dataset with and without an account


class NotPrivateThere(InvalidInput):
    """A push would create a dataset that everyone can read, although it is to be private."""

    MESSAGE = (
        "{alias} is to be private, but everyone who reaches {url} could read it: that node keeps no "
        "dataset of yours private"
    )
    ADVICE = (
        "log in there with `odf login`; or, if everyone may read it there, repeat the push with "
        "`--visibility public`"
    )

    alias: str
    url: str


@dataclass(frozen=True, slots=True)
class Privacy:
    """Knows which datasets are private here, and makes new copies private."""

    directory: Directory

    def is_private(self, entry: CatalogEntry) -> bool:
        """Return whether a dataset of this node is private."""
        return self.directory.visibility(entry.incarnation) is Visibility.PRIVATE

    @property
    def is_usual(self) -> bool:
        """Return whether new datasets of this node are private."""
        return self.directory.is_multi_tenant

    def follow(self, there: RemoteDataset, entry: CatalogEntry) -> None:
        """Make a copy private if its source may have become so, unless its visibility was chosen here."""
        if there.is_private():
            self.directory.make_private_by_default(entry.incarnation)

    @contextmanager
    def copying(self, there: RemoteDataset, dataset: DatasetId) -> Iterator[str | None]:
        """Yield the creation of a new copy that is to be private: it may be so there, or was here; else None."""
        if not there.is_private() and not self.directory.is_marked(dataset):
            yield None
            return
        with self.directory.creating(dataset, Visibility.PRIVATE) as creation:
            yield creation


def require_accounts(alias: str, url: str, token: str | None) -> None:
    """Raise `NotPrivateThere` unless the node of a dataset's URL has accounts, which keep their datasets private."""
    if not any(is_multi_tenant(urljoin(url, base), lambda _: token) for base in BASES):
        raise NotPrivateThere(alias=alias, url=url)


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
    """Raise `AlreadyExists` if the dataset has another name here, or the name another dataset.

    Raises `ReservedName` for a new dataset.
    """
    entry = catalog.by_id(dataset)
    if entry is not None and entry.alias.lower() != alias.lower():
        raise HasAnotherName(what="this dataset", alias=entry.alias)
    other = catalog.by_alias(alias)
    if other is not None and other.dataset_id != dataset:
        raise AlreadyExists(what=f"another dataset named {alias}")
    if entry is None:
        require_free_path(parse_alias(alias))


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
