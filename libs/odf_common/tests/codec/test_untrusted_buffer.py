"""Data at the end of a buffer is read, and nothing beyond it."""

import struct
import time
from dataclasses import is_dataclass

import pytest

from odf_common.chain.state import event_tag
from odf_common.codec.flatbuffers import decode_event, decode_message
from odf_common.codec.flatbuffers.untrusted_buffer import Source
from odf_common.codec.model_schema import fields_of
from odf_common.errors import InvalidInput
from odf_common.metadata import data_schema, engine_messages, events, fetching
from odf_common.metadata.events import AttachmentsEmbedded, DisablePollingSource


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
