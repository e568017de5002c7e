"""Laws that hold for every metadata object: nothing is lost, the stock builder agrees, broken bytes are refused."""

import json
import random
import struct
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import flatbuffers
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from odf_testing.objects import JSON, TEXTS, objects, values
from odf_testing.profiles import examples

from odf_common.chain.walk import BlockHeader
from odf_common.codec import yaml_syntax
from odf_common.codec.flatbuffers import (
    BLOCK_KIND,
    Manifest,
    block_hash,
    decode_block,
    decode_event,
    decode_message,
    encode_block,
    encode_event,
    encode_message,
)
from odf_common.codec.manifests import block_from_text, block_to_yaml, to_plain
from odf_common.codec.model_schema import (
    EVENTS,
    Boolean,
    Bytes,
    EnumShape,
    Integer,
    OneOf,
    Shape,
    TableShape,
    Text,
    TimestampShape,
    Vector,
    fields_of,
)
from odf_common.errors import InvalidInput
from odf_common.hashing.multihash import Multihash
from odf_common.metadata import engine_messages
from odf_common.metadata.data_schema import (
    DataSchema,
    DataTypeBool,
    DataTypeInt32,
    DataTypeList,
    DataTypeMap,
    DataTypeOption,
)
from odf_common.metadata.events import (
    AddData,
    AddPushSource,
    DatasetVocabulary,
    DisablePollingSource,
    DisablePushSource,
    MergeStrategyAppend,
    MetadataBlock,
    ReadStepGeoJson,
    ReadStepParquet,
    Seed,
    SetPollingSource,
    UnknownEvent,
)
from odf_common.metadata.fetching import FetchStepMqtt, MqttQos, MqttTopicSubscription
from odf_common.metadata.scalars import NANOS, Timestamp

LAWS = settings(max_examples=examples(40))
VECTORS = Path(__file__).parents[4] / "tests" / "vectors"
BLOCKS = objects(MetadataBlock)


@LAWS
@given(BLOCKS, some.sampled_from([2, 3]))
def test_block_survives_a_round_trip_through_bytes(block: MetadataBlock, version: int) -> None:
    decoded = decode_block(encode_block(block, version))
    assert decoded.version == version
    assert decoded.block == block


@LAWS
@given(BLOCKS)
def test_block_survives_a_round_trip_through_yaml_and_json(block: MetadataBlock) -> None:
    raw = encode_block(block)
    assert block_from_text(block_to_yaml(raw).encode(), "block") == (block, 3)
    assert block_from_text(json.dumps(to_plain(block)).encode(), "block") == (block, None)
    assert block_from_text(json.dumps(to_plain(block), indent="\t").encode(), "block") == (block, None)


@LAWS
@given(
    some.recursive(
        JSON, lambda inner: some.lists(inner, max_size=3) | some.dictionaries(TEXTS, inner, max_size=3)
    )
)
def test_what_is_written_as_yaml_reads_as_the_same(value: Any) -> None:
    (document,) = yaml_syntax.documents(yaml_syntax.write({"value": value}).encode(), "file")
    assert document.value == {"value": value}


@LAWS
@given(values(EVENTS))
def test_event_alone_survives_a_round_trip(event: Any) -> None:
    assert decode_event(encode_event(event)) == event


MESSAGES: tuple[type, ...] = (
    engine_messages.RawQueryRequest,
    engine_messages.RawQueryResponseRoot,
    engine_messages.TransformRequest,
    engine_messages.TransformResponseRoot,
)


@LAWS
@given(some.sampled_from(MESSAGES).flatmap(objects))
def test_engine_message_survives_a_round_trip(message: Any) -> None:
    (cls,) = (cls for cls in MESSAGES if isinstance(message, cls))
    assert decode_message(cls, encode_message(message)) == message


# --- the stock builder ---------------------------------------------------------------------------------------------


@LAWS
@given(BLOCKS)
def test_stock_builder_gives_the_same_bytes(block: MetadataBlock) -> None:
    assert encode_message(block) == stock(block)


@LAWS
@given(objects(engine_messages.TransformRequest))
def test_stock_builder_gives_the_same_message(message: engine_messages.TransformRequest) -> None:
    assert encode_message(message) == stock(message)


def stock(value: object) -> bytes:
    builder = flatbuffers.Builder(64)
    builder.Finish(stock_table(builder, value))
    return bytes(builder.Output())


def stock_table(builder: Any, value: Any) -> int:
    cls: type = type(value)
    known = fields_of(cls)
    contents = {f.name: getattr(value, f.name) for f in known}
    present = [f for f in known if contents[f.name] is not None]
    children = {f.name: stock_child(builder, f.shape, contents[f.name]) for f in present}
    builder.StartObject(known[-1].slot + 1 if known else 0)
    for f in present:
        content, child = contents[f.name], children[f.name]
        match f.shape:
            case OneOf(members, _):
                builder.PrependUint8Slot(f.slot - 1, members.index(type(content)) + 1, 0)
                builder.PrependUOffsetTRelativeSlot(f.slot, child, 0)
            case Boolean():
                builder.PrependBoolSlot(f.slot, content, None if f.is_optional else False)
            case Integer(width) | EnumShape(_, width):
                name = f"Prepend{'Int' if width.signed else 'Uint'}{8 * width.size}Slot"
                getattr(builder, name)(f.slot, int(content), None if f.is_optional else 0)
            case TimestampShape():
                builder.PrependStructSlot(f.slot, stock_timestamp(builder, content), 0)
            case _:
                builder.PrependUOffsetTRelativeSlot(f.slot, child, 0)
    return int(builder.EndObject())


def stock_child(builder: Any, shape: Shape, content: Any) -> int:
    match shape:
        case Text():
            return int(builder.CreateString(content))
        case Bytes(of):
            return int(builder.CreateByteVector(content if of is bytes else content.raw))
        case TableShape() | OneOf():
            return stock_table(builder, content)
        case Vector(of):
            items = [stock_item(builder, of, item) for item in content]
            builder.StartVector(4, len(items), 4)
            for item in reversed(items):
                builder.PrependUOffsetTRelative(item)
            return int(builder.EndVector())
        case _:
            return 0


def stock_item(builder: Any, shape: Shape, item: Any) -> int:
    position = stock_child(builder, shape, item)
    if not isinstance(shape, OneOf):
        return position
    builder.StartObject(2)
    builder.PrependUint8Slot(0, shape.members.index(type(item)) + 1, 0)
    builder.PrependUOffsetTRelativeSlot(1, position, 0)
    return int(builder.EndObject())


def stock_timestamp(builder: Any, timestamp: Timestamp) -> int:
    seconds, nanos = divmod(timestamp.ns, 1_000_000_000)
    day = Timestamp(seconds // 86_400 * 86_400 * 1_000_000_000).datetime()
    builder.Prep(4, 16)
    builder.PrependUint32(nanos)
    builder.PrependUint32(seconds % 86_400)
    builder.Pad(2)
    builder.PrependUint16(day.timetuple().tm_yday)
    builder.PrependInt32(day.year)
    return int(builder.Offset())


# --- hostile bytes -------------------------------------------------------------------------------------------------


@settings(max_examples=examples(300))
@given(some.binary(max_size=200))
def test_any_bytes_are_refused_or_decoded(raw: bytes) -> None:
    survives(raw)


def test_damaged_blocks_are_refused_or_decoded() -> None:
    rolls = random.Random(7)
    originals = [file.read_bytes() for file in sorted(VECTORS.glob("datasets/*/blocks/*"))]
    for _ in range(3000):
        raw = bytearray(rolls.choice(originals))
        for _ in range(rolls.choice([1, 1, 2, 4])):
            at = rolls.randrange(len(raw))
            if rolls.random() < 0.3:
                del raw[at:]
                break
            raw[at] = rolls.choice([0, 1, 0x7F, 0x80, 0xFF, rolls.randrange(256)])
        survives(bytes(raw))


def survives(raw: bytes) -> None:
    """Any accepted block can be shown and hashed, too."""
    try:
        decode_block(raw)
    except InvalidInput:
        return
    block_to_yaml(raw)
    block_hash(raw)


@pytest.mark.parametrize("cut", range(0, 160, 7))
def test_cut_block_is_refused(cut: int) -> None:
    raw = encode_block(MetadataBlock(system_time=Timestamp(0), sequence_number=1, event=AddData()))
    with pytest.raises(InvalidInput, match=r"outside the buffer|exceeds the buffer"):
        decode_block(raw[: min(cut, len(raw) - 1)])


def test_deeply_nested_types_are_refused() -> None:
    nested: Any = DataTypeInt32()
    for _ in range(100):
        nested = DataTypeOption(inner=nested)
    with pytest.raises(InvalidInput, match="nested deeper"):
        decode_message(DataTypeOption, encode_message(nested))


def test_types_that_double_at_every_level_are_refused_quickly() -> None:
    vtables = struct.pack("<8H", 12, 16, 12, 4, 13, 8, 4, 4)
    levels = [struct.pack("<iIIBBxx", 16 + 16 * level, 12, 8, 18, 18) for level in range(50)]
    last = struct.pack("<iIIBBxxi", 16 + 16 * 50, 12, 8, 2, 2, 20 + 16 * 51 - 16)
    raw = struct.pack("<I", 20) + vtables + b"".join(levels) + last
    with pytest.raises(InvalidInput, match="too many references"):
        decode_message(DataTypeMap, raw)


def test_vector_that_repeats_one_long_string_is_refused_quickly() -> None:
    text = struct.pack("<I", 20_000) + b"x" * 20_000 + b"\0" * 4
    count = 5_000
    entries = b"".join(struct.pack("<I", 4 * (count - n)) for n in range(count))
    vector = struct.pack("<I", count) + entries
    raw = struct.pack("<IHHHHiI", 12, 8, 8, 4, 0, 8, 4) + vector + text
    with pytest.raises(InvalidInput, match="too many references"):
        decode_message(engine_messages.RawQueryRequest, raw)


YEAR_2020 = struct.pack("<iHHII", 2020, 1, 0, 0, 0)


def watermark_at(time: bytes) -> Timestamp:
    start = Timestamp.parse("2020-01-01T00:00:00Z")
    raw = encode_message(engine_messages.Watermark(system_time=Timestamp(0), event_time=start))
    return decode_message(engine_messages.Watermark, raw.replace(YEAR_2020, time)).event_time


@pytest.mark.parametrize(
    "time",
    [
        (0, 1, 0, 0),
        (10000, 1, 0, 0),
        (-1, 1, 0, 0),
        (2019, 366, 0, 0),
        (2020, 0, 0, 0),
        (2020, 367, 0, 0),
        (9999, 366, 0, 0),
        (2020, 1, 86400, 0),
        (2020, 1, 0, 2000000000),
        (2020, 1, 4294967295, 0),
    ],
)
def test_time_that_does_not_exist_is_refused(time: tuple[int, int, int, int]) -> None:
    year, ordinal, seconds, nanos = time
    with pytest.raises(InvalidInput, match=r"does not exist|is not a time"):
        watermark_at(struct.pack("<iHHII", year, ordinal, 0, seconds, nanos))


def test_leap_second_is_the_next_second() -> None:
    time = watermark_at(struct.pack("<iHHII", 2016, 366, 0, 86_399, 1_500_000_000))
    assert str(time) == "2017-01-01T00:00:00.500Z"


def test_vocabulary_without_names_has_the_default_ones() -> None:
    assert decode_message(DatasetVocabulary, encode_message(AddData())) == DatasetVocabulary()


def test_vector_longer_than_the_buffer_is_refused() -> None:
    raw = struct.pack("<IHHHHiII", 12, 6, 8, 4, 0, 8, 4, 0xFFFFFFFF)
    with pytest.raises(InvalidInput, match="vector exceeds"):
        decode_message(engine_messages.RawQueryRequest, raw)


# --- what later versions may add -----------------------------------------------------------------------------------


def with_other_byte(one: bytes, other: bytes, value: int) -> bytes:
    """Return `one` with `value` where it differs from `other`, which is a single place."""
    (at,) = (n for n, (left, right) in enumerate(zip(one, other, strict=True)) if left != right)
    return one[:at] + bytes([value]) + one[at + 1 :]


def test_event_of_unknown_kind_is_kept_as_unknown() -> None:
    raw = with_other_byte(encode_event(AddData()), encode_event(DisablePollingSource()), 99)
    event = decode_event(raw)
    assert event == UnknownEvent(
        discriminator=99, reason="MetadataEvent 99 is not known to this version", raw=raw
    )
    assert encode_event(event) == raw


def test_event_with_an_unknown_member_inside_is_kept_as_unknown() -> None:
    geo, parquet = (
        encode_event(AddPushSource(source_name="s", read=read, merge=MergeStrategyAppend()))
        for read in (ReadStepGeoJson(), ReadStepParquet())
    )
    raw = with_other_byte(geo, parquet, 200)
    reason = "ReadStep 200 is not known to this version"
    assert decode_event(raw) == UnknownEvent(discriminator=11, reason=reason, raw=raw)


def test_event_with_an_unknown_choice_inside_is_kept_as_unknown() -> None:
    at_least, exactly = (
        encode_event(
            SetPollingSource(
                fetch=FetchStepMqtt(host="h", port=1, topics=(MqttTopicSubscription(path="a", qos=qos),)),
                read=ReadStepParquet(),
                merge=MergeStrategyAppend(),
            )
        )
        for qos in (MqttQos.AtLeastOnce, MqttQos.ExactlyOnce)
    )
    raw = with_other_byte(at_least, exactly, 9)
    reason = "MqttQos 9 is not known to this version"
    assert decode_event(raw) == UnknownEvent(discriminator=4, reason=reason, raw=raw)


def test_block_with_an_unknown_event_can_be_shown_and_copied() -> None:
    empty, other = (
        encode_message(MetadataBlock(system_time=Timestamp(0), sequence_number=1, event=event))
        for event in (AddData(), DisablePollingSource())
    )
    content = with_other_byte(empty, other, 99)
    raw = encode_message(Manifest(kind=BLOCK_KIND, version=3, content=content))
    shown = block_to_yaml(raw)
    assert "kind: Unknown" in shown
    block, version = block_from_text(shown.encode(), "shown.yaml")
    assert encode_block(block, version or 3) == raw
    with pytest.raises(InvalidInput, match="only copied"):
        encode_block(replace(block, sequence_number=2))
    with pytest.raises(InvalidInput, match="not base64"):
        block_from_text(shown.replace("raw: ", "raw: '!'  # ").encode(), "shown.yaml")


def test_message_with_an_unknown_member_is_refused() -> None:
    one, other = (encode_message(DataTypeList(item_type=item)) for item in (DataTypeInt32(), DataTypeBool()))
    with pytest.raises(InvalidInput, match="DataType 200 is not known"):
        decode_message(DataTypeList, with_other_byte(one, other, 200))


def test_unknown_event_cannot_be_written() -> None:
    event = UnknownEvent(discriminator=99, reason="new")
    with pytest.raises(InvalidInput, match="cannot be encoded"):
        encode_block(MetadataBlock(system_time=Timestamp(0), sequence_number=1, event=event))


def test_number_that_does_not_fit_is_refused() -> None:
    with pytest.raises(InvalidInput, match="does not fit"):
        encode_event(AddData(prev_offset=1 << 64))


@pytest.mark.parametrize(("version", "kind"), [(1, 0x400000), (4, 0x400000), (3, 0x400001)])
def test_manifest_of_another_version_or_kind_is_refused(version: int, kind: int) -> None:
    with pytest.raises(InvalidInput, match=r"not supported|expected kind"):
        decode_block(encode_message(Manifest(kind=kind, version=version, content=b"")))


@pytest.mark.parametrize("version", [1, 4])
def test_no_block_of_another_version_is_written(version: int) -> None:
    block = MetadataBlock(system_time=Timestamp(0), sequence_number=1, event=AddData())
    with pytest.raises(InvalidInput, match="not supported"):
        encode_block(block, version)


def test_a_table_without_its_required_fields_is_refused() -> None:
    with pytest.raises(InvalidInput, match="Seed has no dataset_id"):
        decode_message(Seed, encode_message(AddData()))
    header = BlockHeader(system_time=Timestamp(0), sequence_number=0)
    with pytest.raises(InvalidInput, match="MetadataBlock has no event"):
        decode_message(MetadataBlock, encode_message(header))


@pytest.mark.parametrize("damaged", [b"\x16\x1f", b"\x16\x21", b"\x16\xa0"])
def test_a_hash_whose_length_differs_from_its_prefix_is_refused(damaged: bytes) -> None:
    header = BlockHeader(
        system_time=Timestamp(0), prev_block_hash=Multihash.sha3(bytes(32)), sequence_number=1
    )
    raw = encode_message(header)
    assert raw.count(b"\x16\x20") == 1
    with pytest.raises(InvalidInput, match="not a multihash"):
        decode_message(BlockHeader, raw.replace(b"\x16\x20", damaged))


def test_times_from_year_1_to_9999_are_written_and_no_others() -> None:
    first, last = -62_135_596_800 * NANOS, 253_402_300_800 * NANOS - 1
    for time in (first, last):
        event = AddData(new_watermark=Timestamp(time))
        assert decode_event(encode_event(event)) == event
    for time in (first - 1, last + 1):
        with pytest.raises(InvalidInput, match="outside the years 1 to 9999"):
            encode_event(AddData(new_watermark=Timestamp(time)))


def test_a_leap_second_after_the_year_9999_is_not_read_since_no_block_could_carry_it_on() -> None:
    last = Timestamp(253_402_300_800 * NANOS - 1)
    raw = encode_event(AddData(new_watermark=last))
    assert raw.count(struct.pack("<I", NANOS - 1)) == 1
    with pytest.raises(InvalidInput, match="outside the years 1 to 9999"):
        decode_event(raw.replace(struct.pack("<I", NANOS - 1), struct.pack("<I", NANOS)))


def test_a_string_that_is_not_unicode_is_not_written() -> None:
    with pytest.raises(InvalidInput, match="half a surrogate pair"):
        encode_event(DisablePushSource(source_name="\ud800"))


def test_schemas_share_no_state_between_threads() -> None:
    with ThreadPoolExecutor(4) as pool:
        found = set(pool.map(lambda _: encode_message(DataSchema(fields=())), range(50)))
    assert len(found) == 1
