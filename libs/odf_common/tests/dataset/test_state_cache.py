from dataclasses import dataclass, field, replace

import pytest
from odf_testing.builders import AChain, a_chain, a_dataset, a_seed
from odf_testing.contracts import StateCacheContract
from odf_testing.guarded import GuardedDict
from odf_testing.memory_store import MemoryBlobStore, MemoryRefStore
from structlog.testing import capture_logs

from odf_common.chain.state import ChainState, Definitions
from odf_common.dataset.state_cache import READS_PER_ADMISSION, ChainStates, NoStateCache, state_to_bytes
from odf_common.errors import NotFound, Unavailable, VerificationFailed
from odf_common.hashing.multihash import Multihash
from odf_common.identity.dataset_refs import DatasetId
from odf_common.metadata.events import SetInfo
from odf_common.ports.store import ObjectKind


@dataclass
class DictCache:
    held: dict[DatasetId, bytes] = field(default_factory=dict)

    def get(self, dataset: DatasetId) -> bytes | None:
        return self.held.get(dataset)

    def put(self, dataset: DatasetId, state: bytes) -> None:
        self.held[dataset] = state

    def forget(self, dataset: DatasetId) -> None:
        self.held.pop(dataset, None)


class TestDictCache(StateCacheContract):
    @pytest.fixture
    def cache(self) -> DictCache:
        return DictCache()


class CountingStore(MemoryBlobStore):
    """Counts the blocks that are read."""

    reads = 0

    def read(self, dataset: DatasetId, kind: ObjectKind, name: Multihash) -> bytes:
        self.reads += 1
        return super().read(dataset, kind, name)


@dataclass
class World:
    chain: AChain
    blobs: CountingStore
    refs: MemoryRefStore
    cache: DictCache

    @property
    def dataset(self) -> DatasetId:
        return self.chain.state.dataset_id

    def states(self) -> ChainStates:
        self.blobs.reads = 0
        return ChainStates(self.blobs, self.refs, self.cache)

    def store(self) -> None:
        """Put all blocks, and move the head."""
        for block in self.chain.blocks:
            self.blobs.put(self.dataset, ObjectKind.BLOCK, block.hash, block.raw)
        self.refs.compare_and_set(
            self.dataset, expected=self.refs.head(self.dataset), new=self.chain.state.head
        )


@pytest.fixture
def world() -> World:
    made = World(a_chain().add_data(5), CountingStore(), MemoryRefStore(), DictCache())
    made.store()
    return made


def test_a_state_is_folded_from_the_blocks(world: World) -> None:
    assert world.states().current(world.dataset) == world.chain.state


def test_a_dataset_without_blocks_has_no_state(world: World) -> None:
    assert world.states().current(DatasetId.of_key(b"\1" * 32)) is None


def test_a_known_state_reads_no_block(world: World) -> None:
    states = world.states()
    states.current(world.dataset)
    world.blobs.reads = 0
    assert states.current(world.dataset) == world.chain.state
    assert world.blobs.reads == 0


def test_after_a_restart_only_new_blocks_are_read(world: World) -> None:
    world.states().current(world.dataset)
    world.chain.add_data(2)
    world.store()
    states = world.states()
    with capture_logs() as logs:
        assert states.current(world.dataset) == world.chain.state
    assert world.blobs.reads == 2
    assert [(one["event"], one["blocks"]) for one in logs] == [("chain folded", 2)]


def test_a_folded_state_is_cached_across_a_restart_even_after_an_older_one(world: World) -> None:
    world.states().current(world.dataset)
    world.chain.add_data(2)
    world.store()
    world.states().current(world.dataset)

    assert world.states().current(world.dataset) == world.chain.state
    assert world.blobs.reads == 0


def test_of_two_known_states_the_newer_one_is_continued(world: World) -> None:
    states = world.states()
    states.current(world.dataset)
    world.chain.add_data(3)
    world.store()
    ChainStates(world.blobs, world.refs, world.cache).current(world.dataset)  # another process has read it
    world.chain.add_data()
    world.store()
    world.blobs.reads = 0

    assert states.current(world.dataset) == world.chain.state
    assert world.blobs.reads == 1


def test_an_older_head_is_folded_again(world: World) -> None:
    states = world.states()
    states.current(world.dataset)
    older = world.chain.blocks[-3]
    assert states.at(world.dataset, older.hash).head == older.hash


def test_cached_states_are_current(world: World) -> None:
    states = world.states()
    world.chain.add_data()
    world.store()
    states.remember(world.chain.state)
    assert states.current(world.dataset) == world.chain.state
    assert world.blobs.reads == 0
    assert world.states().current(world.dataset) == world.chain.state
    assert world.blobs.reads == 0


def test_a_damaged_cache_is_only_slow(world: World) -> None:
    world.cache.held[world.dataset] = b"nonsense"
    assert world.states().current(world.dataset) == world.chain.state


def test_without_a_cache_it_works_the_same(world: World) -> None:
    states = ChainStates(world.blobs, world.refs, NoStateCache())
    assert states.current(world.dataset) == world.chain.state
    states.forget(world.dataset)
    assert states.current(world.dataset) == world.chain.state


def test_a_block_that_does_not_match_its_name_is_refused(world: World) -> None:
    world.blobs.delete_dataset(world.dataset)
    for block in world.chain.blocks:
        damaged = block.raw + b"\0" if block is world.chain.blocks[2] else block.raw
        world.blobs.put(world.dataset, ObjectKind.BLOCK, block.hash, damaged)
    with pytest.raises(VerificationFailed):
        world.states().current(world.dataset)


def test_a_missing_block_is_not_found(world: World) -> None:
    world.blobs.delete_dataset(world.dataset)
    with pytest.raises(NotFound):
        world.states().at(world.dataset, world.chain.state.head)


def test_the_cache_forgets_the_state_of_a_deleted_dataset_too(world: World) -> None:
    states = world.states()
    states.remember(world.chain.state)
    assert world.cache.get(world.dataset) is not None
    states.forget(world.dataset)
    assert world.cache.get(world.dataset) is None
    assert len(states) == 0


def stored_seeds(number: int) -> tuple[CountingStore, MemoryRefStore, list[ChainState]]:
    """Return stores with that many datasets of one block each, and their states."""
    blobs, refs = CountingStore(), MemoryRefStore()
    chains = [a_chain(a_seed(dataset=a_dataset(one))) for one in range(number)]
    for chain in chains:
        (block,) = chain.blocks
        blobs.put(chain.state.dataset_id, ObjectKind.BLOCK, block.hash, block.raw)
        refs.compare_and_set(chain.state.dataset_id, expected=None, new=block.hash)
    return blobs, refs, [chain.state for chain in chains]


def test_of_committed_states_the_one_that_was_longest_unused_is_dropped() -> None:
    blobs, refs, (one, two, three) = stored_seeds(3)
    states = ChainStates(blobs, refs, NoStateCache(), capacity=2)
    for state in (one, two, one, three):
        states.remember(state)

    for state in (one, three):
        assert states.current(state.dataset_id) == state
    assert (blobs.reads, len(states)) == (0, 2)
    states.current(two.dataset_id)
    assert blobs.reads > 0


def test_a_scan_over_more_datasets_than_the_cache_holds_still_has_mostly_hits() -> None:
    blobs, refs, stored = stored_seeds(120)
    states = ChainStates(blobs, refs, NoStateCache(), capacity=100)

    for _ in range(3):
        blobs.reads = 0
        for state in stored:
            states.current(state.dataset_id)

    assert blobs.reads < 40
    assert len(states) == 100


def test_of_states_that_are_only_read_each_sixteenth_replaces_the_oldest() -> None:
    blobs, refs, (committed, *stored) = stored_seeds(1 + 2 * READS_PER_ADMISSION)
    states = ChainStates(blobs, refs, NoStateCache(), capacity=1)
    states.remember(committed)

    is_kept = []
    for state in stored:
        states.current(state.dataset_id)
        is_kept.append(state.dataset_id in states._states)

    assert is_kept == [*[False] * (READS_PER_ADMISSION - 1), True] * 2


def test_states_take_a_limited_number_of_bytes_and_a_large_one_is_folded_again() -> None:
    blobs, refs, (one, two, large, *others) = stored_seeds(20)
    large = replace(large, definitions=Definitions(info=SetInfo(description="x" * 2000)))
    states = ChainStates(blobs, refs, NoStateCache(), capacity_bytes=16 * 1000)
    for _ in range(3):
        for state in (one, two, large):
            states.remember(state)

    assert (len(states), states._bytes) == (2, len(state_to_bytes(one)) + len(state_to_bytes(two)))
    assert states.current(large.dataset_id) != large, "it is folded"

    states = ChainStates(blobs, refs, NoStateCache(), capacity_bytes=16 * 1000)
    described = [
        replace(state, definitions=Definitions(info=SetInfo(description="x" * 700))) for state in others
    ]
    for state in described:
        states.remember(state)
    assert 15 * 1000 < states._bytes <= 16 * 1000
    assert len(states) == states._bytes // len(state_to_bytes(described[0]))
    states.forget(described[-1].dataset_id)
    assert states._bytes == len(states) * len(state_to_bytes(described[0]))
    assert states.current(described[-2].dataset_id) == described[-2], "the newest are kept"


class FailingCache(DictCache):
    """Cannot be written to."""

    def put(self, dataset: DatasetId, state: bytes) -> None:
        raise Unavailable(what="the cache")


def test_a_state_that_the_cache_could_not_store_is_known_in_this_process(world: World) -> None:
    world.cache = FailingCache()
    states = world.states()

    with pytest.raises(Unavailable):
        states.remember(world.chain.state)

    assert states.current(world.dataset) == world.chain.state
    assert world.blobs.reads == 0


def test_states_are_looked_up_kept_and_dropped_by_one_thread_at_a_time(world: World) -> None:
    states = world.states()
    states._states = GuardedDict(states._lock)

    assert states.current(world.dataset) == world.chain.state
    assert states.state_at(world.dataset, world.chain.state.head) == world.chain.state
    states.forget(world.dataset)

    assert len(states) == 0


def test_the_state_at_an_earlier_block_is_folded_and_not_kept(world: World) -> None:
    first, *_, last = world.chain.blocks
    states = world.states()
    assert states.state_at(world.dataset, first.hash).head == first.hash
    assert len(states) == 0
    assert states.at(world.dataset, last.hash) == world.chain.state
    world.blobs.reads = 0
    assert states.state_at(world.dataset, last.hash) == world.chain.state
    assert world.blobs.reads == 0
    assert states.state_at(world.dataset, first.hash).head == first.hash


@dataclass
class AskedCache(DictCache):
    """Records its calls."""

    asked: list[str] = field(default_factory=list)

    def get(self, dataset: DatasetId) -> bytes | None:
        self.asked.append("get")
        return super().get(dataset)

    def put(self, dataset: DatasetId, state: bytes) -> None:
        self.asked.append("put")
        super().put(dataset, state)


def test_the_cache_is_read_once_per_process_and_filled_with_missing_states(world: World) -> None:
    world.cache = cache = AskedCache()
    for expected in (["get", "put"], ["get"]):
        cache.asked.clear()
        states = world.states()
        for _ in range(2):
            states.current(world.dataset)
            states.state_at(world.dataset, world.chain.state.head)
        assert cache.asked == expected
