"""Copies a dataset from a repository: compare, download, check, and have the coordinator move the head.

Objects are written before blocks, and blocks before the head (spec: Dataset Sharing), so an interrupted copy leaves
only objects and what `downloads` keeps, which the next attempt finds and reuses. Signatures come last, since they are
few bytes, and are written before the blocks.
"""

from collections.abc import Generator, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Final
from urllib.parse import unquote, urlparse

import structlog

from odf_common.adapters.local.repositories import LocalRepositories
from odf_common.chain.compare_chains import Comparison
from odf_common.chain.state import ChainState
from odf_common.chain.walk import ReadBlock, raw_blocks
from odf_common.codec.envelopes import body_of
from odf_common.dataset.node_datasets import NodeDatasets
from odf_common.dataset.object_markers import (
    complete_until,
    drop_noted,
    dropped_blocks,
    forget_drop,
    note_complete,
    note_drop,
)
from odf_common.dataset.remote_aliases import RemoteAliases, change_aliases
from odf_common.errors import (
    AlreadyExists,
    HeadMoved,
    InvalidInput,
    NotFound,
    Refused,
    Unavailable,
)
from odf_common.hashing.multihash import Multihash
from odf_common.identity.branch_names import HEAD, split_ref
from odf_common.identity.dataset_refs import parse_alias
from odf_common.identity.did import DatasetId
from odf_common.metadata.events import DatasetKind
from odf_common.ports.bus import COORDINATOR_COMMANDS
from odf_common.ports.store import BlobStore, Catalog, ObjectKind, block_reader, scratch_folder
from odf_common.proto.odf.bus.v1 import bus_pb2
from odf_common.service.request_reply import Replies
from odf_common.service.settings import Settings
from odf_sync.repositories import RemoteDataset, SmartDataset, TokenFor, no_token, remote_dataset
from odf_sync.repositories.locate import Location, locate
from odf_sync.transfer.block_signatures import fetched_signatures
from odf_sync.transfer.compare import MissingBlocks, admit_all, compare_with, missing_blocks
from odf_sync.transfer.copied_objects import DOWNLOADS, CopiedObjects, lost_objects, missing_inputs
from odf_sync.transfer.objects import RemoteObject, by_object, declared_objects
from odf_sync.transfer.partial_files import DOWNLOADED, kept_blocks
from odf_sync.transfer.privacy import Privacy
from odf_sync.transfer.remote_blocks import RemoteBlock

log = structlog.stdlib.get_logger(__name__)

STORED_AT_ONCE: Final = 1024  # blocks or signatures in memory
REPLY_TIMEOUT_SECONDS: Final = 60.0  # for the coordinator to admit a chain, then the request is repeated
ATTEMPTS: Final = 10


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
    """The dataset is new here, and private since it may be so there."""
    target: str = ""
    """Of a push: where it went, as the user named it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalCopy:
    """The target of a copy: the dataset's local name, its state if it exists, and the reference that is moved."""

    name: str
    ref: str
    here: ChainState | None
    wanted: DatasetId | None = None
    """The dataset that the source was asked for by its id."""
    is_forced: bool = False
    """Replace the chain if it has diverged."""
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


def pull(  # noqa: PLR0913 - the options by name
    datasets: NodeDatasets,
    settings: Settings,
    source: str,
    alias: str,
    token_for: TokenFor = no_token,
    *,
    replies: Replies,
    rechecks: bool = False,
    is_forced: bool = False,
    trusts_records: bool = False,
    privacy: Privacy | None = None,
) -> Iterator[Step]:
    """Bring the local copy of `source` up to date; the last step is `updated`, `restored` or `up-to-date`.

    Data of a derivative that `source` does not have is marked as dropped, and counted in the last step.

    `source` is a URL or a dataset of a named repository; a dataset that is new gets it as its pull alias, and with
    `privacy` is private if it is there.

    If nothing is new, locally lost objects are fetched again; then the last step is `restored`. They are looked for
    once for each head, after data was dropped, and if `rechecks`. Signatures that the copy lacks are fetched only then.

    A chain that has diverged is replaced if `is_forced`; its own blocks stay in the store.

    Slices are checked by size and physical hash, and unless `trusts_records` by their records: logical hash, offsets,
    operations and schema.

    `alias` may be `NAME@REF`: then that reference is moved to the chain of `source`, even if it has diverged from the
    head's. On errors nothing has moved: those of `missing_blocks`, `ObjectDiffers`, `SignatureRefused`, `AlreadyExists`
    if the name or the dataset is taken under another id or name, and `Unavailable`.
    """
    # A URL is untrusted: an `@` in it does not select a local reference.
    location = locate(LocalRepositories(settings.home), source, token_for)
    name, ref = split_ref(alias) if alias else (_default_name(datasets, location), HEAD)
    copy = _local_copy(datasets, str(parse_alias(name)), ref, location.dataset)
    copy = replace(copy, is_forced=is_forced, trusts_records=trusts_records, privacy=privacy)
    name, here = copy.name, copy.here
    if here is not None and copy.wanted not in (None, here.dataset_id):
        raise AlreadyExists(what=f"another dataset named {name}")
    there = remote_dataset(location.url, token_for, settings=settings)
    folder = settings.home / DOWNLOADED
    run = _Pull(datasets=datasets, replies=replies, folder=folder, there=there, copy=copy, source=source)
    yield Step(alias=name, state="comparing")
    head = there.head()
    with _exchange(there, copy), kept_blocks(folder, location.url) as spool:
        yield Step(alias=name, state="blocks")
        missing = _missing(datasets, there, head, copy, spool)
        at = None if here is None else datasets.refs.head(here.dataset_id, copy.ref)
        if here is not None and (at == head or _has_all(copy, missing)):
            yield from run.restore(here, head, rechecks=rechecks)
        else:
            yield from run.update(missing)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pull:
    datasets: NodeDatasets
    replies: Replies
    folder: Path
    """Where what is being downloaded is kept."""
    there: RemoteDataset
    copy: LocalCopy
    source: str
    """As the user named it."""

    def restore(self, here: ChainState, head: Multihash, *, rechecks: bool) -> Iterator[Step]:
        """Fetch objects that were lost locally, in order, the newest last."""
        blobs, dataset = self.datasets.blobs, here.dataset_id
        was_whole = not rechecks and complete_until(blobs, dataset) == head
        lost = () if was_whole else tuple(lost_objects(blobs, dataset, head))
        absent = yield from self._fetch(here, lost, at_once=1)
        if absent:
            note_drop(blobs, dataset, here.head)
        else:
            if head == here.head:  # otherwise what follows may still be missing
                forget_drop(blobs, dataset)
            note_complete(blobs, dataset, head)
        if rechecks:
            names = [name for name, _, _ in raw_blocks(block_reader(blobs, dataset), head)]
            store(blobs, dataset, ObjectKind.SIGNATURE, fetched_signatures(self.there, names, None))
        yield Step(
            alias=self.copy.name,
            state="restored" if len(by_object(lost)) > absent else "up-to-date",
            head=self.datasets.refs.head(dataset, self.copy.ref),
            missing_objects=absent,
            missing_inputs=missing_inputs(self.datasets.catalog, here) if absent else (),
        )

    def update(self, missing: MissingBlocks) -> Iterator[Step]:
        """Fetch the blocks that are missing here, with what they declare, and move the reference."""
        copy, blocks = self.copy, missing.blocks
        name, blobs, catalog = copy.name, self.datasets.blobs, self.datasets.catalog
        log.debug("copying blocks", dataset=name, ref=copy.ref, blocks=len(blocks))
        past = _past(self.datasets, copy.here, missing.common)
        state = admit_all(past, blocks)
        if copy.wanted not in (None, state.dataset_id):
            raise InvalidInput(
                text=f"expected {copy.wanted}, but found {state.dataset_id}", where=self.there.url
            )
        check_identity(catalog, state.dataset_id, name)
        if replaced := _replaced(copy, past):
            yield Step(alias=name, state="replacing", replaced=replaced)
        absent = yield from self._fetch(state, _needed(blobs, past, blocks))
        yield Step(alias=name, state="committing")
        signatures = fetched_signatures(self.there, blocks.names[::-1], missing.common)
        store(blobs, state.dataset_id, ObjectKind.SIGNATURE, signatures)
        store(blobs, state.dataset_id, ObjectKind.BLOCK, blocks.raw())
        with drop_noted(blobs, state.dataset_id, state.head) if absent else nullcontext():
            is_private = self._commit(state)
        if copy.ref == HEAD and not absent:
            _note_fetched(blobs, past, state)
        yield Step(
            alias=name,
            state="updated",
            head=state.head,
            new_blocks=len(blocks),
            new_records=state.next_offset - (0 if past is None else past.next_offset),
            replaced=replaced,
            missing_objects=absent,
            missing_inputs=missing_inputs(catalog, state) if absent else (),
            is_private=is_private,
        )

    def _commit(self, state: ChainState) -> bool:
        """Ask the coordinator to move the head; return whether the dataset is new, and private as the source may be."""
        dataset, copy, datasets = state.dataset_id, self.copy, self.datasets
        check_identity(datasets.catalog, dataset, copy.name)  # the objects may have taken hours
        if datasets.catalog.by_id(dataset) is not None:
            commit(datasets, self.replies, state, copy)
            return False
        # Before it has a name: a process that is killed later leaves a dataset that knows where it came from. What an
        # earlier attempt noted, from elsewhere perhaps, is replaced.
        change_aliases(datasets.blobs, dataset, lambda _: RemoteAliases(pull=(self.source,)))
        with copy.privacy.copying(self.there, dataset) if copy.privacy else nullcontext() as creation:
            commit(datasets, self.replies, state, replace(copy, creation=creation or ""))
        return creation is not None

    def _fetch(
        self, state: ChainState, declared: Iterable[RemoteObject], *, at_once: int = DOWNLOADS
    ) -> Generator[Step, None, int]:
        """Fetch objects of a chain; return how many are to be rebuilt, since the repository does not have them."""
        copy = self.copy
        # Other references are not rebuilt.
        is_rebuilt = state.kind is DatasetKind.Derivative and copy.ref == HEAD
        wanted = CopiedObjects(
            self.datasets.blobs,
            self.folder,
            state.dataset_id,
            declared,
            may_lack=is_rebuilt,
            trusts_records=copy.trusts_records,
        )
        for done in wanted.fetch(self.there, at_once=at_once):
            yield Step(alias=copy.name, state="objects", done=done, total=len(wanted))
        return wanted.missing


def _exchange(there: RemoteDataset, copy: LocalCopy) -> AbstractContextManager[None]:
    """Return a context in which a repository that needs to know it knows which blocks are here."""
    if not isinstance(there, SmartDataset):
        return nullcontext()
    return there.exchange(None if copy.here is None else copy.here.head, is_forced=copy.may_diverge)


def _needed(
    blobs: BlobStore, past: ChainState | None, blocks: Iterable[RemoteBlock]
) -> Iterator[RemoteObject]:
    """Yield what blocks after `past` declare, after what the chain up to there lacks, if its data was dropped."""
    if past is not None and dropped_blocks(blobs, past.dataset_id) is not None:
        yield from lost_objects(blobs, past.dataset_id, past.head)
    yield from declared_objects(past, blocks)


def _note_fetched(blobs: BlobStore, past: ChainState | None, state: ChainState) -> None:
    """Note that all objects exist up to the head, if they did up to `past`; what was dropped is fetched, too."""
    dataset = state.dataset_id
    if dropped_blocks(blobs, dataset) is not None:
        forget_drop(blobs, dataset)
    if past is None or complete_until(blobs, dataset) == past.head:
        note_complete(blobs, dataset, state.head)


def _replaced(copy: LocalCopy, past: ChainState | None) -> Multihash | None:
    former = None if copy.here is None or copy.ref != HEAD else copy.here.head
    return None if past is not None and past.head == former else former


def store(
    blobs: BlobStore, dataset: DatasetId, kind: ObjectKind, waiting: Iterator[tuple[Multihash, bytes]]
) -> None:
    """Store blocks or signatures durably, many at a time, unless they exist."""
    while some := tuple(islice(waiting, STORED_AT_ONCE)):
        blobs.put_all(dataset, kind, some)


def compare(
    datasets: NodeDatasets, settings: Settings, ref: str, source: str, token_for: TokenFor = no_token
) -> tuple[Comparison, Multihash | None]:
    """Return how a local dataset, or one of its references, relates to that of `source`; and the last common block."""
    copy = _local_copy(datasets, *split_ref(ref))
    if copy.here is None:
        raise NotFound(what=f"dataset {copy.name}")
    here = datasets.refs.head(copy.here.dataset_id, copy.ref)
    if here is None:
        raise NotFound(what=f"reference {copy.ref} of {copy.name}")
    with scratch_folder(datasets.blobs) as scratch, (scratch / "blocks").open("w+b") as spool:
        location = locate(LocalRepositories(settings.home), source, token_for)
        there = remote_dataset(location.url, token_for, settings=settings)
        return compare_with(there, _reader(datasets, copy.here), here, spool)


def _local_copy(datasets: NodeDatasets, name: str, ref: str, wanted: DatasetId | None = None) -> LocalCopy:
    here = _local_state(datasets, name)
    if here is None and ref != HEAD:
        raise NotFound(what=f"dataset {name}, for reference {ref},")
    return LocalCopy(name=name, ref=ref, here=here, wanted=wanted)


def _default_name(datasets: NodeDatasets, location: Location) -> str:
    """Return the local name of a dataset, if its id is known, else the last segment of the URL."""
    known = None if location.dataset is None else datasets.catalog.by_id(location.dataset)
    return _last_segment(location.url) if known is None else known.alias


def _last_segment(url: str) -> str:
    name = unquote(urlparse(url).path.rstrip("/").rpartition("/")[2])
    try:
        return str(parse_alias(name))
    except InvalidInput as error:
        text = f"{url} does not end in a valid dataset name; choose one with --as"
        raise InvalidInput(text=text) from error


def _missing(
    datasets: NodeDatasets, there: RemoteDataset, head: Multihash, copy: LocalCopy, spool: BinaryIO
) -> MissingBlocks:
    here = copy.here
    at = None if here is None else here.head
    return missing_blocks(there, head, _reader(datasets, here), at, may_diverge=copy.may_diverge, spool=spool)


def _reader(datasets: NodeDatasets, here: ChainState | None) -> ReadBlock:
    def read(name: Multihash) -> bytes:
        assert here is not None, "without a local chain no block is read"
        return datasets.blobs.read(here.dataset_id, ObjectKind.BLOCK, name)

    return read


def _past(datasets: NodeDatasets, here: ChainState | None, common: Multihash | None) -> ChainState | None:
    """Return the state at the last block that both have."""
    return None if here is None or common is None else datasets.states.state_at(here.dataset_id, common)


def _has_all(copy: LocalCopy, missing: MissingBlocks) -> bool:
    """Return whether the head can stay: it may be ahead. Other references are always moved."""
    return copy.ref == HEAD and not missing.blocks


def _local_state(datasets: NodeDatasets, alias: str) -> ChainState | None:
    entry = datasets.catalog.by_alias(alias)
    return None if entry is None else datasets.states.current(entry.dataset_id)


def check_identity(catalog: Catalog, dataset: DatasetId, alias: str) -> None:
    """Raise `AlreadyExists` if the dataset has another name here, or the name another dataset."""
    known = catalog.by_id(dataset)
    if known is not None and known.alias.lower() != alias.lower():
        raise AlreadyExists(what=f"this dataset, locally named {known.alias},")
    taken = catalog.by_alias(alias)
    if taken is not None and taken.dataset_id != dataset:
        raise AlreadyExists(what=f"another dataset named {alias}")


def commit(datasets: NodeDatasets, replies: Replies, state: ChainState, copy: LocalCopy) -> None:
    """Have the coordinator admit the chain; if its reply is lost, the reference shows the outcome.

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
    for _ in range(ATTEMPTS):
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
