"""SQL that is refused, and the errors that users see."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from odf_testing.engine import FLIGHTS, FROM, HOURLY, LATE, TO, VOCAB, WEATHER, Block, Make, flight, sql

from odf_common.adapters.grpc.engine_client import EngineClient
from odf_common.errors import InvalidInput, InvalidQuery
from odf_common.metadata.engine_messages import RawQueryRequest
from odf_common.metadata.events import DatasetVocabulary, TemporalTable, TransformSql
from odf_common.ports.engine import QueryOutOfMemory, QueryTable
from odf_engine_spark.analysis.dialect import read_text
from odf_engine_spark.plan.prepared import _in_step, steps_of

T = "time_hour AS event_time"
REFUSED = {
    f"SELECT {T}, rand() AS x FROM flights": "same result",
    f"SELECT {T}, uuid() AS x FROM flights": "same result",
    f"SELECT {T}, current_timestamp() AS x FROM flights": "same result",
    f"SELECT {T}, current_date AS x FROM flights": "same result",
    f"SELECT {T}, now() AS x FROM flights": "same result",
    f"SELECT {T}, monotonically_increasing_id() AS x FROM flights": "same result",
    f"SELECT {T}, input_file_name() AS x FROM flights": "more than the records",
    f"SELECT {T}, current_user() AS x FROM flights": "more than the records",
    f"SELECT {T}, java_method('java.lang.Math', 'abs', 1) AS x FROM flights": "java_method",
    f"SELECT {T}, reflect('java.lang.Math', 'abs', 1) AS x FROM flights": "reflect",
    f"SELECT {T}, try_reflect('java.lang.Math', 'abs', 1) AS x FROM flights": "reflect",
    "SELECT TRANSFORM(origin) USING 'cat' AS (event_time) FROM flights": "TRANSFORM",
    f"SELECT {T} FROM flights LIMIT 1": "LIMIT",
    f"SELECT {T} FROM flights ORDER BY 1": "ORDER BY",
    f"SELECT {T} FROM flights INTERSECT SELECT {T} FROM flights": "INTERSECT",
    f"SELECT {T} FROM flights EXCEPT SELECT {T} FROM flights": "EXCEPT",
    f"SELECT {T}, (SELECT max(flight) FROM flights) AS x FROM flights": "sub-queries",
    f"SELECT {T} FROM flights WHERE flight IN (SELECT flight FROM flights)": "sub-queries",
    f"SELECT {T} FROM flights WHERE EXISTS (SELECT 1 FROM flights)": "sub-queries",
    f"SELECT {T}, row_number() OVER (ORDER BY flight) AS x FROM flights": "WHERE <its name> <= 10",
    f"SELECT {T}, lag(flight) OVER (ORDER BY time_hour) AS x FROM flights": "Lag OVER cannot",
    f"SELECT {T}, sum(flight) OVER (ORDER BY flight) AS x FROM flights": "Sum OVER cannot",
    f"SELECT {T}, rank() OVER (ORDER BY flight) AS x FROM flights": "Rank OVER cannot",
    f"SELECT {T}, sum(DISTINCT flight) OVER (ORDER BY time_hour) AS x FROM flights": "Distinct window functions are not supported",
    f"SELECT {T} FROM flights TABLESAMPLE (10 PERCENT)": "TABLESAMPLE",
    f"SELECT {T} FROM flights, LATERAL explode(array(1)) AS u(x)": "LATERAL",
    "SELECT * FROM csv.`/etc/passwd`": "/etc/passwd",
    "SELECT * FROM text.`/etc/passwd`": "/etc/passwd",
    "WITH x AS (SELECT * FROM binaryFile.`/etc/passwd`) SELECT * FROM x": "/etc/passwd",
    "SELECT now() AS event_time": "SELECT without FROM",
    "SELECT TIMESTAMP '2020-01-01 00:00:00' AS event_time": "SELECT without FROM",
    "SELECT * FROM VALUES (TIMESTAMP '2020-01-01 00:00:00') AS t(event_time)": "read from an input",
    "SELECT id AS event_time FROM range(3)": "table functions",
    "SET spark.sql.ansi.enabled=false": "only SELECT",
    "ADD JAR 'x.jar'": "only SELECT",
    "CREATE TEMPORARY VIEW v USING csv OPTIONS (path '/etc/passwd')": "only SELECT",
    "CREATE FUNCTION f AS 'x' USING JAR 'x.jar'": "only SELECT",
    "INSERT OVERWRITE DIRECTORY '/tmp/x' USING csv SELECT 1": "only SELECT",
    "DROP VIEW flights": "only SELECT",
    "SHOW TABLES": "only SELECT",
    "EXPLAIN SELECT 1": "only SELECT",
    "EXECUTE IMMEDIATE 'SELECT 1'": "only SELECT",
    "BEGIN SELECT 1; END": "SQL Scripting",
    f"SELECT {T}, `offset` + 1 AS x FROM flights": "offset cannot be used in computations",
    f"SELECT {T} FROM flights WHERE op = 0": "op cannot be used in computations",
    f"SELECT {T}, flight AS op FROM flights": "written by the engine",
    f"SELECT {T}, flight AS x, flight AS x FROM flights": "two columns x",
    "SELECT origin FROM flights": "has no column event_time",
    "SELECT origin AS event_time FROM flights": "TIMESTAMP or DATE",
    f"SELECT {T}, NULL AS x FROM flights": "always null",
    f"SELECT {T}, map(1, 2) AS x FROM flights": "map",
    f"SELECT {T}, INTERVAL 1 DAY AS x FROM flights": "CAST",
    "SELECT count(*) AS n FROM flights": "has no column event_time",
    "SELECT max(time_hour) AS event_time, count(DISTINCT flight) AS n FROM flights": "GROUP BY window(",
    "SELECT max(time_hour) AS event_time, stddev(flight) AS n FROM flights": "GROUP BY window(",
    "SELECT max(time_hour) AS event_time, count(*) FILTER (WHERE flight > 1) AS n FROM flights": "GROUP BY window(",
    "SELECT max(time_hour) AS event_time, max(`offset`) AS n FROM flights": "offset cannot be used in computations",
    "SELECT max(time_hour) AS event_time FROM flights GROUP BY CUBE (origin)": "CUBE",
    f"SELECT {T}, flight AS x, dest AS X FROM flights": "two columns x",
    f"SELECT {T} FROM flights VERSION AS OF 3": "SYSTEM_TIME AS OF a column",
    f"SELECT {T} FROM flights FOR SYSTEM_TIME AS OF TIMESTAMP '2026-01-01' AS t": "use a column of the other side",
    "SELECT window.start AS event_time FROM flights GROUP BY window(time_hour, '1 hour', '2 hours')": "leaves gaps",
    "SELECT window.start AS event_time FROM flights GROUP BY window(time_hour, '1 month')": "GROUP BY date_trunc('month'",
    "SELECT window.start AS event_time FROM flights GROUP BY window(time_hour, '2 Years')": "GROUP BY date_trunc('year'",
    f"SELECT {T}, TIMESTAMP '10:00' AS x FROM flights": "not a fixed date or time",
    f"SELECT {T}, to_timestamp(' 10:00:00') AS x FROM flights": "not a fixed date or time",
    f"SELECT {T}, flight AS Op FROM flights": "written by the engine",
    "SELECT * FROM (SELECT time_hour AS event_time, row_number() OVER (ORDER BY flight) AS p, row_number() OVER (ORDER BY "
    "dep_delay) AS q FROM flights) WHERE p <= 3 AND q <= 4": "needs a bound",
    f"SELECT {T} FROM flights QUALIFY row_number() OVER (ORDER BY flight) < 3": "sub-query",
    f"SELECT {T}, " + "CASE WHEN flight > 1 THEN " * 9 + "1" + " END" * 9 + " AS x FROM flights": "8 nested CASE",
    f"SELECT {T} FROM flights WHERE " + "(" * 1001 + "true" + ")" * 1001: "1000 nested (",
    "SELECT window.start AS event_time, sum(DISTINCT dep_delay) AS s FROM flights GROUP BY window(time_hour, '1 hour')": "order of the values",
    "SELECT window.start AS event_time FROM flights GROUP BY window(time_hour, INTERVAL 1 HOUR)": "string literal",
    f"SELECT {T}, n, x FROM flights UNPIVOT (x FOR n IN (origin, dest))": "UNPIVOT",
    "SELECT window.start AS event_time FROM flights GROUP BY window(time_hour, '1 hour', '25 minutes')": "multiple",
    "SELECT window.start AS event_time FROM (SELECT max(time_hour) AS t FROM flights GROUP BY origin) GROUP BY window(t, '1 hour')": "event time column",
    "SELECT window(t, '1 hour').start AS event_time FROM (SELECT max(time_hour) AS t FROM flights GROUP BY origin)": "event time column",
    "SELECT window.start AS event_time FROM flights GROUP BY window(time_hour, '1 hour', '1 hour', '5 minutes')": "offset",
    "SELECT window.start AS event_time FROM flights GROUP BY window(system_time, '1 hour')": "event time",
    "SELECT window.start AS event_time, collect_list(flight) AS x FROM flights GROUP BY window(time_hour, '1 hour')": "same result again: use count",
    "SELECT window.start AS event_time, first(flight) AS x FROM flights GROUP BY window(time_hour, '1 hour')": "same result again: use min_by",
    f"SELECT f.{T} FROM flights f LEFT JOIN weather w ON f.origin = w.origin": "time bounds",
    f"SELECT f.{T} FROM flights f JOIN weather w ON f.flight > w.temp": "time bounds",
    f"SELECT f.{T} FROM flights f CROSS JOIN weather w": "not Cross",
    f"SELECT f.{T} FROM flights f JOIN weather w ON w.time_hour > f.time_hour AND w.time_hour < f.time_hour": "contradict each other",
    f"SELECT f.{T} FROM flights f FULL JOIN weather FOR SYSTEM_TIME AS OF f.time_hour AS w ON f.origin = w.origin": "not FullOuter",
    f"SELECT f.{T} FROM flights f JOIN weather FOR SYSTEM_TIME AS OF f.flight AS w ON f.origin = w.origin": "event time column",
    f"SELECT f.{T} FROM flights f JOIN weather FOR SYSTEM_TIME AS OF f.time_hour AS w ON f.flight > w.temp": "equal columns",
    f"SELECT f.{T} FROM flights f JOIN weather FOR SYSTEM_TIME AS OF date_trunc('hour', f.time_hour) AS w ON f.origin = w.origin": "compute it in an earlier step",
    f"SELECT f.{T} FROM flights f JOIN prices FOR SYSTEM_TIME AS OF f.time_hour AS w ON f.flight = w.temp": "table prices does not exist",
    f"SELECT {T}, TIMESTAMP 'now' AS x FROM flights": "'now' is not a fixed date or time",
    f'SELECT {T}, DATE/* */r"today" AS x FROM flights': "'today' is not a fixed date or time",
    f"SELECT {T} FROM flights WHERE time_hour < 'tomorrow'": "'tomorrow' is not a fixed date or time",
    f"SELECT {T}, to_date('yesterday') AS x FROM flights": "'yesterday' is not a fixed date or time",
    f"SELECT {T}, CAST(concat('n', 'ow') AS TIMESTAMP) AS x FROM flights": "current time",
    f"SELECT {T} FROM flights /* /* */ ' */ WHERE time_hour < TIMESTAMP 'now' -- '": "comments cannot be nested",
    f"SELECT {T}, R'\\' AS x, TIMESTAMP 'now' AS y, '' AS z FROM flights": "'now' is not a fixed date or time",
    f"SELECT {T}, -- x\r TIMESTAMP 'now' AS y FROM flights": "'now' is not a fixed date or time",
    f"SELECT {T}, -- x \\\n ' x \n TIMESTAMP 'now' AS y -- '\n FROM flights": "'now' is not a fixed date or time",
    f"SELECT /*+ FOO('*/ ') */ {T}, TIMESTAMP 'now' AS y -- '\n FROM flights": "'now' is not a fixed date or time",
    f"SELECT /*+ BROADCAST(`*/ '`) */ {T}, TIMESTAMP 'now' AS y -- '\n FROM flights": "'now' is not a fixed date or time",
    f"SELECT {T}, array() AS x FROM flights": "cannot be returned",
    "SELECT max(time_hour) FILTER (WHERE flight > 4) AS event_time FROM flights GROUP BY window(time_hour, '1 hour')": "has to be computed from",
    "SELECT session_window.end AS event_time, sum(DISTINCT dep_delay) AS s FROM flights GROUP BY session_window(time_hour, '5 minutes')": "order of the values",
    f"SELECT {T}, CAST(chr(110) || chr(111) || chr(119) AS DATE) AS x FROM flights": "current time",
    f"SELECT {T}, to_date(CAST(X'6E6F77' AS STRING)) AS x FROM flights": "current time",
    " ".join(["SELECT * FROM ("] * 400) + f"SELECT {T} FROM flights" + ")" * 400: "nested too deeply",
    f"SELECT {T} FROM flights WHERE origin COLLATE UTF8_LCASE = 'a'": "compare lower(",
    "SELECT window.start AS event_time, kll_sketch_agg_bigint(flight) AS x FROM flights GROUP BY window(time_hour, '1 hour')": "same",
    "SELECT session_window.end AS event_time FROM flights GROUP BY session_window(system_time, '5 minutes')": "event time",
    f"SELECT w.{T}, w.temp FROM weather FOR SYSTEM_TIME AS OF w.time_hour AS w": "right side of a JOIN",
    f"SELECT f.{T}, temp FROM flights f JOIN (SELECT * FROM weather FOR SYSTEM_TIME AS OF f.time_hour AS w) v ON f.origin = v.origin": "right side of a JOIN",
    "SELECT max(time_hour) AS event_time FROM flights GROUP BY origin UNION ALL SELECT window.start FROM flights GROUP BY window(time_hour, '1 hour')": "two datasets",
    f"SELECT {T} FROM flights UNION ALL SELECT max(time_hour) FROM flights GROUP BY origin": "other rows of the same input",
    "WITH g AS (SELECT max(time_hour) AS event_time, origin FROM flights GROUP BY origin) SELECT * FROM g UNION ALL SELECT * FROM g": "other rows of the same input",
}  # fmt: skip
ALLOWED = (
    f"SELECT {T}, TIMESTAMP '2026-01-31 10:00' AS x, DATE \"2026-01-31\" AS y, CAST('2026-01-31' AS DATE) AS z FROM flights",
    f"SELECT {T}, CAST(concat('2026', '-01-31') AS DATE) AS z FROM flights",
    f"SELECT {T} FROM flights WHERE dest NOT IN (" + "'in case (', " * 1000 + "'(') -- /* case",
    f"SELECT {T}, to_timestamp('Jan 2026', 'MMM yyyy') AS x, 'now' AS y, DATE 'epoch' AS z FROM flights -- DATE 'now'",
)


@pytest.mark.parametrize("query", ALLOWED)
def test_timestamp_literals_are_allowed(derive: Make, query: str) -> None:
    derive(sql(query), flights=[Block(rows=[flight(1)])]).pull()


@pytest.mark.parametrize("column", ["`it's`", "`a/*b`", "r'\\'"])
def test_a_quote_in_a_name_or_raw_string_does_not_hide_a_temporal_join(column: str) -> None:
    query = f"SELECT {column} AS x, w.temp FROM f JOIN weather FOR SYSTEM_TIME AS OF f.time_hour AS w ON f.a = w.a"
    assert list(read_text(query, ()).tables) == ["weather@f.time_hour"]


@pytest.mark.parametrize(
    "text", ["No space left on device", "java.lang.OutOfMemoryError", "Max iterations ("]
)
def test_a_text_of_a_query_is_no_fault_of_the_machine(
    engine: EngineClient, dataset: QueryTable, text: str
) -> None:
    for query in (f"SELECT raise_error('{text}') FROM `a.b`", f"SELECT `{text}` FROM `a.b`"):
        with pytest.raises(InvalidInput) as caught:
            engine.query(query, (dataset,))
        assert caught.value.code == "InvalidQuery"
        assert text in str(caught.value)


def test_inputs_that_differ_in_capital_letters_only_are_refused(derive: Make) -> None:
    query = f"SELECT {T} FROM A UNION ALL SELECT {T} FROM a"
    with pytest.raises(InvalidQuery, match="two inputs are called a"):
        derive(sql(query), A=[Block(rows=[flight(1)])], a=[Block(rows=[flight(2)])]).pull()


@pytest.mark.parametrize("query", REFUSED)
def test_refused(derive: Make, query: str) -> None:
    asked = derive(sql(query), flights=[Block(rows=[flight(1)])], weather=[])
    with pytest.raises(InvalidQuery) as caught:
        asked.pull()
    text = str(caught.value)
    assert REFUSED[query] in text
    assert "org.apache" not in text


def test_halves_of_a_correction_in_two_slices_are_refused(derive: Make) -> None:
    blocks = [Block(rows=[flight(1), flight(1, op=FROM)]), Block(rows=[flight(1, 2.0, op=TO)])]
    asked = derive(sql(f"SELECT {T} FROM flights"), flights=blocks)
    with pytest.raises(InvalidInput, match=r"record 2: a -C without a \+C"):
        asked.pull()


def test_windows_of_two_sizes_are_refused(derive: Make) -> None:
    steps = [
        (name, f"SELECT window, count(*) AS n FROM {table} GROUP BY window(time_hour, '{size}')")
        for name, table, size in (("f", "flights", "1 hour"), ("w", "weather", "2 hours"))
    ]
    last = (None, "SELECT f.window.start AS event_time FROM f JOIN w ON f.window = w.window")
    with pytest.raises(InvalidQuery, match="contradict each other"):
        derive(sql(*steps, last), flights=[], weather=[]).pull()


def test_errors_report_line_and_position(engine: EngineClient) -> None:
    with pytest.raises(InvalidQuery, match=r"line 2, pos 4"):
        engine.validate(sql("SELECT 1\nFRM x y z"), {}, {}, DatasetVocabulary())
    with pytest.raises(InvalidQuery) as caught:
        engine.validate(
            sql("SELECT time_hour AS event_time,\n  nope FROM flights"),
            {"flights": FLIGHTS},
            {"flights": VOCAB},
            DatasetVocabulary(),
        )
    assert "`nope`" in str(caught.value)
    assert "line 2 pos 2" in str(caught.value)
    assert "SubqueryAlias" not in str(caught.value)


@pytest.mark.parametrize(
    ("steps", "says"),
    [
        (
            ["SELECT *\nFROM nope"],
            "table nope does not exist among the inputs and the earlier steps; line 2 pos 5",
        ),
        (
            ["SELECT *\nFROM shop.flights"],
            "table shop.flights does not exist among the inputs and the earlier steps; if it is an input, put its name in",
        ),
        ([("a", "SELECT oops FROM flights"), f"SELECT {T} FROM a"], "in step a: "),
        ([("a", "SELECT * FROM flights"), f"SELECT {T} FROM a JOIN b ON a.x = b.x"], "in the last step: "),
        ([("a", "SELECT *, rand() AS x FROM flights"), f"SELECT {T} FROM a"], "in step a: "),
        ([("a", "SELECT *, 1 AS x FROM flights"), f"SELECT {T} FROM a LIMIT 1"], "in the last step: "),
        ([("a", "SELECT * FRM"), f"SELECT {T} FROM a"], "in step a: "),
    ],
)
def test_errors_report_the_step(derive: Make, steps: list[tuple[str, str] | str], says: str) -> None:
    with pytest.raises(InvalidQuery) as caught:
        derive(sql(*steps), flights=[Block(rows=[flight(1)])]).pull()
    assert str(caught.value).startswith(says)


@pytest.mark.parametrize(
    ("hint", "says"),
    [
        (
            "CHANGE",
            "there is no hint CHANGE; did you mean CHANGES? a query may have /*+ CHANGES */ or /*+ LATE(",
        ),
        ("late_by('2 days')", "there is no hint late_by; did you mean LATE? "),
        ("BROADCAST(flights)", "there is no hint BROADCAST; a query may have "),
    ],
)
@pytest.mark.parametrize("inputs", [{}, {"flights": FLIGHTS}], ids=["text", "analysed"])
def test_an_unknown_hint_of_a_new_query_is_refused(
    engine: EngineClient, hint: str, says: str, inputs: dict[str, pa.Schema]
) -> None:
    hourly = (
        "SELECT window.start AS event_time, count(*) AS n FROM flights GROUP BY window(time_hour, '1 hour')"
    )
    asked = (sql(hourly.replace("SELECT", f"SELECT /*+ {hint} */", 1)), inputs, dict.fromkeys(inputs, VOCAB))
    with pytest.raises(InvalidQuery) as caught:
        engine.validate(*asked, DatasetVocabulary(), is_new=True)
    assert says in str(caught.value)


def test_an_unknown_hint_of_a_chain_stays_without_effect(engine: EngineClient) -> None:
    query = sql(f"SELECT /*+ CHANGE */ {T} FROM flights")
    answer = engine.validate(query, {"flights": FLIGHTS}, {"flights": VOCAB}, DatasetVocabulary())
    assert answer.schema is not None


def test_validation_gives_schema_and_kind(engine: EngineClient) -> None:
    rows = engine.validate(sql(LATE), {"flights": FLIGHTS}, {"flights": VOCAB}, DatasetVocabulary())
    assert rows.tables == ("flights",)
    assert not rows.is_stateful
    assert rows.schema is not None
    assert rows.schema.field("event_time").type == pa.timestamp("us", "UTC"), "as Spark has it"
    windows = engine.validate(
        sql(*HOURLY),
        {"flights": FLIGHTS, "weather": WEATHER},
        {"flights": VOCAB, "weather": VOCAB},
        DatasetVocabulary(),
    )
    assert windows.is_stateful
    assert windows.tables == ("flights", "weather")
    assert windows.schema is not None
    assert windows.schema.names == ["event_time", "origin", "departures", "delay", "temp"]


def test_without_inputs_only_syntax_is_checked(engine: EngineClient) -> None:
    answer = engine.validate(sql("SELECT a, b FROM `x.y` WHERE f(a)"), {}, {}, DatasetVocabulary())
    assert answer.tables == ("x.y",)
    assert answer.schema is None


def test_other_engines_are_refused(engine: EngineClient) -> None:
    with pytest.raises(InvalidQuery, match="flink"):
        engine.validate(TransformSql(engine="flink", query="SELECT 1"), {}, {}, DatasetVocabulary())


def test_preprocessing_keeps_order_and_writes_a_file(engine: EngineClient, tmp_path: Path) -> None:
    source, out = tmp_path / "in.parquet", tmp_path / "out.parquet"
    pq.write_table(pa.table({"a": [3, 1, 2], "t": ["2020-01-01", "2020-01-02", "x"]}), source)
    request = RawQueryRequest(
        input_data_paths=(str(source),),
        transform=sql(
            ("b", "SELECT * FROM input WHERE a > 1"), "SELECT a, try_cast(t AS TIMESTAMP) AS t FROM b"
        ),
        output_data_path=str(out),
    )
    assert engine.execute_raw_query(request).num_records == 2
    table = pq.read_table(out)
    assert table.column("a").to_pylist() == [3, 2]
    assert table.schema.field("t").type == pa.timestamp("us", "UTC")


@pytest.fixture
def dataset(tmp_path: Path) -> QueryTable:
    schema = pa.schema([("offset", pa.uint64()), ("x", pa.float64())])
    files = []
    for n, size in enumerate((2, 5)):
        files.append(str(tmp_path / f"slice-{n}"))
        rows = pa.table([list(range(n * 2, n * 2 + size)), [float(n)] * size], schema=schema)
        pq.write_table(rows, files[-1])
    return QueryTable(name="a.b", schema=schema, data_paths=tuple(files))


def test_ad_hoc_queries_answer_over_whole_datasets(engine: EngineClient, dataset: QueryTable) -> None:
    assert engine.tables_of("WITH c AS (SELECT 1) SELECT * FROM `a.b`, c") == ("a.b",)
    assert engine.query("SELECT `offset` FROM `a.b`", (dataset,)).column(0).to_pylist() == list(range(7))
    answer = engine.query("SELECT x, count(*) AS n FROM `a.b` GROUP BY x ORDER BY x DESC LIMIT 1", (dataset,))
    assert answer.to_pylist() == [{"x": 1.0, "n": 5}]
    nested = "SELECT count(*) AS n FROM `a.b` WHERE x = (SELECT max(x) FROM `a.b`)"
    assert engine.query(nested, (dataset,)).to_pylist() == [{"n": 5}]


def test_large_datasets_are_scanned(
    engine: EngineClient, dataset: QueryTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("odf_engine_spark.transform.adhoc.MAX_BYTES_IN_MEMORY", 0)
    assert engine.query("SELECT `offset` FROM `a.b`", (dataset,)).column(0).to_pylist() == list(range(7))


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM csv.`/etc/passwd`",
        "SELECT (SELECT max(_c0) FROM csv.`/etc/passwd`)",
        "SELECT java_method('java.lang.System', 'getProperty', 'user.home')",
        "SELECT (SELECT reflect('java.lang.System', 'getProperty', 'user.home'))",
        "SET x = 1",
        "SELECT TRANSFORM(x) USING 'cat' FROM `a.b`",
        "SELECT * FROM (SELECT TRANSFORM(x) USING 'cat' FROM `a.b`)",
        "CREATE TABLE t AS SELECT 1",
        "SELECT nope FROM `a.b`",
        "SELEC",
    ],
)
def test_ad_hoc_queries_only_read(engine: EngineClient, dataset: QueryTable, query: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        engine.query(query, (dataset,))
    assert caught.value.code == "InvalidQuery"


@pytest.mark.parametrize(
    "value",
    ["INTERVAL 2 MONTHS", "make_interval(1)", "array()", "array(INTERVAL 1 YEAR)", "struct(array() AS a)"],
)
def test_a_column_that_cannot_be_returned_is_named(engine: EngineClient, value: str) -> None:
    with pytest.raises(InvalidInput, match=r"column j.*: .* cannot be returned: CAST it") as caught:
        engine.query(f"SELECT 1 AS i, {value} AS j", ())
    assert caught.value.code == "InvalidQuery"


def test_a_join_as_of_a_time_compares_all_of_the_declared_primary_key(derive: Make) -> None:
    query = "SELECT f.time_hour AS event_time, temp FROM flights f JOIN weather FOR SYSTEM_TIME AS OF f.time_hour ON f.origin = weather.origin"
    transform = TransformSql(
        engine="spark",
        query=query,
        temporal_tables=(TemporalTable(name="weather", primary_key=("origin", "station")),),
    )
    with pytest.raises(InvalidQuery, match="station is missing"):
        derive(transform, flights=[], weather=[]).pull()


def test_a_step_that_runs_out_of_memory_while_it_is_prepared_is_not_refused() -> None:
    transform = sql(("a", "SELECT 1"), "SELECT 2")
    (first, _) = steps_of(transform)
    with pytest.raises(QueryOutOfMemory, match="in step a: too much"), _in_step(first, transform):
        raise QueryOutOfMemory(text="too much")
