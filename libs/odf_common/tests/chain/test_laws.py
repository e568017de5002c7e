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
    some_data,
)
from odf_testing.profiles import examples

from odf_common.chain.build_blocks import ClockBehind, add_data_event, build_blocks, next_system_time
from odf_common.chain.rules import FIRST_RULES, RULES, admit
from odf_common.chain.state import DEFAULT_SOURCE, ChainState
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
from odf_common.metadata.scalars import Timestamp


def test_add_data_keeps_the_later_watermark_and_carries_offsets() -> None:
    state = a_chain().add(AddData(new_watermark=a_time(9))).add_data().state
    event = add_data_event(state, new_data=a_slice(10), watermark=a_time(3), source_state=None)
    assert (event.prev_offset, event.new_watermark) == (9, a_time(9))
    assert admitted(state, event).last_offset == 19


def test_the_next_block_is_later_than_the_last_as_long_as_the_clock_may_be_right() -> None:
    state = a_chain().state
    last, most = state.system_time, 1000
    assert next_system_time(state, Timestamp.from_ms(last.ms + 5), most) == Timestamp.from_ms(last.ms + 5)
    for behind in (0, 1, most - 1):
        now = Timestamp.from_ms(last.ms - behind)
        assert next_system_time(state, now, most) == Timestamp.from_ms(last.ms + 1)
    with pytest.raises(
        ClockBehind, match=f"the last block is from {last}, but the clock of this machine says"
    ):
        next_system_time(state, Timestamp.from_ms(last.ms - most), most)


def test_a_vocabulary_that_renames_columns_of_a_schema_is_remembered_with_the_block_before_it() -> None:
    chain = a_chain(a_seed(), SetVocab(event_time_column="at"), a_push_source())
    assert chain.state.renamed_after is None
    chain.add(a_schema(), SetInfo())
    assert chain.add(SetVocab(event_time_column="at")).state.renamed_after is None, "the same names"
    good = chain.state
    assert chain.add(SetVocab(offset_column="id")).state.renamed_after == good.head
    assert chain.add(SetVocab(event_time_column="at"), SetInfo()).state.renamed_after == good.head
    assert state_from_bytes(state_to_bytes(chain.state)) == chain.state


def test_no_events_make_no_blocks() -> None:
    for past in (None, a_chain().state):
        with pytest.raises(InvalidInput, match="no events"):
            build_blocks(past, [], system_time=a_time(), version=3)


def test_setting_the_watermark_keeps_all_source_states() -> None:
    chain = a_chain().add(a_push_source("b"))
    for value, source in (("1", "default"), ("2", "b")):
        event = add_data_event(
            chain.state, new_data=None, watermark=None, source_state=a_source_state(value, source)
        )
        chain.add(event)
    event = add_data_event(chain.state, new_data=None, watermark=a_time(1), source_state=None)
    assert event.new_source_state == a_source_state("2", "b")
    chain.add(event)
    assert {name: one.value for name, one in chain.state.source_states.items()} == {"default": "1", "b": "2"}


def test_an_event_without_source_state_keeps_the_known_ones() -> None:
    chain = a_chain().add(AddData(new_source_state=a_source_state("1"))).add_data()
    assert chain.state.source_states == {"default": a_source_state("1")}
    assert chain.state.last_source_state is None


def test_a_disabled_source_is_not_carried_over() -> None:
    chain = a_chain().add(
        AddData(new_source_state=a_source_state("1")), DisablePushSource(source_name="default")
    )
    event = add_data_event(chain.state, new_data=None, watermark=a_time(1), source_state=None)
    assert event == AddData(new_watermark=a_time(1))
    chain.add(event)


def test_sources_are_disabled_and_defined_again_one_by_one() -> None:
    disable = [DisablePushSource(source_name=name) for name in ("a", "b")]
    chain = a_chain(a_seed(), a_schema(), a_push_source("a"), a_push_source("b"))
    for event, disabled in (
        (disable[0], {"a"}),
        (disable[1], {"a", "b"}),
        (a_push_source("a"), {"b"}),
        (disable[0], {"a", "b"}),
        (a_polling_source(), {"a", "b"}),
        (DisablePollingSource(), {"a", "b", DEFAULT_SOURCE}),
        (a_polling_source(), {"a", "b"}),
    ):
        assert chain.add(event).state.definitions.disabled_sources == disabled


def test_a_checkpoint_is_dropped_by_an_event_that_does_not_restate_it() -> None:
    chain = a_chain().add(AddData(new_checkpoint=a_checkpoint())).add_data()
    assert chain.state.checkpoint is None
    assert some_data(chain.state).prev_checkpoint is None


def admitted(state: ChainState, event: AddData) -> ChainState:
    return admit(state, a_block(state, event), block_hash=a_hash("x"), version=3)


def test_an_event_replaces_the_one_of_its_kind_and_a_push_source_the_one_of_its_name() -> None:
    info, source = SetInfo(description="first"), a_push_source("a")
    definitions = a_chain().add(info, source).state.definitions
    assert definitions.replaced_by(SetInfo(description="second")) == info
    assert definitions.replaced_by(a_push_source("a", date_format="%Y")) == source
    assert definitions.replaced_by(a_push_source("b")) is None
    assert definitions.replaced_by(SetLicense(short_name="x", name="x", website_url="x")) is None


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
