"""A BIGINT or DECIMAL does not silently become a DOUBLE in new queries."""

import re

import pyarrow as pa
import pytest
from odf_testing.engine import FLIGHTS, VOCAB, sql

from odf_common.adapters.grpc.engine_client import EngineClient
from odf_common.errors import InvalidQuery
from odf_common.metadata.events import DatasetVocabulary

COLUMNS = {"b": pa.int64(), "d": pa.float64(), "f": pa.float32(), "m": pa.decimal128(20, 2), "n": pa.int32()}
SCHEMA = pa.schema([*FLIGHTS, *(pa.field(name, type_) for name, type_ in COLUMNS.items())])
ROUNDED = (
    "b = d",
    "d <=> b",
    "b < f",
    "b IN (d)",
    "d IN (1, b)",
    "b BETWEEN 1 AND d",
    "CASE WHEN n > 1 THEN b ELSE d END",
    "CASE b WHEN d THEN 1 END",
    "if(n > 1, m, d)",
    "coalesce(b, d)",
    "nvl(m, d)",
    "greatest(b, d)",
    "nullif(b, d)",
    "array(b, d)",
    "array_contains(array(d), b)",
    "to_json(map('a', b, 'c', d))",
    "coalesce(array(b), array(d))",
    "coalesce(named_struct('x', b), named_struct('x', d))",
    "d = 9007199254740993",
    "m = d",
)
KEPT = (
    "b = CAST(d AS BIGINT)",
    "CAST(b AS DOUBLE) = d",
    "coalesce(b::DOUBLE, d)",
    "coalesce(try_cast(b AS DOUBLE), d)",
    "double(b)",
    "n = d",
    "b = n",
    "b = 1.5",
    "d > 5000000000",
    "d > 59.912345678901234567",
    "d = CAST(1 AS DECIMAL(10, 2))",
    "b * d > 1",
    "b / 2 > d",
    "sqrt(b) = d",
)
BRANCH = "SELECT time_hour AS event_time, {} FROM flights"


def validate(engine: EngineClient, query: str, *, is_new: bool = True) -> None:
    inputs = {"flights": SCHEMA}
    assert engine.validate(sql(query), inputs, {"flights": VOCAB}, DatasetVocabulary(), is_new=is_new).schema


@pytest.mark.parametrize("expression", ROUNDED)
def test_a_value_that_may_be_rounded_is_refused_in_new_queries(engine: EngineClient, expression: str) -> None:
    query = BRANCH.format(f"{expression} AS x")
    with pytest.raises(InvalidQuery, match="becomes a DOUBLE where it is combined with one"):
        validate(engine, query)
    validate(engine, query, is_new=False)
    with pytest.raises(InvalidQuery, match="becomes a DOUBLE"):
        engine.validate_preprocess(sql(f"SELECT {expression} AS x FROM input"), SCHEMA)


def test_exact_values_and_written_casts_are_not(engine: EngineClient) -> None:
    for expression in KEPT:
        validate(engine, BRANCH.format(f"{expression} AS x"))


@pytest.mark.parametrize(("exact", "type_"), [("b", "BIGINT"), ("m", "DECIMAL(38, 2)")])
def test_branches_of_a_union_are_refused_with_the_casts_to_write(
    engine: EngineClient, exact: str, type_: str
) -> None:
    other = BRANCH.format("d AS x")
    branch = BRANCH.format(f"{exact} AS x")
    validate(engine, f"{branch} UNION ALL {BRANCH.format(f'CAST(d AS {type_}) AS x')}")
    for condition in ("", " WHERE n > 1"):
        query = branch + condition
        said = f"CAST the other value AS {type_}, or write CAST(x AS DOUBLE)"
        with pytest.raises(InvalidQuery, match=re.escape(said)):
            validate(engine, f"{query} UNION ALL {other}")
        with pytest.raises(InvalidQuery, match=re.escape(said)):
            validate(engine, f"{other} UNION ALL {query}")
        validate(engine, BRANCH.format(f"CAST({exact} AS DOUBLE) AS x") + condition + f" UNION ALL {other}")


def test_equal_keys_of_a_join_are_refused(engine: EngineClient) -> None:
    query = (
        "SELECT a.time_hour AS event_time FROM flights AS a JOIN flights AS c ON a.b = c.d "
        "AND c.time_hour BETWEEN a.time_hour AND a.time_hour + INTERVAL 1 HOUR"
    )
    with pytest.raises(InvalidQuery, match=r"a\.b becomes a DOUBLE"):
        validate(engine, query)
