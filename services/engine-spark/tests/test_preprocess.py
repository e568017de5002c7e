"""Preprocess queries compute each record alone, whatever the batches are."""

import random
import re
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from odf_testing.engine import sql

from odf_common.adapters.grpc.engine_client import EngineClient
from odf_common.errors import InvalidQuery
from odf_common.metadata.engine_messages import RawQueryRequest
from odf_common.metadata.events import SqlQueryStep, TransformSql
from odf_engine_spark.spark.jvm import Java
from odf_engine_spark.spark.listed_functions import NOT_ROW_WISE_FUNCTIONS, REFUSED_FUNCTIONS

SCHEMA = pa.schema(
    {
        "id": pa.int64(),
        "at": pa.timestamp("ms", "UTC"),
        "city": pa.string(),
        "amount": pa.decimal128(38, 18),
        "parts": pa.list_(pa.int64()),
    }
)
PROJECTIONS = (
    "id + 1 AS id, upper(city) AS city",
    "id, CASE WHEN amount > 2 THEN 'much' WHEN city IS NULL THEN 'none' ELSE city END AS city",
    "CAST(id AS STRING) AS id, coalesce(city, 'none') AS city",
    "id, concat_ws('-', city, date_format(at, 'yyyy-MM-dd')) AS city",
    "id, CAST(aggregate(parts, CAST(0 AS BIGINT), (all, one) -> all + one) AS STRING) AS city",
    "id, explode(transform(parts, part -> CAST(part AS STRING))) AS city",
)
FILTERS = ("", "WHERE amount > 1.5", "WHERE city LIKE 'O%' OR id % 2 = 0", "WHERE size(parts) > 0")
INPUTS = (
    "input",
    "(SELECT * FROM input WHERE id > 2) AS later",
    "input LATERAL VIEW OUTER posexplode(parts) p AS place, part",
)
REFUSED = {
    "SELECT max(at) AS at, city, sum(amount) AS amount FROM input GROUP BY city": "GROUP BY",
    "SELECT count(*) AS n FROM input": "count",
    "SELECT city FROM input GROUP BY city HAVING city > 'a'": "HAVING",
    "SELECT DISTINCT city FROM input": "DISTINCT",
    "SELECT city FROM input UNION SELECT city FROM input": "DISTINCT",
    "SELECT city FROM input EXCEPT SELECT city FROM input": "EXCEPT",
    "SELECT * FROM input LIMIT 2": "LIMIT",
    "SELECT * FROM input ORDER BY id": "ORDER BY",
    "SELECT * FROM input ORDER BY id LIMIT 2": "LIMIT",
    "SELECT * FROM input OFFSET 1": "OFFSET",
    "SELECT * FROM input TABLESAMPLE (50 PERCENT)": "TABLESAMPLE",
    "SELECT a.id FROM input a JOIN input b ON a.id < b.id": "a join",
    "SELECT a.id FROM input a, input b": "a join",
    "SELECT id, row_number() OVER (PARTITION BY city ORDER BY at) AS n FROM input": "row_number",
    "SELECT id, count(*) OVER () AS n FROM input": "count",
    "SELECT id FROM input WHERE id = (SELECT max(id) FROM input)": "max|a sub-query",
    "SELECT id FROM input WHERE EXISTS (SELECT city FROM input)": "a sub-query",
    "SELECT id FROM input UNION ALL SELECT 1": "SELECT without FROM",
    "SELECT id FROM input UNION ALL VALUES (1)": "VALUES",
    "SELECT id FROM input UNION ALL SELECT id FROM range(3)": "a table function",
    "SELECT * FROM input PIVOT (sum(id) FOR city IN ('a'))": "PIVOT|sum",
    "WITH t AS (SELECT DISTINCT city FROM input) SELECT * FROM t": "DISTINCT",
    "FROM input |> AGGREGATE count(*) GROUP BY city": "GROUP BY|count",
    "SELECT rand() AS x FROM input": "rand",
    "SELECT uuid() AS x FROM input": "uuid",
    "SELECT now() AS x FROM input": "now",
    "SELECT current_timestamp() AS x FROM input": "current_timestamp",
    "SELECT current_date AS x FROM input": "current_date",
    "SELECT unix_timestamp() AS x FROM input": "unix_timestamp|current_timestamp",
    "SELECT monotonically_increasing_id() AS x FROM input": "monotonically_increasing_id",
    "SELECT input_file_name() AS x FROM input": "input_file_name",
    "SELECT spark_partition_id() AS x FROM input": "spark_partition_id",
    "SELECT first(city) AS x FROM input": "first",
    "SELECT any(id > 1) AS x FROM input": "any",
    "SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY id) AS x FROM input": "percentile_cont",
    "SELECT DATE 'today' AS x FROM input": "'today' is not a fixed date",
}


def records(number: int) -> pa.Table:
    rng = random.Random(number)
    rows = [
        {
            "id": rng.randrange(9),
            "at": rng.randrange(10**12),
            "city": rng.choice(("Oslo", "Rome", None)),
            "amount": rng.randrange(4),
            "parts": [rng.randrange(5) for _ in range(rng.randrange(3))],
        }
        for _ in range(number)
    ]
    return pa.Table.from_pylist(rows, SCHEMA)


def run(
    engine: EngineClient, folder: Path, query: TransformSql, batch: pa.Table
) -> list[Mapping[str, object]]:
    source, out = folder / "in.parquet", folder / "out.parquet"
    pq.write_table(batch, source)
    request = RawQueryRequest(input_data_paths=(str(source),), transform=query, output_data_path=str(out))
    engine.execute_raw_query(request)
    return sorted(pq.read_table(out).to_pylist(), key=str)


def test_a_batch_that_is_cut_anywhere_gives_the_same_rows(engine: EngineClient, tmp_path: Path) -> None:
    rng = random.Random(13)
    whole = records(12)
    for _ in range(12):
        branches = [
            f"SELECT {rng.choice(PROJECTIONS)} FROM input {rng.choice(FILTERS)}"
            for _ in range(rng.randrange(2))
        ]
        first = f"SELECT {rng.choice(PROJECTIONS)} FROM {rng.choice(INPUTS)} {rng.choice(FILTERS)}"
        text = " UNION ALL ".join((first, *branches))
        query = sql(f"WITH t AS ({text}) SELECT CAST(id AS STRING) AS id, city FROM t")
        engine.validate_preprocess(query, SCHEMA)
        cut = rng.randrange(13)
        rows = [*run(engine, tmp_path, query, whole[:cut]), *run(engine, tmp_path, query, whole[cut:])]

        assert sorted(rows, key=str) == run(engine, tmp_path, query, whole), text


@pytest.mark.parametrize("schema", [SCHEMA, None], ids=["declared", "inferred"])
def test_what_sees_more_than_one_record_is_refused_by_name(
    engine: EngineClient, schema: pa.Schema | None
) -> None:
    for text, name in REFUSED.items():
        with pytest.raises(InvalidQuery) as refused:
            engine.validate_preprocess(sql(text), schema)
        assert re.match(name, str(refused.value)), text


def test_the_columns_decide_where_the_text_does_not(engine: EngineClient) -> None:
    named = pa.schema({"current_date": pa.date32(), "x": pa.string()})
    engine.validate_preprocess(sql("SELECT current_date FROM input"), named)
    with pytest.raises(InvalidQuery, match="'now' is not a fixed date"):
        engine.validate_preprocess(sql("SELECT to_timestamp('now') AS x FROM input"), SCHEMA)
    with pytest.raises(InvalidQuery, match="amont"):
        engine.validate_preprocess(sql("SELECT amont FROM input"), SCHEMA)
    with pytest.raises(InvalidQuery, match="loses decimal places"):
        engine.validate_preprocess(sql("SELECT amount * amount AS x FROM input"), SCHEMA)


def test_every_step_is_checked(engine: EngineClient) -> None:
    def steps(first: str) -> TransformSql:
        queries = (SqlQueryStep(query=first, alias="a"), SqlQueryStep(query="SELECT * FROM a"))
        return TransformSql(engine="spark", queries=queries)

    engine.validate_preprocess(steps("SELECT id FROM input"), SCHEMA)
    for schema in (SCHEMA, None):
        with pytest.raises(InvalidQuery, match="LIMIT cannot be used in preprocess: do that in a derivative"):
            engine.validate_preprocess(steps("SELECT id FROM input LIMIT 1"), schema)


def test_all_aggregates_and_window_functions_of_spark_are_refused(all_functions: Mapping[str, Java]) -> None:
    packages = ("expressions.aggregate.", "expressions.Window")
    several = {
        name
        for name, info in all_functions.items()
        if any(package in str(info.getClassName()) for package in packages)
    }

    assert len(several) > 60
    assert several - {"window", "window_time"} <= {*NOT_ROW_WISE_FUNCTIONS, *REFUSED_FUNCTIONS}
