"""Protobuf messages, encoded by hand: the bytes of each field are written as the encoding's documentation has them."""

import json
import struct
from base64 import b64encode
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from odf_testing.registry import descriptor_of

from odf_common.data.ddl import ddl_to_schema
from odf_common.errors import InvalidInput
from odf_ingest.read import read_records
from odf_ingest.read.types.kinds import DecodedJson
from odf_ingest.registry import protobuf
from odf_ingest.registry.client import Schema
from odf_ingest.registry.protobuf import ProtobufDecoder, message_indexes

ROW = """
syntax = "proto3";
package odf;
import "google/protobuf/timestamp.proto";
import "google/protobuf/duration.proto";
import "google/protobuf/wrappers.proto";
import "google/protobuf/struct.proto";
enum Color { RED = 0; GREEN = 7; }
message Row {
  int64 id = 1;
  uint64 big = 2;
  sint64 signed = 3;
  fixed64 fixed = 4;
  float half = 5;
  double ratio = 6;
  bool ok = 7;
  string name = 8;
  bytes raw = 9;
  Color color = 10;
  google.protobuf.Timestamp at = 11;
  google.protobuf.Int64Value maybe = 12;
  repeated int64 tags = 13;
  map<string, int64> counts = 14;
  optional string note = 15;
  oneof kind { string left = 16; int32 right = 17; }
  Row inner = 18;
  google.protobuf.Duration took = 19;
  google.protobuf.Struct free = 20;
  message Nested { string v = 1; }
}
message Other { message Deep { int32 x = 1; } string name = 1; }
"""
DDL = ("id BIGINT", "big BIGINT UNSIGNED", "half FLOAT", "raw BINARY", "at TIMESTAMP(6)", "maybe BIGINT")


def varint(value: int) -> bytes:
    value %= 2**64
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def sized(field: int, value: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(value)) + value


@pytest.fixture(scope="module")
def row() -> Callable[[bytes], str]:
    return ProtobufDecoder(Schema(kind="PROTOBUF", text=descriptor_of(ROW)))


def refusal(action: Callable[[], object]) -> str:
    with pytest.raises(InvalidInput) as refused:
        action()
    return str(refused.value)


def test_a_message_without_values_has_the_defaults_of_its_fields(row: Callable[[bytes], str]) -> None:
    assert json.loads(row(b"\0")) == {
        "id": 0,
        "big": 0,
        "signed": 0,
        "fixed": 0,
        "half": 0.0,
        "ratio": 0.0,
        "ok": False,
        "name": "",
        "raw": "",
        "color": "RED",
        "at": None,
        "maybe": None,
        "tags": [],
        "counts": {},
        "note": None,
        "left": None,
        "right": None,
        "inner": None,
        "took": None,
        "free": None,
    }


@pytest.mark.parametrize(
    ("payload", "name", "expected"),
    [
        (number(1, -(2**63)), "id", -(2**63)),
        (number(1, 2**53 + 1), "id", 2**53 + 1),
        (number(2, 2**64 - 1), "big", 2**64 - 1),
        (number(3, 2**64 - 1), "signed", -(2**63)),
        (b"\x21" + struct.pack("<Q", 2**64 - 3), "fixed", 2**64 - 3),
        (b"\x2d" + struct.pack("<f", 0.1), "half", 0.10000000149011612),
        (b"\x31" + struct.pack("<d", 0.1), "ratio", 0.1),
        (number(7, 1), "ok", True),
        (sized(8, "é\n\0".encode()), "name", "é\n\0"),
        (sized(9, b"\xff\x00"), "raw", "/wA="),
        (number(10, 7), "color", "GREEN"),
        (sized(11, number(1, 1) + number(2, 1)), "at", "1970-01-01T00:00:01.000000001Z"),
        (sized(11, number(1, -1)), "at", "1969-12-31T23:59:59.000000000Z"),
        (sized(12, b""), "maybe", 0),
        (sized(12, number(1, 2**63 - 1)), "maybe", 2**63 - 1),
        (sized(13, varint(1) + varint(-1)), "tags", [1, -1]),
        (sized(14, sized(1, b"b") + number(2, 2)) + sized(14, sized(1, b"a")), "counts", {"a": 0, "b": 2}),
        (sized(15, b""), "note", ""),
        (number(17, 0), "right", 0),
        (sized(19, number(1, 1) + number(2, 500_000_000)), "took", "1.500s"),
        (sized(20, sized(1, sized(1, b"k") + sized(2, number(4, 1)))), "free", {"k": True}),
    ],
)
def test_values_are_exact(row: Callable[[bytes], str], payload: bytes, name: str, expected: object) -> None:
    assert json.loads(row(b"\0" + payload))[name] == expected


def test_rows_have_the_declared_types(row: Callable[[bytes], str]) -> None:
    payload = (
        number(1, 2**63 - 1)
        + number(2, 2**64 - 1)
        + b"\x2d"
        + struct.pack("<f", 0.1)
        + sized(9, b"\xff\x00")
        + sized(11, number(1, 1_700_000_000) + number(2, 123_456_000))
    )
    table = read_records(DecodedJson(), [row(b"\0" + payload).encode()], ddl_to_schema(DDL))
    assert table.to_pylist() == [
        {
            "id": 2**63 - 1,
            "big": 2**64 - 1,
            "half": struct.unpack("<f", struct.pack("<f", 0.1))[0],
            "raw": b"\xff\x00",
            "at": datetime(2023, 11, 14, 22, 13, 20, 123456, UTC),
            "maybe": None,
        }
    ]


@pytest.mark.parametrize(
    ("indexes", "payload", "expected"),
    [
        (b"\x02\x02", sized(1, b"x"), {"name": "x"}),
        (b"\x04\x02\x00", number(1, 1), {"x": 1}),
    ],
)
def test_indexes_choose_the_type(
    row: Callable[[bytes], str], indexes: bytes, payload: bytes, expected: object
) -> None:
    assert json.loads(row(indexes + payload)) == expected


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        (b"", "ends within its message indexes"),
        (b"\x02", "ends within its message indexes"),
        (b"\xff" * 12, "ends within its message indexes"),
        (b"\x01", "malformed message indexes"),
        (b"\xfe\xff\xff\x0f", "malformed message indexes"),
        (b"\x02\x08", "has no message at the indexes [4]"),
        (b"\x02\x01", "has no message at the indexes [-1]"),
        (b"\x00\x42\x05ab", "not a message odf.Row, or ends too early"),
        (b"\x00" + sized(8, b"\xff"), "not a message odf.Row"),
        (b"\x00" + number(10, 3), "field odf.Row.color: the enum odf.Color has no value 3"),
        (b"\x00\x31" + struct.pack("<d", float("nan")), "field odf.Row.ratio: nan is not a number"),
        (b"\x00" + sized(11, number(1, 2**60)), "field odf.Row.at: the date"),
        (b"\x00" + sized(11, number(2, -1)), "field odf.Row.at: a timestamp has -1 nanoseconds"),
        (b"\x00" + sized(19, number(1, 2**60)), "cannot be written as JSON"),
    ],
)
def test_an_invalid_message_is_refused(row: Callable[[bytes], str], payload: bytes, why: str) -> None:
    assert why in refusal(lambda: row(payload))


def test_messages_that_are_nested_too_deeply_are_refused(row: Callable[[bytes], str]) -> None:
    payload = b""
    for _ in range(300):
        payload = sized(18, payload)
    assert "not a message" in refusal(lambda: row(b"\0" + payload))


def test_a_message_of_defaults_may_not_become_huge(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protobuf, "MAX_JSON_CHARACTERS", 1 << 20)
    text = 'syntax = "proto3"; message A { repeated B b = 1; } message B { string %s = 1; }' % ("n" * 1000)
    decode = ProtobufDecoder(Schema(kind="PROTOBUF", text=descriptor_of(text)))
    assert len(decode(b"\0" + b"\x0a\x00" * 100)) > 100_000
    assert "more than 1 MiB as JSON" in refusal(lambda: decode(b"\0" + b"\x0a\x00" * 2000))


def test_a_message_may_be_as_long_as_the_limit_and_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    decode = ProtobufDecoder(
        Schema(kind="PROTOBUF", text=descriptor_of('syntax = "proto3"; message A { int64 id = 1; }'))
    )
    monkeypatch.setattr(protobuf, "MAX_JSON_CHARACTERS", len('{"id":12}'))
    assert decode(b"\0" + number(1, 12)) == '{"id":12}'
    assert "as JSON" in refusal(lambda: decode(b"\0" + number(1, 123)))


def test_types_of_other_files_are_found_by_reference() -> None:
    place = 'syntax = "proto3"; package odf; message Place { int64 x = 1; }'
    text = 'syntax = "proto3"; import "place.proto"; message Row { odf.Place at = 1; }'
    schema = Schema(
        kind="PROTOBUF",
        text=descriptor_of(text, place=place),
        references={"place.proto": descriptor_of(place)},
    )
    assert ProtobufDecoder(schema)(b"\0" + sized(1, number(1, 5))) == '{"at":{"x":5}}'


@pytest.mark.parametrize("name", sorted(protobuf._FILES))
def test_files_that_no_registry_lists_are_built_in(name: str) -> None:
    message = DescriptorProto(name="Order", field=[protobuf._field("id", 1, FieldDescriptorProto.TYPE_INT64)])
    file = FileDescriptorProto(name="order.proto", syntax="proto3", dependency=[name], message_type=[message])
    text = b64encode(file.SerializeToString()).decode()
    own = descriptor_of('syntax = "proto3"; message Own {}')
    decode = ProtobufDecoder(Schema(kind="PROTOBUF", text=text, references={name: own}))
    assert decode(b"\0" + number(1, 7)) == '{"id":7}'


def test_custom_options_do_not_change_what_is_read() -> None:
    text = """
        syntax = "proto3";
        import "google/protobuf/descriptor.proto";
        extend google.protobuf.FieldOptions { string owner = 50001; }
        message Order { int64 id = 1 [(owner) = "sales"]; map<string, int64> counts = 2 [(owner) = "shop"]; }
    """
    decode = ProtobufDecoder(Schema(kind="PROTOBUF", text=descriptor_of(text)))
    entry = sized(1, b"a") + number(2, 5)
    assert decode(b"\0" + number(1, 7) + sized(2, entry)) == '{"id":7,"counts":{"a":5}}'


DECIMAL = """syntax = "proto3"; package confluent.type;
message Decimal { bytes value = 1; uint32 precision = 2; int32 scale = 3; }"""


@pytest.mark.parametrize(
    ("fields", "read"),
    [
        (sized(1, b"\xfb\x2e") + number(2, 6) + number(3, 2), '"-12.34"'),
        (sized(1, b"\x7b") + number(3, -2), '"12300"'),
        (sized(1, b"\x7b") + number(2, 2), "more than 2 digits"),
        (sized(1, b"\x7b") + number(3, 10**6), "scale 1000000"),
        (sized(1, b"\x01" * 100), "more than 76 digits"),
    ],
    ids=range(5),
)
def test_decimals_of_the_registry_are_exact(fields: bytes, read: str) -> None:
    text = 'syntax = "proto3"; import "confluent/type/decimal.proto"; message A { confluent.type.Decimal d = 1; }'
    decode = ProtobufDecoder(
        Schema(kind="PROTOBUF", text=descriptor_of(text, **{"confluent/type/decimal": DECIMAL}))
    )
    payload = b"\0" + sized(1, fields)
    if read.startswith('"'):
        assert decode(payload) == f'{{"d":{read}}}'
    else:
        assert read in refusal(lambda: decode(payload))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (ROW, "compiled descriptor"),
        ("AAAA", "compiled descriptor"),
        (f"*{descriptor_of(ROW)}", "compiled descriptor"),
        (
            descriptor_of('syntax="proto3"; import "b.proto"; message A {B b = 1;}', b='syntax="proto3"; message B{}'),
            "imports b.proto, which is neither among the schema's references nor built in; register it",
        ),
        ("", "has no message at the indexes"),
    ],
    ids=range(5),
)  # fmt: skip
def test_schemas_that_cannot_be_used_are_refused(text: str, why: str) -> None:
    assert why in refusal(lambda: ProtobufDecoder(Schema(kind="PROTOBUF", text=text))(b"\0"))


def test_indexes_of_the_first_type_are_one_byte() -> None:
    assert message_indexes(b"\x00rest") == ((0,), 1)
    assert message_indexes(b"\x04\x02\x00rest") == ((1, 0), 3)


def test_a_cycle_of_types_is_read(row: Callable[[bytes], str]) -> None:
    found: Any = json.loads(row(b"\0" + sized(18, number(1, 4))))
    assert (found["inner"]["id"], found["inner"]["inner"]) == (4, None)
