from collections.abc import Callable

import pytest
from odf_testing.builders import (
    AChain,
    a_block,
    a_chain,
    a_dataset,
    a_derivative,
    a_hash,
    a_schema,
    a_seed,
    a_step,
    a_transform,
    some_result,
)

from odf_common.chain.build_blocks import build_blocks
from odf_common.chain.compare_chains import BlockIndex, ConsistentBlock, find_consistent_block
from odf_common.chain.dependency_order import in_order
from odf_common.chain.rules import admit
from odf_common.chain.walk import ChainBroken
from odf_common.codec.flatbuffers import BLOCK_KIND, Manifest, block_hash, decode_block, encode_message
from odf_common.errors import NotFound
from odf_common.hashing.multihash import Multihash
from odf_common.identity.dataset_refs import DatasetId
from odf_common.metadata.data_schema import DataTypeOption, DataTypeString
from odf_common.metadata.events import (
    AddData,
    AttachmentsEmbedded,
    DatasetKind,
    DisablePollingSource,
    KnownEvent,
    SetAttachments,
    SetDataSchema,
    SetInfo,
)
from odf_common.metadata.scalars import Timestamp

A = a_dataset("a")
WIDE = a_schema(**{name: DataTypeOption(inner=DataTypeString()) for name in ("city", "country")})


def derived(*blocks: str) -> AChain:
    """A derivative that has read these blocks of A, ten records each."""
    chain = a_derivative(A)
    for number, block in enumerate(blocks):
        read(chain, block, number)
    return chain


def read(chain: AChain, block: str, number: int) -> None:
    chain.add(some_result(chain.state, a_step(chain.state, A, block, number)))


def found(chain: AChain, *kept: str) -> ConsistentBlock | None:
    """Where the chain agrees with an input that still has the blocks `kept`."""
    names = {a_hash(block) for block in kept}

    def holds(dataset: DatasetId, block: Multihash) -> bool:
        assert dataset == A
        return block in names

    return find_consistent_block(chain.read, chain.state.head, holds)


def test_a_chain_whose_inputs_still_have_all_it_has_read_is_consistent_at_its_head() -> None:
    assert found(derived("one", "two"), "two") is None
    assert found(a_derivative(A)) is None


def test_only_the_last_step_is_read_if_that_suffices() -> None:
    chain = derived("one", "two")
    reads: list[Multihash] = []

    def reading(name: Multihash) -> bytes:
        reads.append(name)
        return chain.read(name)

    assert find_consistent_block(reading, chain.state.head, lambda _, block: block == a_hash("two")) is None
    assert len(reads) == 1


def test_transforms_of_lost_blocks_are_rolled_back_to_the_last_consistent_one() -> None:
    chain = derived("one", "two", "three")
    heads = [one.hash for one in chain.blocks]

    assert found(chain, "one") == ConsistentBlock(block=heads[-3], definitions_since=())
    assert found(chain, "one", "two") == ConsistentBlock(block=heads[-2], definitions_since=())


def test_without_any_input_left_the_chain_is_as_before_its_first_records() -> None:
    chain = derived("one", "two")

    assert found(chain) == ConsistentBlock(block=chain.blocks[2].hash, definitions_since=())


def test_one_lost_input_of_two_is_enough() -> None:
    other = a_dataset("b")
    chain = a_derivative(A, other)
    chain.add(
        some_result(chain.state, a_step(chain.state, A, "one", 9), a_step(chain.state, other, "two", 9))
    )
    before = ConsistentBlock(block=chain.blocks[2].hash, definitions_since=())
    for lost in ("one", "two"):
        assert find_consistent_block(chain.read, chain.state.head, all_but(lost)) == before


def all_but(lost: str) -> Callable[[DatasetId, Multihash], bool]:
    return lambda _, block: block != a_hash(lost)


def test_the_seed_is_kept_even_if_all_blocks_are_of_one_commit() -> None:
    past = a_derivative(A).state
    events = (
        a_seed(DatasetKind.Derivative),
        a_transform(A),
        a_schema(),
        some_result(past, a_step(past, A, "one", 9)),
    )
    blocks, state = build_blocks(None, events, system_time=Timestamp.from_ms(1), version=3)
    store = {one.hash: one.raw for one in blocks}

    agreed = find_consistent_block(store.__getitem__, state.head, lambda *_: False)

    assert agreed == ConsistentBlock(block=blocks[0].hash, definitions_since=(a_transform(A),))


def test_definitions_after_a_lost_step_are_rolled_back_and_reported() -> None:
    chain = derived("one", "two")
    before = chain.blocks[-2].hash
    said = SetInfo(description="new")
    chain.add(said)
    read(chain, "three", 2)

    agreed = found(chain, "one")

    assert agreed == ConsistentBlock(block=before, definitions_since=(said,))


def test_definitions_are_reported_oldest_first_and_without_unreadable_ones() -> None:
    chain = derived("one", "two")
    said = (SetInfo(description="first"), SetInfo(description="second"))
    chain.add(*said)
    add_unreadable(chain)
    read(chain, "three", 2)

    agreed = found(chain, "one")

    assert agreed is not None
    assert agreed.definitions_since == said


def add_unreadable(chain: AChain) -> None:
    """Add a definition of a later version, as another node wrote it."""
    first, second = (
        encode_message(a_block(chain.state, event)) for event in (AddData(), DisablePollingSource())
    )
    (tag,) = (at for at, (one, other) in enumerate(zip(first, second, strict=True)) if one != other)
    content = first[:tag] + bytes([99]) + first[tag + 1 :]
    raw = encode_message(Manifest(kind=BLOCK_KIND, version=3, content=content))
    chain.last = admit(chain.state, decode_block(raw).block, block_hash=block_hash(raw), version=3)
    chain.store[block_hash(raw)] = raw


def test_definitions_of_one_commit_stay_where_no_input_was_lost() -> None:
    chain = derived("one")
    said = (SetInfo(description="new"), SetAttachments(attachments=AttachmentsEmbedded(items=())))
    add_in_one_commit(chain, *said)

    assert found(chain, "one") is None


def test_definitions_after_the_last_consistent_step_are_kept() -> None:
    chain = derived("one").add(SetInfo(description="kept"))
    before = chain.state.head
    read(chain, "two", 1)

    assert found(chain, "one") == ConsistentBlock(block=before, definitions_since=())


def test_a_schema_that_came_with_records_is_rolled_back_with_them() -> None:
    chain = derived("one")
    before, system_time = chain.state.head, chain.blocks[-1].block.system_time
    chain = in_one_commit(chain, WIDE, "two")

    agreed = found(chain, "one")

    assert chain.blocks[-1].block.system_time == chain.blocks[-2].block.system_time != system_time
    assert agreed == ConsistentBlock(block=before, definitions_since=())


def test_a_schema_of_an_earlier_commit_is_kept() -> None:
    chain = derived("one").add(WIDE)
    before = chain.state.head
    read(chain, "two", 1)

    assert found(chain, "one") == ConsistentBlock(block=before, definitions_since=())


def in_one_commit(chain: AChain, schema: SetDataSchema, block: str) -> AChain:
    """Add a schema and a transform as the coordinator does: with one timestamp."""

    return add_in_one_commit(chain, schema, some_result(chain.state, a_step(chain.state, A, block, 1)))


def add_in_one_commit(chain: AChain, *events: KnownEvent) -> AChain:
    system_time = Timestamp(chain.state.system_time.ns + 1_000_000_000)
    blocks, chain.last = build_blocks(chain.state, events, system_time=system_time, version=3)
    chain.blocks.extend(blocks)
    chain.store.update({one.hash: one.raw for one in blocks})
    return chain


def test_an_index_has_the_blocks_of_its_chain_and_no_others() -> None:
    chain, other = a_chain().add_data(3), a_chain().add(SetInfo(description="x")).add_data(4)
    every = {**chain.store, **other.store}

    def reading(name: Multihash) -> bytes:
        if name not in every:
            raise NotFound(what=str(name))
        return every[name]

    line = BlockIndex(reading, chain.state.head)

    assert all(line.contains(one.hash) for one in chain.blocks)
    mine = {one.hash for one in chain.blocks}
    assert not any(line.contains(one.hash) for one in other.blocks if one.hash not in mine)
    assert not line.contains(a_hash("nowhere"))


def test_an_index_reads_a_chain_only_as_far_as_requested() -> None:
    chain = a_chain().add_data(5)
    reads: list[Multihash] = []

    def reading(name: Multihash) -> bytes:
        reads.append(name)
        return chain.read(name)

    assert BlockIndex(reading, chain.state.head).contains(chain.blocks[-2].hash)
    assert set(reads) == {chain.blocks[-1].hash, chain.blocks[-2].hash}


def test_a_broken_chain_is_reported_on_each_lookup() -> None:
    chain = a_chain().add_data(5)
    lost = chain.blocks[-3].hash

    def reading(name: Multihash) -> bytes:
        if name == lost:
            raise NotFound(what=str(name))
        return chain.read(name)

    line = BlockIndex(reading, chain.state.head)
    for _ in range(2):
        with pytest.raises(ChainBroken):
            line.contains(chain.blocks[0].hash)
    assert line.contains(chain.blocks[-2].hash)


def test_each_comes_after_what_it_names() -> None:
    assert list(in_order({"c": ["b"], "a": [], "b": ["a"]})) == ["a", "b", "c"]


def test_a_cycle_comes_last_and_terminates() -> None:
    found = list(in_order({"x": ["y"], "y": ["x", "a"], "after": ["x"], "self": ["self"], "a": []}))
    assert found[0] == "a"
    assert sorted(found[1:]) == ["after", "self", "x", "y"]
