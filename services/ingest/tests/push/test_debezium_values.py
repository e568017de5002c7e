"""Values of Debezium's changes: exact by the schema of their message, in JSON, Avro and Protobuf."""

import base64
from collections.abc import Iterator
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pytest
from odf_testing.registry import Registry, avro, framed, serving_registry

from .in_memory_broker import Broker, running
from .test_debezium import (
    ADD,
    CONNECT,
    DDL,
    DEBEZIUM,
    NUT,
    START,
    UPSERT,
    Json,
    a_bench,
    change,
    drained,
    state,
)


def field(name: str, type_: str, meaning: str = "", **parameters: str) -> Json:
    return {"field": name, "type": type_, "name": meaning, "parameters": parameters}


FIELDS = [
    field("id", "int64"),
    field("price", "bytes", f"{CONNECT}.Decimal", scale="2"),
    field("any", "struct", "io.debezium.data.VariableScaleDecimal"),
    field("day", "int32", f"{DEBEZIUM}.Date"),
    field("at_ms", "int64", f"{DEBEZIUM}.Timestamp"),
    field("at_us", "int64", f"{DEBEZIUM}.MicroTimestamp"),
    field("at_ns", "int64", f"{DEBEZIUM}.NanoTimestamp"),
    field("at_tz", "string", f"{DEBEZIUM}.ZonedTimestamp"),
    field("clock", "int64", f"{DEBEZIUM}.MicroTime"),
    field("raw", "int64", f"{DEBEZIUM}.MicroTimestamp"),
    field("span", "string", f"{DEBEZIUM}.Interval"),
]


TYPED = (
    *("id BIGINT", "price DECIMAL(20, 2)", "any DECIMAL(20, 3)", "day DATE"),
    *("at_ms TIMESTAMP(3)", "at_us TIMESTAMP(6)", "at_ns TIMESTAMP(9)", "at_tz TIMESTAMP(3)"),
    *("clock TIME(6)", "raw BIGINT", "span STRING"),
)


def base64_of(number: int) -> str:
    return base64.b64encode(number.to_bytes((number.bit_length() + 8) // 8, "big", signed=True)).decode()


def test_values_are_exact_by_the_schema_of_their_message(make_bench: Any, broker: Broker) -> None:
    bench = a_bench(make_bench, UPSERT, TYPED)
    after: Json = {
        "id": 9007199254740993,
        "price": base64_of(-12345678901234567),
        "any": {"scale": 3, "value": base64_of(-1)},
        "day": -1,
        "at_ms": -1,
        "at_us": 1_767_225_600_000_001,
        "at_ns": 1_767_225_600_000_000_000,
        "at_tz": "2026-01-01T02:00:00+02:00",
        "clock": 86_399_999_999,
        "raw": 1_767_225_600_000_001,
        "span": "P1Y2M3DT4H5M6.78S",
    }
    schema = {"type": "struct", "fields": [{"field": "after", "type": "struct", "fields": FIELDS}]}
    drained(bench, broker, [{"schema": schema, "payload": change("c", None, after)}])
    assert bench.reasons == []
    new_year = datetime(2026, 1, 1, tzinfo=UTC)
    (found,) = bench.rows()
    assert [found[name.split()[0]] for name in TYPED if name != "at_ns TIMESTAMP(9)"] == [
        9007199254740993,
        Decimal("-123456789012345.67"),
        Decimal("-0.001"),
        date(1969, 12, 31),
        datetime(1969, 12, 31, 23, 59, 59, 999000, tzinfo=UTC),
        new_year.replace(microsecond=1),
        new_year,
        time(23, 59, 59, 999999),
        1_767_225_600_000_001,
        "P1Y2M3DT4H5M6.78S",
    ]


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        (
            "price",
            "AN4=",
            "column price: 'AN4=' is no number: of a decimal of decimal.handling.mode=precise only",
        ),
        ("price", "1.005", "column price: '1.005' is not a value of DECIMAL(20, 2)"),
        ("day", 10**9, "column day: 1000000000 is out of range"),
        ("at_us", 1_767_225_600_000_000, "column at_us: 1767225600000000 is not a value of TIMESTAMP(6)"),
        ("clock", 1, "column clock: 1 is not a value of TIME(6)"),
        (
            "any",
            {"scale": 3, "value": "?"},
            "is not base64, in which a decimal is with decimal.handling.mode=precise",
        ),
    ],
)
def test_values_that_are_not_exact_without_a_schema_are_rejected(
    make_bench: Any, broker: Broker, name: str, value: object, why: str
) -> None:
    bench = a_bench(make_bench, UPSERT, TYPED)
    good: Json = {"id": 1, "price": "1.25", "any": 1.5, "day": 20454}
    drained(bench, broker, [change("c", None, good), change("c", None, {"id": 2, name: value})])
    ((offset, reason),) = bench.reasons
    assert offset == 1
    assert why in reason
    assert bench.values("price", "any", "day") == [(Decimal("1.25"), Decimal("1.500"), date(2026, 1, 1))]


VALUE = {
    "type": "record",
    "name": "Value",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "name", "type": ["null", "string"], "default": None},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
        {
            "name": "any",
            "type": {
                "type": "record",
                "name": "VariableScaleDecimal",
                "connect.name": "io.debezium.data.VariableScaleDecimal",
                "fields": [{"name": "scale", "type": "int"}, {"name": "value", "type": "bytes"}],
            },
        },
        {"name": "day", "type": {"type": "int", "connect.name": "io.debezium.time.Date"}},
        {
            "name": "at",
            "type": ["null", {"type": "long", "connect.name": "io.debezium.time.MicroTimestamp"}],
        },
        {"name": "clock", "type": {"type": "long", "connect.name": "io.debezium.time.MicroTime"}},
    ],
}


SOURCE = {"type": "record", "name": "Source", "fields": [{"name": "ts_ms", "type": "long"}]}


ENVELOPE = {
    "type": "record",
    "name": "Envelope",
    "fields": [
        {"name": "before", "type": ["null", VALUE]},
        {"name": "after", "type": ["null", "Value"]},
        {"name": "source", "type": SOURCE},
        {"name": "op", "type": "string"},
        {"name": "ts_ms", "type": ["null", "long"]},
    ],
}


@pytest.fixture
def registry() -> Iterator[Registry]:
    with serving_registry() as served:
        yield served


def test_avro_is_read_with_the_names_of_its_times(
    make_bench: Any, broker: Broker, registry: Registry
) -> None:
    columns = (*DDL, "any DECIMAL(10, 3)", "day DATE", "at TIMESTAMP(6)", "clock TIME(6)")
    bench = a_bench(make_bench, UPSERT, columns, schema_registry=registry.url)
    registry.add(1, ENVELOPE)
    first = {
        **NUT,
        "price": b"\x64",
        "any": {"scale": 3, "value": b"\xff"},
        "day": 20454,
        "at": START * 1000 + 1,
        "clock": 1,
    }
    second = {**first, "id": 2, "name": None, "at": None}

    def sent(op: str, before: object, after: object, seconds: int) -> bytes:
        value = {"op": op, "before": before, "after": after, "source": {"ts_ms": START + seconds * 1000}}
        return avro(1, ENVELOPE, {**value, "ts_ms": None})

    with running(bench, broker) as node:
        node.ingest([sent("r", None, first, 0), sent("c", None, second, 1), None])
        node.ingest([sent("d", first, None, 2), None])
    assert bench.reasons == []
    new_year = datetime(2026, 1, 1, tzinfo=UTC)
    assert bench.values("op", "id", "name", "price", "any", "day", "at", "clock")[0] == (
        *(ADD, 1, "nut", Decimal("1.00"), Decimal("-0.001"), date(2026, 1, 1)),
        *(new_year.replace(microsecond=1), time(0, 0, 0, 1)),
    )
    assert list(state(bench)) == [2]


PROTOBUF = """
syntax = "proto3";
message Envelope {
  message Value { int64 id = 1; optional string name = 2; string price = 3; }
  message Source { int64 ts_ms = 1; }
  Value before = 1;
  Value after = 2;
  Source source = 3;
  string op = 4;
  int64 ts_ms = 5;
}
"""


def sized(number: int, value: bytes) -> bytes:
    return bytes([number << 3 | 2, len(value)]) + value


def test_protobuf_is_read(make_bench: Any, broker: Broker, registry: Registry) -> None:
    bench = a_bench(make_bench, UPSERT, schema_registry=registry.url)
    registry.add_protobuf(1, PROTOBUF)
    nut, bolt = (b"\x08" + bytes([key]) + sized(3, b"1.00") for key in (1, 2))
    source = sized(3, b"\x08\x01")
    created = [sized(2, after) + source + sized(4, b"c") for after in (nut, bolt)]
    gone = sized(1, nut) + source + sized(4, b"d")
    with running(bench, broker) as node:
        node.ingest([*(framed(1, b"\0" + one) for one in [*created, gone]), None])
    assert bench.reasons == []
    time_ = datetime(1970, 1, 1, 0, 0, 0, 1000, tzinfo=UTC)
    assert state(bench) == {2: (None, Decimal("1.00"), time_)}
