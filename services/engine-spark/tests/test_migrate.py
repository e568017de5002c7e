"""From one version of a query to the next, over the wire."""

from pathlib import Path

import pytest
from odf_testing.engine import FLIGHTS, HOUR, LATE, VOCAB, Block, Make, flight, sql

from odf_common.adapters.grpc.engine_client import EngineClient
from odf_common.errors import InvalidQuery
from odf_common.metadata.engine_messages import TransformResponseSuccess
from odf_common.metadata.events import DatasetVocabulary, SetTransform, TransformInput, TransformSql
from odf_common.metadata.scalars import Timestamp
from odf_common.ports.engine import MigrateRequest, PlannedInput
from odf_engine_spark.transform.checkpoint import read_state

EARLY = "SELECT time_hour AS event_time, carrier FROM {} WHERE dep_delay < 0"

COUNTED = "SELECT window.start AS event_time, count(*) AS n FROM flights GROUP BY window(time_hour, '1 hour')"


OVER_JOIN = (
    "SELECT window.end AS event_time, count(*) AS n FROM (SELECT a.time_hour AS t FROM flights a JOIN flights b "
    "ON a.origin = b.origin AND b.time_hour BETWEEN a.time_hour AND a.time_hour + INTERVAL 2 MINUTES) "
    "GROUP BY window(t, '30 minutes'{})"
)


def version(transform: TransformSql, alias: str = "flights") -> SetTransform:
    return SetTransform(inputs=(TransformInput(dataset_ref="did:odf:f01", alias=alias),), transform=transform)


def migrated(
    engine: EngineClient, old: SetTransform, new: SetTransform, checkpoint: Path | None, folder: Path
) -> TransformResponseSuccess:
    names = {str(each.alias) for each in (*old.inputs, *new.inputs)}
    return engine.migrate(
        MigrateRequest(
            old=old,
            new=new,
            inputs=tuple(PlannedInput(name=name, schema=FLIGHTS, vocab=VOCAB) for name in sorted(names)),
            vocab=DatasetVocabulary(),
            system_time=Timestamp.from_ms(9_000_000),
            next_offset=1,
            prev_checkpoint_path=None if checkpoint is None else str(checkpoint),
            new_checkpoint_path=str(folder / "migrated"),
            new_data_path=str(folder / "migrated-data"),
        )
    )


def test_a_query_that_acts_on_each_record_continues_from_the_same_checkpoint(
    derive: Make, engine: EngineClient, tmp_path: Path
) -> None:
    late = derive(sql(LATE), flights=[Block(rows=[flight(5, 70.0)], watermark=4)])
    late.pull()
    assert late.checkpoint is not None
    answer = migrated(
        engine, version(sql(LATE)), version(sql(EARLY.format("flights"))), late.checkpoint, tmp_path
    )
    assert answer == TransformResponseSuccess(new_watermark=Timestamp.from_ms(4))
    assert (tmp_path / "migrated").read_bytes() == late.checkpoint.read_bytes()
    assert not (tmp_path / "migrated-data").exists()


def test_watermarks_follow_their_inputs_whatever_their_names(
    derive: Make, engine: EngineClient, tmp_path: Path
) -> None:
    late = derive(sql(LATE), flights=[Block(rows=[flight(5, 70.0)], watermark=4)])
    late.pull()
    new = version(sql(EARLY.format("f")), alias="f")
    migrated(engine, version(sql(LATE)), new, late.checkpoint, tmp_path)
    state = read_state(tmp_path / "migrated")
    assert dict(state.inputs) == {"f": 4_000_000}


def test_a_query_that_never_ran_begins_with_nothing(engine: EngineClient, tmp_path: Path) -> None:
    old, new = version(sql(LATE)), version(sql(EARLY.format("flights")))
    assert migrated(engine, old, new, None, tmp_path) == TransformResponseSuccess()
    assert read_state(tmp_path / "migrated") == read_state(None)


HOURLY = "SELECT window.start AS event_time, origin, count(*) AS n{} FROM {} GROUP BY window(time_hour, '{}'), origin"
JOINED = (
    "SELECT a.time_hour AS event_time, a.flight FROM flights a {} JOIN flights b ON a.origin = b.origin "
    "AND b.time_hour BETWEEN a.time_hour AND a.time_hour + INTERVAL {} MINUTES"
)
TOTALS = "SELECT max(time_hour) AS event_time, origin, sum(flight) AS n FROM {} GROUP BY origin"


def test_open_windows_continue_under_a_query_with_more_columns(
    derive: Make, engine: EngineClient, tmp_path: Path
) -> None:
    blocks = [
        Block(rows=[flight(1, 2.0), flight(HOUR + 1, 5.0)], watermark=HOUR),
        Block(rows=[flight(HOUR + 2, 3.0)], watermark=2 * HOUR),
    ]
    old, new = (
        sql(HOURLY.format("", "flights", "1 hour")),
        sql(HOURLY.format(", sum(dep_delay) AS s", "f", "1 hour")),
    )
    hourly = derive(old, flights=blocks)
    hourly.pull(1)
    assert hourly.rows() == [(0, 0, "JFK", 1)]
    migrated(engine, version(old), version(new, alias="f"), hourly.checkpoint, tmp_path)
    hourly.transform, hourly.checkpoint, hourly.tables = new, tmp_path / "migrated", []
    hourly.chains[0].name = "f"
    hourly.pull()
    assert hourly.rows() == [(0, HOUR, "JFK", 2, 8.0)]


@pytest.mark.parametrize("kind", ["INNER", "LEFT", "FULL"])
def test_open_joins_continue_under_a_query_with_more_columns(
    derive: Make, engine: EngineClient, tmp_path: Path, kind: str
) -> None:
    blocks = [Block(rows=[flight(1, 1.0)], watermark=2), Block(watermark=9 * HOUR)]
    old, new = (
        sql(JOINED.format(kind, 60)),
        sql(JOINED.format(kind, 60).replace("a.flight", "a.flight, b.origin")),
    )
    if kind == "FULL":
        old, new = (
            sql(each.queries[0].query.replace("a.time_hour AS", "coalesce(a.time_hour, b.time_hour) AS"))
            for each in (old, new)
            if each.queries
        )
    joined = derive(old, flights=blocks)
    joined.pull(1)
    migrated(engine, version(old), version(new), joined.checkpoint, tmp_path)
    joined.transform, joined.checkpoint, joined.tables = new, tmp_path / "migrated", []
    before = joined.next_offset
    joined.pull()
    assert before + len(joined.rows()) == 1


def test_an_input_may_get_another_name(derive: Make, engine: EngineClient, tmp_path: Path) -> None:
    old, new = sql(TOTALS.format("flights")), sql(TOTALS.format("f"))
    totals = derive(old, flights=[Block(rows=[flight(1)], watermark=1), Block(rows=[flight(2)])])
    totals.pull(1)
    migrated(engine, version(old), version(new, alias="f"), totals.checkpoint, tmp_path)
    kept = read_state(tmp_path / "migrated")
    assert totals.checkpoint is not None
    assert list(kept.inputs) == ["f"]
    assert kept.tables == read_state(totals.checkpoint).tables


def test_the_state_of_a_query_that_is_refused_now_is_not_migrated(
    derive: Make, engine: EngineClient, tmp_path: Path
) -> None:
    before = derive(sql(LATE), flights=[Block(rows=[flight(5, 70.0)], watermark=4)])
    before.pull()
    refused = version(sql(f"{LATE} AND reflect('java.lang.System', 'lineSeparator') IS NOT NULL"))
    with pytest.raises(InvalidQuery, match="that is replaced is refused now, so its state cannot") as caught:
        migrated(engine, refused, version(sql(EARLY.format("flights"))), before.checkpoint, tmp_path)
    assert "reflect" in str(caught.value)
    assert not (tmp_path / "migrated").exists()


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (LATE, COUNTED, "did not keep"),
        (EARLY.format("flights"), EARLY.format("flights").replace("time_hour", "time_hour - INTERVAL 1 HOUR"), "event times would be before"),
        (COUNTED, LATE, "records wait in windows"),
        (HOURLY.format("", "flights", "1 hour"), HOURLY.format("", "flights", "2 hours"), "have to stay the same"),
        (HOURLY.format("", "flights", "1 hour"), HOURLY.format("", "flights", "7 minutes"), "have to stay the same"),
        (OVER_JOIN.format(""), OVER_JOIN.format(", '30 minutes'").replace("30 minutes", "1 hour", 1), "have to stay the same"),
        (COUNTED, COUNTED.replace("SELECT", "SELECT /*+ LATE('1 day') */"), "the old query has dropped"),
        (TOTALS.format("flights"), TOTALS.format("flights").replace("sum(flight)", "sum(flight + 1)"), "cannot be changed"),
        (TOTALS.format("flights"), TOTALS.format("flights").replace("AS n", "AS n, 1 AS x"), "may be retracted"),
        (TOTALS.format("flights"), LATE, "cannot be changed"),
        (JOINED.format("LEFT", 60), JOINED.format("LEFT", 30), "have to stay the same"),
        (JOINED.format("LEFT SEMI", 60), JOINED.format("INNER", 60), "have to stay the same"),
        (JOINED.format("LEFT", 60), JOINED.format("LEFT", 60) + " AND b.flight > 1", "have to stay the same"),
        (COUNTED.replace("start", "end"), COUNTED, "before the output's watermark"),
    ],
)  # fmt: skip
def test_a_migration_that_is_impossible_is_refused_with_the_reason(
    derive: Make, engine: EngineClient, tmp_path: Path, *, old: str, new: str, why: str
) -> None:
    before = derive(sql(old), flights=[Block(rows=[flight(5, 70.0)], watermark=4)])
    before.pull()
    with pytest.raises(InvalidQuery, match=f"{why}.*create a new dataset"):
        migrated(engine, version(sql(old)), version(sql(new)), before.checkpoint, tmp_path)
    assert not (tmp_path / "migrated").exists()
