from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from odf_testing.builders import (
    a_block,
    a_chain,
    a_checkpoint,
    a_dataset,
    a_derivative,
    a_hash,
    a_polling_source,
    a_push_source,
    a_schema,
    a_seed,
    a_slice,
    a_source_state,
    a_time,
    a_transform,
)
from odf_testing.profiles import examples

from odf_common.chain.rules import FIRST_RULES, RULES, admit
from odf_common.chain.state import ChainState
from odf_common.chain.walk import ChainBroken, ReadBlock, fold
from odf_common.codec.flatbuffers import block_hash, encode_block
from odf_common.dataset.state_cache import state_from_bytes, state_to_bytes
from odf_common.errors import ChainRuleViolated, InvalidInput, NotFound
from odf_common.hashing.multihash import Multihash
from odf_common.metadata.events import (
    AddData,
    AttachmentEmbedded,
    AttachmentsEmbedded,
    DatasetKind,
    DisablePollingSource,
    DisablePushSource,
    ExecuteTransform,
    ExecuteTransformInput,
    MetadataBlock,
    MetadataEvent,
    SetAttachments,
    SetInfo,
    SetLicense,
    SetVocab,
    UnknownEvent,
)

NAMES = st.sampled_from(["default", "b", "ü"])
HASHES = st.none() | st.builds(a_hash, st.integers(0, 2))
TIMES = st.none() | st.builds(a_time, st.integers(0, 3))
OFFSETS = st.none() | st.integers(0, 20)
SLICES = st.none() | st.builds(a_slice, st.sampled_from([0, 10, 20]), st.sampled_from([9, 19, 29]))
CHECKPOINTS = st.none() | st.builds(a_checkpoint, st.integers(0, 1))
STATES = st.none() | st.builds(a_source_state, st.sampled_from(["1", "2"]), NAMES)
PREVIOUS_CHECKPOINTS = st.none() | st.builds(lambda n: a_checkpoint(n).physical_hash, st.integers(0, 1))
STEPS = st.builds(
    ExecuteTransformInput,
    dataset_id=st.builds(a_dataset, st.sampled_from(["a", "b"])),
    prev_block_hash=HASHES,
    new_block_hash=HASHES,
    prev_offset=OFFSETS,
    new_offset=OFFSETS,
)
DATA = {
    "prev_checkpoint": PREVIOUS_CHECKPOINTS,
    "prev_offset": st.sampled_from([None, 9, 19]),
    "new_data": SLICES,
    "new_checkpoint": CHECKPOINTS,
    "new_watermark": TIMES,
}
EVENTS: st.SearchStrategy[MetadataEvent] = st.one_of(
    st.builds(AddData, new_source_state=STATES, **DATA),
    st.builds(ExecuteTransform, query_inputs=st.lists(STEPS, max_size=2).map(tuple), **DATA),
    st.builds(a_seed, st.sampled_from(DatasetKind)),
    st.builds(a_push_source, NAMES, date_format=st.sampled_from([None, "yyyy"])),
    st.builds(a_polling_source),
    st.builds(DisablePushSource, source_name=NAMES),
    st.just(DisablePollingSource()),
    st.builds(
        lambda names: a_transform(*map(a_dataset, names)), st.lists(st.sampled_from(["a", "b"]), min_size=1)
    ),
    st.just(a_schema()),
    st.just(SetVocab(event_time_column="at")),
    st.builds(SetInfo, description=st.none() | st.text(), keywords=st.none() | st.tuples(st.text())),
    st.builds(SetLicense, short_name=st.text(), name=st.text(), website_url=st.text()),
    st.just(
        SetAttachments(attachments=AttachmentsEmbedded(items=(AttachmentEmbedded(path="p", content="c"),)))
    ),
    st.builds(UnknownEvent, discriminator=st.integers(0, 20), reason=st.just("unknown")),
)
CHANGES: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.just({}),
    st.fixed_dictionaries({"sequence_number": st.integers(0, 5)}),
    st.fixed_dictionaries({"prev_block_hash": HASHES}),
    st.fixed_dictionaries({"system_time": st.builds(a_time, st.integers(-1, 9))}),
)
STARTS = st.sampled_from([None, a_chain().state, a_derivative(a_dataset("a"), a_dataset("b")).state])


def is_refused(rules: tuple[Callable[..., str | None], ...], *arguments: object) -> bool:
    return any(rule(*arguments) is not None for rule in rules)


@settings(max_examples=examples(200))
@given(start=STARTS, steps=st.lists(st.tuples(EVENTS, CHANGES), max_size=8))
def test_the_fold_accepts_exactly_what_every_rule_accepts(
    start: ChainState | None, steps: list[tuple[MetadataEvent, dict[str, object]]]
) -> None:
    state = start
    for number, (event, changes) in enumerate(steps):
        block = a_block(state, event, **changes)
        refused = is_refused(FIRST_RULES, block) if state is None else is_refused(RULES, state, block)
        try:
            state = admit(state, block, block_hash=a_hash(("head", number)), version=3)
        except ChainRuleViolated:
            assert refused
            continue
        assert not refused
        assert state_from_bytes(state_to_bytes(state)) == state


@given(kind=st.sampled_from(DatasetKind), steps=st.lists(st.tuples(EVENTS, CHANGES), min_size=1, max_size=8))
def test_the_fold_of_stored_blocks_accepts_exactly_what_every_rule_accepts(
    kind: DatasetKind, steps: list[tuple[MetadataEvent, dict[str, object]]]
) -> None:
    stored: dict[Multihash, bytes] = {}

    def store(block: MetadataBlock) -> Multihash:
        raw = encode_block(block)
        stored[block_hash(raw)] = raw
        return block_hash(raw)

    state = fold(read(stored), store(a_block(None, a_seed(kind))))
    for event, changes in steps:
        if isinstance(event, UnknownEvent):
            continue  # cannot be written
        block = a_block(state, event, **changes)
        refused = is_refused(RULES, state, block)
        try:
            head = store(block)
            whole, further = fold(read(stored), head), fold(read(stored), head, state)
        except (ChainRuleViolated, ChainBroken):
            assert refused
            continue
        assert not refused
        assert whole == further
        state = whole


def read(stored: dict[Multihash, bytes]) -> ReadBlock:
    def look_up(name: Multihash) -> bytes:
        if name not in stored:
            raise NotFound(what=str(name))
        return stored[name]

    return look_up


STATE_BYTES = state_to_bytes(a_chain().add_data(2).state)


@given(at=st.integers(0, len(STATE_BYTES) - 1), flip=st.integers(1, 255))
def test_damaged_state_bytes_are_refused(at: int, flip: int) -> None:
    raw = bytearray(STATE_BYTES)
    raw[at] ^= flip
    with pytest.raises(InvalidInput, match="state of a chain"):
        state_from_bytes(bytes(raw))


@given(size=st.integers(0, len(STATE_BYTES) - 1))
def test_state_bytes_that_are_cut_off_are_refused(size: int) -> None:
    with pytest.raises(InvalidInput, match="state of a chain"):
        state_from_bytes(STATE_BYTES[:size])


@given(raw=st.binary(max_size=200))
def test_any_bytes_are_a_state_or_invalid_input(raw: bytes) -> None:
    import zlib

    sealed = STATE_BYTES[:5] + zlib.crc32(raw).to_bytes(4, "little") + raw
    with pytest.raises(InvalidInput, match="outside the buffer"):
        state_from_bytes(sealed)


def test_a_state_of_another_format_version_is_refused() -> None:
    with pytest.raises(InvalidInput, match="this version's format"):
        state_from_bytes(b"odfs\x63" + STATE_BYTES[5:])


def test_a_state_is_small() -> None:
    assert len(STATE_BYTES) < 1000
