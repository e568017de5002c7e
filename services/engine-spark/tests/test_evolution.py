import re
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from odf_testing.engine import FLIGHTS, LATE, VOCAB, Block, Make, flight, sql

from odf_common.adapters.grpc.engine_client import EngineClient
from odf_common.errors import InvalidQuery
from odf_common.metadata.events import DatasetVocabulary, TransformSql
from odf_common.ports.engine import EngineNotAvailable, Past, PlannedInput, ResultsChanged, ValidatedQuery
from odf_engine_spark.server.identity import FORMER, OTHER_RELEASES, Identity, digest
from odf_engine_spark.transform.execute_transform import Transforms

COUNTED = "SELECT window.start AS event_time, count(*) AS n FROM flights GROUP BY window(time_hour, '1 hour')"
CARRIERS = "SELECT time_hour AS event_time, carrier, flight FROM flights"


def checked(engine: EngineClient, transform: TransformSql, past: Past | None = None) -> ValidatedQuery:
    return engine.validate(transform, {"flights": FLIGHTS}, {"flights": VOCAB}, DatasetVocabulary(), past)


def known(engine: EngineClient, query: str) -> pa.Schema:
    """Return the schema of a dataset that a query has written."""
    schema = checked(engine, sql(query)).schema
    assert schema is not None
    system = [("offset", pa.uint64()), ("op", pa.uint8()), ("system_time", pa.timestamp("ms", "UTC"))]
    return pa.schema([*(pa.field(name, type_, nullable=False) for name, type_ in system), *schema])


@pytest.mark.parametrize(
    "query", [CARRIERS, f"{CARRIERS} WHERE flight > 1", CARRIERS.replace("flight FROM", "flight, dest FROM")]
)
def test_columns_may_be_added(engine: EngineClient, query: str) -> None:
    assert checked(engine, sql(query), Past(schema=known(engine, CARRIERS))).schema is not None


@pytest.mark.parametrize(
    ("query", "text"),
    [
        (CARRIERS.replace("carrier, ", ""), "column carrier: cannot be removed"),
        (CARRIERS.replace("carrier", "carrier AS airline"), "column carrier: cannot be removed"),
        (
            CARRIERS.replace("flight FROM", "CAST(flight AS STRING) AS flight FROM"),
            "column flight: was INT",
        ),
    ],
)
def test_a_column_that_breaks_is_named(engine: EngineClient, query: str, text: str) -> None:
    with pytest.raises(InvalidQuery, match=text):
        checked(engine, sql(query), Past(schema=known(engine, CARRIERS)))


def test_a_query_that_can_reuse_the_state_of_the_old_one_is_accepted(engine: EngineClient) -> None:
    assert not checked(engine, sql(CARRIERS), Past(transform=sql(LATE))).is_stateful


def test_a_query_that_cannot_reuse_the_state_is_refused_with_the_reason(engine: EngineClient) -> None:
    with pytest.raises(InvalidQuery, match="cannot be migrated"):
        checked(engine, sql(COUNTED), Past(transform=sql(LATE)))


def test_the_old_query_may_be_from_another_version(engine: EngineClient) -> None:
    assert (
        checked(engine, sql(CARRIERS), Past(transform=replace(sql(LATE), version="0.0.1"))).schema is not None
    )


def test_the_position_of_an_error_is_reported(engine: EngineClient) -> None:
    with pytest.raises(InvalidQuery, match=r"line 2,? pos 0"):
        checked(engine, sql("SELECT time_hour AS event_time\nFORM flights"))


def test_the_version_depends_on_the_releases() -> None:
    assert digest({"pyarrow": "1"}) != digest({"pyarrow": "2"})


@pytest.mark.parametrize("former", FORMER)
def test_a_transform_of_an_engine_whose_version_hashed_its_sources_is_accepted(
    former: str, engine_version: str
) -> None:
    Identity(version=engine_version).require(replace(sql(LATE), version=former))
    with pytest.raises(EngineNotAvailable):
        Identity(version=engine_version + "0").require(replace(sql(LATE), version=former))


@pytest.fixture(scope="session")
def engine_version(engine: EngineClient) -> str:
    """The engine's version, as it reports it."""
    return str(engine.validate(sql(LATE), {}, {}, DatasetVocabulary()).version)


def test_the_engine_reports_its_version(engine_version: str) -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+\+spark4\.\d+\.\d+\.s\d+\.[0-9a-f]{12}", engine_version)


def test_a_transform_that_asks_for_this_version_gets_it(
    derive: Make, engine: EngineClient, engine_version: str, tmp_path: Path
) -> None:
    transform = replace(sql(LATE), version=engine_version)
    late = derive(transform, flights=[Block(rows=[flight(5, 70.0)])])
    answer = engine.execute_transform(late.request([0], [1], tmp_path / "data", tmp_path / "checkpoint"))
    assert answer.new_offset_interval is not None


@pytest.mark.parametrize(
    "transform",
    [replace(sql(LATE), version="0.0.9+spark3.5.0.000000000000"), replace(sql(LATE), engine="datafusion")],
)
def test_a_transform_that_asks_for_another_engine_gets_an_error_with_both_versions(
    derive: Make, engine: EngineClient, engine_version: str, tmp_path: Path, transform: TransformSql
) -> None:
    late = derive(transform, flights=[Block(rows=[flight(5, 70.0)])])
    with pytest.raises(EngineNotAvailable) as caught:
        engine.execute_transform(late.request([0], [1], tmp_path / "data", tmp_path / "checkpoint"))
    assert str(transform.version or transform.engine) in str(caught.value)
    assert engine_version in str(caught.value)
    assert "odf engine upgrade DATASET" in str(caught.value)
    assert not (tmp_path / "data").exists()


def test_another_version_is_refused(engine: EngineClient) -> None:
    with pytest.raises(EngineNotAvailable):
        engine.validate(replace(sql(LATE), version="1"), {}, {}, DatasetVocabulary())
    with pytest.raises(InvalidQuery, match="this engine is spark"):
        engine.validate(replace(sql(LATE), engine="datafusion"), {}, {}, DatasetVocabulary())


TIMES = {
    "micros": pa.timestamp("us", "UTC"),
    "nanos": pa.timestamp("ns", "UTC"),
    "millis": pa.timestamp("ms", "UTC"),
    "day": pa.date32(),
    "number": pa.int64(),
    "seconds": pa.float64(),
    "text": pa.string(),
    "amount": pa.decimal128(38, 18),
}
SCHEMA = pa.schema([*list(FLIGHTS)[:4], *(pa.field(name, type_) for name, type_ in TIMES.items())])
WHOLE = (
    "time_hour",
    "millis",
    "CAST(day AS TIMESTAMP)",
    "day",
    "CAST(number AS TIMESTAMP)",
    "timestamp_seconds(number)",
    "timestamp_millis(number)",
    "time_hour - INTERVAL 3 MILLISECONDS",
    "time_hour + INTERVAL 1 MONTH",
    "time_hour + INTERVAL '1 day 2 hours'",
    "timestampadd(MILLISECOND, number, time_hour)",
    "date_trunc('millisecond', micros)",
    "date_trunc('HOUR', to_timestamp(text))",
    "trunc(time_hour, 'MM')",
    "date_add(day, 3)",
    "coalesce(millis, time_hour)",
    "CASE WHEN number > 1 THEN time_hour ELSE TIMESTAMP '1969-01-01 00:00:00.123' END",
    "if(number > 1, millis, NULL)",
    "greatest(time_hour, millis)",
    "nvl(millis, time_hour)",
    "CAST(day AS TIMESTAMP) + INTERVAL 1 HOUR",
    "named_struct('a', micros, 'b', millis).b",
    "to_utc_timestamp(time_hour, 'Africa/Accra')",
)
FINER = (
    "micros",
    "time_hour - INTERVAL 1 MICROSECOND",
    "time_hour + INTERVAL '0.0005' SECOND",
    "timestampadd(MICROSECOND, 1, time_hour)",
    "to_timestamp(text)",
    "CAST(text AS TIMESTAMP)",
    "CAST(seconds AS TIMESTAMP)",
    "CAST(amount AS TIMESTAMP)",
    "timestamp_seconds(seconds)",
    "timestamp_micros(number)",
    "date_trunc('MICROSECOND', micros)",
    "coalesce(millis, micros)",
    "CASE WHEN number > 1 THEN time_hour ELSE TIMESTAMP '1969-01-01 00:00:00.1234' END",
    "named_struct('a', micros, 'b', millis).a",
    "make_timestamp(2020, 1, 1, 0, 0, 1.5)",
    "time_hour + make_interval(0, 0, 0, 0, 0, 0, 0.0005)",
)
WINDOWS = "SELECT window, number, count(*) AS n FROM t GROUP BY window(time_hour, '1 hour'), number"
ROWS = (  # of several records, with an event time of whole milliseconds
    "SELECT window.end AS time_hour, count(*) AS n FROM t GROUP BY window(time_hour, '1 hour')",
    "SELECT window.start AS time_hour, count(*) AS n FROM t GROUP BY window(time_hour, '1 hour', '30 minutes')",
    "SELECT session_window.end AS time_hour, count(*) AS n FROM t GROUP BY session_window(time_hour, '5 minutes')",
    "SELECT session_window.start AS time_hour, count(*) AS n FROM t GROUP BY session_window(time_hour, '5 minutes')",
    "SELECT max(time_hour) AS time_hour, number FROM t GROUP BY number",
    "SELECT time_hour FROM t UNION ALL SELECT millis AS time_hour FROM t",
    "SELECT time_hour, sum(number) OVER (PARTITION BY day ORDER BY time_hour) AS total FROM t",
    "SELECT micros, time_hour FROM t",
    f"SELECT window.start AS time_hour, max(n) AS n FROM ({WINDOWS}) GROUP BY window",
    f"SELECT max(window.end) AS time_hour, max(n) AS n FROM ({WINDOWS}) GROUP BY window",
)
FINER_ROWS = (
    "SELECT max(micros) AS time_hour, number FROM t GROUP BY number",
    "SELECT time_hour FROM t UNION ALL SELECT micros AS time_hour FROM t",
    "SELECT * FROM (SELECT micros AS time_hour, row_number() OVER (ORDER BY number) AS place FROM t) WHERE place < 3",
)


def kinds(transforms: Transforms, query: str, schema: pa.Schema) -> tuple[str, ...]:
    planned = PlannedInput(name="t", schema=schema, vocab=VOCAB)
    return tuple(change.kind for change in transforms.prepare(sql(query), (planned,), VOCAB).changes)


def without_nanoseconds(schema: pa.Schema) -> pa.Schema:
    return schema.remove(schema.get_field_index("nanos"))


@pytest.mark.parametrize("query", [*(f"SELECT {time} AS time_hour FROM t" for time in WHOLE), *ROWS])
def test_a_query_with_event_times_of_whole_milliseconds_is_not_concerned(
    transforms: Transforms, query: str
) -> None:
    assert kinds(transforms, query, without_nanoseconds(SCHEMA)) == ()


@pytest.mark.parametrize("query", [*(f"SELECT {time} AS time_hour FROM t" for time in FINER), *FINER_ROWS])
def test_a_query_with_finer_event_times_is_concerned(transforms: Transforms, query: str) -> None:
    (one,) = kinds(transforms, query, without_nanoseconds(SCHEMA))
    assert "cut towards the past" in one


def test_nanoseconds_that_a_query_reads_are_cut_too(transforms: Transforms) -> None:
    assert kinds(transforms, "SELECT time_hour, number FROM t", SCHEMA) == ()
    assert len(kinds(transforms, "SELECT time_hour, nanos FROM t", SCHEMA)) == 1


def test_decimals_that_lose_places_are_a_change(transforms: Transforms) -> None:
    (one,) = kinds(transforms, "SELECT time_hour, amount * amount AS n FROM t", SCHEMA)
    assert "decimals" in one


@pytest.fixture(scope="module")
def version(engine: EngineClient) -> str:
    return str(engine.validate(sql(LATE), {}, {}, DatasetVocabulary()).version)


@pytest.fixture(scope="module")
def first(version: str) -> str:
    """The version with the same releases, and the first number."""
    return version.replace(".s2.", ".s1.")


def executed(derive: Make, engine: EngineClient, transform: TransformSql, folder: Path) -> int:
    late = derive(transform, flights=[Block(rows=[flight(5, 70.0)])])
    answer = engine.execute_transform(late.request([0], [1], folder / "data", folder / "checkpoint"))
    assert answer.new_offset_interval is not None
    return answer.new_offset_interval.records


def test_a_query_that_no_change_concerns_goes_on(
    derive: Make, engine: EngineClient, first: str, tmp_path: Path
) -> None:
    assert executed(derive, engine, replace(sql(LATE), version=first), tmp_path) == 1


def test_one_that_a_change_concerns_is_not_computed(
    derive: Make, engine: EngineClient, first: str, tmp_path: Path
) -> None:
    finer = LATE.replace("time_hour AS", "time_hour - INTERVAL 1 MICROSECOND AS")
    with pytest.raises(ResultsChanged, match=rf"{re.escape(first)} computed it.*cut towards the past"):
        executed(derive, engine, replace(sql(finer), version=first), tmp_path)
    assert not (tmp_path / "data").exists()


def test_a_later_number_is_another_engine(
    derive: Make, engine: EngineClient, version: str, tmp_path: Path
) -> None:
    with pytest.raises(EngineNotAvailable, match="odf engine upgrade"):
        executed(derive, engine, replace(sql(LATE), version=version.replace(".s2.", ".s3.")), tmp_path)


def validated(engine: EngineClient, query: str, old: str, *, is_restarted: bool = False) -> tuple[str, ...]:
    past = Past(transform=replace(sql(query), version=old), is_restarted=is_restarted)
    answer = engine.validate(sql(query), {"t": SCHEMA}, {"t": VOCAB}, VOCAB, past, is_new=True)
    return answer.changes


def test_an_upgrade_says_what_differs(engine: EngineClient, first: str, version: str) -> None:
    finer = "SELECT time_hour - INTERVAL 1 MICROSECOND AS time_hour FROM t"
    assert validated(engine, "SELECT time_hour FROM t", first) == ()
    (kind,) = validated(engine, finer, first)
    assert "cut towards the past" in kind
    assert validated(engine, finer, version) == ()
    assert validated(engine, "SELECT time_hour FROM t", f"{version}0") == (OTHER_RELEASES,)


def test_the_state_of_rows_that_would_be_retracted_otherwise_is_not_migrated(
    engine: EngineClient, first: str, version: str
) -> None:
    grouped = "SELECT max(time_hour - INTERVAL 1 MICROSECOND) AS time_hour, number FROM t GROUP BY number"
    assert validated(engine, grouped, version) == ()
    with pytest.raises(InvalidQuery, match="--from-start"):
        validated(engine, grouped, first)
    assert len(validated(engine, grouped, first, is_restarted=True)) == 1


def test_decimals_that_lose_places_are_not_computed_where_columns_were_unknown_when_the_query_was_added(
    derive: Make, engine: EngineClient, first: str, version: str, tmp_path: Path
) -> None:
    amount = "CAST(dep_delay AS DECIMAL(38, 18))"
    lossy = sql(f"SELECT time_hour AS event_time, {amount} * {amount} AS n FROM flights")
    with pytest.raises(InvalidQuery, match="loses decimal places"):
        executed(derive, engine, replace(lossy, version=version), tmp_path)
    with pytest.raises(ResultsChanged, match="decimals that lose places"):
        executed(derive, engine, replace(lossy, version=first), tmp_path)
    assert executed(derive, engine, lossy, tmp_path) == 1  # of any version


def test_no_cut_event_time_is_before_the_watermark(derive: Make) -> None:
    finer = derive(
        sql(LATE.replace("time_hour AS", "time_hour - INTERVAL 1 MICROSECOND AS")),
        flights=[Block(rows=[flight(5, 70.0)], watermark=5), Block(rows=[flight(5, 71.0)], watermark=6)],
    )
    finer.pull(1)
    assert finer.watermark is not None
    assert finer.watermark.ns == 4_000_000
    finer.pull(2)
    assert [row[1] for row in finer.rows()] == [4, 4]
