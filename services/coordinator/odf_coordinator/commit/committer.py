"""The only code that moves and removes references, except that deleting a dataset removes its whole folder.

The compare-and-set of the reference against `expected_head` guarantees correctness. The locks around it, one in this
process and one in Redis, only avoid wasted work: if a lock is lost or expires, an overtaken proposal still changes
nothing. Objects are written first, then blocks with their signatures, then the head; each is durable before the next.

Proposals are idempotent: a repeated proposal is distinguished from one that was overtaken by another commit. Pushes of
files are idempotent by their keys, whose receipts ingest keeps (`odf_ingest/commit/file_commit.py`).
"""

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final, TypeVar

import structlog

from odf_common.adapters.local.key_files import NotOwned
from odf_common.chain.arrivals import TimeInFuture, require_past_time
from odf_common.chain.build_blocks import build_blocks, latest_time, next_system_time
from odf_common.chain.state import ChainState
from odf_common.chain.walk import iterate
from odf_common.codec.flatbuffers import decode_block
from odf_common.dataset.node_datasets import require_readable_block
from odf_common.dataset.state_cache import ChainStates
from odf_common.errors import (
    ChainRuleViolated,
    Damaged,
    HeadMoved,
    InvalidInput,
    NotFound,
    OdfError,
    Refused,
    Unavailable,
)
from odf_common.hashing.multihash import Multihash
from odf_common.identity.dataset_refs import HEAD, DatasetId
from odf_common.metadata.events import KnownEvent, MetadataBlock, Seed
from odf_common.metadata.scalars import CLOCK_TOLERANCE_MS, Timestamp
from odf_common.ports.clock import Backoff, Clock
from odf_common.ports.store import BlobStore, Locks, ObjectKind, RefStore, block_reader
from odf_coordinator.catalog.datasets import Activity, Stalls, remedy_of
from odf_coordinator.commit.dataset_locks import DatasetLocks
from odf_coordinator.storage import require_checkpoint, require_objects

T = TypeVar("T")
MAX_ATTEMPTS: Final = 20  # a busy root receives about ten commits a second


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """The events are in the chain, whose head is `state.head` or a later block.

    `already` is whether they had been committed before this call.
    """

    state: ChainState
    already: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Overtaken:
    """Another block was committed first; nothing has changed."""

    expected: Multihash | None
    head: Multihash | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """The proposal was refused, and would be refused again; nothing has changed."""

    code: str
    text: str


Outcome = Committed | Overtaken | Refusal


def refusal_of(error: OdfError) -> Refusal:
    """Return the refusal that reports an error."""
    return Refusal(code=error.code, text=str(error))


def require_committed(dataset: DatasetId, outcome: Outcome) -> Committed:
    """Return the commit; raises `HeadMoved` or `Refused` for other outcomes."""
    match outcome:
        case Committed():
            return outcome
        case Overtaken(expected=expected, head=head):
            raise HeadMoved(dataset=str(dataset), expected=_text(expected), actual=_text(head))
        case Refusal(code=code, text=text):
            raise Refused(reason=code, text=text)


def retry_on_conflict(change: Callable[[], T]) -> T:
    """Return the result of `change`, which is retried after each `HeadMoved`, up to `MAX_ATTEMPTS` times in total."""
    for _ in range(MAX_ATTEMPTS - 1):
        try:
            return change()
        except HeadMoved:
            continue
    return change()


def _text(head: Multihash | None) -> str | None:
    return None if head is None else str(head)


Read = Callable[[Multihash], bytes]


def is_duplicate(
    read: Read,
    head: Multihash,
    expected: Multihash | None,
    events: Sequence[KnownEvent],
    system_time: Timestamp,
) -> bool:
    """Return whether the blocks directly after `expected` have these events and this system time.

    Reads the blocks from `head` back to `expected`. `expected` may belong to another chain, or may not exist.
    """
    first = _next_number(read, expected)
    if first is None:
        return False
    blocks = _blocks_from(read, head, first)
    if len(blocks) < len(events) or blocks[0].prev_block_hash != expected:
        return False
    # There may be more blocks than events: others were committed on top of the repeated proposal.
    return all(
        block.event == event and block.system_time == system_time
        for block, event in zip(blocks, events, strict=False)
    )


def _next_number(read: Read, expected: Multihash | None) -> int | None:
    """Return the sequence number after that of the block `expected`; None if this block is not stored."""
    if expected is None:
        return 0
    try:
        return decode_block(read(expected)).block.sequence_number + 1
    except (NotFound, InvalidInput):
        return None


def _blocks_from(read: Read, head: Multihash, first: int) -> list[MetadataBlock]:
    """Return the blocks with sequence numbers from `first`, oldest first."""
    blocks = []
    for _, decoded, _ in iterate(read, head):
        if decoded.block.sequence_number < first:
            break
        blocks.append(decoded.block)
    return blocks[::-1]


log = structlog.stdlib.get_logger(__name__)

SETTLE_ATTEMPTS: Final = 5
SETTLE_BACKOFF: Final = Backoff(first=0.01, most=0.2)
SETTLE_SECONDS: Final = 1.0

Listener = Callable[[ChainState], None]
RequireOwned = Callable[[DatasetId], None]
Sign = Callable[[Multihash], bytes]


class Committer:
    """Admits blocks and moves heads."""

    def __init__(  # noqa: PLR0913 - ports and settings
        self,
        *,
        blobs: BlobStore,
        refs: RefStore,
        states: ChainStates,
        locks: Locks,
        require_owned: RequireOwned,
        clock: Clock,
        clock_tolerance_ms: int = CLOCK_TOLERANCE_MS,
        block_version: int = 3,
        lock_ttl_ms: int = 10_000,
        sign: Sign | None = None,
        stalls: Stalls | None = None,
    ) -> None:
        """Write blocks of `block_version`, each with a signature of its hash if `sign` is given.

        `require_owned` raises `NotOwned` for datasets that this node must not commit to.
        """
        self._blobs = blobs
        self._refs = refs
        self._states = states
        self._require_owned = require_owned
        self._clock = clock
        self._clock_tolerance_ms = clock_tolerance_ms
        self._block_version = block_version
        self._sign = sign
        self._stalls = Stalls() if stalls is None else stalls
        self.locks = DatasetLocks(locks, lock_ttl_ms)
        self._listeners: list[Listener] = []
        self._unsettled: dict[tuple[Multihash, str], tuple[ChainState, str]] = {}

    def listen(self, listener: Listener) -> None:
        """Call `listener` with the state at the new head after each commit of this process that moves a head."""
        self._listeners.append(listener)

    def commit(
        self,
        dataset: DatasetId,
        *,
        expected_head: Multihash | None,
        events: Sequence[KnownEvent],
        system_time: Timestamp,
        ref: str = HEAD,
        onto: ChainState | None = None,
    ) -> Outcome:
        """Append events as consecutive blocks and move `ref` once; a repeated commit returns `already=True`.

        The blocks follow the current head, or the block `onto` of the chain. In that case the move drops the blocks
        after `onto`.
        """
        try:
            self._require_owned(dataset)
        except NotOwned as error:
            log.debug("commit refused", dataset_id=str(dataset), ref=ref, code=error.code)
            return refusal_of(error)
        try:
            outcome = self._commit(dataset, expected_head, events, system_time, ref, onto)
        except (Unavailable, Damaged) as error:
            self._stalls.record(
                dataset, Activity.COMMIT, f"commits are waiting: {error}", remedy=remedy_of(error, "")
            )
            raise
        self._stalls.clear(dataset, Activity.COMMIT)
        return outcome

    def _commit(  # noqa: PLR0917 - the arguments of `commit`
        self,
        dataset: DatasetId,
        expected_head: Multihash | None,
        events: Sequence[KnownEvent],
        system_time: Timestamp,
        ref: str,
        onto: ChainState | None,
    ) -> Outcome:
        with self.lock(dataset):
            head = self._refs.head(dataset, ref)
            # Only saves work: the compare-and-set in `move_ref` decides.
            if head != expected_head:
                return self._overtaken(dataset, ref, expected_head, events, system_time)
            try:
                past = onto or (None if head is None else self._state(dataset, ref, head))
                if past is not None:
                    # The state may come from a cache although its block is lost or damaged: a block on top could not be
                    # verified.
                    require_readable_block(self._blobs, dataset, past.head)
                require_past_time(system_time, self.latest_time())
                state = self._write(dataset, past, events, system_time)
            except (ChainRuleViolated, InvalidInput, TimeInFuture) as error:
                rule = error.rule if isinstance(error, ChainRuleViolated) else None
                log.debug("commit refused", dataset_id=str(dataset), ref=ref, code=error.code, rule=rule)
                return refusal_of(error)
            try:
                self.move_ref(dataset, expected=expected_head, state=state, ref=ref)
            except HeadMoved:
                return self._overtaken(dataset, ref, expected_head, events, system_time)
        return Committed(state=state)

    def latest_time(self) -> Timestamp:
        """Return the latest system time that a block may have now."""
        return latest_time(self._clock.now(), self._clock_tolerance_ms)

    def next_system_time(self, past: ChainState) -> Timestamp:
        """Return the system time of the next block. Raises `ClockBehind` if the last block is from the future."""
        return next_system_time(past, self._clock.now(), self._clock_tolerance_ms)

    def require_owned(self, dataset: DatasetId) -> None:
        """Raise `NotOwned` unless this node may commit to the dataset; call it before expensive work."""
        self._require_owned(dataset)

    def move_ref(
        self, dataset: DatasetId, *, expected: Multihash | None, state: ChainState, ref: str = HEAD
    ) -> None:
        """Move a reference to a chain whose blocks and objects are stored and admitted; raises `HeadMoved`.

        No error is raised after the move, because the commit is final then. Listeners are called only for the head.
        """
        try:
            self._refs.compare_and_set(dataset, expected=expected, new=state.head, ref=ref)
        except Unavailable:
            if not self._settle_move(state, ref):
                raise
        self._report_move(state, ref)

    def _report_move(self, state: ChainState, ref: str) -> None:
        log.info(
            "reference moved",
            dataset_id=str(state.dataset_id),
            ref=ref,
            block=str(state.head),
            sequence_number=state.sequence_number,
            last_offset=state.last_offset,
        )
        if ref == HEAD:
            # A cache that cannot be written must not make a commit look failed.
            _call_listener(self._states.remember, state)
            self.announce(state)

    def run(self, stop: threading.Event) -> None:
        """Make moves durable until `stop` is set. No caller retries them, because the chain already has the blocks."""
        while not stop.wait(SETTLE_SECONDS):
            self.settle_moves()

    def settle_moves(self) -> None:
        """Retry the moves that could not be made durable at once, and call the listeners."""
        for state, ref in tuple(self._unsettled.values()):
            self._unsettled.pop((state.head, ref), None)
            if self._settle_move(state, ref):
                self._report_move(state, ref)

    def _settle_move(self, state: ChainState, ref: str) -> bool:
        """Write a reference again if its move failed after its file was replaced; return whether it had been moved.

        The folder is synced last, so the failed move may not be durable, and listeners have not been called. If writing
        fails again, `settle_moves` makes further attempts.
        """
        dataset, new = state.dataset_id, state.head
        for attempt in range(1, SETTLE_ATTEMPTS + 1):
            try:
                if self._refs.head(dataset, ref) != new:
                    return False
                self._refs.compare_and_set(dataset, expected=new, new=new, ref=ref)
            except (HeadMoved, Damaged):
                return False
            except Unavailable as error:
                log.warning("cannot make a move durable", dataset_id=str(dataset), ref=ref, why=str(error))
                time.sleep(SETTLE_BACKOFF.pause(attempt))
            else:
                return True
        self._unsettled[new, ref] = state, ref
        return False

    def remove_ref(self, dataset: DatasetId, ref: str, *, expected: Multihash | None) -> None:
        """Remove a reference; its blocks stay. Raises `HeadMoved` if it is not `expected`; None: remove any value."""
        self._refs.remove(dataset, ref, expected=expected)
        log.info("reference removed", dataset_id=str(dataset), ref=ref)

    def announce(self, state: ChainState) -> None:
        """Call the listeners with the state of a chain at its head or an earlier block; errors are logged."""
        for listener in self._listeners:
            _call_listener(listener, state)

    def lock(self, dataset: DatasetId) -> AbstractContextManager[None]:
        """Lock a dataset, best effort: if an operation outlives the lock, the compare-and-set decides.

        Raises `DatasetBusy` while another operation of this process works on the dataset.
        """
        return self.locks.hold(dataset)

    def _write(
        self,
        dataset: DatasetId,
        past: ChainState | None,
        events: Sequence[KnownEvent],
        system_time: Timestamp,
    ) -> ChainState:
        """Write the blocks of `events` durably and return the state after them."""
        for event in events:
            if isinstance(event, Seed) and event.dataset_id != dataset:
                raise InvalidInput(text=f"the seed of {dataset} names {event.dataset_id}")
            # Before any block is written: a head must never lead to an object that is not stored.
            require_checkpoint(self._blobs, dataset, event)
            require_objects(self._blobs, dataset, event)
        blocks, state = build_blocks(past, events, system_time=system_time, version=self._block_version)
        for block in blocks:
            self._blobs.put(dataset, ObjectKind.BLOCK, block.hash, block.raw)
            if self._sign is not None:
                self._blobs.put(dataset, ObjectKind.SIGNATURE, block.hash, self._sign(block.hash))
        return state

    def _state(self, dataset: DatasetId, ref: str, block: Multihash) -> ChainState:
        # `at` caches what it returns as the head's state, which another reference's must not replace.
        return (self._states.at if ref == HEAD else self._states.state_at)(dataset, block)

    def _overtaken(
        self,
        dataset: DatasetId,
        ref: str,
        expected: Multihash | None,
        events: Sequence[KnownEvent],
        system_time: Timestamp,
    ) -> Committed | Overtaken | Refusal:
        """Return `Committed` if the proposal was committed by an earlier attempt, otherwise `Overtaken`."""
        # Read again: if a compare-and-set has failed, the head is newer than the one that was read before.
        actual = self._refs.head(dataset, ref)
        if actual is None:
            log.debug("commit overtaken", dataset_id=str(dataset), ref=ref, expected=str(expected), head=None)
            return Overtaken(expected=expected, head=None)
        state = self._state(dataset, ref, actual)
        repeated = is_duplicate(
            block_reader(self._blobs, dataset),
            state.head,
            expected,
            events,
            system_time,
        )
        facts = {"dataset_id": str(dataset), "ref": ref, "expected": str(expected), "head": str(actual)}
        if repeated:
            log.debug("commit repeated", **facts)
            # The first attempt may have ended after it moved the head and before it called the listeners.
            if self._settle_move(state, ref) and ref == HEAD:
                self.announce(state)
            return Committed(state=state, already=True)
        log.debug("commit overtaken", **facts)
        return Overtaken(expected=expected, head=state.head)


def _call_listener(listener: Listener, state: ChainState) -> None:
    """Call a listener. Its errors are logged, because they cannot undo the commit."""
    try:
        listener(state)
    except Exception:
        log.exception("listener failed after a commit", dataset_id=str(state.dataset_id))
