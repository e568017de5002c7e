"""Each kind of event, not only randomly drawn ones, survives a round trip through every form."""

import json
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from odf_testing.objects import objects
from odf_testing.profiles import examples

from odf_common.codec.flatbuffers import (
    decode_block,
    decode_event,
    decode_message,
    encode_block,
    encode_event,
    encode_message,
)
from odf_common.codec.manifests import block_from_text, block_to_yaml, event_from_text, to_plain, to_yaml
from odf_common.codec.model_schema import EVENTS
from odf_common.errors import InvalidInput
from odf_common.metadata.engine_messages import RawQueryRequest
from odf_common.metadata.events import AddData, MetadataBlock, TransformSql
from odf_common.metadata.scalars import Timestamp

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
