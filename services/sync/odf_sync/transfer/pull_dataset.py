"""Copies a dataset from a repository: compares the chains, downloads and checks, and asks for the head to be moved.

Objects are written before blocks, and the head moves last (spec: Dataset Sharing). So an interrupted pull leaves only
objects and the partial files in `downloads`, both of which the next attempt reuses. Signatures are small: they are
fetched after the objects, and written before the blocks.
"""

from collections.abc import Generator, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO
from urllib.parse import unquote, urlparse

import structlog

from odf_common.adapters.local.repositories import LocalRepositories
from odf_common.chain.compare_chains import Comparison
from odf_common.chain.state import ChainState
from odf_common.chain.walk import ReadBlock, raw_blocks
from odf_common.dataset.dataset_notes import (
    RemoteAliases,
    change_aliases,
    complete_until,
    drop_noted,
    dropped_blocks,
    forget_drop,
    note_complete,
    note_drop,
)
from odf_common.dataset.node_datasets import NodeDatasets
from odf_common.errors import (
    AlreadyExists,
    InvalidInput,
    NotFound,
    Unavailable,
)
from odf_common.hashing.multihash import Multihash
from odf_common.identity.dataset_refs import HEAD, DatasetId, parse_alias, split_ref
from odf_common.metadata.events import DatasetKind
from odf_common.ports.store import BlobStore, ObjectKind, block_reader, scratch_folder
from odf_common.service.request_reply import Replies
from odf_common.service.settings import Settings
from odf_sync.repositories import RemoteDataset, SmartDataset, TokenFor, no_token, remote_dataset
from odf_sync.repositories.locate import Location, locate
from odf_sync.transfer.local_copy import LocalCopy, Privacy, Step, check_identity, commit, store
from odf_sync.transfer.objects import (
    PARALLEL_DOWNLOADS,
    CopiedObjects,
    RemoteObject,
    by_object,
    declared_objects,
    lost_objects,
    missing_inputs,
)
from odf_sync.transfer.partial_files import DOWNLOADED, kept_blocks
from odf_sync.transfer.remote_chain import (
    ChainsDiverged,
    LocalAhead,
    MissingBlocks,
    RemoteBlock,
    admit_all,
    compare_with,
    fetched_signatures,
    missing_blocks,
)

log = structlog.stdlib.get_logger(__name__)


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
    """Update the local copy of `source`, or create it; the last step is `updated`, `restored` or `up-to-date`.

    `source` is a URL or a dataset of a named repository. It becomes the pull alias of a new dataset. With `privacy`,
    the copy is private if its source is.

    Data of a derivative that `source` does not have is marked as dropped, and counted in the last step.

    If there are no new blocks, objects that were lost locally are fetched again; the last step is then `restored`. Lost
    objects are searched for once per head, after data was dropped, and if `rechecks`. Missing signatures of existing
    blocks are fetched only if `rechecks`.

    If `is_forced`, a local chain that has diverged or is ahead is replaced; its blocks stay in the store.

    Slices are checked by size and physical hash. Unless `trusts_records`, their records are also checked, by logical
    hash, offsets, operations and schema.

    If `alias` is `NAME@REF`, that reference is moved to the chain of `source`, even if that chain has diverged from the
    head's.

    On errors the head has not moved. Raises the errors of `missing_blocks`, `ObjectDiffers`, `SignatureRefused`,
    `AlreadyExists` if the name or the dataset exists here with another id or name, and `Unavailable`.
    """
    location = locate(LocalRepositories(settings.home), source, token_for)
    copy = _destination(datasets, location, alias)
    copy = replace(copy, is_forced=is_forced, trusts_records=trusts_records, privacy=privacy)
    run = _Pull(
        datasets=datasets,
        replies=replies,
        folder=settings.home / DOWNLOADED,
        there=remote_dataset(location.url, token_for, settings=settings),
        copy=copy,
        source=source,
        was_private=_is_private(datasets, copy),
    )
    yield from run.steps(location.url, rechecks=rechecks)


def _destination(datasets: NodeDatasets, location: Location, alias: str) -> LocalCopy:
    """Return the local copy to create or update; raises `AlreadyExists` if another dataset has its name."""
    # A URL is untrusted: an `@` in it does not select a local reference.
    name, ref = split_ref(alias) if alias else (_default_name(datasets, location), HEAD)
    copy = _local_copy(datasets, str(parse_alias(name)), ref, location.dataset)
    if copy.here is not None and copy.expected not in (None, copy.here.dataset_id):
        raise AlreadyExists(what=f"another dataset named {copy.name}")
    return copy


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pull:
    datasets: NodeDatasets
    replies: Replies
    folder: Path
    """The folder of downloads in progress."""
    there: RemoteDataset
    copy: LocalCopy
    source: str
    """The source, as the user named it."""
    was_private: bool
    """Whether the copy was private before the pull; of a new dataset, whether datasets are private by default."""

    def steps(self, url: str, *, rechecks: bool) -> Iterator[Step]:
        """Compare the copy with the source at `url`, then update or restore the copy, or refuse to."""
        name, here = self.copy.name, self.copy.here
        yield Step(alias=name, state="comparing")
        head = self.there.head()
        with _exchange(self.there, self.copy), kept_blocks(self.folder, url) as spool:
            yield Step(alias=name, state="blocks")
            missing = self.compare_heads(head, spool)
            if self.has_become_private():
                yield Step(alias=name, state="blocks", is_private=True)
            current = None if here is None else self.datasets.refs.head(here.dataset_id, self.copy.ref)
            if here is not None and current == head:
                yield from self.restore(here, head, rechecks=rechecks)
            elif here is not None and missing.ahead and not self.copy.may_diverge:
                yield from self.restore_or_refuse(here, head, missing.ahead, rechecks=rechecks)
            else:
                yield from self.update(missing)

    def follow(self) -> None:
        """Make an existing copy private if its source may be private."""
        entry = self.datasets.catalog.by_alias(self.copy.name)
        if self.copy.privacy is not None and entry is not None:
            self.copy.privacy.follow(self.there, entry)

    def compare_heads(self, head: Multihash, spool: BinaryIO) -> MissingBlocks:
        """Return the blocks that this node does not have.

        Make the copy private if the source may be, as soon as a common block shows that it is the same dataset.
        """
        here = self.copy.here
        try:
            missing = missing_blocks(
                self.there,
                head,
                _reader(self.datasets, here),
                None if here is None else here.head,
                may_diverge=self.copy.may_diverge,
                spool=spool,
            )
        except ChainsDiverged as error:
            if error.common_block is not None:
                self.follow()
            raise
        if missing.common is not None:
            self.follow()
        return missing

    def has_become_private(self) -> bool:
        """Return whether this pull has made the copy private."""
        return _is_private(self.datasets, self.copy) and not self.was_private

    def restore(self, here: ChainState, head: Multihash, *, rechecks: bool) -> Iterator[Step]:
        """Fetch objects that were lost locally, oldest first."""
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
            is_private=self.has_become_private(),
        )

    def restore_or_refuse(
        self, here: ChainState, head: Multihash, ahead: int, *, rechecks: bool
    ) -> Iterator[Step]:
        """Fetch locally lost objects from a source that is behind; raises `LocalAhead` if none was fetched."""
        for step in self.restore(here, head, rechecks=rechecks):
            if step.state == "up-to-date":
                raise LocalAhead(repository=self.there.url, blocks=ahead)
            yield step

    def update(self, missing: MissingBlocks) -> Iterator[Step]:
        """Fetch the missing blocks and the objects that they declare, and move the reference."""
        copy, blocks = self.copy, missing.blocks
        name, blobs, catalog = copy.name, self.datasets.blobs, self.datasets.catalog
        past = self._common_state(missing)
        state = admit_all(past, blocks)
        log.debug(
            "copying blocks",
            dataset=name,
            dataset_id=str(state.dataset_id),
            ref=copy.ref,
            blocks=len(blocks.names),
        )
        if copy.expected not in (None, state.dataset_id):
            raise InvalidInput(
                text=f"expected {copy.expected}, but found {state.dataset_id}", where=self.there.url
            )
        check_identity(catalog, state.dataset_id, name)
        self.follow()
        if replaced := _replaced_head(copy, past):
            yield Step(alias=name, state="replacing", replaced=replaced)
        absent = yield from self._fetch(state, _needed_objects(blobs, past, blocks))
        yield Step(alias=name, state="committing")
        signatures = fetched_signatures(self.there, blocks.names[::-1], missing.common)
        store(blobs, state.dataset_id, ObjectKind.SIGNATURE, signatures)
        store(blobs, state.dataset_id, ObjectKind.BLOCK, blocks.raw())
        with drop_noted(blobs, state.dataset_id, state.head) if absent else nullcontext():
            self._commit(state)
        if copy.ref == HEAD and not absent:
            _note_fetched(blobs, past, state)
        yield Step(
            alias=name,
            state="updated",
            head=state.head,
            new_blocks=len(blocks.names),
            new_records=state.next_offset - (0 if past is None else past.next_offset),
            replaced=replaced,
            missing_objects=absent,
            missing_inputs=missing_inputs(catalog, state) if absent else (),
            is_private=self.has_become_private(),
        )

    def _common_state(self, missing: MissingBlocks) -> ChainState | None:
        """Return the state of the local chain at the last common block, None if there is no common block."""
        if self.copy.here is None or missing.common is None:
            return None
        return self.datasets.states.state_at(self.copy.here.dataset_id, missing.common)

    def _commit(self, state: ChainState) -> None:
        """Ask the coordinator to move the head, or to create the dataset."""
        dataset, copy, datasets = state.dataset_id, self.copy, self.datasets
        check_identity(datasets.catalog, dataset, copy.name)  # the objects may have taken hours
        if datasets.catalog.by_id(dataset) is not None:
            self.follow()
            commit(datasets, self.replies, state, copy)
            return
        # Before it has a name: a process that is killed later leaves a dataset that knows where it came from. What an
        # earlier attempt noted, from elsewhere perhaps, is replaced.
        change_aliases(datasets.blobs, dataset, lambda _: RemoteAliases(pull=(self.source,)))
        with copy.privacy.copying(self.there, dataset) if copy.privacy else nullcontext() as creation:
            commit(datasets, self.replies, state, replace(copy, creation=creation or ""))

    def _fetch(
        self, state: ChainState, declared: Iterable[RemoteObject], *, at_once: int = PARALLEL_DOWNLOADS
    ) -> Generator[Step, None, int]:
        """Fetch objects, and return the number of those that the repository does not have: they must be recomputed."""
        copy = self.copy
        # Other references are not rebuilt.
        is_rebuilt = state.kind is DatasetKind.Derivative and copy.ref == HEAD
        objects = CopiedObjects(
            self.datasets.blobs,
            self.folder,
            state.dataset_id,
            declared,
            may_lack=is_rebuilt,
            trusts_records=copy.trusts_records,
        )
        for done in objects.fetch(self.there, at_once=at_once):
            yield Step(alias=copy.name, state="objects", done=done, total=len(objects))
        return objects.missing


def _is_private(datasets: NodeDatasets, copy: LocalCopy) -> bool:
    """Return whether a copy is private; of a new dataset, whether datasets are private by default."""
    entry = datasets.catalog.by_alias(copy.name)
    if copy.privacy is None:
        return False
    with suppress(Unavailable):  # a chain that decides it, perhaps of another dataset: the pull goes on
        return copy.privacy.is_usual if entry is None else copy.privacy.is_private(entry)
    return False


def _exchange(there: RemoteDataset, copy: LocalCopy) -> AbstractContextManager[None]:
    """Open a Smart exchange that starts after the local head; for other repositories, do nothing."""
    if not isinstance(there, SmartDataset):
        return nullcontext()
    return there.exchange(None if copy.here is None else copy.here.head, is_forced=copy.may_diverge)


def _needed_objects(
    blobs: BlobStore, past: ChainState | None, blocks: Iterable[RemoteBlock]
) -> Iterator[RemoteObject]:
    """Yield the objects that the blocks after `past` declare.

    If data of the dataset was dropped, first the objects that the chain up to `past` lacks.
    """
    if past is not None and dropped_blocks(blobs, past.dataset_id) is not None:
        yield from lost_objects(blobs, past.dataset_id, past.head)
    yield from declared_objects(past, blocks)


def _note_fetched(blobs: BlobStore, past: ChainState | None, state: ChainState) -> None:
    """Note that all objects exist up to the new head, if they did up to `past` or if dropped data was fetched again."""
    dataset = state.dataset_id
    if dropped_blocks(blobs, dataset) is not None:
        forget_drop(blobs, dataset)
    if past is None or complete_until(blobs, dataset) == past.head:
        note_complete(blobs, dataset, state.head)


def _replaced_head(copy: LocalCopy, past: ChainState | None) -> Multihash | None:
    former = None if copy.here is None or copy.ref != HEAD else copy.here.head
    return None if past is not None and past.head == former else former


def compare(
    datasets: NodeDatasets, settings: Settings, ref: str, source: str, token_for: TokenFor = no_token
) -> tuple[Comparison, Multihash | None]:
    """Return the relation of a local dataset or reference to the chain at `source`, and the last common block."""
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


def _local_copy(datasets: NodeDatasets, name: str, ref: str, expected: DatasetId | None = None) -> LocalCopy:
    entry = datasets.catalog.by_alias(name)
    here = None if entry is None else datasets.states.current(entry.dataset_id)
    if here is None and ref != HEAD:
        raise NotFound(what=f"dataset {name}, for reference {ref},")
    return LocalCopy(name=name, ref=ref, here=here, expected=expected)


def _default_name(datasets: NodeDatasets, location: Location) -> str:
    """Return the local name of the dataset if this node has it, else the last segment of the URL."""
    entry = None if location.dataset is None else datasets.catalog.by_id(location.dataset)
    return _last_segment(location.url) if entry is None else entry.alias


def _last_segment(url: str) -> str:
    name = unquote(urlparse(url).path.rstrip("/").rpartition("/")[2])
    try:
        return str(parse_alias(name))
    except InvalidInput as error:
        text = f"{url} does not end in a valid dataset name; choose one with --as"
        raise InvalidInput(text=text) from error


def _reader(datasets: NodeDatasets, here: ChainState | None) -> ReadBlock:
    def read(name: Multihash) -> bytes:
        assert here is not None, "without a local chain no block is read"
        return datasets.blobs.read(here.dataset_id, ObjectKind.BLOCK, name)

    return read
