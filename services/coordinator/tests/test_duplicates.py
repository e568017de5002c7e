"""A repeated proposal is distinguished from a late one by place, events and time."""

import pytest
from odf_testing.builders import BLOCK_VERSION, AChain, a_chain, a_time

from odf_common.chain.build_blocks import build_blocks
from odf_common.errors import NotFound
from odf_common.hashing.multihash import Multihash, physical_hash_of
from odf_common.metadata.events import KnownEvent, SetInfo
from odf_coordinator.commit.committer import is_duplicate

ONE, TWO, THREE = (SetInfo(description=text) for text in ("one", "two", "three"))


@pytest.fixture
def chain() -> AChain:
    """A chain on which `ONE` and `TWO` were committed, and `THREE` after them."""
    return a_chain().add(ONE).add(TWO).add(THREE)


def asked(
    chain: AChain, expected: Multihash | None, *events: KnownEvent, at: int, other: AChain | None = None
) -> bool:
    """Check whether events were committed on `expected`; `at` is the sequence number of their first block."""
    known = chain.store | (other.store if other else {})

    def read(name: Multihash) -> bytes:
        if name not in known:
            raise NotFound(what=str(name))
        return known[name]

    return is_duplicate(read, chain.state.head, expected, events, chain.blocks[at].block.system_time)


def test_a_commit_is_found_under_the_blocks_that_came_after_it(chain: AChain) -> None:
    assert asked(chain, chain.blocks[2].hash, ONE, at=3)
    assert asked(chain, chain.blocks[4].hash, THREE, at=5)


def test_several_events_are_a_repeat_in_their_order_only() -> None:
    chain = a_chain()
    before, now = chain.state.head, a_time(60)
    blocks, state = build_blocks(chain.state, [ONE, TWO, THREE], system_time=now, version=BLOCK_VERSION)
    store = chain.store | {one.hash: one.raw for one in blocks}

    for events in ((ONE,), (ONE, TWO), (ONE, TWO, THREE)):
        assert is_duplicate(store.__getitem__, state.head, before, events, now)
    assert not is_duplicate(store.__getitem__, state.head, before, (TWO, ONE), now)


def test_no_block_before_the_repeated_ones_is_read(chain: AChain) -> None:
    reads: list[Multihash] = []

    def read(name: Multihash) -> bytes:
        reads.append(name)
        return chain.store[name]

    *_, before, first, last = (block.hash for block in chain.blocks)
    assert not is_duplicate(read, last, before, (TWO, THREE), chain.blocks[4].block.system_time)
    assert set(reads) == {before, first, last}


def test_other_events_or_another_time_are_no_repeat(chain: AChain) -> None:
    before = chain.blocks[2].hash
    assert not asked(chain, before, TWO, at=3)
    assert not asked(chain, before, ONE, at=4)
    assert not asked(chain, before, ONE, TWO, at=3)  # one time for both


def test_more_events_than_were_committed_are_no_repeat(chain: AChain) -> None:
    assert not asked(chain, chain.blocks[4].hash, THREE, ONE, at=5)


def test_the_same_event_on_another_block_is_no_repeat() -> None:
    chain = a_chain().add(ONE, TWO)
    other = a_chain().add(THREE)

    assert chain.blocks[4].block.sequence_number == other.state.sequence_number + 1
    assert not asked(chain, other.state.head, TWO, at=4, other=other)
    assert asked(chain, chain.blocks[3].hash, TWO, at=4, other=other)


def test_a_whole_chain_may_be_proposed_again(chain: AChain) -> None:
    seed = chain.blocks[0].block.event
    assert asked(chain, None, seed, at=0)  # type: ignore[arg-type]
    assert chain.blocks[0].block.system_time == a_time()


def test_an_unknown_block_has_no_successors(chain: AChain) -> None:
    assert not asked(chain, physical_hash_of(b"unknown"), ONE, at=3)


@pytest.mark.parametrize("raw", [b"", bytes(64), b"no block"])
def test_what_is_stored_as_a_block_but_is_none_has_no_successors(chain: AChain, raw: bytes) -> None:
    last, expected = chain.blocks[-1], physical_hash_of(raw)
    store = chain.store | {expected: raw}
    assert not is_duplicate(store.__getitem__, last.hash, expected, [THREE], last.block.system_time)
