"""Accepts a chain that another node pushes: stores and checks its objects and blocks before the head moves."""

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Final

from odf_common.chain.state import ChainState
from odf_common.codec.flatbuffers import block_hash, decode_block
from odf_common.dataset.node_datasets import NodeDatasets
from odf_common.errors import AlreadyExists, HeadMoved, InvalidInput
from odf_common.hashing.multihash import Multihash
from odf_common.identity.dataset_refs import HEAD
from odf_common.ports.store import ObjectKind
from odf_common.service.request_reply import Replies
from odf_sync.smart.archive import ReadSignature, no_signature
from odf_sync.transfer.local_copy import LocalCopy, check_identity, commit, store
from odf_sync.transfer.objects import RemoteObject, by_object, check_stored, declared_objects
from odf_sync.transfer.remote_chain import RemoteBlock, admit_all, require_valid

SOURCE: Final = "the node that pushes"
PARALLEL_CHECKS: Final = 2  # objects at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class PushedChain:
    """The blocks that another node pushes to the dataset `alias`: bytes by hash, oldest first.

    `head` is the head of the dataset here that the sender expects, None for a new dataset.
    """

    alias: str
    head: Multihash | None
    blocks: Mapping[Multihash, bytes]
    is_forced: bool
    """Whether the blocks replace those that follow the predecessor of the first block."""
    signature: ReadSignature = no_signature
    """Returns the signature that was sent with a block, or None if none was sent."""
    decoding: AbstractContextManager[object] = field(default_factory=nullcontext)
    """A context that is entered while the blocks are decoded, such as a reservation of memory."""

    def signatures(self) -> Iterator[tuple[Multihash, bytes]]:
        """Yield the hashes of the blocks that were sent with a signature, each with the signature."""
        for name in self.blocks:
            signature = self.signature(name)
            if signature is not None:
                yield name, signature


@dataclass(frozen=True, slots=True, kw_only=True)
class _AdmittedChain:
    here: ChainState | None
    state: ChainState
    objects: Mapping[tuple[ObjectKind, Multihash], Sequence[RemoteObject]]


class Acceptance(AbstractContextManager["Acceptance"]):
    """Accepts a pushed chain: admits its blocks and checks its objects in threads while further objects arrive."""

    def __init__(self, datasets: NodeDatasets, chain: PushedChain) -> None:
        """Begin to decode and admit the blocks in the background."""
        self._datasets = datasets
        self._chain = chain
        self._pool = ThreadPoolExecutor(PARALLEL_CHECKS, thread_name_prefix="check")
        self._guard = threading.Lock()
        self._arrived: set[tuple[ObjectKind, Multihash]] = set()
        self._checks: dict[tuple[ObjectKind, Multihash], Future[None]] = {}
        self._is_checked = False
        self._admitted: Future[_AdmittedChain] = self._pool.submit(self._admit)
        self._admitted.add_done_callback(self._check_arrived)

    def note_object(self, kind: ObjectKind, name: Multihash) -> None:
        """Report that an object has been stored; it is checked as soon as the blocks are admitted."""
        with self._guard:
            self._arrived.add((kind, name))
        if self._admitted.done():
            self._check_arrived(self._admitted)

    def await_checks(self) -> _AdmittedChain:
        """Store the blocks, and wait until all objects are checked. All objects must have been stored before.

        The checks run while the blocks are written: checks need the CPU, and writes mostly wait for the disk. Nothing
        refers to the stored blocks until the head moves. Raises the errors of `complete` except those of its commit.
        """
        admitted = self._admitted.result()
        if self._is_checked:
            return admitted
        self._require_stored(admitted)
        with self._guard:
            self._arrived.update(admitted.objects)
        self._check_arrived(self._admitted)
        blobs, dataset = self._datasets.blobs, admitted.state.dataset_id
        store(blobs, dataset, ObjectKind.SIGNATURE, self._chain.signatures())
        store(blobs, dataset, ObjectKind.BLOCK, iter(self._chain.blocks.items()))
        for key in admitted.objects:
            self._checks[key].result()
        self._is_checked = True
        return admitted

    def _require_stored(self, admitted: _AdmittedChain) -> None:
        with self._guard:
            # An object that is being checked was stored when it was noted: the store need not be asked about it.
            noted = frozenset(self._checks)
        dataset = admitted.state.dataset_id
        for kind, name in admitted.objects:
            if (kind, name) not in noted and not self._datasets.blobs.has(dataset, kind, name):
                raise InvalidInput(text=f"not sent: {kind}/{name}")

    def complete(self, replies: Replies, *, creation: str = "") -> None:
        """Wait for the checks, and move the head to the last block. `creation` is the creation id of a new dataset.

        On errors the head has not moved. Raises `InvalidInput`, also for a missing object, `ChainRuleViolated`,
        `ObjectDiffers`, `RecordsRefused`, `SignatureRefused`, `HeadMoved`, `AlreadyExists`.
        """
        admitted = self.await_checks()
        chain = self._chain
        copy = LocalCopy(
            name=chain.alias, ref=HEAD, here=admitted.here, is_forced=chain.is_forced, creation=creation
        )
        with _without_names():
            commit(self._datasets, replies, admitted.state, copy)

    def __exit__(self, *_: object) -> None:
        """Cancel the checks that have not begun."""
        # Running checks are not awaited: after an error their results are of no use, and after success all are done.
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _admit(self) -> _AdmittedChain:
        with self._chain.decoding:
            return self._decode_chain()

    def _decode_chain(self) -> _AdmittedChain:
        datasets, chain = self._datasets, self._chain
        entry = datasets.catalog.by_alias(chain.alias)
        here = None if entry is None else datasets.states.current(entry.dataset_id)
        if (here and here.head) != chain.head:
            actual = None if here is None else str(here.head)
            raise HeadMoved(dataset=chain.alias, expected=str(chain.head), actual=actual)
        blocks = _Blocks(chain.blocks)
        after = next(iter(blocks)).decoded.block.prev_block_hash
        if after != chain.head and not chain.is_forced:
            raise InvalidInput(text=f"they do not follow the head {chain.head}", where="the blocks")
        past = None if entry is None or after is None else datasets.states.state_at(entry.dataset_id, after)
        state = admit_all(past, blocks)
        for name, signature in chain.signatures():
            require_valid(name, signature, SOURCE)
        with _without_names():
            check_identity(datasets.catalog, state.dataset_id, chain.alias)
        groups = by_object(declared_objects(past, blocks))
        objects = {(group[0].kind, group[0].name): group for group in groups}
        return _AdmittedChain(here=here, state=state, objects=objects)

    def _check_arrived(self, admitted: Future[_AdmittedChain]) -> None:
        """Start the checks of the objects that have arrived, unless the blocks were refused."""
        if admitted.cancelled() or admitted.exception() is not None:
            return
        admitted_chain = admitted.result()
        with self._guard:
            objects = admitted_chain.objects
            # Not by sets of all objects: this is done for each one that arrives.
            for key in (key for key in self._arrived if key in objects and key not in self._checks):
                group = objects[key]
                with suppress(RuntimeError):  # the exchange has ended
                    self._checks[key] = self._pool.submit(
                        check_stored, self._datasets.blobs, SOURCE, admitted_chain.state.dataset_id, group
                    )
            # Objects that no block declares are left out: nothing refers to them.
            self._arrived.clear()


@contextmanager
def _without_names() -> Iterator[None]:
    """Replace an `AlreadyExists` with one that names no dataset, as the sender may not be allowed to see it."""
    try:
        yield
    except AlreadyExists as error:
        raise AlreadyExists(
            what="this dataset under another name, or another dataset with this name,"
        ) from error


class _Blocks(Iterable[RemoteBlock]):
    """Decodes blocks one at a time during iteration; raises `InvalidInput` if one does not match its hash."""

    def __init__(self, blocks: Mapping[Multihash, bytes]) -> None:
        self._blocks = blocks

    def __iter__(self) -> Iterator[RemoteBlock]:
        for name, raw in self._blocks.items():
            actual = block_hash(raw)
            if actual != name:
                raise InvalidInput(text=f"its bytes hash to {actual}", where=f"block {name}")
            yield RemoteBlock(hash=name, raw=raw, decoded=decode_block(raw))
