"""A source continues past odd messages: each is rejected with a reason, and the stored value is the one that was
compared.
"""

import io
import zipfile
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import shapefile
from odf_testing.ingest_batches import a_message_batch, commit_file, commit_messages
from odf_testing.letters import StoredLetters

from odf_common.data.schema_evolution import schema_of_event
from odf_common.errors import InvalidInput
from odf_common.metadata.events import (
    MergeStrategyChangelogStream,
    MergeStrategyLedger,
    MergeStrategySnapshot,
    MergeStrategyUpsertStream,
    ReadStepCsv,
    ReadStepEsriShapefile,
    ReadStepJson,
    ReadStepNdJson,
    ReadStepParquet,
)
from odf_common.metadata.scalars import Timestamp
from odf_ingest.control.rejected_messages import MessageLocation
from odf_ingest.errors import CannotRetry
from odf_ingest.source_settings import BadRecords

from .in_memory_broker import TOPIC, Broker, running
from .test_rejected_rows import DDL
from .test_rejected_rows import pushing as pushing  # noqa: PLC0414 - a fixture

OPEN = ReadStepNdJson()
CAME = 1_600_000_000_000  # timestamp of each message, ms


class Topic:
    """A topic with several partitions, whose batches are committed one after the other."""

    def __init__(self, bench: Any, partitions: int = 1) -> None:
        self.bench = bench
        self.next = dict.fromkeys(range(partitions), 0)

    def push(self, *values: bytes) -> None:
        """Commit one batch, distributed over the partitions."""
        dealt = {number: list(values[number :: len(self.next)]) for number in self.next}
        batch = a_message_batch(dealt, self.next, sent_ms=CAME)
        commit_messages(self.bench, batch)
        self.next = dict(batch.end)

    @property
    def rejected(self) -> list[str]:
        """Return the reasons of all dead letters."""
        return [letter.reason for letter in self.bench.coordinator.letters]


def types(bench: Any) -> dict[str, pa.DataType]:
    """Return the dataset's data columns."""
    system = {"offset", "op", "system_time", "event_time"}
    return {
        column.name: column.type
        for column in schema_of_event(bench.state.schema)
        if column.name not in system
    }


def test_mixed_types_in_the_first_batch_reject_those_that_differ_from_most(make_bench: Any) -> None:
    topic = Topic(make_bench(None, OPEN))
    topic.push(b'{"a":1,"b":"x"}', b'{"a":"two","b":"y"}', b'{"a":3,"b":7}', b'{"a":4}')
    assert topic.bench.values("a", "b") == [(1, "x"), (4, None)]
    assert topic.rejected == [
        "column a: 'two' is not a value of BIGINT; declare STRING, and convert it in preprocess",
        "column b: 7 is not a value of STRING; declare BIGINT, DECIMAL or DOUBLE, and convert it in preprocess",
    ]
    topic.push(b'{"a":"five"}', b'{"a":5}')
    assert topic.bench.values("a") == [(1,), (4,), (5,)]


def test_partitions_of_one_batch_get_the_same_types(make_bench: Any) -> None:
    topic = Topic(make_bench(None, OPEN), partitions=2)
    topic.push(b'{"a":1}', b'{"a":1.5}', b'{"a":2}', b'{"a":"x"}')
    assert types(topic.bench) == {"a": pa.float64()}
    assert sorted(topic.bench.values("a")) == [(1.0,), (1.5,), (2.0,)]
    assert topic.rejected == [
        "column a: 'x' is not a value of DOUBLE; declare STRING, and convert it in preprocess"
    ]


def test_a_column_of_nulls_is_left_out_until_it_has_a_value(make_bench: Any) -> None:
    topic = Topic(make_bench(None, OPEN))
    topic.push(b'{"a":1,"b":null,"c":[],"d":{},"e":{"f":null,"g":1}}')
    assert types(topic.bench) == {"a": pa.int64(), "e": pa.struct([("g", pa.int64())])}
    topic.push(b'{"a":2,"b":"x","c":[1.5],"e":{"f":true}}')
    assert topic.bench.values("a", "b", "c", "e")[1] == (2, "x", [1.5], {"g": None, "f": True})
    assert topic.rejected == []


@pytest.mark.parametrize(
    "merge",
    [
        MergeStrategyLedger(primary_key=("a",)),
        MergeStrategyUpsertStream(primary_key=("a",)),
        MergeStrategySnapshot(primary_key=("a",)),
    ],
)
def test_new_columns_are_added_whatever_the_merge_strategy(make_bench: Any, merge: Any) -> None:
    topic = Topic(make_bench(merge, OPEN))
    topic.push(b'{"a":1,"e":{"g":1}}')
    topic.push(b'{"a":2,"b":"x","e":{"f":true}}')
    topic.push(b'{"a":1,"b":"y","e":{"g":2,"f":true}}')
    assert topic.rejected == []
    assert topic.bench.values("a", "b", "e")[-1][0] in (1, 2)
    assert types(topic.bench)["e"] == pa.struct([("g", pa.int64()), ("f", pa.bool_())])


@pytest.mark.parametrize("step", [OPEN, ReadStepJson()])
def test_records_without_any_value_are_rejected(make_bench: Any, step: Any) -> None:
    topic = Topic(make_bench(None, step))
    topic.push(b"{}", b'{"a":null}')
    topic.push(b"{}", b'{"a":1}')
    topic.push(b"{}", b'{"a":2}', b'{"a":null}')
    assert topic.bench.values("a") == [(1,), (2,), (None,)]
    assert len(topic.rejected) == 4
    assert topic.rejected[2] == "has none of the columns a; it is empty"


def test_invalid_event_times_are_rejected_and_missing_ones_are_the_time_of_the_message(
    make_bench: Any,
) -> None:
    topic = Topic(make_bench(None, OPEN))
    topic.push(
        b'{"a":1,"event_time":"2020-01-01T00:00:00.5Z"}', b'{"a":2}', b'{"a":3,"event_time":17}', b'{"a":4}'
    )
    at = Timestamp.parse("2020-01-01T00:00:00.5Z").datetime()
    came = Timestamp.from_ms(CAME).datetime()
    assert topic.bench.values("a", "event_time") == [(1, at), (2, came), (4, came)]
    text = "a number has no unit: set timestampFormat, such as epochMillis"
    assert topic.rejected == [f"column event_time: 17 is not a value of TIMESTAMP(3); {text}"]


@pytest.mark.parametrize("merge", [None, MergeStrategyLedger(primary_key=("a",))])
def test_columns_that_a_dataset_cannot_have_are_rejected_with_their_records(
    make_bench: Any, merge: Any
) -> None:
    topic = Topic(make_bench(merge, OPEN))
    topic.push(b'{"a":1}', b'{"a":2,"offset":7}', b'{"a":3,"A":4}', b'{"a":5,"Op":1}', b'{"a":6," ":1}')
    topic.push(b'{"a":7,"l":[{"b":1}]}')
    assert topic.bench.values("a") == [(1,)]
    assert [reason.split(";")[0] for reason in topic.rejected] == [
        "column offset: the name belongs to system column offset",
        "column A: SQL cannot distinguish it from a",
        "column Op: the name belongs to system column op",
        "column  : its name is empty",
        "column l: type ARRAY<STRUCT<b: BIGINT>> has no logical hash",
    ]
    assert types(topic.bench) == {"a": pa.int64()}


def test_a_parquet_file_that_a_dataset_cannot_have_is_a_dead_letter(make_bench: Any) -> None:
    topic = Topic(make_bench(None, ReadStepParquet()))
    for table in (
        pa.table({"a": [1], "m": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64()))}),
        pa.table({"a": [1], "offset": [1]}),
        pa.table({"a": [1], "n": pa.nulls(1), "d": pa.array([3_000_000], pa.date32())}),
        pa.table({"a": [1], "n": pa.nulls(1), "event_time": pa.array([0], pa.timestamp("ns"))}),
    ):
        sink = io.BytesIO()
        pq.write_table(table, sink)
        topic.push(sink.getvalue())
    assert topic.bench.values("a") == [(1,)]
    assert types(topic.bench) == {"a": pa.int64()}
    assert [":".join(reason.split(":")[:2]) for reason in topic.rejected] == [
        "row 1: column m",
        "row 1: column offset",
        "row 1: column d",
    ]
    assert topic.rejected[2].endswith("+10183-09-21 is outside of the years 0001 to 9999 in UTC")


def test_a_key_that_no_record_has_rejects_them_instead_of_stopping_the_source(make_bench: Any) -> None:
    topic = Topic(make_bench(MergeStrategyLedger(primary_key=("id",)), OPEN))
    topic.push(b'{"a":1}')
    topic.push(b'{"id":1,"a":1}', b'{"a":1}')
    assert topic.bench.values("id") == [(1,)]
    assert topic.rejected == ["has no id", "column id: null is not allowed; a value of BIGINT is required"]


def test_invalid_operations_are_rejected(make_bench: Any) -> None:
    topic = Topic(make_bench(MergeStrategyChangelogStream(primary_key=("id",)), OPEN))
    topic.push(b'{"id":1}')
    topic.push(b'{"id":1,"op":0}', b'{"id":2,"op":"+A"}', b'{"id":3}', b'{"id":4,"op":9}')
    assert topic.bench.values("op", "id") == [(0, 1)]
    assert len(topic.rejected) == 4


@pytest.mark.parametrize(
    "merge",
    [
        MergeStrategyLedger(primary_key=("at",)),
        MergeStrategyUpsertStream(primary_key=("at",)),
        MergeStrategySnapshot(primary_key=("at",)),
    ],
)
@pytest.mark.parametrize(
    "at", ["2020-01-01 00:00:00", "2020-01-01T00:00:00+02:00", "0001-01-01", "9999-12-31"]
)
def test_a_key_of_inferred_times_is_known_again(make_bench: Any, merge: Any, at: str) -> None:
    topic = Topic(make_bench(merge, OPEN))
    record = b'{"at":"%s","v":1}' % at.encode()
    for _ in range(3):
        topic.push(record)
    assert types(topic.bench) == {"at": pa.timestamp("ms", "UTC"), "v": pa.int64()}
    assert len(topic.bench.rows()) == 1
    assert topic.rejected == []


@pytest.mark.parametrize("merge", [MergeStrategyLedger, MergeStrategyUpsertStream, MergeStrategySnapshot])
@pytest.mark.parametrize(
    "read", [ReadStepNdJson(ddl_schema=("at TIMESTAMP(0)", "t TIME(0)")), ReadStepParquet()]
)
def test_a_key_in_seconds_is_known_again_in_the_unit_that_is_stored(
    make_bench: Any, merge: Any, read: Any
) -> None:
    topic = Topic(make_bench(merge(primary_key=("at", "t")), read))
    sink = io.BytesIO()
    at, t = pa.array([0], pa.timestamp("s")), pa.array([1], pa.time32("s"))
    pq.write_table(pa.table({"at": at, "t": t}), sink)
    is_json = isinstance(read, ReadStepNdJson)
    for _ in range(3):
        topic.push(b'{"at":"1970-01-01T00:00:00Z","t":"00:00:01"}' if is_json else sink.getvalue())
    assert len(topic.bench.rows()) == 1
    assert topic.rejected == []


def test_inferred_integers_are_never_doubles(make_bench: Any) -> None:
    large = [9007199254740993, 12345678901234567890]
    for messages in ([b"1.0"], []):
        topic = Topic(make_bench(None, OPEN))
        topic.push(*(b'{"a":%d}' % number for number in large), *(b'{"a":%s}' % one for one in messages))
        assert topic.rejected == []
        assert types(topic.bench) == {"a": pa.decimal128(38, 0)}
        assert [value for (value,) in topic.bench.values("a")][:2] == large


def test_a_deeply_nested_record_is_rejected_where_columns_are_inferred(make_bench: Any) -> None:
    topic = Topic(make_bench(None, OPEN))
    topic.push(b'{"a":1}', b'{"a":2,"b":%s%s}' % (b"[" * 100_000, b"]" * 100_000), b"null", b'{"a":3}')
    assert topic.bench.values("a") == [(1,), (3,)]
    assert topic.rejected[0] == "is nested more than 32 levels deep; declare a schema to read it"


def test_a_time_past_the_year_9999_is_rejected(make_bench: Any) -> None:
    topic = Topic(make_bench())
    form = b'{"id":%d,"event_time":"9999-12-31T23:59:59%s"}'
    topic.push(form % (1, b"Z"), form % (2, b"-05:00"), form % (3, b"+05:00"))
    assert sorted(topic.bench.values("id")) == [(1,), (3,)]
    assert topic.rejected == [
        "column event_time: +10000-01-01T04:59:59Z is outside of the years 0001 to 9999 in UTC"
    ]


def test_csv_without_a_schema_keeps_its_columns_by_position(make_bench: Any) -> None:
    topic = Topic(make_bench(None, ReadStepCsv()))
    topic.push(b"1,x", b"2", b'3,"a,b"', b"4,y,z")
    topic.push(b"5,w")
    assert topic.bench.values("f0", "f1") == [("1", "x"), ("3", "a,b"), ("5", "w")]
    assert topic.rejected == [
        "has 1 values instead of 2 (f0, f1): 2",
        "has 3 values instead of 2 (f0, f1): 4,y,z",
    ]


def test_csv_with_headers_and_without_a_schema_is_read_by_name(make_bench: Any) -> None:
    topic = Topic(make_bench(None, ReadStepCsv(header=True, infer_schema=True)))
    topic.push(b"a,b\n1,x", b"b,a\ny,2", b"3,z")
    topic.push(b"c,a\ntrue,4", b"a\n5.5", b"event_time,a\n2020-01-01,6")
    assert sorted(topic.bench.values("a", "b", "c")) == [
        (1, "x", None),
        (2, "y", None),
        (4, None, True),
        (6, None, None),
    ]
    assert topic.rejected == [
        "has no header, and the source declares no schema: its columns have no names",
        "column a: '5.5' is not a value of BIGINT; write a whole number in its range, or declare DECIMAL, DOUBLE or STRING",
    ]


def test_a_file_without_a_schema_is_refused_by_the_line_that_differs(make_bench: Any, tmp_path: Path) -> None:
    bench = make_bench(None, OPEN)
    bench.set(bad_records=BadRecords.STOP)
    with pytest.raises(InvalidInput, match="line 3: column a: 'x' is not a value of BIGINT"):
        commit_file(bench, tmp_path / "batch", '{"a":1}\n{"a":2}\n{"a":"x"}\n')


SHAPES = (*DDL, "geometry STRING")
NO_DAY = "is not a value of DATE; write it as 2026-01-31, or set dateFormat"


def a_shapefile(*rows: tuple[object, str], damage: tuple[bytes, bytes] = (b"", b"")) -> bytes:
    files = {name: BytesIO() for name in ("shp", "shx", "dbf")}
    with shapefile.Writer(**files, shapeType=shapefile.POINT) as writer:
        writer.field("id", "N", size=10)
        writer.field("day", "C", size=12)
        for number, row in enumerate(rows):
            writer.record(*row)
            writer.point(number, 0)
    archive = BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        for name, content in files.items():
            file.writestr(f"places.{name}", content.getvalue().replace(*damage))
    return archive.getvalue()


@pytest.mark.parametrize(
    ("read", "input_format"),
    [
        (ReadStepEsriShapefile(ddl_schema=SHAPES), ""),
        (ReadStepNdJson(ddl_schema=SHAPES), "esrishapefile"),
    ],
    ids=["own", "format"],
)
def test_bad_rows_of_a_shapefile_are_dead_letters_that_are_read_again(
    pushing: Any, read: Any, input_format: str
) -> None:
    made = pushing(read=read)
    rows = [(1, "2024-01-01"), (2, "soon"), (None, ""), (4, "2024-01-04"), (5, "x")]
    outcome = made.push(a_shapefile(*rows), input_format=input_format)
    assert (made.ids, [one.reason for one in outcome.rejected]) == (
        [1, 4],
        [
            f"record 2: column day: 'soon' {NO_DAY}",
            "record 3: column id: null is not allowed; a value of BIGINT is required",
            f"record 5: column day: 'x' {NO_DAY}",
        ],
    )
    assert made.letters.sent[0].value == (
        b'{"id":2,"day":"soon","geometry":"{\\"type\\":\\"Point\\",\\"coordinates\\":[1.0,0.0]}"}'
    )
    with pytest.raises(CannotRetry, match=f"row/0 cannot be retried: column day: 'soon' {NO_DAY}"):
        made.retry()
    made.bench.propose(
        replace(made.bench.state.push_sources["default"], read=replace(read, ddl_schema=("id BIGINT",)))
    )
    assert (made.retry("row/0", "row/2").count, made.ids, made.open) == (2, [1, 4, 2, 5], ["row/1"])


def test_a_shapefile_without_a_declared_schema_rejects_rows_that_differ_from_its_dataset(
    pushing: Any,
) -> None:
    made = pushing(read=ReadStepEsriShapefile())
    made.push(a_shapefile((1, "a")), "one")
    made.bench.propose(
        replace(made.bench.state.push_sources["default"], merge=MergeStrategyLedger(primary_key=("id",)))
    )
    outcome = made.push(a_shapefile((2, "b"), (None, "c")), "two")
    assert (made.ids, [one.reason.partition(": null")[0] for one in outcome.rejected]) == (
        [1, 2],
        ["record 2: column id"],
    )


def test_a_damaged_attribute_refuses_its_shapefile_with_its_row_and_what_to_do(pushing: Any) -> None:
    made = pushing(read=ReadStepEsriShapefile(ddl_schema=SHAPES))
    damaged = a_shapefile((1, ""), (421421, ""), damage=(b"421421", b"42142l"))
    why = r"record 2: column id: '42142l' is not a number; correct it in the \.dbf file"
    with pytest.raises(InvalidInput, match=why):
        made.push(damaged)


def test_bad_rows_of_a_message_that_is_a_shapefile_are_dead_letters_too(
    make_bench: Any, broker: Broker
) -> None:
    bench = make_bench(None, ReadStepEsriShapefile(ddl_schema=SHAPES))
    with running(bench, broker) as node:
        node.ingest([a_shapefile((1, ""), (2, "soon")), b"junk", a_shapefile((3, ""))])
        assert node.ids == [1, 3]
        assert [one.reason for one in bench.coordinator.letters] == [
            f"message 0/0 of topic {TOPIC}, record 2: column day: 'soon' {NO_DAY}",
            "is not a readable ZIP archive: File is not a zip file",
        ]
        source = bench.state.push_sources["default"]
        bench.propose(replace(source, read=replace(source.read, ddl_schema=("id BIGINT",))))
        rejected = bench.rejected_messages(StoredLetters(bench.coordinator.letters))
        settled = rejected.retry(bench.dataset, [MessageLocation(source="", location="row/0")])
        assert (settled.count, node.ids) == (1, [1, 3, 2])
