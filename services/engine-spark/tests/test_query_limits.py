"""Limits on a query's text and plan: refused quickly, with the limit, what was found, and a way out."""

import time
from collections.abc import Callable
from contextlib import suppress

import pyarrow as pa
import pytest

from odf_common.errors import InvalidQuery
from odf_common.metadata.events import DatasetVocabulary, SqlQueryStep, TransformSql
from odf_common.ports.engine import PlannedInput, QueryTable
from odf_engine_spark.analysis.dialect import check_text, read_text
from odf_engine_spark.spark.jvm import Spark
from odf_engine_spark.spark.query_limits import QueryLimits
from odf_engine_spark.transform.adhoc import run_query
from odf_engine_spark.transform.execute_transform import Transforms

QUICKLY = 60.0  # seconds; on a busy machine
T = QueryTable(name="t", schema=pa.schema([(f"c{n}", pa.int64()) for n in range(20)]), data_paths=())


def doubled(times: int) -> str:
    queries = ", ".join(
        f"q{n} AS (SELECT * FROM q{n - 1} UNION ALL SELECT * FROM q{n - 1})" for n in range(1, times)
    )
    return f"WITH q0 AS (SELECT * FROM t), {queries} SELECT count(*) AS n FROM q{times - 1}"


def widened(times: int) -> str:
    query = "t"
    for number in range(times):
        query = f"(SELECT a{number}.*, b{number}.* FROM {query} AS a{number} CROSS JOIN {query} AS b{number})"
    return f"SELECT count(*) AS n FROM {query} AS t"


def renamed(times: int) -> str:
    """Each query named `a` reads the `a` around it twice."""
    query = "SELECT count(*) AS n FROM a"
    for _ in range(times):
        query = f"SELECT * FROM (WITH a AS (SELECT x.* FROM a AS x CROSS JOIN a AS y) {query})"
    return f"WITH a AS (SELECT * FROM t) {query}"


def nested_cases(times: int, condition: str) -> str:
    """Return CASEs in each other, with a column named `end` in their conditions."""
    cases = f"CASE WHEN {condition} THEN " * times + "1" + " END" * times
    return f"SELECT {cases} AS x FROM (SELECT c1, c1 AS end FROM t)"


REFUSED = {
    "text": (
        f"SELECT '{'x' * (60 << 20)}' AS x FROM t",
        r"has 62,914,581 characters, more than 1,048,576: put the",
    ),
    "columns": (
        f"SELECT {', '.join(f'c1 + {n} AS a{n}' for n in range(100_000))} FROM t",
        r"has [\d,]+ characters, more than 1,048,576: put the values into a dataset",
    ),
    "fewer columns": (
        f"SELECT {', '.join(f'c{n % 20} AS a{n}' for n in range(6_000))} FROM t",
        r"returns 6,000 columns, more than 5,000: name those that you need, or put them into an array",
    ),
    "ors": (
        f"SELECT * FROM t WHERE {' OR '.join(f'c1 = {n}' for n in range(9_000))}",
        r"too large: .* it has \d\d,\d+ expressions and columns, more than 15,000; select fewer",
    ),
    "in": (
        f"SELECT * FROM t WHERE c1 IN ({', '.join(map(str, range(5_001)))})",
        "lists more than 5,000 values: put the values into a dataset, and join it",
    ),
    "with": (doubled(30), r"the query is too large: with every WITH, `\*`, CUBE and overlapping window written out"),
    "with, one name twice": (
        doubled(30).replace(
            "SELECT count(*) AS n", "SELECT (WITH q28 AS (SELECT 1 AS x) SELECT x FROM q28) AS n"
        ),
        "the query is too large",
    ),
    "with, a name inside of its own query": (
        renamed(31),
        "WITH names a again inside of its own query",
    ),
    "pivot": (
        "SELECT * FROM t PIVOT ({} FOR c2 IN ({}))".format(
            ", ".join(f"sum(c1) AS s{n}" for n in range(100)), ", ".join(map(str, range(100)))
        ),
        r"returns [\d,]+ columns, more than 5,000",
    ),
    "nested comments": (
        f"SELECT /* /* */ ' */ {'(' * 9_000}1{')' * 9_000} AS x FROM t -- '",
        "comments cannot be nested",
    ),
    "stars": (widened(9), r"the query is too large"),
    "star list": (
        f"SELECT {', '.join(['*'] * 300)} FROM t",
        r"returns 6,000 columns, more than 5,000: name those",
    ),
    "cube": (
        f"SELECT count(*) AS n FROM t GROUP BY CUBE({', '.join(f'c{n}' for n in range(20))})",
        "is too large",
    ),
    "windows": (
        "SELECT count(*) AS n FROM t GROUP BY window(timestamp_micros(c1), '10000 days', '1 microsecond')",
        r"overlapping window written out it has [\d,]+ expressions .* slide windows by more",
    ),
    "windows of numbers": (
        "SELECT system.builtin.window(timestamp_micros(c1), 1000000000, 1) AS w FROM t",
        "the query is too large",
    ),
    "windows of a computed length": (
        "SELECT window(timestamp_micros(c1), '10000 days', lower('1 SECOND')) AS w FROM t",
        "window: write its length and slide as positive whole numbers with units",
    ),
    **{
        f"stack as {place}": (query.format("stack(2000000000, 1)"), "stack: write its number of rows as a number of")
        for place, query in {
            "column": "SELECT {} FROM t",
            "view": "SELECT s FROM t LATERAL VIEW {} AS s",
            "table": "SELECT * FROM {}",
        }.items()
    },
    "stack of a computed number": ("SELECT stack(1000 * 1000 * 2000, 1) FROM t", "stack: write its number of rows"),
    "columns of columns": (
        f"SELECT c1 AS a0, {', '.join(f'a{n} + a{n} AS a{n + 1}' for n in range(100))} FROM t",
        "the query is nested too deeply: split it into steps",
    ),
    "parentheses": (f"SELECT {'(' * 1001}1{')' * 1001} AS x FROM t", r"more than 1000 nested \("),
    "partitions": ("SELECT id FROM Range(0, 10, 1, 3000000)", "range: leave out the number of partitions"),
    **{
        f"{times} cases of {condition}": (nested_cases(times, condition), "more than 8 nested CASE")
        for times in (9, 15, 40)
        for condition in (
            "abs(end) > 1", "end > 1", "c1 = 1 AND end > 1", "NOT end > 1", "c1 BETWEEN 0 AND end", "c1 DIV end > 1",
            "c1 IS DISTINCT FROM end", "c1 +/**/end > 1", "abs(/**/end) > 1", "(end) > 1", "array(1)[end] = 1",
            "sum(c1) OVER end > 1", "c1 = (SELECT 1 end)", "exists(array(1), end -> end > 1)",
        )
    },
}  # fmt: skip


@pytest.mark.parametrize(("query", "text"), REFUSED.values(), ids=REFUSED)
def test_a_query_beyond_a_limit_is_refused_soon(spark: Spark, query: str, text: str) -> None:
    begun = time.monotonic()
    with pytest.raises(InvalidQuery, match=text):
        run_query(spark, query, (T,))
    assert time.monotonic() - begun < QUICKLY


@pytest.mark.parametrize(("query", "text"), REFUSED.values(), ids=REFUSED)
def test_so_is_a_transform(transforms: Transforms, query: str, text: str) -> None:
    input_ = PlannedInput(name="t", schema=T.schema, vocab=DatasetVocabulary())
    begun = time.monotonic()
    with pytest.raises(InvalidQuery, match=text):
        transforms.prepare(TransformSql(engine="spark", query=query), [input_], DatasetVocabulary())
    assert time.monotonic() - begun < QUICKLY


def test_steps_that_double_an_input_are_refused(transforms: Transforms) -> None:
    steps = [SqlQueryStep(query="SELECT * FROM t", alias="s0")]
    for number in range(1, 30):
        before = f"s{number - 1}"
        query = f"SELECT * FROM {before} UNION ALL SELECT * FROM {before}"
        steps.append(SqlQueryStep(query=query, alias=f"s{number}"))
    transform = TransformSql(engine="spark", queries=(*steps, SqlQueryStep(query="SELECT * FROM s29")))
    input_ = PlannedInput(name="t", schema=T.schema, vocab=DatasetVocabulary())
    with pytest.raises(InvalidQuery, match=r"in step s\d+: the query is too large"):
        transforms.prepare(transform, [input_], DatasetVocabulary())


def test_too_many_steps_are_refused(transforms: Transforms) -> None:
    named = tuple(SqlQueryStep(query="SELECT 1 AS x", alias=f"s{number}") for number in range(100))
    transform = TransformSql(engine="spark", queries=(*named, SqlQueryStep(query="SELECT 1 AS x")))
    with pytest.raises(InvalidQuery, match="has 101 steps, more than 100: split it into datasets"):
        transforms.prepare(transform, [], DatasetVocabulary())


ACCEPTED = {
    "windows": "SELECT count(*) AS n FROM (SELECT c1 FROM t) GROUP BY window(timestamp_micros(c1), '1 hour', '30 seconds')",
    "stack": "SELECT stack(5000, 1, 2) AS x FROM t",
    "wide": f"SELECT {', '.join(f'CAST(c1 AS STRING) AS a{n}' for n in range(2_000))} FROM t",
    "list": f"SELECT * FROM t WHERE c1 IN ({', '.join(map(str, range(5_000)))})",
    "cases": f"SELECT CASE {' '.join(f'WHEN c1 = {n} THEN {n}' for n in range(1_000))} END AS x FROM t",
    "nested cases": nested_cases(8, "end IN (1, 2) AND abs(end) > 1 OR c1 = -end"),
    "cases in a row": f"SELECT {', '.join(f'CASE WHEN c1 = {n} THEN c1 ELSE abs(c2) END AS a{n}' for n in range(99))}"
    " FROM t",
    "unions": " UNION ALL ".join(f"SELECT c1, c2 FROM t WHERE c1 = {n}" for n in range(200)),
    "with": doubled(6),
    "text": f"SELECT '{'x' * 1_000_000}' AS x FROM t",
}


@pytest.mark.parametrize("query", ACCEPTED.values(), ids=ACCEPTED)
def test_large_queries_of_tools_are_accepted(spark: Spark, query: str) -> None:
    run_query(spark, query, (T,)).read_all()


@pytest.mark.parametrize(
    "text",
    [
        "/*" * 500_000,
        "'\\" * 500_000,
        '"\\' * 500_000,
        "x" * 1_000_000,
        "`" * 999_999,
        "r'" * 499_999,
        "a " * 500_000,
    ],
    ids=["comments", "strings", "double quotes", "word", "backticks", "raw", "words"],
)
@pytest.mark.parametrize("read", [lambda sql: read_text(sql, ()), lambda sql: check_text(sql, QueryLimits())])
def test_any_text_is_read_in_time_with_its_length(text: str, read: Callable[[str], object]) -> None:
    begun = time.monotonic()
    with suppress(InvalidQuery):
        read(f"SELECT {text}")
    assert time.monotonic() - begun < QUICKLY
