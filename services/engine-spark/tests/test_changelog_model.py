"""Every operator against one model: the table that Spark computes from scratch, over the records that remain.

The inputs are random: duplicates, records that come again after their retraction, several changes of one in a block,
nulls; cut into blocks, and blocks into requests, anywhere. `make explore` tries other seeds.
"""

import random
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from odf_testing.engine import (
    FLIGHTS,
    FROM,
    HOUR,
    MINUTE,
    TO,
    VOCAB,
    WEATHER,
    A,
    Block,
    Chain,
    Derivative,
    R,
    flight,
    sql,
)
from odf_testing.engine_changes import Row, standing
from odf_testing.profiles import examples

from odf_common.errors import InvalidQuery
from odf_engine_spark.spark.jvm import Spark
from odf_engine_spark.transform.execute_transform import Transforms
from odf_engine_spark.values.spark_types import spark_schema_of
from odf_engine_spark.values.spark_values import in_spark

AGGREGATES = (
    "count(*) AS n, count(dep_delay) AS c, sum(dep_delay) AS s, avg(dep_delay) AS a, min(dep_delay) AS lo, "
    "max(dep_delay) AS hi, sum(flight) AS f, avg(flight) AS g, min(dest) AS d, max(struct(dep_delay, flight)) AS b, "
    "sum(CAST(dep_delay AS DECIMAL(9, 2))) AS ds, avg(CAST(dep_delay AS DECIMAL(9, 2))) AS da"
)
BOTH = "SELECT time_hour AS event_time, origin, dep_delay AS x FROM flights UNION ALL SELECT time_hour, origin, temp FROM weather"
WINDOWS = (
    "SELECT /*+ CHANGES */ window.start AS event_time, origin, count(*) AS n, sum(dep_delay) AS s, max(flight) AS m "
    "FROM flights GROUP BY window(time_hour, '1 hour'), origin"
)
HOURS = "SELECT date_trunc('hour', time_hour) AS event_time, count(*) AS n FROM flights GROUP BY date_trunc('hour', time_hour)"
TOP = (
    "SELECT event_time, origin, dep_delay, flight, place FROM (SELECT time_hour AS event_time, *, row_number() OVER "
    "(PARTITION BY origin ORDER BY dep_delay DESC{tie}) AS place FROM flights) WHERE place <= 2"
)
TOTALS = "SELECT max(time_hour) AS event_time, origin, sum(flight) AS total FROM flights GROUP BY origin"
# What a changelog gives; `{tie}` breaks ties by arrival, which the table for Spark has as a column.
CHANGELOGS: Final[Mapping[str, str]] = {
    "filter": "SELECT time_hour AS event_time, upper(origin) AS o, dep_delay * 2 AS d FROM flights "
    "WHERE flight > 1 OR dep_delay IS NULL",
    "explode": "SELECT time_hour AS event_time, n FROM flights LATERAL VIEW explode(sequence(1, flight)) t AS n WHERE n < 3",
    "union": BOTH,
    "union of one input": "SELECT time_hour AS event_time, origin FROM flights UNION ALL SELECT time_hour, dest FROM flights",
    "groups": f"SELECT max(time_hour) AS event_time, origin, {AGGREGATES} FROM flights GROUP BY origin",
    "groups of some": f"SELECT min(time_hour) AS event_time, flight, {AGGREGATES} FROM flights WHERE origin = 'A' "
    "GROUP BY flight HAVING count(dep_delay) > 1",
    "one group": "SELECT max(time_hour) AS event_time, sum(dep_delay) AS s FROM flights HAVING count(*) > 0",
    "distinct": "SELECT /*+ CHANGES */ DISTINCT time_hour AS event_time, origin FROM flights",
    "windows": WINDOWS,
    "sliding windows": WINDOWS.replace("'1 hour'", "'1 hour', '20 minutes'").replace("window.start", "window.end"),
    "hours": HOURS.replace("SELECT", "SELECT /*+ CHANGES */", 1),
    "local days": "SELECT max(time_hour) AS event_time, to_date(from_utc_timestamp(time_hour, 'Asia/Kolkata')) AS d, "
    "count(*) AS n FROM flights GROUP BY to_date(from_utc_timestamp(time_hour, 'Asia/Kolkata'))",
    "first places": TOP,
    "first places of groups": "SELECT event_time, origin, total, place FROM (SELECT *, row_number() OVER "
    f"(ORDER BY total DESC, origin) AS place FROM ({TOTALS})) WHERE place <= 2",
    "groups of groups": f"SELECT max(event_time) AS event_time, total % 2 AS odd, count(*) AS n FROM ({TOTALS}) GROUP BY total % 2",
    "groups of windows": f"SELECT max(event_time) AS event_time, origin, max(n) AS most, sum(s) AS s FROM ({WINDOWS}) GROUP BY origin",
    "groups of first places": f"SELECT max(event_time) AS event_time, place, count(*) AS n, sum(flight) AS f FROM ({TOP}) GROUP BY place",
    "groups beside records": f"SELECT event_time, origin, total FROM ({TOTALS}) UNION ALL "
    "SELECT time_hour, origin, CAST(temp AS BIGINT) FROM weather",
}  # fmt: skip
NEAR = "f.origin = w.origin AND w.time_hour BETWEEN f.time_hour - INTERVAL 20 MINUTES AND f.time_hour + INTERVAL 10 MINUTES"
AS_OF = (
    "SELECT f.time_hour AS event_time, flight, w.temp FROM flights f {kind} JOIN weather FOR SYSTEM_TIME AS OF f.time_hour "
    "AS w ON f.origin = w.origin"
)
AS_OF_SCAN = (
    "SELECT event_time, flight, temp FROM (SELECT f.time_hour AS event_time, flight, w.temp, row_number() OVER "
    "(PARTITION BY f.arrival ORDER BY w.time_hour DESC, w.arrival DESC) AS r FROM flights f {kind} JOIN weather w "
    "ON f.origin = w.origin AND w.time_hour <= f.time_hour) WHERE r = 1"
)
# What waits for the watermark, and what Spark computes from scratch where that is another query.
FINAL: Final[Mapping[str, tuple[str, str | None]]] = {
    "windows": (WINDOWS.replace("/*+ CHANGES */ ", ""), None),
    "sliding windows": (CHANGELOGS["sliding windows"].replace("/*+ CHANGES */ ", ""), None),
    "hours": (HOURS, None),
    "corrected windows": (WINDOWS.replace("CHANGES", "LATE('2 hours')"), None),
    "sessions": (
        ("SELECT session_window.end AS event_time, origin, count(*) AS n FROM flights "
        "GROUP BY session_window(time_hour, '10 minutes'), origin"),
        None,
    ),
    "left join": (f"SELECT f.time_hour AS event_time, flight, temp FROM flights f LEFT JOIN weather w ON {NEAR}", None),
    "right join": (f"SELECT w.time_hour AS event_time, flight, temp FROM flights f RIGHT JOIN weather w ON {NEAR}", None),
    "full join": (
        f"SELECT coalesce(f.time_hour, w.time_hour) AS event_time, flight, temp FROM flights f FULL JOIN weather w ON {NEAR}",
        None,
    ),
    "anti join": (f"SELECT time_hour AS event_time, flight FROM flights f LEFT ANTI JOIN weather w ON {NEAR}", None),
    "semi join": (f"SELECT time_hour AS event_time, flight FROM flights f LEFT SEMI JOIN weather w ON {NEAR}", None),
    "join without bounds": (
        ("SELECT greatest(f.time_hour, w.time_hour) AS event_time, flight, temp FROM flights f "
        "JOIN weather w ON f.origin = w.origin"),
        None,
    ),
    "as of": (AS_OF.format(kind=""), AS_OF_SCAN.format(kind="")),
    "left as of": (AS_OF.format(kind="LEFT"), AS_OF_SCAN.format(kind="LEFT")),
    "running": (
        ("SELECT time_hour AS event_time, origin, flight, count(*) OVER w AS n, max(dep_delay) OVER w AS m FROM flights "
        "WINDOW w AS (PARTITION BY origin ORDER BY time_hour)"),
        None,
    ),
    "moving": (
        ("SELECT time_hour AS event_time, sum(flight) OVER (PARTITION BY origin ORDER BY time_hour "
        "RANGE BETWEEN INTERVAL 30 MINUTES PRECEDING AND CURRENT ROW) AS s FROM flights"),
        None,
    ),
    "groups over a union": (f"SELECT max(event_time) AS event_time, origin, sum(x) AS s FROM ({BOTH}) GROUP BY origin", None),
}  # fmt: skip


def any_flight(source: random.Random, at: int) -> Row:
    delay = source.choice((None, 0.0, 0.25, -1.5, 4.0, 4.0))
    return flight(at, delay, origin=source.choice(("A", "B", None)), number=source.randrange(1, 4))  # type: ignore[arg-type]


def any_reading(source: random.Random, at: int) -> Row:
    return (A, at, source.choice(("A", "B")), source.choice((None, 1.0, 2.5)))


ANY: Final = {"flights": (FLIGHTS, any_flight), "weather": (WEATHER, any_reading)}


def changelog(source: random.Random, name: str) -> list[list[Row]]:
    """Return changes: records, retractions, and both halves of corrections."""
    made: list[list[Row]] = []
    there: list[Row] = []
    gone: list[Row] = []
    for _ in range(source.randrange(12, 30)):
        new = ANY[name][1](source, source.randrange(3 * 60) * MINUTE)
        if source.random() < 0.3 and there + gone:
            new = source.choice(there + gone)
        chance = source.random() if there else 1.0
        old = there.pop(source.randrange(len(there))) if chance < 0.5 else None
        if old is not None:
            gone.append(old)
        if chance < 0.25 and old is not None:
            made.append([(R, *old[1:])])
            continue
        there.append(new)
        made.append([new] if old is None else [(FROM, *old[1:]), (TO, *new[1:])])
    return made


def cut(source: random.Random, changes: Sequence[Sequence[Row]]) -> list[Block]:
    """Return the changes in blocks, with watermarks that say nothing about changelogs."""
    ends = sorted({*source.choices(range(len(changes) + 1), k=3), len(changes)})
    starts = [0, *ends[:-1]]
    return [
        Block(rows=[row for change in changes[start:end] for row in change], watermark=number * HOUR)
        for number, (start, end) in enumerate(zip(starts, ends, strict=True))
    ]


def appended(source: random.Random, name: str) -> list[Block]:
    """Return blocks of records that are never late, each with a watermark that closes some windows."""
    blocks, watermark = [], 0
    for number in range(4):
        times = [source.randrange(watermark, (number + 2) * HOUR) // MINUTE * MINUTE for _ in range(7)]
        rows = [ANY[name][1](source, max(at, watermark)) for at in times]
        watermark = source.randrange(watermark, (number + 1) * HOUR + 1) // MINUTE * MINUTE
        blocks.append(Block(rows=rows, watermark=watermark))
    return [*blocks, Block(watermark=90 * HOUR)]


@contextmanager
def derived(
    transforms: Transforms, query: str, inputs: Mapping[str, Sequence[Block]]
) -> Iterator[Derivative]:
    with tempfile.TemporaryDirectory() as folder:
        chains = []
        for name, blocks in inputs.items():
            chain = Chain(name=name, schema=ANY[name][0], vocab=VOCAB, folder=Path(folder))
            for block in blocks:
                chain.add(block)
            chains.append(chain)
        yield Derivative(transforms=transforms, transform=sql(query), chains=chains, folder=Path(folder))


def rows_of(derivative: Derivative) -> list[Row]:
    """Return (op, *values) of all rows so far."""
    return [
        row for table in derivative.tables for row in plain(table.drop_columns(["offset", "system_time"]))
    ]


def plain(table: pa.Table) -> list[Row]:
    """Return rows whose timestamps are microseconds and whose structs can be compared."""
    columns = []
    for column in table.columns:
        whole = pa.types.is_timestamp(column.type)
        values = column.cast(pa.timestamp("us", "UTC")).cast(pa.int64()) if whole else column
        columns.append([repr(value) if isinstance(value, dict) else value for value in values.to_pylist()])
    return list(zip(*columns, strict=True))


def scratch(spark: Spark, query: str, inputs: Mapping[str, Sequence[Block]]) -> Counter[Row]:
    """Return what Spark computes over the records that remain, in their order of arrival."""
    isolated = spark.new_session()
    for name, blocks in inputs.items():
        there: list[Row] = []
        for operation, *record in (row for block in blocks for row in block.rows):
            if operation in (A, TO):
                there.append(tuple(record))
            else:  # the latest of equal ones
                del there[len(there) - 1 - there[::-1].index(tuple(record))]
        schema = pa.schema(list(ANY[name][0])[3:])
        columns = list(zip(*there, strict=True)) or [()] * len(schema)
        arrays = [pa.array(column, pa.int64() if pa.types.is_timestamp(kind.type) else kind.type).cast(kind.type)
                  for column, kind in zip(columns, schema, strict=True)]  # fmt: skip
        table = in_spark(pa.Table.from_arrays(arrays, schema=schema), spark_schema_of(schema))
        table = table.append_column("arrival", pa.array(range(len(there)), pa.int64()))
        isolated.frame(isolated.relation(table)).createOrReplaceTempView(name)
    return Counter(plain(isolated.collect(isolated.frame(isolated.parse(query)))))


def pull_in_parts(out: Derivative, source: random.Random) -> None:
    ends = [sorted(source.choices(range(len(chain.blocks) + 1), k=2)) for chain in out.chains]
    for until in zip(*ends, strict=True):
        out.pull(*until)
    out.pull()


def check(spark: Spark, transforms: Transforms, queries: tuple[str, str], inputs: Mapping[str, Sequence[Block]], source: random.Random) -> None:  # fmt: skip
    """Compare a query, pulled at once and in parts, with another one over the records that remain."""
    query, from_scratch = queries
    with derived(transforms, query, inputs) as whole, derived(transforms, query, inputs) as parts:
        whole.pull()
        pull_in_parts(parts, source)
        expected = scratch(spark, from_scratch, inputs)
        assert standing(rows_of(whole)) == expected
        assert standing(rows_of(parts)) == expected
        assert parts.watermark == whole.watermark
        if len(inputs) == 1:
            assert rows_of(parts) == rows_of(whole)


def names_in(query: str) -> list[str]:
    return [name for name in ANY if name in query]


@pytest.mark.parametrize("kind", CHANGELOGS)
@settings(max_examples=examples(4))
@given(seed=st.integers(0, 2**32))
def test_changelogs_equal_the_table_of_the_records_that_remain(
    spark: Spark, transforms: Transforms, kind: str, seed: int
) -> None:
    source, query = random.Random(f"{kind} {seed}"), CHANGELOGS[kind]
    inputs = {name: cut(source, changelog(source, name)) for name in names_in(query)}
    queries = query.replace("{tie}", ""), query.replace("{tie}", ", arrival")
    check(spark, transforms, queries, inputs, source)


@pytest.mark.parametrize("kind", FINAL)
@settings(max_examples=examples(4))
@given(seed=st.integers(0, 2**32))
def test_final_rows_equal_the_table_of_all_records_and_refuse_each_retraction(
    spark: Spark, transforms: Transforms, kind: str, seed: int
) -> None:
    source, (query, scan) = random.Random(f"{kind} {seed}"), FINAL[kind]
    inputs = {name: appended(source, name) for name in names_in(query)}
    check(spark, transforms, (query, scan or query), inputs, source)
    name = source.choice(list(inputs))
    blocks = list(inputs[name])
    number = source.randrange(1, len(blocks))
    old = source.choice(blocks[0].rows)
    taken = source.choice(([(R, *old[1:])], [(FROM, *old[1:]), (TO, *any_record(source, name)[1:])]))
    blocks[number] = Block(rows=[*blocks[number].rows, *taken], watermark=blocks[number].watermark)
    offset = sum(len(block.rows) for block in blocks[: number + 1]) - len(taken)
    with derived(transforms, query, {**inputs, name: blocks}) as out:
        out.pull(*[1] * len(inputs))
        with pytest.raises(InvalidQuery, match=rf"^{name}, offset {offset} \(-[RC]\) takes back a record"):
            pull_in_parts(out, random.Random(0))


def any_record(source: random.Random, name: str) -> Row:
    return ANY[name][1](source, source.randrange(3 * 60) * MINUTE)
