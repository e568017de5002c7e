"""Deeply nested or very large input is refused with a clear error everywhere; what is written can be read."""

import json
import struct
import time
import tracemalloc
from dataclasses import is_dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from odf_testing.objects import objects
from odf_testing.profiles import examples

from odf_common.chain.state import event_tag
from odf_common.codec.flatbuffers import (
    decode_block,
    decode_event,
    decode_message,
    encode_block,
    encode_event,
    encode_message,
    writer,
)
from odf_common.codec.flatbuffers.untrusted_buffer import Source
from odf_common.codec.manifests import block_from_text, block_to_yaml, event_from_text, to_plain, to_yaml
from odf_common.codec.model_schema import EVENTS, MAX_TABLE_DEPTH, fields_of
from odf_common.codec.yaml_syntax import documents
from odf_common.errors import InvalidInput
from odf_common.metadata import data_schema, engine_messages, events, fetching
from odf_common.metadata.data_schema import DataField, DataSchema, DataTypeInt32, DataTypeOption
from odf_common.metadata.engine_messages import RawQueryRequest
from odf_common.metadata.events import (
    AddData,
    AttachmentsEmbedded,
    DisablePollingSource,
    MetadataBlock,
    SetDataSchema,
    TransformSql,
)
from odf_common.metadata.scalars import ExtraAttributes, Timestamp

AROUND = 4  # tables around a column's type: wrapper, event, schema, field
DEEPEST = MAX_TABLE_DEPTH - AROUND - 1  # options around a plain type


def nested(depth: int, *, plain: int = 0) -> SetDataSchema:
    """Return a schema whose last column has this depth, after that many plain ones."""
    inner: Any = DataTypeInt32()
    for _ in range(depth):
        inner = DataTypeOption(inner=inner)
    fields = [DataField(name=f"c{number}", type=DataTypeInt32()) for number in range(plain)]
    return SetDataSchema(schema=DataSchema(fields=(*fields, DataField(name="a", type=inner))))


def test_the_deepest_types_survive_a_round_trip() -> None:
    event = nested(DEEPEST, plain=3)
    assert decode_event(encode_event(event)) == event
    assert event_from_text(to_yaml(event).encode(), "file") == event


@pytest.mark.parametrize("depth", [DEEPEST + 1, 150])
def test_types_that_no_version_could_read_again_are_not_written(depth: int) -> None:
    with pytest.raises(InvalidInput, match="nested deeper than 64"):
        encode_event(nested(depth))


@pytest.mark.parametrize("plain", [0, 3])
def test_deeper_nesting_of_other_implementations_is_refused(
    monkeypatch: pytest.MonkeyPatch, plain: int
) -> None:
    monkeypatch.setattr(writer, "MAX_TABLE_DEPTH", 1000)
    raw = encode_event(nested(DEEPEST + 1, plain=plain))
    with pytest.raises(InvalidInput, match="nested deeper than 64"):
        decode_event(raw)


def test_a_failed_write_leaves_no_state() -> None:
    with pytest.raises(InvalidInput, match="nested deeper than 64"):
        encode_message(nested(150))
    test_the_deepest_types_survive_a_round_trip()


@pytest.mark.parametrize(
    "entries", ['{"a":' * 400 + "1" + "}" * 400, '{"a":NaN}', '{"a":1e999}', '{"a":1,"a":2}', "["]
)
def test_attributes_of_a_block_that_are_not_our_json_are_shown_as_strings(entries: str) -> None:
    event = SetDataSchema(schema=DataSchema(fields=(), extra=ExtraAttributes(entries)))
    raw = encode_block(MetadataBlock(system_time=Timestamp(0), sequence_number=1, event=event))
    (document,) = documents(block_to_yaml(raw).encode(), "file")
    assert document.value["content"]["event"]["schema"]["extra"] == entries


@pytest.mark.parametrize(
    ("opening", "inner", "closing", "times"),
    [
        ("[", "", "]", 200),
        ("[", "1", "]", 200),
        ('{"a": ', "1", "}", 200),
        ('[{"a": ', "1", "}]", 100),
        ("- ", "a", "", 200),
        ("- ", "[]", "", 199),
        ("- ", "{a: b}", "", 199),
        ("{a: ", "b", "}", 200),
    ],
)
def test_lists_and_mappings_may_be_nested_200_deep_in_json_as_in_yaml(
    opening: str, inner: str, closing: str, times: int
) -> None:
    text = opening * times + inner + closing * times
    (document,) = documents(text.encode(), "file")
    assert json.dumps(document.value).count("[") + json.dumps(document.value).count("{") == 200
    with pytest.raises(InvalidInput, match="nested deeper than 200"):
        documents(f"[{text}]".encode() if closing else f"- {text}".encode(), "file")


@pytest.mark.parametrize("text", [b'{"a": [1.5, 2]}', b"a: [1.5, 2]"])
def test_numbers_are_read_from_json_as_from_yaml(text: bytes) -> None:
    (document,) = documents(text, "file")
    assert document.value == {"a": [1.5, 2]}


def test_refused_json_that_is_no_yaml_has_its_reason() -> None:
    with pytest.raises(InvalidInput, match="NaN is not JSON"):
        documents(b'{"a": "\\ud83d\\ude80", "b": NaN}', "file")


@pytest.mark.parametrize("text", [b"null", b"---\nnull\n---\n"])
def test_an_empty_document_is_none(text: bytes) -> None:
    assert documents(text, "file") == ()


def test_a_number_that_no_json_can_hold_is_refused() -> None:
    with pytest.raises(InvalidInput, match="number 1e999 is too large"):
        documents(b'{"a": 1e999}', "file")


def test_many_keys_with_a_duplicate_at_the_end_are_refused_quickly() -> None:
    keys = ",".join(f'"{n}": 1' for n in range(50_000))
    with pytest.raises(InvalidInput, match="key '49999' is given twice"):
        documents(f'{{{keys}, "49999": 1}}'.encode(), "file")


def test_places_below_a_very_long_key_take_little_memory() -> None:
    key = "a" * 50_000
    tracemalloc.start()
    (document,) = documents(f"? {key}\n: [{'1,' * 5_000}]".encode(), "file")
    assert document.location_of(f"{key}[4999]") == (2, 4 + 2 * 4999)
    assert tracemalloc.get_traced_memory()[1] < 20_000_000
    tracemalloc.stop()


def test_places_of_keys_with_dots_and_brackets_are_found() -> None:
    (document,) = documents(b"a.b:\n  c[0]: [1, 2]\na:\n  b: 3\n", "file")
    assert document.location_of("a.b.c[0][1]") == (2, 13)
    assert document.location_of("a.b.d") == (1, 1)
    assert document.location_of("nothing") == (1, 1)


@pytest.mark.parametrize(("count", "width"), [(8, 1), (2, 4), (1, 8), (0, 8)])
def test_a_vector_may_reach_to_the_end_and_costs_its_bytes(count: int, width: int) -> None:
    source = Source(struct.pack("<II", 0, count) + bytes(8))
    budget = source.budget
    assert source.span(4, width=width) == (8, count)
    assert budget - source.budget == 4 + count * width


@pytest.mark.parametrize(("count", "width"), [(9, 1), (3, 4), (2, 8), (2**32 - 1, 1)])
def test_a_vector_that_reaches_beyond_the_end_is_refused(count: int, width: int) -> None:
    with pytest.raises(InvalidInput, match="exceeds the buffer"):
        Source(struct.pack("<II", 0, count) + bytes(8)).span(4, width=width)


def table_before_vtable(length: int, size: int, *slots: int) -> bytes:
    """Return a table of 4 bytes at 0, and its vtable after it, which says that it has `length` bytes."""
    return struct.pack(f"<i2H{len(slots)}H", -4, length, size, *slots)


def vtable_before_table(size: int, table: bytes) -> bytes:
    """Return a vtable of 4 bytes at 0, and its table after it, which it says has `size` bytes."""
    return struct.pack("<2Hi", 4, size, 4) + table


def test_a_vtable_and_a_table_may_end_with_the_buffer() -> None:
    assert Source(table_before_vtable(4, 4)).vtable(0) == ((), 4)
    assert Source(table_before_vtable(8, 4, 0, 3)).vtable(0) == ((0, 3), 4)
    assert Source(vtable_before_table(4, b"")).vtable(4) == ((), 4)
    assert Source(vtable_before_table(6, b"xx")).vtable(4) == ((), 6)


@pytest.mark.parametrize("slots", [31, 32, 33, 32_000])
def test_a_vtable_has_the_slots_that_it_declares_up_to_those_of_any_table(slots: int) -> None:
    raw = table_before_vtable(4 + 2 * slots, 4, *range(slots))
    assert Source(raw).vtable(0) == (tuple(range(min(slots, 32))), 4)


def test_no_table_has_more_slots_than_are_read() -> None:
    tables = {
        cls
        for module in (data_schema, engine_messages, events, fetching)
        for cls in vars(module).values()
        if is_dataclass(cls) and isinstance(cls, type) and cls.__module__ == module.__name__
    }
    assert max(field.slot for cls in tables for field in fields_of(cls)) < 32


def test_tables_that_share_a_long_vtable_are_read_quickly() -> None:
    count, slots = 20_000, 32_000
    head = struct.pack("<I3HxxiI", 12, 6, 8, 4, 8, 4)  # the only field of the root is the vector that follows
    vector = struct.pack("<I", count) + b"".join(struct.pack("<I", 4 * (count - n)) for n in range(count))
    item = struct.pack("<iII", -12, 4, 0)  # both of its fields are the empty string at its end
    vtable = struct.pack("<4H", 8 + 2 * slots, 8, 4, 4) + b"\x01" * 2 * slots
    begun = time.process_time()
    read = decode_message(AttachmentsEmbedded, head + vector + item + vtable)
    assert len(read.items) == count
    assert time.process_time() - begun < 1.0


@pytest.mark.parametrize(
    ("raw", "at"),
    [
        (table_before_vtable(6, 4), 0),
        (table_before_vtable(3, 4), 0),
        (table_before_vtable(5, 4, 0), 0),
        (table_before_vtable(4, 3), 0),
        (table_before_vtable(4, 4)[:-1], 0),
        (vtable_before_table(5, b""), 4),
        (struct.pack("<i", 1), 0),
    ],
)
def test_a_vtable_that_exceeds_the_buffer_or_itself_is_refused(raw: bytes, at: int) -> None:
    with pytest.raises(InvalidInput, match="vtable"):
        Source(raw).vtable(at)


@pytest.mark.parametrize(("to", "is_inside"), [(4, True), (5, False), (2**31, False)])
def test_a_reference_leads_to_four_bytes_within_the_buffer(to: int, is_inside: bool) -> None:
    source = Source(struct.pack("<I", to) + bytes(4))
    if is_inside:
        assert source.follow(0) == to
    else:
        with pytest.raises(InvalidInput, match="leads outside"):
            source.follow(0)
    with pytest.raises(InvalidInput, match="reference is outside"):
        source.follow(5)


@pytest.mark.parametrize(("count", "is_inside"), [(2, True), (3, False), (2**32 - 1, False)])
def test_a_vector_may_end_with_the_buffer(count: int, is_inside: bool) -> None:
    source = Source(struct.pack("<I", count) + bytes(8))
    if is_inside:
        assert source.span(0, width=4) == (4, 2)
        assert source.budget == 4 * 12 + 64 - 12
    else:
        with pytest.raises(InvalidInput, match="a vector exceeds"):
            source.span(0, width=4)


def test_the_budget_may_be_used_up_but_not_exceeded() -> None:
    source = Source(bytes(9))
    source.spend(100)
    assert source.budget == 0
    with pytest.raises(InvalidInput, match="too many references"):
        source.spend(1)


def wrapped(size: int, *, tag_at: int, tag: int) -> bytes:
    """Return a wrapper of an event without fields; its table, at 12, has its kind and its value at 4 and 8 or 8 and 4.

    The table has 12 bytes, of which its vtable declares `size`.
    """
    value_at = 12 - tag_at
    table = bytearray(struct.pack("<i8x", 8))
    table[tag_at] = tag
    table[value_at : value_at + 4] = struct.pack("<I", 28 - 12 - value_at)
    event = struct.pack("<2Hi", 4, 4, 4)  # its vtable at 24, and itself
    return struct.pack("<I4H", 12, 8, size, tag_at, value_at) + bytes(table) + event


@pytest.mark.parametrize(("size", "tag_at"), [(9, 8), (12, 4)])
def test_fields_may_be_at_the_end_of_their_table(size: int, tag_at: int) -> None:
    tag = event_tag(DisablePollingSource())
    assert decode_event(wrapped(size, tag_at=tag_at, tag=tag)) == DisablePollingSource()


@pytest.mark.parametrize(("size", "tag_at"), [(8, 8), (8, 4), (4, 4)])
def test_a_field_after_its_table_is_refused(size: int, tag_at: int) -> None:
    tag = event_tag(DisablePollingSource())
    with pytest.raises(InvalidInput, match="outside its table"):
        decode_event(wrapped(size, tag_at=tag_at, tag=tag))


def test_a_value_of_no_kind_is_absent() -> None:
    with pytest.raises(InvalidInput, match="has no value"):
        decode_event(wrapped(12, tag_at=8, tag=0))


LAWS = settings(max_examples=examples(15))


@pytest.mark.parametrize("kind", EVENTS.members)
@pytest.mark.parametrize("version", [2, 3])
@LAWS
@given(data=some.data())
def test_every_event_survives_a_round_trip_through_bytes_yaml_and_json(
    kind: type, version: int, data: some.DataObject
) -> None:
    event = data.draw(objects(kind))
    block = MetadataBlock(system_time=Timestamp(0), sequence_number=1, event=event)
    raw = encode_block(block, version)
    assert decode_block(raw).block == block
    assert block_from_text(block_to_yaml(raw).encode(), "block") == (block, version)
    assert decode_event(encode_event(event)) == event
    assert event_from_text(to_yaml(event).encode(), "event") == event
    assert event_from_text(json.dumps(to_plain(event)).encode(), "event") == event


# --- offsets that lead nowhere -------------------------------------------------------------------------------------

BLOCK = encode_message(MetadataBlock(system_time=Timestamp(0), sequence_number=1, event=AddData()))
ROOT = struct.unpack_from("<I", BLOCK)[0]
VTABLE = ROOT - struct.unpack_from("<i", BLOCK, ROOT)[0]
ENTRIES = range(VTABLE + 4, VTABLE + struct.unpack_from("<H", BLOCK, VTABLE)[0], 2)


def with_number(at: int, code: str, number: int) -> bytes:
    raw = bytearray(BLOCK)
    struct.pack_into(code, raw, at, number)
    return bytes(raw)


@pytest.mark.parametrize("root", [len(BLOCK) - 3, len(BLOCK), 1 << 31, (1 << 32) - 1])
def test_a_root_outside_the_buffer_is_refused(root: int) -> None:
    with pytest.raises(InvalidInput, match="outside the buffer"):
        decode_message(MetadataBlock, with_number(0, "<I", root))


@pytest.mark.parametrize("distance", [ROOT + 1, ROOT - len(BLOCK) + 3, -(1 << 31), (1 << 31) - 1])
def test_a_vtable_outside_the_buffer_is_refused(distance: int) -> None:
    with pytest.raises(InvalidInput, match="vtable"):
        decode_message(MetadataBlock, with_number(ROOT, "<i", distance))


@pytest.mark.parametrize("length", [0, 2, 5, 0xFFFE, 0xFFFF])
def test_a_vtable_of_impossible_length_is_refused(length: int) -> None:
    with pytest.raises(InvalidInput, match="vtable"):
        decode_message(MetadataBlock, with_number(VTABLE, "<H", length))


@pytest.mark.parametrize("size", [0, 3, 0xFFFF])
def test_a_table_of_impossible_size_is_refused(size: int) -> None:
    with pytest.raises(InvalidInput, match="table"):
        decode_message(MetadataBlock, with_number(VTABLE + 2, "<H", size))


@pytest.mark.parametrize("offset", [200, 0x7FFF, 0xFFFF])
@pytest.mark.parametrize("at", [at for at in ENTRIES if struct.unpack_from("<H", BLOCK, at)[0]])
def test_a_field_outside_its_table_is_refused(at: int, offset: int) -> None:
    with pytest.raises(InvalidInput, match=r"outside its table|outside the buffer"):
        decode_message(MetadataBlock, with_number(at, "<H", offset))


@pytest.mark.parametrize("count", [100, 1 << 20, (1 << 32) - 1])
def test_a_vector_or_string_longer_than_the_buffer_is_refused(count: int) -> None:
    raw = encode_message(
        RawQueryRequest(
            input_data_paths=("a",), transform=TransformSql(engine="spark"), output_data_path="out"
        )
    )
    at = raw.index(b"out") - 4
    with pytest.raises(InvalidInput, match="exceeds the buffer"):
        decode_message(RawQueryRequest, raw[:at] + struct.pack("<I", count) + raw[at + 4 :])
