"""Columns from keys, headers and timestamps of messages, and tombstones."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from odf_testing.builders import a_query
from odf_testing.ingest_batches import a_message_batch, commit_messages

from odf_common.data.columns import Operation
from odf_common.errors import InvalidInput
from odf_common.metadata.events import (
    MergeStrategyAppend,
    MergeStrategyLedger,
    MergeStrategySnapshot,
    MergeStrategyUpsertStream,
    ReadStepCsv,
    ReadStepJson,
    ReadStepNdJson,
    SqlQueryStep,
)
from odf_ingest.message_columns import MessageColumns
from odf_ingest.prepare.batch import MessageBatch
from odf_ingest.prepare.message_values import TOMBSTONE, require_possible
from odf_ingest.prepare.plan import plan_of
from odf_ingest.prepare.preparer import Preparer
from odf_ingest.read.message_buffer import MessageBuffer
from odf_ingest.registry.decoder import _objects, decode_batch
from odf_ingest.source_settings import SourceSettings

UPSERT = MergeStrategyUpsertStream(primary_key=("id",))
COLUMNS = ("id BIGINT", "v STRING", "trace STRING", "sent TIMESTAMP(3)", "score DOUBLE", "raw BINARY")
SENT = datetime(2020, 9, 13, 12, 26, 40, tzinfo=UTC)


def settings(**chosen: str) -> MessageColumns:
    return SourceSettings.from_plain(chosen).message_columns


def messages(
    values: list[bytes | None],
    columns: MessageColumns,
    keys: Sequence[bytes | None] = (),
    start: int = 0,
    **headers: Sequence[bytes | None],
) -> MessageBatch:
    batch = a_message_batch({0: values}, start={0: start})
    (part,) = batch.parts
    named: Mapping[str, Sequence[bytes | None]] = {
        name.replace("_", "-"): some for name, some in headers.items()
    }
    return replace(batch, parts=(replace(part, keys=keys, headers=named),), columns=columns)


def read_by(*columns: str, **options: Any) -> ReadStepNdJson:
    return ReadStepNdJson(ddl_schema=columns or COLUMNS, **options)


def state(bench: Any) -> list[tuple[int, str | None]]:
    """Return the current rows of the chain: id and v."""
    rows: dict[int, str | None] = {}
    for row in bench.rows():
        if row["op"] in {Operation.APPEND, Operation.CORRECT_TO}:
            rows[row["id"]] = row["v"]
        elif row["op"] == Operation.RETRACT:
            del rows[row["id"]]
    return sorted(rows.items())


def test_key_headers_and_timestamp_become_columns_of_their_declared_types(make_bench: Any) -> None:
    bench = make_bench(read=read_by())
    columns = settings(
        keyColumns="id", headerColumns="trace-id:trace,score:score,raw:raw", timestampColumn="sent"
    )
    batch = messages(
        [b'{"v":"a"}', b'{"v":"b","trace":"of the value","id":9}'],
        columns,
        [b"1", b"2"],
        trace_id=[b"t1", None],
        score=[b"0.5", None],
        raw=[b"\xff\x00", None],
    )
    commit_messages(bench, batch)
    found = [
        (row["id"], row["v"], row["trace"], row["sent"], row["score"], row["raw"]) for row in bench.rows()
    ]
    assert found == [(1, "a", "t1", SENT, 0.5, b"\xff\x00"), (2, "b", None, SENT, None, None)]
    assert bench.reasons == []


def test_a_decimal_of_a_header_with_too_many_digits_is_a_dead_letter(make_bench: Any) -> None:
    bench = make_bench(read=read_by("v STRING", "price DECIMAL(10, 2)"))
    columns = settings(headerColumns="price:price")
    values: list[bytes | None] = [b'{"v":"a"}'] * 2
    commit_messages(bench, messages(values, columns, price=[b"99999999.99", b"123456789"]))
    assert bench.values("v", "price") == [("a", Decimal("99999999.99"))]
    text = "its header price: column price: '123456789' is not a value of DECIMAL(10, 2): it is too large"
    ((row, reason),) = bench.reasons
    assert (row, reason.partition("; ")[0]) == (1, text)


@pytest.mark.parametrize("key_format", ["text", "json"])
@pytest.mark.parametrize("source", [ReadStepNdJson, ReadStepCsv, ReadStepJson])
def test_times_of_keys_and_headers_have_the_format_of_the_source(
    make_bench: Any, source: Any, key_format: str
) -> None:
    schema = ("v STRING", "sent TIMESTAMP(3)", "seen TIMESTAMP(3)", "day DATE")
    bench = make_bench(
        read=source(ddl_schema=schema, timestamp_format="epochMillis", date_format="dd.MM.yyyy"),
        merge=MergeStrategyAppend(),
    )
    columns = settings(keyColumns="sent", keyFormat=key_format, headerColumns="seen:seen,day:day")
    value = b"a" if source is ReadStepCsv else b'{"v":"a"}'
    good, bad = b"1600000000000", b"2020-09-13T12:26:40Z"
    keys = [good, bad] if key_format == "text" else [b'{"sent":%s}' % good, b'{"sent":"%s"}' % bad]
    batch = messages(
        [value, value, value],
        columns,
        [*keys, keys[0]],
        seen=[good, good, bad],
        day=[b"13.09.2020", b"13.09.2020", b"13.09.2020"],
    )
    commit_messages(bench, batch)
    assert bench.values("v", "sent", "seen", "day") == [("a", SENT, SENT, SENT.date())]
    (first, of_key), (second, of_header) = bench.reasons
    assert (first, of_key.partition(" is not")[0]) == (1, "its key: column sent: '2020-09-13T12:26:40Z'")
    assert (second, of_header.partition(" is not")[0]) == (
        2,
        "its header seen: column seen: '2020-09-13T12:26:40Z'",
    )


def test_a_column_of_the_message_replaces_one_of_the_value_without_a_declared_schema_too(
    make_bench: Any,
) -> None:
    bench = make_bench(read=ReadStepNdJson())
    columns = settings(keyColumns="id", headerColumns="trace:trace", timestampColumn="sent")
    values: list[bytes | None] = [
        b'{"v":"a","id":"of the value","sent":7}',
        b'{"v":"b","trace":"of the value"}',
    ]
    commit_messages(bench, messages(values, columns, [b"1", b"2"], trace=[b"t1", b"t2"]))
    assert bench.values("v", "id", "trace", "sent") == [("a", "1", "t1", SENT), ("b", "2", "t2", SENT)]
    assert bench.reasons == []


def test_an_invalid_value_of_a_column_is_a_dead_letter_that_names_it(make_bench: Any) -> None:
    bench = make_bench(read=read_by("id BIGINT NOT NULL", "v STRING", "trace STRING", "score DOUBLE"))
    columns = settings(keyColumns="id", headerColumns="trace-id:trace,score:score")
    value = b'{"v":"a"}'
    batch = messages(
        [value] * 6,
        columns,
        [b"1", b"one", b"\xff", None, b"5", b"6"],
        trace_id=[b"t", b"t", b"t", b"t", b"a\xfe", b"t"],
        score=[None, None, None, None, None, b"1e400"],
    )
    commit_messages(bench, batch)
    assert [row["id"] for row in bench.rows()] == [1]
    found = dict(bench.reasons)
    assert found[1].startswith("its key: column id: 'one' is not a value of BIGINT; ")
    assert found[2] == "its key: column id: is not UTF-8 at byte 0"
    assert found[3] == "column id: null is not allowed; a value of BIGINT is required"
    assert found[4] == "its header trace-id: column trace: is not UTF-8 at byte 1"
    assert found[5].startswith("its header score: column score: '1e400' is not a value of DOUBLE; ")


def test_a_key_of_several_columns_is_an_object(make_bench: Any) -> None:
    bench = make_bench(read=read_by("id BIGINT", "v STRING", "trace STRING"))
    columns = settings(keyColumns="id,trace", keyFormat="json")
    keys = [b'{"id":1,"trace":"x"}', b"1", None, b'{"id":4}', b'{"id":"x"}']
    commit_messages(bench, messages([b'{"v":"a"}'] * 5, columns, keys))
    assert [(row["id"], row["trace"]) for row in bench.rows()] == [(1, "x"), (None, None), (4, None)]
    assert [offset for offset, _ in bench.reasons] == [1, 4]
    assert all(reason.startswith("its key: ") for _, reason in bench.reasons)


def test_the_messages_timestamp_is_the_event_time_if_that_is_set(make_bench: Any) -> None:
    bench = make_bench(read=read_by("id BIGINT", "event_time TIMESTAMP(3)"))
    value = b'{"id":1,"event_time":"2020-01-01T00:00:00Z"}'
    commit_messages(bench, messages([value], settings(timestampColumn="event_time")))
    commit_messages(bench, messages([value], settings(), start=1))
    assert [row["event_time"] for row in bench.rows()] == [SENT, datetime(2020, 1, 1, tzinfo=UTC)]


def test_columns_of_messages_are_inferred_as_strings_and_times(make_bench: Any) -> None:
    bench = make_bench(read=ReadStepNdJson())
    columns = settings(keyColumns="k", headerColumns="h:trace", timestampColumn="sent")
    commit_messages(bench, messages([b'{"v":1}'], columns, [b"7"], h=[b"t"]))
    commit_messages(bench, messages([b'{"v":2}'], columns, [b"8"], start=1, h=[None]))
    found = [(row["v"], row["k"], row["trace"], row["sent"]) for row in bench.rows()]
    assert found == [(1, "7", "t", SENT), (2, "8", None, SENT)]


def test_csv_by_position_leaves_columns_of_messages_out(make_bench: Any) -> None:
    bench = make_bench(read=ReadStepCsv(ddl_schema=("id BIGINT", "k STRING", "v STRING")))
    commit_messages(bench, messages([b"1,a"], settings(keyColumns="k"), [b"x"]))
    assert [(row["id"], row["k"], row["v"]) for row in bench.rows()] == [(1, "x", "a")]


def test_tombstones_delete_their_keys_in_the_order_of_messages(make_bench: Any) -> None:
    bench = make_bench(UPSERT, read=read_by("id BIGINT", "v STRING NOT NULL"))
    columns = settings(keyColumns="id")
    first: list[bytes | None] = [b'{"v":"a"}', b'{"v":"b"}', None, b'{"v":"c"}', b'{"v":"d"}', None]
    commit_messages(bench, messages(first, columns, [b"1", b"2", b"1", b"3", b"1", b"9"]))
    assert state(bench) == [(1, "d"), (2, "b"), (3, "c")]
    commit_messages(bench, messages([None, b'{"v":"e"}', None], columns, [b"2", b"3", b"3"], start=6))
    assert state(bench) == [(1, "d")]
    commit_messages(bench, messages([None, None], columns, [b"x", None], start=9))
    assert state(bench) == [(1, "d")]
    assert [offset for offset, _ in bench.reasons] == [9, 10]
    assert bench.reasons[1][1] == "is empty, and its key has no id"


def test_one_of_two_partitions_has_tombstones(make_bench: Any) -> None:
    bench = make_bench(UPSERT, read=read_by("id BIGINT", "v STRING NOT NULL"))
    batch = a_message_batch({0: [b'{"v":"a"}', None], 1: [b'{"v":"b"}']})
    first, second = batch.parts
    parts = (replace(first, keys=[b"1", b"1"]), replace(second, keys=[b"2"]))
    commit_messages(bench, replace(batch, parts=parts, columns=settings(keyColumns="id")))
    assert state(bench) == [(2, "b")]
    assert bench.reasons == []


def test_tombstones_delete_without_a_declared_schema_too(make_bench: Any) -> None:
    bench = make_bench(UPSERT, read=ReadStepNdJson())
    columns = settings(keyColumns="id", keyFormat="json")
    commit_messages(bench, messages([b'{"v":"a"}'], columns, [b'{"id":"1"}']))
    commit_messages(bench, messages([None], columns, [b'{"id":"1"}'], start=1))
    assert [row["op"] for row in bench.rows()] == [Operation.APPEND, Operation.RETRACT]


@pytest.mark.parametrize(
    ("read", "expected", "whys"),
    [
        (read_by("score DOUBLE", "v STRING"), [0.5, 9007199254740992.0], []),
        (ReadStepNdJson(), [0.5], ["the type that was inferred; declare DOUBLE"]),
    ],
    ids=["declared", "inferred"],
)
def test_a_number_of_a_key_is_the_nearest_double_where_the_column_is_declared(
    make_bench: Any, read: ReadStepNdJson, expected: list[float], whys: list[str]
) -> None:
    bench = make_bench(read=read)
    commit_messages(bench, messages([b'{"score":0.5,"v":"a"}'], settings()))
    columns = settings(keyColumns="score", keyFormat="json")
    commit_messages(bench, messages([b'{"v":"b"}'], columns, [b'{"score":9007199254740993}'], start=1))
    assert [row["score"] for row in bench.rows()] == expected
    assert [reason.partition("DOUBLE, ")[2].partition(" to take")[0] for _, reason in bench.reasons] == whys


@pytest.mark.parametrize(
    ("merge", "chosen"),
    [(MergeStrategyAppend(), {"keyColumns": "id"}), (UPSERT, {}), (UPSERT, {"keyColumns": "v"})],
)
def test_other_tombstones_are_dead_letters_that_say_why(
    make_bench: Any, merge: Any, chosen: dict[str, str]
) -> None:
    bench = make_bench(merge, read=read_by("id BIGINT", "v STRING"))
    commit_messages(bench, messages([None], settings(**chosen), [b"1"]))
    assert bench.reasons == [(0, TOMBSTONE)]


class Deleting:
    """Port `Preprocessor`: the records as they are, with operations."""

    def run(self, transform: Any, records: pa.Table, is_wanted: Any) -> pa.Table | None:
        return records if len(records) else None


@pytest.mark.parametrize(
    ("query", "merge", "rejected"),
    [
        ("SELECT *, CASE kind WHEN 'd' THEN 1 ELSE 0 END AS op FROM input", UPSERT, []),
        ("SELECT * FROM input", UPSERT, [0, 2]),
        ("SELECT *, 0 AS op FROM input", MergeStrategyLedger(primary_key=("id",)), [0, 2]),
    ],
)
def test_tombstones_are_no_faults_where_a_query_returns_the_deletions(
    make_bench: Any, query: str, merge: Any, rejected: list[int]
) -> None:
    bench = make_bench(merge, read=read_by("id BIGINT", "v STRING"))
    bench.propose(replace(bench.state.push_sources["default"], preprocess=a_query(SqlQueryStep(query=query))))
    bench.preparer = Preparer(Deleting())  # type: ignore[arg-type]
    commit_messages(bench, messages([None, b'{"id":1,"v":"a"}', None], settings(), [None, None, None]))
    assert [row for row, _ in bench.reasons] == rejected
    assert bench.values("id") == [(1,)]


@pytest.mark.parametrize(
    ("chosen", "why"),
    [
        ({"keyColumns": "id,v"}, "set keyFormat=json"),
        ({"keyColumns": "id", "timestampColumn": "id"}, "column id: has two origins"),
        ({"headerColumns": "a:v,b:v"}, "column v: has two origins"),
        ({"headerColumns": "trace"}, "expected pairs such as trace-id:trace"),
        ({"keyColumns": "a,,b"}, "expected names of columns"),
        ({"keyFormat": "avro"}, "expected one of text, json"),
        ({"timestampColumn": "a,b"}, "expected the name of one column"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(chosen: dict[str, str], why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        SourceSettings.from_plain(chosen)


@pytest.mark.parametrize(
    ("chosen", "merge", "why"),
    [
        ({"keyColumns": "absent"}, MergeStrategyAppend(), "is not among the columns of the source: id, v"),
        ({"timestampColumn": "v"}, MergeStrategyAppend(), "needs a TIMESTAMP, DATE or BIGINT"),
        ({"headerColumns": "a:id,b:v"}, MergeStrategyAppend(), "at least one column"),
        ({"keyColumns": "id"}, MergeStrategySnapshot(primary_key=("id",)), "a whole batch of records"),
    ],
)
def test_columns_that_the_source_cannot_have_are_refused(
    make_bench: Any, chosen: dict[str, str], merge: Any, why: str
) -> None:
    bench = make_bench(merge, read=read_by("id BIGINT", "v STRING"))
    plan = plan_of(bench.state, bench.state.push_sources["default"])
    require_possible(settings(), plan)
    with pytest.raises(InvalidInput, match=why):
        require_possible(settings(**chosen), plan)


def test_settings_are_written_as_they_are_read() -> None:
    chosen = {
        "keyColumns": "a,b",
        "keyFormat": "json",
        "headerColumns": "x:y:c,z:d",
        "timestampColumn": "t",
        "topics": "shop.*,street",
        "topicStart": "2026-03-04T00:00:00Z",
    }
    assert SourceSettings.from_plain(chosen).non_default() == chosen
    assert SourceSettings().with_changes(chosen).with_changes(
        dict.fromkeys(chosen.keys() - {"keyFormat", "topicStart"}, "none")
    ).non_default() == {
        "keyFormat": "json",
        "topicStart": "2026-03-04T00:00:00Z",
    }


class Undecodable:
    """A decoder that can decode nothing; tombstones are unaffected."""

    def decode(
        self, values: Sequence[bytes | None], *, use: object = None
    ) -> tuple[MessageBuffer, dict[int, str]]:
        """Return no value, and why."""
        faults = {place: "schema 7: is broken" for place, value in enumerate(values) if value is not None}
        return MessageBuffer.pack([None] * len(values)), faults


def test_a_message_that_cannot_be_decoded_is_no_tombstone(make_bench: Any) -> None:
    bench = make_bench(UPSERT, read=read_by("id BIGINT", "v STRING"))
    batch = messages([b"\x00junk", None], settings(keyColumns="id"), [b"1", b"2"])
    plan = plan_of(bench.state, bench.state.push_sources["default"])
    found = decode_batch(Undecodable(), plan, batch, bench.preparer.messages)  # type: ignore[arg-type]
    assert [(one.offset, one.value, one.reason) for one in found.bad] == [
        (0, b"\x00junk", "schema 7: is broken")
    ]
    assert found.records is not None
    assert found.records.column("id").to_pylist() == [2]


@pytest.mark.parametrize(
    ("columns", "keys"),
    [
        ("id", [b'{"id":7}', b'{"id":"x"}', b'{"id":2}', b"[1]", b"junk", None]),
        ("id,v", [b"7", b'"x"', b'{"id":2}', b"[1]", b"junk", None]),
    ],
    ids=["one", "two"],
)
def test_a_key_that_is_a_single_value_is_that_of_the_only_column(
    columns: str, keys: list[bytes | None]
) -> None:
    sent = [b"7", b'"x"', b'{"id":2}', b"[1]", b"junk", None]
    named = cast("MessageColumns", SimpleNamespace(keys=tuple(columns.split(","))))
    assert list(_objects(sent, named)) == keys
