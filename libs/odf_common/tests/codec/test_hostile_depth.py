"""Deeply nested or very large input is refused with a clear error everywhere; what is written can be read."""

import json
import struct
import tracemalloc
from typing import Any

import pytest

from odf_common.codec.flatbuffers import decode_event, encode_block, encode_event, encode_message, writer
from odf_common.codec.flatbuffers.untrusted_buffer import Source
from odf_common.codec.manifests import block_to_yaml, event_from_text, to_yaml
from odf_common.codec.model_schema import MAX_TABLE_DEPTH
from odf_common.codec.yaml_syntax import documents
from odf_common.errors import InvalidInput
from odf_common.metadata.data_schema import DataField, DataSchema, DataTypeInt32, DataTypeOption
from odf_common.metadata.events import MetadataBlock, SetDataSchema
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
