"""Avro messages, compared with an independent decoder that shares no code with fastavro."""

import json
import struct
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Any, cast

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from odf_testing.profiles import examples
from odf_testing.registry import avro

from odf_common.data.ddl import ddl_to_schema
from odf_common.errors import InvalidInput
from odf_ingest.read import infer_records, read_inferred, read_records
from odf_ingest.read.types.kinds import DecodedJson
from odf_ingest.registry.avro import MAX_DEPTH, avro_decoder
from odf_ingest.registry.client import Schema

LONGS = st.integers(-(2**63), 2**63 - 1)
DOUBLES = st.floats(allow_nan=False, allow_infinity=False)
YEARS_US = st.integers(-62_135_596_800_000_000, 253_402_300_799_999_999)


def record(**types: object) -> dict[str, Any]:
    return {
        "type": "record",
        "name": "odf.Row",
        "fields": [{"name": name, "type": type_} for name, type_ in types.items()],
    }


def logical(type_: str, logical_type: str, **facts: object) -> dict[str, object]:
    return {"type": type_, "logicalType": logical_type, **facts}


ROW = record(
    id="long",
    small="int",
    ratio="double",
    half="float",
    ok="boolean",
    name=["null", "string"],
    raw="bytes",
    fixed={"type": "fixed", "name": "Four", "size": 4},
    color={"type": "enum", "name": "Color", "symbols": ["RED", "GREEN"]},
    price=logical("bytes", "decimal", precision=38, scale=10),
    ms=logical("long", "timestamp-millis"),
    us=["null", logical("long", "timestamp-micros")],
    day=logical("int", "date"),
    clock=logical("int", "time-millis"),
    tags={"type": "array", "items": ["null", "long"]},
    place={"type": "record", "name": "Place", "fields": [{"name": "x", "type": "long"}]},
)
DDL = (
    "id BIGINT",
    "small INT",
    "ratio DOUBLE",
    "half FLOAT",
    "ok BOOLEAN",
    "name STRING",
    "raw BINARY",
    "fixed BINARY",
    "color STRING",
    "price DECIMAL(38, 10)",
    "ms TIMESTAMP(3)",
    "us TIMESTAMP(6)",
    "day DATE",
    "clock TIME",
    "tags ARRAY<BIGINT>",
    "place STRUCT<x BIGINT>",
)
ROWS = st.fixed_dictionaries(
    {
        "id": LONGS,
        "small": st.integers(-(2**31), 2**31 - 1),
        "ratio": DOUBLES,
        "half": st.floats(width=32, allow_nan=False, allow_infinity=False),
        "ok": st.booleans(),
        "name": st.none() | st.text(),
        "raw": st.binary(max_size=20),
        "fixed": st.binary(min_size=4, max_size=4),
        "color": st.sampled_from(["RED", "GREEN"]),
        "price": st.integers(1 - 10**38, 10**38 - 1).map(lambda n: n.to_bytes(16, "big", signed=True)),
        "ms": YEARS_US.map(lambda us: us // 1000),
        "us": st.none() | YEARS_US,
        "day": st.integers(-719_162, 2_932_896),
        "clock": st.integers(0, 86_399_999),
        "tags": st.lists(st.none() | LONGS, max_size=3),
        "place": st.fixed_dictionaries({"x": LONGS}),
    }
)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Reference:
    """Decodes Avro by the specification."""

    def __init__(self, payload: bytes) -> None:
        self.payload = payload
        self.at = 0

    def take(self, size: int) -> bytes:
        self.at += size
        return self.payload[self.at - size : self.at]

    def long(self) -> int:
        value = shift = 0
        while True:
            (byte,) = self.take(1)
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value // 2 if value % 2 == 0 else -(value + 1) // 2

    def value(self, type_: Any) -> Any:
        if isinstance(type_, list):
            return self.value(type_[self.long()])
        shape = {"type": type_} if isinstance(type_, str) else type_
        raw = self.plain(shape)
        convert = CONVERT.get(shape.get("logicalType", ""))
        return raw if convert is None else convert(raw, shape)

    def plain(self, shape: Mapping[str, Any]) -> Any:
        read: dict[str, Callable[[], Any]] = {
            "null": lambda: None,
            "boolean": lambda: self.take(1) == b"\1",
            "int": self.long,
            "long": self.long,
            "float": lambda: struct.unpack("<f", self.take(4))[0],
            "double": lambda: struct.unpack("<d", self.take(8))[0],
            "bytes": lambda: self.take(self.long()),
            "string": lambda: self.take(self.long()).decode(),
            "fixed": lambda: self.take(shape["size"]),
            "enum": lambda: shape["symbols"][self.long()],
            "record": lambda: {one["name"]: self.value(one["type"]) for one in shape["fields"]},
            "array": lambda: self.items(shape["items"]),
        }
        return read[shape["type"]]()

    def items(self, type_: object) -> list[Any]:
        found: list[Any] = []
        while count := self.long():
            found += [self.value(type_) for _ in range(count)]
        return found


CONVERT: dict[str, Callable[[Any, Any], Any]] = {
    "decimal": lambda raw, shape: Decimal(
        (0, (0,), 0) if not raw else f"{int.from_bytes(raw, 'big', signed=True)}E-{shape['scale']}"
    ),
    "timestamp-millis": lambda raw, _: EPOCH + timedelta(milliseconds=raw),
    "timestamp-micros": lambda raw, _: EPOCH + timedelta(microseconds=raw),
    "date": lambda raw, _: date(1970, 1, 1) + timedelta(days=raw),
    "time-millis": lambda raw, _: (datetime.min + timedelta(milliseconds=raw)).time(),  # noqa: DTZ901 - no zone
}


def decoder(schema: object, **references: object) -> Callable[[bytes], str]:
    texts = {name: json.dumps(one) for name, one in references.items()}
    return avro_decoder(Schema(kind="AVRO", text=json.dumps(schema), references=texts))


def decoded(schema: object, value: object) -> str:
    return decoder(schema)(avro(1, schema, value)[5:])


def refusal(action: Callable[[], object]) -> str:
    with pytest.raises(InvalidInput) as refused:
        action()
    return str(refused.value)


def read(texts: list[str]) -> pa.Table:
    return read_records(DecodedJson(), [one.encode() for one in texts], ddl_to_schema(DDL))


@settings(max_examples=examples(60))
@given(st.lists(ROWS, min_size=1, max_size=4))
def test_rows_are_those_of_an_independent_decoder(rows: list[dict[str, Any]]) -> None:
    payloads = [avro(1, ROW, row)[5:] for row in rows]
    decode = decoder(ROW)
    table = read([decode(one) for one in payloads])
    assert table.schema.equals(ddl_to_schema(DDL))
    assert table.to_pylist() == [Reference(one).value(ROW) for one in payloads]


def test_columns_without_declared_types_keep_decimals_as_strings_and_longs_exact() -> None:
    schema = record(id="long", price=logical("bytes", "decimal", precision=20, scale=2))
    text = decoded(schema, {"id": 2**63 - 1, "price": (1234567890123456789).to_bytes(8, "big")})
    columns = infer_records(DecodedJson(), [text.encode()], None)
    rows = read_inferred(DecodedJson(), [text.encode()], columns).to_pylist()
    assert rows == [{"id": 2**63 - 1, "price": "12345678901234567.89"}]


def test_a_union_of_records_is_the_record_that_was_written() -> None:
    created = record(id="long")
    gone = {**record(id="long", why="string"), "name": "odf.Gone"}
    values = ({"id": 1}, {"id": 2, "why": "x"})
    texts = [decoded([created, gone], value) for value in values]
    assert [json.loads(one) for one in texts] == list(values)


def test_an_array_of_enums_is_no_longer_than_its_bytes_allow() -> None:
    color = {"type": "enum", "name": "Color", "symbols": ["RED", "x" * 120]}
    schema = record(colors={"type": "array", "items": color})
    assert json.loads(decoded(schema, {"colors": ["RED", "RED"]})) == {"colors": ["RED", "RED"]}


def test_a_map_is_an_object_and_a_repeated_name_its_type() -> None:
    place = {"type": "record", "name": "Place", "fields": [{"name": "x", "type": "int"}]}
    schema = record(a=place, b="odf.Place", m={"type": "map", "values": "odf.Place"})
    text = decoded(schema, {"a": {"x": 1}, "b": {"x": 2}, "m": {"k": {"x": 3}}})
    assert json.loads(text) == {"a": {"x": 1}, "b": {"x": 2}, "m": {"k": {"x": 3}}}


def test_types_of_other_schemas_are_found_by_reference() -> None:
    place = {"type": "record", "name": "odf.Place", "fields": [{"name": "x", "type": "int"}]}
    decode = decoder(record(at="odf.Place"), place=place)
    assert decode(b"\x06") == '{"at":{"x":3}}'


@pytest.mark.parametrize(
    ("type_", "value", "json_"),
    [
        (logical("long", "timestamp-millis"), 1, '"1970-01-01T00:00:00.001Z"'),
        (logical("long", "timestamp-micros"), 1, '"1970-01-01T00:00:00.000001Z"'),
        (logical("long", "timestamp-nanos"), 1, '"1970-01-01T00:00:00.000000001Z"'),
        (logical("long", "local-timestamp-millis"), -1, '"1969-12-31T23:59:59.999"'),
        (logical("long", "local-timestamp-micros"), -1, '"1969-12-31T23:59:59.999999"'),
        (logical("long", "local-timestamp-nanos"), -1, '"1969-12-31T23:59:59.999999999"'),
        (logical("int", "time-millis"), 86_399_999, '"23:59:59.999"'),
        (logical("long", "time-micros"), 86_399_999_999, '"23:59:59.999999"'),
        (logical("int", "date"), -1, '"1969-12-31"'),
        (
            logical("fixed", "uuid", name="U", size=16),
            bytes(range(16)),
            '"00010203-0405-0607-0809-0a0b0c0d0e0f"',
        ),
        (logical("bytes", "decimal", precision=4, scale=2), b"\xff", '"-0.01"'),
        (logical("fixed", "decimal", name="D", size=2, precision=4, scale=0), b"\x00\x0a", '"10"'),
        (logical("bytes", "decimal", precision=1), b"\x07", '"7"'),
        (logical("fixed", "decimal", name="D", size=1, precision=1, scale=1), b"\x07", '"0.7"'),
        (logical("bytes", "decimal", precision=90, scale=7), b"\x01", '"AQ=="'),
        (logical("string", "uuid"), "any", '"any"'),
        (logical("long", "unknown"), 7, "7"),
        (["null", "int", "string"], "x", '"x"'),
    ],
)
def test_logical_types(type_: object, value: object, json_: str) -> None:
    assert decoded(record(a=type_), {"a": value}) == f'{{"a":{json_}}}'


@pytest.mark.parametrize(
    ("type_", "value", "why"),
    [
        (logical("long", "timestamp-millis"), 2**62, "field odf.Row.a: the date"),
        (logical("int", "date"), 2**31 - 1, "field odf.Row.a: the date"),
        (logical("long", "time-micros"), -1, "is not a time of day"),
        (logical("bytes", "decimal", precision=2, scale=1), b"\x64", "a decimal of more than 2 digits"),
        ("double", float("nan"), "field odf.Row.a: nan is not a number"),
        ("float", float("-inf"), "-inf is not a number"),
    ],
)
def test_values_that_no_row_can_have_are_refused(type_: object, value: object, why: str) -> None:
    assert why in refusal(lambda: decoded(record(a=type_), {"a": value}))


def test_each_truncated_payload_is_refused_and_so_is_one_that_is_too_long() -> None:
    schema = record(id="long", name="string", tags={"type": "array", "items": "double"})
    decode = decoder(schema)
    payload = avro(1, schema, {"id": 300, "name": "abc", "tags": [1.0, 2.0]})[5:]
    for end in range(len(payload)):
        why = refusal(partial(decode, payload[:end]))
        assert why == "the payload is not a value of the schema: it ends too early"
    assert "1 bytes after the value" in refusal(lambda: decode(payload + b"\0"))


@pytest.mark.parametrize(
    ("type_", "payload"),
    [
        ("string", b"\xfe\xff\xff\xff\x0fab"),
        ("string", b"\x04\xff\xfe"),
        (["null", "int"], b"\x06"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, b"\x06"),
        ({"type": "array", "items": "int"}, b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f\x02"),
    ],
)
def test_payloads_that_lie_about_their_size_are_refused(type_: object, payload: bytes) -> None:
    assert "the payload is not a value" in refusal(lambda: decoder(record(a=type_))(payload))


@pytest.mark.parametrize(
    ("type_", "payload"),
    [
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, b"\x01"),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, b"\x03"),
        (["null", "int"], b"\x01\x02"),
        (["null", "int"], b"\x03"),
        ({"type": "array", "items": ["null", "int"]}, b"\x02\x01\x02\x00"),
        ("Shared", b"\x01"),
        (
            ["null", {"type": "record", "name": "Inner", "fields": [{"name": "e", "type": "Shared"}]}],
            b"\x02\x01",
        ),
    ],
    ids=["enum", "first-symbol", "union", "first-branch", "in-array", "by-name", "nested"],
)
@pytest.mark.parametrize("is_elsewhere", [False, True], ids=["inline", "referenced"])
def test_a_negative_index_does_not_count_from_the_end(
    type_: object, payload: bytes, *, is_elsewhere: bool
) -> None:
    shared = {"type": "enum", "name": "odf.Shared", "symbols": ["A", "B"]}
    if is_elsewhere:
        text, references = json.dumps(record(a=type_)), {"shared": json.dumps(shared)}
        read = avro_decoder(Schema(kind="AVRO", text=text, references=references))
    else:
        read, payload = decoder(record(first=shared, a=type_)), b"\x00" + payload
    assert "is not the index of a branch or symbol" in refusal(lambda: read(payload))


NESTED: Any = "int"
for _level in range(200):
    NESTED = {"type": "array", "items": NESTED}
LISTS: Any = []
for _level in range(300):
    LISTS = [LISTS]
DOUBLING: list[Any] = [{"type": "record", "name": "R0", "fields": []}]
for _level in range(1, 40):
    _inner = f"R{_level - 1}"
    DOUBLING.append(
        {
            "type": "record",
            "name": f"R{_level}",
            "fields": [{"name": "a", "type": DOUBLING[-1]}, {"name": "b", "type": _inner}],
        }
    )


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ("int", "is not an Avro record"),
        (["null", record(a="int")], "is not an Avro record"),
        (record(a="missing"), "is not an Avro schema"),
        (record(a={"type": "array"}), "is not an Avro schema"),
        ({"type": "record"}, "is not an Avro schema"),
        ({**record(a="int"), "fields": [{"name": "a", "type": "int"}] * 2}, "two fields of the same name"),
        (record(a={"type": "fixed", "name": "F", "size": "x"}), "is not an Avro schema"),
        (record(a={"type": "fixed", "name": "F", "size": -1}), "is not an Avro schema"),
        (record(a=logical("fixed", "decimal", name="D", size=0, precision=1)), "is not an Avro schema"),
        (7, "is not an Avro schema"),
        (record(next=["null", "odf.Row"]), "odf.Row contains itself"),
        (record(a=NESTED), "nested"),
        (DOUBLING[30], "take no bytes"),
        (record(a={"type": "array", "items": "null"}), "take too few bytes"),
        (record(a={"type": "map", "values": {"type": "record", "name": "L", "fields": [
            {"name": "n" * 200, "type": "null"}]}}), "take too few bytes"),
        (record(a={"type": "array", "items": ["null", {"type": "record", "name": "L", "fields": [
            {"name": "n" * 200, "type": "null"}]}]}), "take too few bytes"),
        (record(a={"type": {"type": "string"}}), "is not an Avro schema"),
        (record(a=["string", logical("long", "timestamp-millis"), "int"]), "several branches"),
        ([record(a="int"), record(b="int")], "defines odf.Row twice"),
        ({**record(a="int"), "note": LISTS}, "is nested too deeply"),
    ],
    ids=range(20),
)  # fmt: skip
def test_schemas_that_cannot_be_rows_are_refused(schema: object, why: str) -> None:
    assert why in refusal(lambda: decoder(schema))


def nested_records(depth: int) -> dict[str, Any]:
    shape: Any = "long"
    for level in range(depth, 0, -1):
        shape = {"type": "record", "name": f"R{level}", "fields": [{"name": "a", "type": shape}]}
    return cast("dict[str, Any]", shape)


def test_a_schema_may_be_nested_as_deeply_as_the_limit_and_no_deeper() -> None:
    assert decoder(nested_records(MAX_DEPTH))(b"\x0e") == '{"a":' * MAX_DEPTH + "7" + "}" * MAX_DEPTH
    assert f"is nested more than {MAX_DEPTH} levels" in refusal(
        lambda: decoder(nested_records(MAX_DEPTH + 1))
    )


@pytest.mark.parametrize(
    "around",
    [
        lambda shape: {"type": "array", "items": shape},
        lambda shape: {"type": "map", "values": shape},
    ],
    ids=["array", "map"],
)
def test_each_array_map_and_type_in_braces_is_one_level(around: Callable[[object], object]) -> None:
    def nested(levels: int) -> object:
        shape: object = {"type": "long"}
        for _ in range(levels):
            shape = around(shape)
        return record(a=shape)

    decoder(nested(MAX_DEPTH - 2))
    assert "levels deep" in refusal(lambda: decoder(nested(MAX_DEPTH - 1)))


def test_a_union_is_one_level_of_a_schema() -> None:
    def unions(levels: int) -> object:
        shape: object = "long"
        for level in range(levels):
            shape = [
                "null",
                {"type": "record", "name": f"R{level}", "fields": [{"name": "a", "type": shape}]},
            ]
        return record(a=shape)

    decoder(unions(31))
    assert "levels deep" in refusal(lambda: decoder(unions(32)))


@pytest.mark.parametrize(
    "type_",
    [
        logical("string", "decimal", precision=3),
        logical("string", "date"),
        logical("string", "timestamp-millis"),
    ],
)
def test_a_logical_type_of_another_type_is_ignored(type_: object) -> None:
    assert decoder(record(a=type_))(b"\x02x") == '{"a":"x"}'


def test_a_value_of_fixed_size_may_take_no_bytes() -> None:
    assert decoder(record(a={"type": "fixed", "name": "F", "size": 0}))(b"") == '{"a":""}'


def test_a_schema_that_is_not_json_is_refused() -> None:
    for text in ("{", "[" * 100_000, "\ud800"):
        schema = Schema(kind="AVRO", text=text)
        assert "is not an Avro schema" in refusal(partial(avro_decoder, schema))


def test_a_schema_cannot_pretend_to_be_parsed() -> None:
    trick = {**record(a="int"), "__fastavro_parsed": True, "__named_schemas": {}}
    assert decoder(trick)(b"\x02") == '{"a":1}'


def test_maps_whose_values_take_no_bytes_have_short_names() -> None:
    """An entry has at least the length byte of its key, and at most its name, four more characters, and the delimiters."""

    def entries(length: int) -> object:
        value = {"type": "record", "name": "L", "fields": [{"name": "n" * length, "type": "null"}]}
        return record(a={"type": "map", "values": value})

    decoder(entries(114))
    assert "take too few bytes" in refusal(lambda: decoder(entries(115)))


@pytest.mark.parametrize(
    ("type_", "longest"),
    [
        (logical("int", "date"), 81),
        (logical("long", "timestamp-nanos"), 81),
        (logical("fixed", "uuid", name="U", size=16), 81),
        (logical("bytes", "decimal", precision=2), 31),
        ("string", 119),
        ({"type": "array", "items": "long"}, 119),
        ({"type": "map", "values": "long"}, 119),
        ([], 121),
        ({"type": "fixed", "name": "F", "size": 2}, 243),
    ],
    ids=["date", "time", "uuid", "decimal", "string", "array", "map", "empty union", "fixed"],
)
def test_an_element_has_as_long_a_name_as_its_least_bytes_allow(type_: object, longest: int) -> None:
    """The limit per byte is the length of the value's longest string and its delimiters."""

    def elements(length: int) -> object:
        item = {"type": "record", "name": "L", "fields": [{"name": "n" * length, "type": type_}]}
        return record(a={"type": "array", "items": item})

    decoder(elements(longest))
    assert "take too few bytes" in refusal(lambda: decoder(elements(longest + 1)))


def test_unused_attributes_of_a_schema_are_nested_up_to_a_limit_too() -> None:
    def mentioning(depth: int) -> object:
        note: list[Any] = []
        for _ in range(depth - 1):
            note = [note]
        return {**record(a="int"), "note": note}

    assert decoder(mentioning(4 * MAX_DEPTH))(b"\x02") == '{"a":1}'
    assert refusal(lambda: decoder(mentioning(4 * MAX_DEPTH + 1))) == "is nested too deeply"
