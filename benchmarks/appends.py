"""Appending to chains of 100, 1,000 and 10,000 blocks: the coordinator's committer, with the local store and Redis.

The committer runs in this process, as the coordinator wires it; the chains' states are folded before the clock runs,
as in a node that has been running. A cold start is a new committer whose only cache is Redis.
"""

import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import median
from typing import Final

from node_under_test import BenchedNode
from odf_testing.builders import a_chain, a_push_source, a_schema, a_seed, a_source_state
from rows import Row, Target, held_against

from odf_common.adapters.local.catalog import LocalCatalog
from odf_common.adapters.local.stores import LocalBlobStore, LocalRefStore
from odf_common.adapters.redis import RedisConnection, RedisLocks, RedisStateCache
from odf_common.adapters.system_clock import SYSTEM_CLOCK
from odf_common.chain.build_blocks import build_blocks
from odf_common.chain.state import ChainState
from odf_common.dataset.state_cache import ChainStates
from odf_common.hashing.multihash import Multihash, physical_hash_of
from odf_common.identity.dataset_refs import DatasetId
from odf_common.identity.keys import generate
from odf_common.metadata.events import AddData, DataSlice, OffsetInterval
from odf_common.metadata.scalars import Timestamp
from odf_common.ports.store import ObjectKind
from odf_coordinator.catalog.datasets import KeyStore, OwnershipCheck
from odf_coordinator.commit.committer import Committed, Committer

LENGTHS: Final = (100, 1_000, 10_000)
COMMITS: Final = 90
STARTS: Final = 30
WARM: Final = 5  # turns
FLAT: Final = Target(judged="ratio", sense="≤", bound=1.2)
SLICE: Final = b"records" * 1000
POSITION: Final = '{"v":1,"topics":{"odf.push.a.default":{"id":"mVQf5vDnQd6zv1bTKOhmMw","next":{"0":NEXT}}}}'
RECORDS: Final = 10  # per slice


@dataclass(slots=True, kw_only=True)
class Grown:
    """A stored chain and its current state."""

    length: int
    state: ChainState


class Store:
    """A home with chains, and the parts of a coordinator that use it."""

    def __init__(self, home: Path, redis: RedisConnection) -> None:
        """Start with no chains."""
        self.blobs = LocalBlobStore(home)
        self.refs = LocalRefStore(home)
        self._keys = KeyStore(home / "keys")
        self._catalog = LocalCatalog(home)
        self._redis = redis
        self._slice = physical_hash_of(SLICE)

    def committer(self) -> Committer:
        """Return a committer that has just started."""
        states = ChainStates(self.blobs, self.refs, RedisStateCache(self._redis))
        owners = OwnershipCheck(keys=self._keys, catalog=self._catalog)
        return Committer(
            blobs=self.blobs,
            refs=self.refs,
            states=states,
            locks=RedisLocks(self._redis),
            require_owned=owners.require,
            clock=SYSTEM_CLOCK,
        )

    def grow(self, length: int) -> Grown:
        """Store a chain with that many blocks, without fsync, and return it."""
        key = generate()
        self._keys.save(key)
        dataset = key.dataset_id
        chain = a_chain(a_seed(dataset=dataset), a_push_source(), a_schema())
        blocks, state = list(chain.blocks), chain.state
        while len(blocks) < length:
            made, state = build_blocks(state, [self.event(state)], system_time=_next(state), version=3)
            blocks.extend(made)
        self.blobs.put(dataset, ObjectKind.DATA, self._slice, SLICE)
        self.blobs.put(dataset, ObjectKind.BLOCK, blocks[0].hash, blocks[0].raw)
        folder = self.blobs.local_path(dataset, ObjectKind.BLOCK, blocks[0].hash).parent
        for block in blocks[1:]:
            (folder / str(block.hash)).write_bytes(block.raw)
        self.refs.compare_and_set(dataset, expected=None, new=state.head)
        return Grown(length=length, state=state)

    def event(self, past: ChainState) -> AddData:
        """Return the events that a push from a topic appends."""
        interval = OffsetInterval(start=past.next_offset, end=past.next_offset + RECORDS - 1)
        position = POSITION.replace("NEXT", str(interval.end))
        data = DataSlice(
            logical_hash=Multihash.arrow0(self._slice.digest),
            physical_hash=self._slice,
            offset_interval=interval,
            size=len(SLICE),
        )
        return AddData(
            prev_offset=past.last_offset,
            new_data=data,
            new_watermark=_next(past),
            new_source_state=a_source_state(position),
        )

    def append(self, committer: Committer, chain: Grown) -> float:
        """Commit one block; return the duration in seconds."""
        past = chain.state
        event, moment = self.event(past), _next(past)
        dataset: DatasetId = past.dataset_id
        begun = time.perf_counter()
        outcome = committer.commit(dataset, expected_head=past.head, events=[event], system_time=moment)
        seconds = time.perf_counter() - begun
        assert isinstance(outcome, Committed), outcome
        chain.state = outcome.state
        return seconds


def run(node: BenchedNode) -> list[Row]:
    """Return rows per length, warm and after a cold start, each compared with the shortest chain."""
    redis = node.embedded.redis()
    try:
        with tempfile.TemporaryDirectory(prefix="appends-", dir=node.embedded.home) as home:
            return _measured(Store(Path(home), redis))
    finally:
        redis.close()


def _measured(store: Store) -> list[Row]:
    chains = [store.grow(length) for length in LENGTHS]
    os.sync()  # or the first fsyncs would write what was stored without
    committer, order = store.committer(), Random(1)  # noqa: S311 - an order, no secret
    for _ in range(WARM):
        _turn(order, chains, lambda chain: store.append(committer, chain))
    warm = [_turn(order, chains, lambda chain: store.append(committer, chain)) for _ in range(COMMITS)]
    cold = [_turn(order, chains, lambda chain: store.append(store.committer(), chain)) for _ in range(STARTS)]
    return [*_rows("append", warm), *_rows("append after a cold start", cold)]


def _turn(order: Random, chains: list[Grown], append: Callable[[Grown], float]) -> list[float]:
    """Append to each chain once, in random order; return the seconds by length."""
    drawn = order.sample(chains, len(chains))
    seconds = {chain.length: append(chain) for chain in drawn}
    return [seconds[chain.length] for chain in chains]


def _rows(case: str, rounds: list[list[float]]) -> list[Row]:
    times = [1000 * median(column) for column in zip(*rounds, strict=True)]
    peer = (f"{LENGTHS[0]} blocks", times[0])
    return [
        held_against(f"{case}, {length:,} blocks", value, "ms", peer=peer, target=FLAT if at else None)
        for at, (length, value) in enumerate(zip(LENGTHS, times, strict=True))
    ]


def _next(past: ChainState) -> Timestamp:
    return Timestamp.from_ms(past.system_time.ms + 1)
