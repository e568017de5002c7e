"""A table's changes in Debezium's envelope: the dataset has the table's state, however they were cut into batches."""

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from odf_testing.letters import StoredLetters
from odf_testing.registry import Registry, avro, framed, serving_registry

from odf_common.errors import InvalidInput
from odf_common.metadata.scalars import Timestamp
from odf_common.metadata.steps import (
    MergeStrategy,
    MergeStrategyChangelogStream,
    MergeStrategyUpsertStream,
    ReadStepNdJson,
)
from odf_ingest.commit.file_commit import FileCommit
from odf_ingest.message_columns import ColumnNames, Envelope, KeyFormat
from odf_ingest.prepare.batch import FileBatch, MessageBatch, Part
from odf_ingest.prepare.debezium import unwrapped
from odf_ingest.prepare.plan import plan_of
from odf_ingest.push.batches.kafka_batch import KafkaBatch
from odf_ingest.read.input_format import InputFormat
from odf_ingest.read.message_buffer import MessageBuffer
from odf_ingest.source_settings import BadRecords, Retractions, SourceSettings, load_settings, save_settings

from .in_memory_broker import TOPIC, Broker, running

ADD, RETRACT, FROM, TO = range(4)
UPSERT, CHANGELOG = (
    strategy(primary_key=("id",)) for strategy in (MergeStrategyUpsertStream, MergeStrategyChangelogStream)
)
DDL = ("event_time TIMESTAMP", "id BIGINT", "name STRING", "price DECIMAL(10, 2)")
START = 1_767_225_600_000  # ms
Json = Mapping[str, object]


def row(key: int, name: str, price: str) -> Json:
    return {"id": key, "name": name, "price": price}


def change(op: str, before: Json | None, after: Json | None, seconds: int = 0) -> Json:
    source = {"ts_ms": START + 1000 * seconds, "connector": "mysql", "table": "parts"}
    return {"op": op, "ts_ms": START + 10**6, "before": before, "after": after, "source": source}


def deleted(gone: Json, seconds: int) -> list[Json | None]:
    """Return a deletion and its tombstone."""
    return [change("d", gone, None, seconds), None]


NUT, CHEAPER, BOLT = row(1, "nut", "1.00"), row(1, "nut", "0.90"), row(2, "bolt", "2.00")
STORY = [
    change("r", None, NUT),
    change("c", None, BOLT, 1),
    change("u", NUT, CHEAPER, 2),
    *deleted(BOLT, 3),
    *deleted(CHEAPER, 4),  # the key 1 becomes 10
    change("c", None, row(10, "nut", "0.90"), 4),
    {"status": "BEGIN", "id": "571", "event_count": None},
    {"source": {"server": "s"}, "databaseName": "shop", "ddl": "ALTER TABLE parts …"},
    {"ts_ms": START},
]


def with_schema(message: Json | None) -> Json | None:
    return message and {"schema": {"type": "struct", "fields": []}, "payload": message}


def encoded(values: Sequence[Json | None]) -> list[bytes | None]:
    return [None if value is None else json.dumps(value).encode() for value in values]


@pytest.fixture
def broker() -> Broker:
    made = Broker()
    made.make(TOPIC)
    return made


def a_bench(make_bench: Any, merge: MergeStrategy, columns: Sequence[str] = DDL, **settings: Any) -> Any:
    bench = make_bench(merge, ReadStepNdJson(ddl_schema=tuple(columns)))
    chosen = SourceSettings(envelope=Envelope.DEBEZIUM, **settings)
    save_settings(bench.blobs, bench.dataset, "default", chosen)
    return bench


def drained(bench: Any, broker: Broker, *batches: Sequence[Json | None]) -> None:
    with running(bench, broker) as node:
        for values in batches:
            broker.logs[TOPIC, 0] += encoded(values)
            node.drain()


def state(bench: Any) -> dict[object, tuple[object, ...]]:
    """Return the current rows by key, without their operations."""
    found: dict[object, tuple[object, ...]] = {}
    for op, key, *rest in bench.values("op", "id", "name", "price", "event_time"):
        if op in (RETRACT, FROM):
            assert found.pop(key) == tuple(rest)
        else:
            assert key not in found
            found[key] = tuple(rest)
    return found


def reasons(bench: Any) -> list[tuple[int, str]]:
    return [(letter.offset, letter.reason) for letter in bench.coordinator.letters]


@pytest.mark.parametrize("has_schema", [False, True])
@pytest.mark.parametrize("is_apart", [False, True])
@pytest.mark.parametrize("merge", [UPSERT, CHANGELOG], ids=["upsert", "changelog"])
def test_the_state_is_that_of_the_table(
    make_bench: Any, broker: Broker, merge: MergeStrategy, is_apart: bool, has_schema: bool
) -> None:
    bench = a_bench(make_bench, merge, DDL if merge is UPSERT else (*DDL, "op INT"))
    story = [with_schema(one) for one in STORY] if has_schema else STORY
    drained(bench, broker, *([[one] for one in story] if is_apart else [story]))
    assert reasons(bench) == []
    last = datetime.fromtimestamp(START / 1000 + 4, UTC)
    assert state(bench) == {10: ("nut", Decimal("0.90"), last)}
    if merge is CHANGELOG:
        assert sorted(bench.values("id", "op")) == [
            *((1, ADD), (1, RETRACT), (1, FROM), (1, TO)),
            *((2, ADD), (2, RETRACT), (10, ADD)),
        ]


def test_tombstones_that_are_sent_again_as_empty_messages_are_no_faults(
    make_bench: Any, broker: Broker
) -> None:
    bench = a_bench(make_bench, UPSERT)
    with running(bench, broker) as node:
        broker.logs[TOPIC, 0] += [b"", *encoded([change("c", None, NUT)]), b" "]
        node.drain()
    assert reasons(bench) == []
    assert list(state(bench)) == [1]


def test_a_changelog_compares_what_a_change_replaces_with_the_record(make_bench: Any, broker: Broker) -> None:
    bench = a_bench(make_bench, CHANGELOG, (*DDL, "op INT"))
    other = row(1, "nut", "7.00")
    values = [
        change("c", None, NUT),
        change("u", other, CHEAPER),
        change("u", NUT, CHEAPER),
        change("c", None, NUT),
        change("d", NUT, None),
        change("d", CHEAPER, None),
    ]
    drained(bench, broker, values)
    assert [offset for offset, _ in reasons(bench)] == [1, 3, 4]
    assert "column price: -C of id = 1 has 7.00, and its record has 1.00" in reasons(bench)[0][1]
    assert bench.values("op", "price") == [
        (ADD, Decimal("1.00")),
        (FROM, Decimal("1.00")),
        (TO, Decimal("0.90")),
        (RETRACT, Decimal("0.90")),
    ]
    # The dead letter is the message itself.
    assert json.loads(bench.coordinator.letters[0].value) == values[1]


def test_a_change_of_which_one_half_is_malformed_is_rejected_as_a_whole(
    make_bench: Any, broker: Broker
) -> None:
    bench = a_bench(make_bench, CHANGELOG, (*DDL, "op INT"))
    values = [change("c", None, NUT), change("u", NUT, row(1, "nut", "cheap")), change("d", NUT, None)]
    drained(bench, broker, values)
    assert [offset for offset, _ in reasons(bench)] == [1]
    assert bench.values("op") == [(ADD,), (RETRACT,)]


def test_changes_without_before_need_another_setting(make_bench: Any, broker: Broker) -> None:
    bench = a_bench(make_bench, CHANGELOG, (*DDL, "op INT"))
    values = [change("c", None, NUT), change("u", None, CHEAPER), change("d", None, None)]
    drained(bench, broker, values)
    assert [why.partition(":")[0] for _, why in reasons(bench)] == [
        "an update has no before, so the values that it changes are not known",
        "a deletion has no before, so the values that it changes are not known",
    ]
    assert (
        "REPLICA IDENTITY FULL), set retractions=complete, or merge as UpsertStream" in reasons(bench)[0][1]
    )


@pytest.mark.parametrize("merge", [UPSERT, CHANGELOG], ids=["upsert", "changelog"])
def test_a_deletion_without_before_has_the_key_of_its_message(make_bench: Any, merge: MergeStrategy) -> None:
    bench = a_bench(
        make_bench,
        merge,
        (*DDL, "op INT"),
        key_columns=ColumnNames(("id",)),
        key_format=KeyFormat.JSON,
        retractions=Retractions.COMPLETE,
    )
    keys: list[Json] = [{"id": 1}, {"schema": {"type": "struct"}, "payload": {"id": 1}}, {"id": 1}, {"id": 1}]
    values = [change("c", None, NUT), change("u", None, CHEAPER, 1), change("d", None, None, 2), None]
    read = partial(unwrapped, bench.preparer.messages)
    columns = load_settings(bench.blobs, bench.dataset, "default").message_columns
    batch = MessageBatch(
        topic=TOPIC,
        topic_id="one",
        partitions=1,
        parts=(
            Part(
                partition=0,
                values=MessageBuffer.of(encoded(values)),
                offsets=range(4),
                timestamps=None,
                keys=encoded(keys),
            ),
        ),
        start={0: 0},
        end={0: 4},
        beginning={0: 0},
        begun=0.0,
        size=0,
        columns=columns,
    )
    plan = plan_of(bench.state, bench.state.push_sources["default"], columns)
    reading = bench.pool.submit(read, plan, batch)
    work = KafkaBatch("default", batch, plan=plan, reading=reading, read=read, rejecting=bench.rejecting)
    bench.queues.commit(bench.dataset, work)
    assert reasons(bench) == []
    assert state(bench) == {}
    assert len(bench.rows()) == (0 if merge is UPSERT else 4)


def test_what_is_no_change_is_rejected_by_name(make_bench: Any, broker: Broker) -> None:
    bench = a_bench(make_bench, UPSERT)
    values: list[Json] = [
        change("c", None, NUT),
        change("t", None, None),
        {"id": 1, "name": "flat", "price": "1.00"},
        change("x", None, None),
        change("c", None, None),
        {"op": "c", "after": NUT},
        change("c", None, {**NUT, "op": "sale"}),
    ]
    with running(bench, broker) as node:
        broker.logs[TOPIC, 0] += [*encoded(values), b'{"op":"c","op":"d"}', b"[1]"]
        node.drain()
    assert [why.partition(";")[0].partition(":")[0] for _, why in reasons(bench)] == [
        "its table was truncated, which no record says",
        "has no op, before and after of Debezium's envelope",
        'op "x" is none of c, u, d, r and t',
        "has no after, which a change that is not a deletion has",
        "has no time",
        "column op",
        "is not JSON",
        "expected an object, got [1]",
    ]
    assert len(bench.rows()) == 1


def field(name: str, type_: str, meaning: str = "", **parameters: str) -> Json:
    return {"field": name, "type": type_, "name": meaning, "parameters": parameters}


CONNECT, DEBEZIUM = "org.apache.kafka.connect.data", "io.debezium.time"
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
    assert reasons(bench) == []
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
    ((offset, reason),) = reasons(bench)
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
        broker.logs[TOPIC, 0] += [sent("r", None, first, 0), sent("c", None, second, 1), None]
        node.drain()
        broker.logs[TOPIC, 0] += [sent("d", first, None, 2), None]
        node.drain()
    assert reasons(bench) == []
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
        broker.logs[TOPIC, 0] += [*(framed(1, b"\0" + one) for one in [*created, gone]), None]
        node.drain()
    assert reasons(bench) == []
    time_ = datetime(1970, 1, 1, 0, 0, 0, 1000, tzinfo=UTC)
    assert state(bench) == {2: (None, Decimal("1.00"), time_)}


def commit_file(bench: Any, folder: Path, content: bytes, format_: str = "") -> Any:
    file = folder / "changes"
    file.write_bytes(content)
    input_format = InputFormat.parse(format_)
    batch = FileBatch(
        file=file, event_time=Timestamp(0), key=str(content), is_key_generated=True, format=input_format
    )
    work = FileCommit("default", batch, bench.preparer, bench.rejecting)
    return work.commit(bench.queues, bench.dataset)


@pytest.mark.parametrize("merge", [UPSERT, CHANGELOG], ids=["upsert", "changelog"])
@pytest.mark.parametrize("format_", ["", "json"])
def test_a_file_of_changes_is_read_like_a_topic(
    make_bench: Any, tmp_path: Path, merge: MergeStrategy, format_: str
) -> None:
    bench = a_bench(make_bench, merge, (*DDL, "op INT"))
    story = [one for one in STORY if one is not None]
    messages = [*story, change("t", None, None), change("d", CHEAPER, None) if merge is CHANGELOG else {}]
    content = json.dumps(messages) if format_ else "\n".join(map(json.dumps, messages))
    outcome = commit_file(bench, tmp_path, content.encode(), format_)
    assert list(state(bench)) == [10]
    why = [
        "its table was truncated",
        "column id: id = 1 has no record" if merge is CHANGELOG else "has no op",
    ]
    assert [row.offset for row in outcome.rejected] == [9, 10]
    for row, expected in zip(outcome.rejected, why, strict=True):
        assert expected in row.reason
    if not format_:
        assert outcome.rejected[0].reason.startswith("line 10: ")


def test_a_rejected_change_of_a_file_is_retried_in_its_envelope(make_bench: Any, tmp_path: Path) -> None:
    bench = a_bench(make_bench, CHANGELOG, (*DDL, "op INT"))
    lines = [json.dumps(one) for one in (change("c", None, BOLT), change("d", NUT, None))]
    assert len(commit_file(bench, tmp_path, "\n".join(lines).encode()).rejected) == 1
    commit_file(bench, tmp_path, json.dumps(change("c", None, NUT)).encode())
    rejected = bench.rejected_messages(StoredLetters(bench.coordinator.letters))
    settled = rejected.retry(bench.dataset, [])
    assert (settled.count, settled.open) == (1, 0)
    assert list(state(bench)) == [2]


def test_a_file_whose_bad_changes_may_not_be_left_out_is_refused(make_bench: Any, tmp_path: Path) -> None:
    bench = a_bench(make_bench, UPSERT, bad_records=BadRecords.STOP)
    lines = [json.dumps(one) for one in (change("c", None, NUT), change("t", None, None))]
    with pytest.raises(InvalidInput, match="line 2: its table was truncated"):
        commit_file(bench, tmp_path, "\n".join(lines).encode())
    assert bench.rows() == []


def test_a_file_in_another_format_has_records_of_its_own(make_bench: Any, tmp_path: Path) -> None:
    bench = a_bench(make_bench, UPSERT)
    commit_file(bench, tmp_path, b"id,name,price,event_time\n1,nut,1.00,2026-01-01T00:00:00Z\n", "csv")
    assert list(state(bench)) == [1]
