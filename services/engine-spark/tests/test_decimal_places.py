import decimal
import random
import re
from collections.abc import Callable
from decimal import Decimal as Value
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from odf_testing.engine import FLIGHTS, VOCAB, sql

from odf_common.adapters.grpc.engine_client import EngineClient
from odf_common.errors import InvalidQuery
from odf_common.metadata.events import DatasetVocabulary
from odf_common.ports.engine import QueryTable

EXACT = decimal.Context(prec=200)
SIGNS: dict[str, Callable[[Value, Value], Value]] = {
    "*": EXACT.multiply,
    "+": EXACT.add,
    "-": EXACT.subtract,
    "/": EXACT.divide,
}
MONEY = {"amount": pa.decimal128(38, 18), "rate": pa.decimal128(38, 18), "big": pa.decimal128(38, 0)}
LOST = (
    "amount * rate",
    "sum(amount * rate)",
    "amount / rate",
    "CAST(amount * rate AS DECIMAL(38, 18))",
    "amount * CAST(2 AS BIGINT)",
    "amount * 2",
    "amount + rate",
    "amount - rate",
    "try_multiply(amount, rate)",
    "try_divide(amount, rate)",
    "transform(array(amount), x -> x * rate)",
    "coalesce(amount, big)",
    "CASE WHEN big > 1 THEN big ELSE amount END",
    "amount = big",
    "array(array(amount), array(big))",
    "(SELECT max(amount * rate) FROM t)",
    "decimal(amount)",
    "CAST(amount AS DECIMAL(38, 0)) + coalesce(amount, big)",
)
KEPT = (
    "amount / 3",
    "avg(amount)",
    "sum(amount)",
    "amount % rate",
    "amount > 1.5",
    "round(amount, 2)",
    "CAST(amount AS DECIMAL(38, 2))",
    "amount::DECIMAL(38, 2)",
    "try_cast(amount AS DECIMAL(38, 2))",
    "CAST(amount AS DECIMAL(19, 18)) * CAST(rate AS DECIMAL(18, 18))",
    "CAST(amount AS DOUBLE) * rate",
    "greatest(amount, 0)",
)


def a_table(folder: Path, columns: dict[str, pa.DataType], values: list[Value]) -> QueryTable:
    names = list(columns)
    data = {name: pa.array([value], columns[name]) for name, value in zip(names, values, strict=True)}
    table = pa.table({"offset": pa.array([0], pa.uint64()), **data})
    file = folder / f"{len(list(folder.iterdir()))}.parquet"
    pq.write_table(table, file)
    return QueryTable(name="t", schema=table.schema, data_paths=(str(file),))


@pytest.fixture
def money(tmp_path: Path) -> QueryTable:
    return a_table(tmp_path, MONEY, [Value("0.000000123456789012"), Value("0.5"), Value(1)])


@pytest.mark.parametrize("expression", LOST)
def test_an_expression_that_loses_places_is_refused(
    engine: EngineClient, money: QueryTable, expression: str
) -> None:
    with pytest.raises(InvalidQuery, match="loses decimal places"):
        engine.query(f"SELECT {expression} AS x FROM t", (money,))


def test_other_expressions_are_not(engine: EngineClient, money: QueryTable) -> None:
    for expression in KEPT:
        assert len(engine.query(f"SELECT {expression} AS x FROM t", (money,))) == 1


def test_branches_of_a_union_are_refused(engine: EngineClient, money: QueryTable) -> None:
    with pytest.raises(
        InvalidQuery, match=r"amount loses decimal places: DECIMAL\(38,18\) becomes DECIMAL\(38,0\)"
    ):
        engine.query("SELECT amount FROM t UNION ALL SELECT big FROM t", (money,))


def test_the_message_has_types_and_the_casts_to_write(engine: EngineClient, money: QueryTable) -> None:
    text = (
        "t.amount * t.rate loses decimal places: DECIMAL(38,18) * DECIMAL(38,18) is rounded to DECIMAL(38,6), since "
        "decimals have at most 38 digits; write CAST(t.amount AS DECIMAL(19, 18)) * CAST(t.rate AS DECIMAL(18, 18)), or"
    )
    with pytest.raises(InvalidQuery, match=re.escape(text)):
        engine.query("SELECT amount * rate AS x FROM t", (money,))


def test_a_product_of_three_is_exact_once_the_proposed_casts_are_written(
    engine: EngineClient, tmp_path: Path
) -> None:
    table = a_table(
        tmp_path,
        {"amount": pa.decimal128(38, 18), "m": pa.decimal128(10, 2)},
        [Value("0.000000123456789012"), Value("1.11")],
    )
    expression = "(t.amount * t.m) * t.m"
    while isinstance(answer := asked(engine, table, expression), str):
        found = re.search(r"(?:column: |^)?(.*) loses decimal places: .*; write (.*), or cast", answer)
        assert found is not None, answer
        advice = re.sub(r"(\d), (\d)", r"\1,\2", found[2])
        assert found[1] in expression
        expression = expression.replace(found[1], advice)
    assert answer == Value("0.000000123456789012") * Value("1.11") * Value("1.11"), expression


def test_only_a_new_transform_is_refused(engine: EngineClient) -> None:
    schema = FLIGHTS.append(pa.field("amount", pa.decimal128(38, 18)))
    query = sql("SELECT time_hour AS event_time, amount * amount AS x FROM flights")
    asked = (query, {"flights": schema}, {"flights": VOCAB}, DatasetVocabulary())

    assert engine.validate(*asked).schema is not None
    with pytest.raises(InvalidQuery, match="loses decimal places"):
        engine.validate(*asked, is_new=True)


def asked(engine: EngineClient, table: QueryTable, expression: str) -> Value | str:
    """Return the result of an expression, or why it is refused."""
    try:
        return Value(engine.query(f"SELECT {expression} AS x FROM t", (table,)).column("x")[0].as_py())
    except InvalidQuery as error:
        return str(error)


def test_accepted_results_and_those_of_proposed_casts_are_exact(engine: EngineClient, tmp_path: Path) -> None:
    rng = random.Random(9)
    accepted = 0
    for _ in range(60):
        sign = rng.choice(list(SIGNS))
        types = [
            pa.decimal128(digits, rng.randrange(digits + 1)) for digits in rng.choices(range(1, 39), k=2)
        ]
        values = [
            Value(rng.randrange(1, 10 ** rng.randrange(1, type_.precision + 1))).scaleb(-type_.scale, EXACT)
            for type_ in types
        ]
        table = a_table(tmp_path, {"a": types[0], "b": types[1]}, values)
        answer = asked(engine, table, f"a {sign} b")
        advice = re.search(r"; write (.*), or cast", answer) if isinstance(answer, str) else None
        if advice is not None:
            answer = asked(engine, table, advice[1])
        if isinstance(answer, str):  # the places alone are too many, or an overflow
            is_proposal_wrong = advice is not None and "loses decimal places" in answer
            assert not is_proposal_wrong, answer
            assert "CAST the operands to fewer places" in answer or "NUMERIC_VALUE_OUT_OF_RANGE" in answer
            continue
        accepted += 1
        exact = SIGNS[sign](*values)
        if sign == "/":
            places = -int(answer.as_tuple().exponent)
            assert places >= max(type_.scale for type_ in types)
            assert abs(EXACT.subtract(answer, exact)) <= Value(1).scaleb(-places) / 2
        else:
            assert answer == exact

    assert accepted > 30


def test_a_lambda_variable_has_the_name_that_was_written(engine: EngineClient, money: QueryTable) -> None:
    answer = asked(engine, money, "transform(array(amount), price -> price * rate)[0]")
    assert isinstance(answer, str)
    assert "price * t.rate loses decimal places" in answer
    assert "lambda" not in answer


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
NOT_ROUNDED = (
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
    for expression in NOT_ROUNDED:
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
