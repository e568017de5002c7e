"""A table's changes in Debezium's envelope: the dataset has the table's state, however they were cut into batches."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from odf_testing.ingest_batches import a_message_batch, commit_file
from odf_testing.letters import StoredLetters

from odf_common.errors import InvalidInput
from odf_common.metadata.events import (
    MergeStrategy,
    MergeStrategyAppend,
    MergeStrategyChangelogStream,
    MergeStrategyUpsertStream,
    ReadStep,
    ReadStepCsv,
    ReadStepNdJson,
)
from odf_common.metadata.scalars import Timestamp
from odf_ingest.message_columns import ColumnNames, Envelope, KeyFormat, MessageColumns
from odf_ingest.prepare.batch import MessageBatch
from odf_ingest.prepare.debezium import unwrap_changes
from odf_ingest.prepare.plan import plan_of
from odf_ingest.push.batches.kafka_batch import KafkaBatch
from odf_ingest.read.input_format import InputFormat
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


def a_bench(make_bench: Any, merge: MergeStrategy, columns: Sequence[str] = DDL, **settings: Any) -> Any:
    bench = make_bench(merge, ReadStepNdJson(ddl_schema=tuple(columns)))
    chosen = SourceSettings(envelope=Envelope.DEBEZIUM, **settings)
    save_settings(bench.blobs, bench.dataset, "default", chosen)
    return bench


def drained(bench: Any, broker: Broker, *batches: Sequence[Json | None]) -> None:
    with running(bench, broker) as node:
        for values in batches:
            node.ingest(encoded(values))


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


@pytest.mark.parametrize("has_schema", [False, True])
@pytest.mark.parametrize("is_apart", [False, True])
@pytest.mark.parametrize("merge", [UPSERT, CHANGELOG], ids=["upsert", "changelog"])
def test_the_state_is_that_of_the_table(
    make_bench: Any, broker: Broker, merge: MergeStrategy, is_apart: bool, has_schema: bool
) -> None:
    bench = a_bench(make_bench, merge, DDL if merge is UPSERT else (*DDL, "op INT"))
    story = [with_schema(one) for one in STORY] if has_schema else STORY
    drained(bench, broker, *([[one] for one in story] if is_apart else [story]))
    assert bench.reasons == []
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
        node.ingest([b"", *encoded([change("c", None, NUT)]), b" "])
    assert bench.reasons == []
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
    assert [offset for offset, _ in bench.reasons] == [1, 3, 4]
    assert "column price: -C of id = 1 has 7.00, and its record has 1.00" in bench.reasons[0][1]
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
    assert [offset for offset, _ in bench.reasons] == [1]
    assert bench.values("op") == [(ADD,), (RETRACT,)]


def test_changes_without_before_need_another_setting(make_bench: Any, broker: Broker) -> None:
    bench = a_bench(make_bench, CHANGELOG, (*DDL, "op INT"))
    values = [change("c", None, NUT), change("u", None, CHEAPER), change("d", None, None)]
    drained(bench, broker, values)
    assert [why.partition(":")[0] for _, why in bench.reasons] == [
        "an update has no before, so the values that it changes are not known",
        "a deletion has no before, so the values that it changes are not known",
    ]
    assert "REPLICA IDENTITY FULL), set retractions=complete, or merge as UpsertStream" in bench.reasons[0][1]


def a_batch(
    columns: MessageColumns, values: Sequence[bytes | None], keys: Sequence[bytes | None] = ()
) -> MessageBatch:
    batch = a_message_batch({0: values}, topic=TOPIC, sent_ms=None, columns=columns)
    return replace(batch, parts=tuple(replace(part, keys=keys) for part in batch.parts))


@pytest.mark.parametrize(
    ("read", "why"),
    [
        (ReadStepNdJson(ddl_schema=DDL), "merges as ChangelogStream or UpsertStream"),
        (ReadStepCsv(ddl_schema=DDL), "`kind: NdJson`, this one has Csv"),
    ],
)
def test_no_message_is_rejected_by_a_source_that_cannot_read_changes(
    make_bench: Any, read: ReadStep, why: str
) -> None:
    bench = make_bench(MergeStrategyAppend(), read)
    columns = MessageColumns(envelope=Envelope.DEBEZIUM)
    plan = plan_of(bench.state, bench.state.push_sources["default"], columns)
    with pytest.raises(InvalidInput, match=why) as caught:
        unwrap_changes(bench.preparer.messages, plan, a_batch(columns, encoded([NUT])))
    assert caught.value.where == "envelope"


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
    keys: list[Json] = [
        {"id": 1},
        {"schema": {"type": "struct"}, "payload": {"id": 1}},
        {"schema": None, "payload": {"id": 1}},
        {"id": 1},
    ]
    values = [change("c", None, NUT), change("u", None, CHEAPER, 1), change("d", None, None, 2), None]
    read = partial(unwrap_changes, bench.preparer.messages)
    columns = load_settings(bench.blobs, bench.dataset, "default").message_columns
    batch = a_batch(columns, encoded(values), encoded(keys))
    plan = plan_of(bench.state, bench.state.push_sources["default"], columns)
    reading = bench.pool.submit(read, plan, batch)
    work = KafkaBatch("default", batch, plan=plan, reading=reading, read=read, rejecting=bench.rejecting)
    bench.queues.commit(bench.dataset, work)
    assert bench.reasons == []
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
        node.ingest([*encoded(values), b'{"op":"c","op":"d"}', b"[1]"])
    assert [why.partition(";")[0].partition(":")[0] for _, why in bench.reasons] == [
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


CONNECT, DEBEZIUM = "org.apache.kafka.connect.data", "io.debezium.time"


def commit_changes(bench: Any, folder: Path, content: bytes, format_: str = "") -> Any:
    fields: dict[str, Any] = {
        "event_time": Timestamp(0),
        "is_key_generated": True,
        "format": InputFormat.parse(format_),
    }
    return commit_file(bench, folder / "changes", content, str(content), **fields)


@pytest.mark.parametrize("merge", [UPSERT, CHANGELOG], ids=["upsert", "changelog"])
@pytest.mark.parametrize("format_", ["", "json"])
def test_a_file_of_changes_is_read_like_a_topic(
    make_bench: Any, tmp_path: Path, merge: MergeStrategy, format_: str
) -> None:
    bench = a_bench(make_bench, merge, (*DDL, "op INT"))
    story = [one for one in STORY if one is not None]
    messages = [*story, change("t", None, None), change("d", CHEAPER, None) if merge is CHANGELOG else {}]
    content = json.dumps(messages) if format_ else "\n".join(map(json.dumps, messages))
    outcome = commit_changes(bench, tmp_path, content.encode(), format_)
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
    assert len(commit_changes(bench, tmp_path, "\n".join(lines).encode()).rejected) == 1
    commit_changes(bench, tmp_path, json.dumps(change("c", None, NUT)).encode())
    rejected = bench.rejected_messages(StoredLetters(bench.coordinator.letters))
    settled = rejected.retry(bench.dataset, [])
    assert (settled.count, settled.open) == (1, 0)
    assert list(state(bench)) == [2]


def test_a_file_whose_bad_changes_may_not_be_left_out_is_refused(make_bench: Any, tmp_path: Path) -> None:
    bench = a_bench(make_bench, UPSERT, bad_records=BadRecords.STOP)
    lines = [json.dumps(one) for one in (change("c", None, NUT), change("t", None, None))]
    with pytest.raises(InvalidInput, match="line 2: its table was truncated"):
        commit_changes(bench, tmp_path, "\n".join(lines).encode())
    assert bench.rows() == []


def test_a_file_in_another_format_has_records_of_its_own(make_bench: Any, tmp_path: Path) -> None:
    bench = a_bench(make_bench, UPSERT)
    commit_changes(bench, tmp_path, b"id,name,price,event_time\n1,nut,1.00,2026-01-01T00:00:00Z\n", "csv")
    assert list(state(bench)) == [1]
