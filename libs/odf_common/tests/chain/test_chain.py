import tracemalloc
from pathlib import Path

import pytest
from odf_testing.builders import (
    AChain,
    a_block,
    a_chain,
    a_hash,
    a_polling_source,
    a_push_source,
    a_schema,
    a_seed,
    a_time,
)

from odf_common.chain.compare_chains import Ahead, Behind, Diverged, Equal, common_block, compare
from odf_common.chain.walk import ChainBroken, blocks_between, fold, iterate
from odf_common.codec.flatbuffers import block_hash, encode_block
from odf_common.dataset.state_cache import state_from_bytes, state_to_bytes
from odf_common.errors import ChainRuleViolated, NotFound, Unavailable
from odf_common.hashing.multihash import Multihash
from odf_common.metadata.events import AddData, SetInfo

VECTORS = Path(__file__).parents[4] / "tests" / "vectors" / "datasets"


def reading(*chains: AChain) -> "Reader":
    return Reader({name: raw for chain in chains for name, raw in chain.store.items()})


class Reader:
    """A store that records its reads."""

    def __init__(self, store: dict[Multihash, bytes]) -> None:
        self.store = store
        self.asked: list[Multihash] = []

    def __call__(self, name: Multihash) -> bytes:
        self.asked.append(name)
        if name not in self.store:
            raise NotFound(what=f"block {name}")
        return self.store[name]


def branch(chain: AChain, at: int) -> AChain:
    """The first blocks of a chain, as a separate chain."""
    made = AChain(blocks=chain.blocks[:at], store={one.hash: one.raw for one in chain.blocks[:at]})
    made.last = fold(chain.read, chain.blocks[at - 1].hash)
    return made


LONG = a_chain().add_data(1200)
HASHES = [one.hash for one in LONG.blocks]


def test_a_chain_is_iterated_from_the_head_to_the_seed() -> None:
    found = list(iterate(reading(LONG), LONG.state.head))
    assert [name for name, _, _ in found] == HASHES[::-1]
    assert found[0][1].block == LONG.blocks[-1].block
    assert found[0][2] == LONG.blocks[-1].raw


@pytest.mark.parametrize("start", [0, 1, 100, 690, 691, 692, 946, 947, 948, 1202])
def test_a_range_comes_oldest_first_and_without_its_start(start: int) -> None:
    stop = HASHES[start - 1] if start else None
    assert [name for name, _, _ in blocks_between(reading(LONG), HASHES[-1], stop)] == HASHES[start:]


def test_a_short_range_reads_each_block_once() -> None:
    read = reading(LONG)
    list(blocks_between(read, HASHES[-1], HASHES[-20]))
    assert read.asked == HASHES[:-20:-1]


def test_a_range_that_ends_at_its_start_is_empty() -> None:
    assert not list(blocks_between(reading(LONG), HASHES[5], HASHES[5]))


def test_a_range_from_a_foreign_block_is_refused() -> None:
    with pytest.raises(ChainBroken, match="is not in the chain"):
        list(blocks_between(reading(LONG), HASHES[-1], a_hash("foreign")))


def test_a_fold_continues_from_a_known_state() -> None:
    known = fold(LONG.read, HASHES[300])
    assert fold(LONG.read, HASHES[-1], known) == fold(LONG.read, HASHES[-1]) == LONG.state


def test_folding_takes_no_more_memory_for_a_long_chain() -> None:
    def peak(upto: int) -> int:
        tracemalloc.start()
        fold(LONG.read, HASHES[upto])
        used = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return used

    fold(LONG.read, HASHES[-1])
    assert peak(1200) < peak(600) * 1.1


def test_a_missing_block_is_named_with_its_place() -> None:
    store = {name: raw for name, raw in LONG.store.items() if name != HASHES[400]}
    with pytest.raises(ChainBroken) as broken:
        fold(Reader(store), HASHES[-1])
    assert (broken.value.kind, broken.value.block) == ("missing", str(HASHES[400]))
    assert broken.value.sequence_number == 400


@pytest.mark.parametrize("at", [0, 8, 40, -1])
def test_a_damaged_block_is_named_with_its_place(at: int) -> None:
    raw = bytearray(LONG.store[HASHES[7]])
    raw[at] ^= 1
    with pytest.raises(ChainBroken) as broken:
        list(iterate(Reader({**LONG.store, HASHES[7]: bytes(raw)}), HASHES[-1]))
    assert (broken.value.kind, broken.value.block) == ("corrupt", str(HASHES[7]))
    assert broken.value.sequence_number == 7


def test_invalid_bytes_of_a_block_are_named() -> None:
    name = block_hash(b"nonsense")
    for walk in (
        iterate(Reader({name: b"nonsense"}), name),
        blocks_between(Reader({name: b"nonsense"}), name, None),
    ):
        with pytest.raises(ChainBroken) as broken:
            list(walk)
        assert (broken.value.kind, broken.value.block) == ("unreadable", str(name))


def test_a_block_with_a_wrong_number_stops_the_walk() -> None:
    chain = a_chain()
    raw = encode_block(a_block(chain.state, SetInfo(), sequence_number=9))
    head = block_hash(raw)
    read = Reader({**chain.store, head: raw})
    for walk in (iterate(read, head), blocks_between(read, head, None)):
        with pytest.raises(ChainBroken) as broken:
            list(walk)
        assert (broken.value.kind, broken.value.sequence_number) == ("misplaced", 8)


def test_a_chain_that_ends_before_number_zero_is_broken() -> None:
    raw = encode_block(a_block(a_chain().state, SetInfo(), prev_block_hash=None))
    with pytest.raises(ChainBroken, match="has no block as its previous block"):
        list(iterate(Reader({block_hash(raw): raw}), block_hash(raw)))


def test_a_first_block_that_names_one_before_it_is_broken() -> None:
    raw = encode_block(a_block(None, a_seed(), prev_block_hash=HASHES[0]))
    with pytest.raises(ChainBroken, match=f"has {HASHES[0]} as its previous block"):
        list(iterate(Reader({block_hash(raw): raw}), block_hash(raw)))


def test_a_block_that_breaks_a_rule_stops_the_fold() -> None:
    chain = a_chain()
    raw = encode_block(a_block(chain.state, AddData()))
    with pytest.raises(ChainRuleViolated) as refused:
        fold(Reader({**chain.store, block_hash(raw): raw}), block_hash(raw))
    assert refused.value.sequence_number == 3


def test_a_failure_of_the_store_is_not_reported_as_a_broken_chain() -> None:
    def read(name: Multihash) -> bytes:
        raise Unavailable(what="the store")

    with pytest.raises(Unavailable):
        list(iterate(read, HASHES[-1]))


def test_equal_heads_are_equal_without_reading() -> None:
    read = reading(LONG)
    assert compare(read, HASHES[-1], read, HASHES[-1]) == Equal()
    assert not read.asked


@pytest.mark.parametrize("common", [1, 300, 601])
def test_the_longer_chain_is_ahead(common: int) -> None:
    head = HASHES[common]
    assert compare(LONG.read, HASHES[-1], LONG.read, head) == Ahead(blocks=1202 - common)
    assert compare(LONG.read, head, LONG.read, HASHES[-1]) == Behind(blocks=1202 - common)


def test_any_chain_is_ahead_of_an_empty_one() -> None:
    assert compare(LONG.read, HASHES[-1], LONG.read, None) == Ahead(blocks=1203)
    assert compare(LONG.read, None, LONG.read, HASHES[9]) == Behind(blocks=10)


def test_only_the_new_blocks_of_a_remote_that_is_ahead_are_read() -> None:
    theirs = reading(LONG)
    compare(LONG.read, HASHES[-5], theirs, HASHES[-1])
    assert theirs.asked == HASHES[:-5:-1]


def test_only_the_head_of_a_remote_that_is_behind_is_read() -> None:
    theirs = reading(LONG)
    compare(LONG.read, HASHES[-1], theirs, HASHES[-5])
    assert theirs.asked == [HASHES[-5]]


@pytest.mark.parametrize(("ours", "theirs"), [(1, 1), (1, 5), (7, 2)])
def test_diverged_chains_have_their_common_ancestor(ours: int, theirs: int) -> None:
    base = a_chain().add_data(10)
    left = branch(base, 8).add_data(ours, records=1)
    right = branch(base, 8).add_data(theirs, records=2)
    found = compare(reading(left), left.state.head, reading(right), right.state.head)
    assert found == Diverged(ancestor=base.blocks[7].hash, ours=ours, theirs=theirs)


@pytest.mark.parametrize(("ours", "theirs", "common"), [(5, 5, 5), (3, 7, 3), (7, 3, 3), (None, 4, None)])
def test_the_last_block_of_both_chains_is_that_of_the_shorter_one(
    ours: int | None, theirs: int, common: int | None
) -> None:
    left, right = None if ours is None else HASHES[ours], HASHES[theirs]
    relation = compare(LONG.read, left, LONG.read, right)
    assert common_block(relation, left, right) == (None if common is None else HASHES[common])


def test_the_last_block_of_chains_that_diverged_is_their_ancestor() -> None:
    ancestor = a_hash("ancestor")
    relation = Diverged(ancestor=ancestor, ours=1, theirs=2)
    assert common_block(relation, a_hash("ours"), a_hash("theirs")) == ancestor


def test_chains_of_different_datasets_share_nothing() -> None:
    other = a_chain(a_seed(dataset=None), a_schema(), a_push_source("elsewhere"))
    polled = AChain().add(a_seed(dataset=a_chain().state.dataset_id), a_polling_source())
    found = compare(reading(other), other.state.head, reading(polled), polled.state.head)
    assert isinstance(found, Diverged)
    assert found.ancestor == other.blocks[0].hash


@pytest.mark.parametrize(
    "folder", sorted(one for one in VECTORS.iterdir() if one.is_dir()), ids=lambda one: one.name
)
def test_datasets_of_another_implementation_fold(folder: Path) -> None:
    head = Multihash.parse((folder / "refs" / "head").read_text())
    state = fold(lambda name: (folder / "blocks" / str(name)).read_bytes(), head)
    assert state.sequence_number == len(list((folder / "blocks").iterdir())) - 1
    assert state.last_offset == {"cities.population": 9, "polled.weather": 8}[folder.name]
    assert str(state.watermark) == "2026-01-03T00:00:00Z"
    assert state_from_bytes(state_to_bytes(state)) == state


def test_blocks_in_version_2_are_continued_in_version_2() -> None:
    chain = AChain().add(a_seed(), a_push_source(), version=2).add(a_schema(), version=3).add_data()
    assert {decoded.version for _, decoded, _ in iterate(chain.read, chain.state.head)} == {2}
    assert fold(chain.read, chain.state.head) == chain.state


def test_watermarks_are_those_of_the_last_event() -> None:
    chain = a_chain().add(AddData(new_watermark=a_time(1))).add_data(3)
    assert chain.state.watermark == a_time(1)


def test_a_broken_chain_is_reported_with_the_place_if_known() -> None:
    broken = ChainBroken(kind="missing", block="b", sequence_number=7, text="is missing")
    assert str(broken) == "block b, sequence number 7, is missing"
    assert str(broken.with_facts(sequence_number=None)) == "block b is missing"
