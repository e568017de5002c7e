"""The local side of a copy that a pull or another node's push creates: stores blocks, and commits the chain.

Only the coordinator moves a head: `commit` asks it to admit the chain. Private datasets stay private when they are
copied, even where datasets are public by default. A pull or push yields its steps while it runs; the last step is its
outcome.
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
    """One step of a pull or push.

    `state` is one of comparing, blocks, replacing, objects, committing, updated, restored and up-to-date.
    """

    alias: str
    state: str
    done: int = 0
    total: int = 0
    head: Multihash | None = None
    new_blocks: int = 0
    new_records: int = 0
    replaced: Multihash | None = None
    """The former head, if a chain that does not contain it replaces it. Set in the steps `replacing` and `updated`."""
    missing_objects: int = 0
    """The number of objects that were not transferred.

    Of a pull: neither the repository nor this node has these objects of a derivative, so they must be recomputed from
    its inputs. Of a push: this node has dropped them.
    """
    missing_inputs: tuple[str, ...] = ()
    """The inputs that must be pulled before the objects can be recomputed: ids, with the query's names for them."""
    is_private: bool = False
    """Pull: this pull has made the local dataset private, because its source may be private.

    Push, in the first step: the dataset is private on this node, but all readers of the target can read it there.
    """
    target: str = ""
    """Of a push: its destination, as the user named it."""


BASES: Final = ("../../", "../")  # of a node, from the URL of a dataset with and without an account


class NotPrivateThere(InvalidInput):
    """A push would create a dataset that everyone can read, although it should be private."""

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
    """Knows which datasets of this node are private, and makes copies of private datasets private."""

    directory: Directory

    def is_private(self, entry: CatalogEntry) -> bool:
        """Return whether a dataset of this node is private."""
        return self.directory.visibility(entry.incarnation) is Visibility.PRIVATE

    @property
    def is_usual(self) -> bool:
        """Return whether new datasets of this node are private by default."""
        return self.directory.is_multi_tenant

    def follow(self, there: RemoteDataset, entry: CatalogEntry) -> None:
        """Make a local copy private if its source may be private, unless a user chose the visibility of the copy."""
        if there.is_private():
            self.directory.make_private_by_default(entry.incarnation)

    @contextmanager
    def copying(self, there: RemoteDataset, dataset: DatasetId) -> Iterator[str | None]:
        """Yield the creation id for a new copy that must be private, or None if the copy needs no such id.

        A copy must be private if its source may be, or if the dataset was private on this node before.
        """
        if not there.is_private() and not self.directory.is_marked(dataset):
            yield None
            return
        with self.directory.creating(dataset, Visibility.PRIVATE) as creation:
            yield creation


def require_accounts(alias: str, url: str, token: str | None) -> None:
    """Raise `NotPrivateThere` unless the node at a dataset's URL has accounts, as only such nodes do that."""
    if not any(is_multi_tenant(urljoin(url, base), lambda _: token) for base in BASES):
        raise NotPrivateThere(alias=alias, url=url)


STORED_TOGETHER: Final = 1024  # blocks or signatures in memory
STORED_BYTES: Final = 4 * 1024**2  # of them, and one more block
REPLY_TIMEOUT_SECONDS: Final = 60.0  # for the coordinator to admit a chain, then the request is repeated
MAX_REQUEST_ATTEMPTS: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalCopy:
    """The local target of a copy: the dataset's name, its chain state if it exists (`here`), and the reference."""

    name: str
    ref: str
    here: ChainState | None
    expected: DatasetId | None = None
    """The dataset id that the user asked for; None if the source was given by name or URL."""
    is_forced: bool = False
    """Whether the local chain is replaced if it has diverged or is ahead."""
    trusts_records: bool = False
    """Whether the check of slices against the records that their blocks declare is skipped."""
    creation: str = ""
    """The creation id of a new dataset; if empty, the coordinator chooses one."""

    privacy: Privacy | None = None
    """Makes a new dataset private if its source is; None to leave the default."""

    @property
    def may_diverge(self) -> bool:
        """Return whether the reference may move to a chain that does not contain the local head."""
        return self.is_forced or self.ref != HEAD


def store(
    blobs: BlobStore, dataset: DatasetId, kind: ObjectKind, waiting: Iterator[tuple[Multihash, bytes]]
) -> None:
    """Write blocks or signatures to the store in batches; those that exist are skipped."""
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
    """This node has the dataset under another name."""

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
    """Ask the coordinator to admit the chain and move the reference.

    If the reply is lost, the position of the reference shows the outcome. Raises `HeadMoved`, `Refused` and
    `Unavailable`, and `AlreadyExists` if the dataset has meanwhile been created under another name.
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
