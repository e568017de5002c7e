"""A -R or -C that does not take back the record of its key is rejected, in every way in, or completed from it."""

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from odf_testing.builders import a_query
from odf_testing.ingest_batches import commit_file
from odf_testing.letters import StoredLetters

from odf_common.errors import InvalidInput
from odf_common.metadata.events import (
    MergeStrategyChangelogStream,
    MergeStrategyUpsertStream,
    ReadStepNdJson,
    Transform,
)
from odf_common.metadata.scalars import Timestamp
from odf_common.ports.engine import IsWanted
from odf_ingest.control.rejected_messages import MessageLocation
from odf_ingest.prepare.preparer import Preparer
from odf_ingest.source_settings import BadRecords, Retractions

from .in_memory_broker import TOPIC, Broker, running
from .test_message_columns import Deleting

ADD, RETRACT, FROM, TO = range(4)
KEYED = MergeStrategyChangelogStream(primary_key=("id",))
DDL = ("op INT", "event_time TIMESTAMP", "id BIGINT", "v STRING", "at TIMESTAMP(6)", "parts ARRAY<DOUBLE>")
TIME = "2020-01-01T00:00:00Z"
CHANGE = "change it by -C and +C, retract it first (-R), or merge as UpsertStream"
REMEDY = "repeat all values of the record, event time included, or set retractions=complete"


def row(op: int, key: int, value: str | None = "a", **more: object) -> dict[str, object]:
    return {"op": op, "event_time": TIME, "id": key, "v": value, "at": TIME, "parts": [1.5, None], **more}


def messages(rows: Sequence[dict[str, object]]) -> list[bytes]:
    return [json.dumps(one).encode() for one in rows]


def a_bench(make_bench: Any, columns: Sequence[str] = DDL, **settings: Any) -> Any:
    bench = make_bench(KEYED, ReadStepNdJson(ddl_schema=tuple(columns)))
    bench.set(**settings)
    return bench


def drained(bench: Any, broker: Broker, *batches: Sequence[dict[str, object]]) -> None:
    """Read each batch after the one before is committed."""
    with running(bench, broker) as node:
        for rows in batches:
            node.ingest(messages(rows))


@pytest.mark.parametrize("is_apart", [False, True])
def test_a_retraction_with_other_values_is_rejected_with_the_column_and_both_values(
    make_bench: Any, broker: Broker, is_apart: bool
) -> None:
    bench = a_bench(make_bench)
    rows = [
        row(ADD, 1),
        row(ADD, 2, None),
        row(RETRACT, 1, "b"),
        row(RETRACT, 2, "x"),
        row(RETRACT, 1, event_time="2020-01-01T00:00:01Z"),
        row(RETRACT, 1, at="2020-01-01T00:00:00.000001Z"),
        row(RETRACT, 1, parts=[1.5]),
        row(RETRACT, 1),
        row(RETRACT, 1),
        row(ADD, 2, None),
        row(ADD, 2, "y"),
    ]
    drained(bench, broker, *([[one] for one in rows] if is_apart else [rows]))
    # Within a batch, records are ordered by key.
    assert sorted(bench.values("id", "op", "v")) == [(1, ADD, "a"), (1, RETRACT, "a"), (2, ADD, None)]
    first, second = "2020-01-01 00:00:00.000Z", "2020-01-01 00:00:01.000Z"
    micro = "2020-01-01 00:00:00.000001Z"
    assert bench.reasons == [
        (2, f"column v: -R of id = 1 has 'b', and its record has 'a'; {REMEDY}"),
        (3, f"column v: -R of id = 2 has 'x', and its record has NULL; {REMEDY}"),
        (
            4,
            f"column event_time: -R of id = 1 has {second}, and its record has {first}; {REMEDY}",
        ),
        (
            5,
            f"column at: -R of id = 1 has {micro}, and its record has {micro.replace('1Z', '0Z')}; {REMEDY}",
        ),
        (6, f"column parts: -R of id = 1 has [1.5], and its record has [1.5, None]; {REMEDY}"),
        (8, "column id: id = 1 has no record that -R could take back; append it first (+A)"),
        (
            9,
            f"column id: id = 2 has a record already, with the same values; {CHANGE}",
        ),
        (
            10,
            f"column id: id = 2 has a record already, with other values; {CHANGE}",
        ),
    ]


def test_both_halves_of_a_correction_are_rejected_together_and_what_follows_is_judged_without_them(
    make_bench: Any, broker: Broker
) -> None:
    bench = a_bench(make_bench)
    rows = [
        *(row(ADD, 1), row(ADD, 2)),
        *(row(FROM, 1, "b"), row(FROM, 2), row(TO, 2, "c"), row(TO, 1, "d")),
        *(row(FROM, 1, "a"), row(TO, 1, "e"), row(RETRACT, 1, "e")),
    ]
    drained(bench, broker, rows)
    assert bench.values("op", "id", "v") == [
        *((ADD, 1, "a"), (FROM, 1, "a"), (TO, 1, "e"), (RETRACT, 1, "e")),
        *((ADD, 2, "a"), (FROM, 2, "a"), (TO, 2, "c")),
    ]
    why = f"column v: -C of id = 1 has 'b', and its record has 'a'; {REMEDY}"
    assert bench.reasons == [(2, why), (5, f"the -C of this +C is rejected: {why}")]


def test_a_retraction_is_completed_from_its_record_if_the_source_says_so(
    make_bench: Any, broker: Broker
) -> None:
    bench = a_bench(make_bench, retractions=Retractions.COMPLETE)
    later = {"event_time": "2020-06-01T00:00:00Z", "at": None, "parts": None}
    first = [row(ADD, 1), row(ADD, 2, "b")]
    then: list[dict[str, object]] = [
        {"op": RETRACT, "id": 1},
        row(FROM, 2, None, **later),
        row(TO, 2, "c", **later),
        row(FROM, 2, "whatever"),
        row(TO, 2, "d"),
        {"op": RETRACT, "id": 3},
        {"op": RETRACT, "id": None},
    ]
    drained(bench, broker, first, then)
    time, june = datetime(2020, 1, 1, tzinfo=UTC), datetime(2020, 6, 1, tzinfo=UTC)
    assert bench.values("op", "id", "v", "event_time", "parts")[2:] == [
        (RETRACT, 1, "a", time, [1.5, None]),
        (FROM, 2, "b", time, [1.5, None]),
        (TO, 2, "c", june, None),
        (FROM, 2, "c", june, None),
        (TO, 2, "d", time, [1.5, None]),
    ]
    assert bench.reasons == [
        (7, "column id: id = 3 has no record that -R could take back; append it first (+A)"),
        (8, "column id: null is not allowed; a value of BIGINT is required"),
    ]


def test_the_time_of_a_completed_retraction_does_not_raise_the_watermark(make_bench: Any) -> None:
    broker = Broker()
    broker.make(TOPIC, 2)
    bench = a_bench(make_bench, retractions=Retractions.COMPLETE)
    with running(bench, broker) as node:
        for number in (0, 1):
            broker.logs[TOPIC, number] += messages([row(ADD, number)])
        node.drain()
        for number in (0, 1):
            broker.logs[TOPIC, number] += messages([row(RETRACT, number, event_time="2020-06-01T00:00:00Z")])
        node.drain()
    assert len(bench.rows()) == 4
    assert bench.state.watermark == Timestamp.from_ms(1_577_836_800_000)


def test_a_retraction_without_a_time_has_that_of_its_record(make_bench: Any, broker: Broker) -> None:
    bench = a_bench(make_bench, ("op INT", "id BIGINT", "v STRING"))
    rows: list[dict[str, object]] = [
        {"op": op, "id": 1, "v": value} for op, value in ((ADD, "a"), (FROM, "a"), (TO, "b"))
    ]
    drained(bench, broker, rows[:1], rows[1:])
    assert bench.reasons == []
    (_, first), (_, taken), _ = bench.values("op", "event_time")
    assert taken == first


class Exploding:
    """Port `Preprocessor`: returns the changes of each message as records, one kind after the other."""

    def run(self, transform: Transform, records: pa.Table, is_wanted: IsWanted) -> pa.Table | None:
        parts = []
        for op in (ADD, RETRACT):
            some = records.filter(pc.equal(records.column("op"), op))
            for name in ("a", "b"):
                ids = pc.add(some.column("id"), 0 if name == "a" else 100)
                parts.append(some.set_column(2, "id", ids))
        return pa.concat_tables(parts) if len(records) else None


@pytest.mark.parametrize("is_apart", [False, True])
def test_records_of_a_query_are_traced_to_their_messages(
    make_bench: Any, broker: Broker, is_apart: bool
) -> None:
    bench = a_bench(make_bench, DDL[:4])
    bench.propose(replace(bench.state.push_sources["default"], preprocess=a_query()))
    bench.preparer = Preparer(Exploding())  # type: ignore[arg-type]
    rows = [
        *(row(ADD, number) for number in range(9)),
        *(row(RETRACT, number) for number in (0, 1, 1, 20)),
        *(row(ADD, 1), row(RETRACT, 3, "x"), row(ADD, 5)),
    ]
    drained(bench, broker, *([[one] for one in rows] if is_apart else [rows]))
    left = [(op, number) for op, number in bench.values("op", "id") if number in (0, 1, 3, 5, 20, 100, 101)]
    assert [offset for offset, _ in bench.reasons] == ([11, 12, 14, 15] if is_apart else [11, 12, 13, 14, 15])
    assert sorted(left).count((RETRACT, 1)) == 1


def commit_rows(bench: Any, folder: Path, content: bytes) -> Any:
    fields: dict[str, Any] = {"event_time": Timestamp(0), "is_key_generated": True}
    return commit_file(bench, folder / "rows", content, str(content), **fields)


def test_rows_of_a_file_are_rejected_with_their_lines_and_retried(make_bench: Any, tmp_path: Path) -> None:
    bench = a_bench(make_bench)
    rows = [row(ADD, 1), row(RETRACT, 1, "b"), row(ADD, 2), row(RETRACT, 3)]
    outcome = commit_rows(bench, tmp_path, b"\n".join([b"junk", *messages(rows)]))
    assert outcome.count == 2
    assert [one.reason.partition(": ")[0] for one in outcome.rejected] == ["line 1", "line 3", "line 5"]
    rejected = bench.rejected_messages(StoredLetters(bench.coordinator.letters))
    commit_rows(bench, tmp_path, messages([row(ADD, 3)])[0])
    places = [letter.location for letter in bench.open_letters(rejected)]
    settled = rejected.retry(
        bench.dataset, [MessageLocation(source="", location=place) for place in places[1:]]
    )
    assert (settled.count, settled.unfit, settled.open) == (1, 1, 2)
    assert bench.values("op", "id")[-1] == (RETRACT, 3)


def test_a_file_that_is_not_text_or_whose_rows_may_not_be_rejected_is_refused(
    make_bench: Any, tmp_path: Path
) -> None:
    bench = a_bench(make_bench, bad_records=BadRecords.STOP)
    with pytest.raises(InvalidInput, match=r"line 2: column v: -R of id = 1 has 'b'"):
        commit_rows(bench, tmp_path, b"\n".join(messages([row(ADD, 1), row(RETRACT, 1, "b")])))
    assert bench.rows() == []


UPSERT = MergeStrategyUpsertStream(primary_key=("id",))
REQUIRED = ("op INT", "event_time TIMESTAMP", "id BIGINT", "v STRING NOT NULL")
STATES = (b'{"op":0,"event_time":"%s","id":1,"v":"a"}' % TIME.encode(), b'{"op":1,"id":1}')


@pytest.mark.parametrize("has_query", [False, True], ids=["", "query"])
def test_a_deletion_of_an_upsert_needs_only_its_key(make_bench: Any, broker: Broker, has_query: bool) -> None:
    bench = make_bench(UPSERT, ReadStepNdJson(ddl_schema=REQUIRED))
    if has_query:
        bench.propose(replace(bench.state.push_sources["default"], preprocess=a_query()))
        bench.preparer = Preparer(Deleting())  # type: ignore[arg-type]
    with running(bench, broker) as node:
        for message in (*STATES, b'{"op":1}', b'{"op":0,"event_time":"%s","id":1}' % TIME.encode()):
            broker.logs[TOPIC, 0].append(message)
            node.drain()
    assert bench.values("op", "id", "v") == [(ADD, 1, "a"), (RETRACT, 1, "a")]
    assert [offset for offset, _ in bench.reasons] == [2, 3]


def test_a_row_of_a_file_that_deletes_needs_only_its_key(make_bench: Any, tmp_path: Path) -> None:
    bench = make_bench(UPSERT, ReadStepNdJson(ddl_schema=REQUIRED))
    for state in STATES:
        assert commit_rows(bench, tmp_path, state).rejected == ()
    assert bench.values("op", "id", "v") == [(ADD, 1, "a"), (RETRACT, 1, "a")]
