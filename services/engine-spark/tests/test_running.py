"""Running aggregates, compared bit for bit with Spark's window functions."""

import math
import random
import re
from collections.abc import Sequence
from decimal import Decimal
from functools import partial

import numpy as np
import pyarrow as pa
import pytest
from odf_testing.engine_changes import packed

from odf_engine_spark.aggregates.functions import Aggregate
from odf_engine_spark.operators.changes import Changes
from odf_engine_spark.operators.grouped import grouped
from odf_engine_spark.operators.running import running
from odf_engine_spark.spark.jvm import Spark

BIGINT, DOUBLE = pa.int64(), pa.float64()
COLUMNS = (
    pa.field("k", pa.string()), pa.field("t", BIGINT), pa.field("n", BIGINT), pa.field("i", pa.int32()),
    pa.field("x", DOUBLE), pa.field("f", pa.float32()), pa.field("d", pa.decimal128(12, 3)), pa.field("w", pa.decimal128(38, 2)),
    pa.field("s", pa.string()), pa.field("b", pa.bool_()), pa.field("day", pa.date32()), pa.field("at", pa.timestamp("us", "UTC")),
    pa.field("raw", pa.binary()), pa.field("pair", pa.struct([("x", DOUBLE), ("s", pa.string())])), pa.field("all", pa.list_(pa.int64())),
)  # fmt: skip


def records(source: random.Random, count: int) -> pa.Table:  # noqa: C901 - a case a type
    """Return rows of keys, times that repeat, and values of every type, some of them null."""

    def value(type_: pa.DataType) -> object:
        if source.random() < 0.2:
            return None
        if type_ == pa.float32() or type_ == DOUBLE:
            return source.choice([
                math.nan, math.inf, -math.inf, 0.0, -0.0, source.uniform(-1, 1),
                source.uniform(-1, 1) * 10.0 ** source.randrange(-30, 30),
            ])  # fmt: skip
        if pa.types.is_decimal(type_):
            return Decimal(source.randrange(-(10**12) + 1, 10**12)).scaleb(-type_.scale)
        if type_ == pa.string():
            return source.choice(["", "a", "ab", "B", "ä", "\uffee", "𝄞"])
        if type_ == pa.binary():
            return source.choice([b"", b"\x00", b"\xff", b"a"])
        if pa.types.is_struct(type_):
            return {field.name: value(field.type) for field in type_.fields}
        if pa.types.is_list(type_):
            return [value(type_.value_type) for _ in range(source.randrange(3))]
        if type_ == pa.bool_():
            return source.random() < 0.5
        return source.randrange(-(2**31), 2**31)

    keys = [source.choice(["x", "y", None]) for _ in range(count)]
    at = sorted(source.randrange(count // 2) for _ in range(count))
    columns = [pa.array(keys, pa.string()), pa.array(at, BIGINT)]
    for field in COLUMNS[2:]:
        values = [value(field.type) for _ in range(count)]
        is_temporal = pa.types.is_temporal(field.type)
        whole = pa.int32() if field.type == pa.date32() else BIGINT
        columns.append(
            pa.array(values, whole).cast(field.type) if is_temporal else pa.array(values, field.type)
        )
    return pa.Table.from_arrays(columns, schema=pa.schema(COLUMNS))


ZERO = re.compile(r"-0\.0(?!\d)")  # in structs, 0.0 and -0.0 are the same
SUMS = ("n", "i", "x", "f", "d", "w")


def test_running_aggregates_are_those_of_spark(spark: Spark) -> None:
    table = records(random.Random(7), 400)
    numbered = table.append_column("place", pa.array(range(len(table)), BIGINT))
    named = [(kind, name) for kind in ("sum", "avg") for name in SUMS]
    named += [(kind, field.name) for kind in ("min", "max", "count") for field in COLUMNS[2:]]
    spark.session.createDataFrame(numbered).createOrReplaceTempView("running_rows")
    for frame, peers in (("ROWS", None), ("RANGE", 1)):
        order = "place" if peers is None else "t"
        calls = ", ".join(
            f"{kind}({name}) OVER (PARTITION BY k ORDER BY {order} {frame} UNBOUNDED PRECEDING) AS c{at}"
            for at, (kind, name) in enumerate(named)
        )
        # Spark sees peers in the order of their places: they are sorted before, and its sort is stable.
        query = f"SELECT place, {calls} FROM (SELECT * FROM running_rows ORDER BY k, t, place) ORDER BY place"
        theirs = spark.session.sql(query).toArrow().drop_columns(["place"])
        given = pa.Table.from_arrays(
            [table.column(0), table.column(1), *(table.column(name) for _, name in named)],
            names=[str(at) for at in range(len(named) + 2)],
        )
        aggregates = [
            Aggregate(kind, theirs.schema.field(at).type)  # type: ignore[arg-type]
            for at, (kind, _) in enumerate(named)
        ]
        ours, _ = running(given, None, keys=[0], peers=peers, aggregates=aggregates)
        for at, (kind, name) in enumerate(named):
            assert ours.column(at).type == theirs.column(at).type
            mine, spoken = bits(ours.column(at)), bits(theirs.column(at))
            assert mine == spoken, f"{frame} {kind}({name})"


def bits(column: pa.ChunkedArray) -> list[object]:
    """Return values of which only equal ones are equal, all NaN being one."""
    if pa.types.is_temporal(column.type):
        column = column.cast(pa.int32() if pa.types.is_date32(column.type) else BIGINT)
    plain = [repr(value) for value in column.to_pylist()]
    return [ZERO.sub("0.0", value) for value in plain] if pa.types.is_nested(column.type) else list(plain)


STEP = partial(
    running,
    keys=[0],
    aggregates=[Aggregate("sum", DOUBLE), Aggregate("min", pa.string()), Aggregate("avg", DOUBLE)],
)


@pytest.mark.parametrize("peers", [None, 1])
def test_any_batches_give_the_same_values_and_one_state(peers: int | None) -> None:
    table = records(random.Random(3), 200).select(["k", "t", "x", "s", "n"])
    whole, end = STEP(table, None, peers=peers)
    moments = table.column("t").to_pylist()
    for seed in range(4):
        source = random.Random(seed)
        cuts = [
            at
            for at in sorted(source.sample(range(1, 200), 9))
            if peers is None or moments[at] != moments[at - 1]
        ]
        state, parts, start = None, [], 0
        for cut in [*cuts, 200]:
            part, state = STEP(table.slice(start, cut - start), state, peers=peers)
            parts.append(part)
            start = cut
        assert bits_of(pa.concat_tables(parts)) == bits_of(whole)
        assert state is not None
        assert packed(state) == packed(end)


def bits_of(table: pa.Table) -> list[object]:
    return [bits(column) for column in table.columns]


def test_peers_share_the_value_after_the_last_of_them() -> None:
    table = pa.table({"k": [1, 2, 1, 1], "t": [1, 1, 1, 2], "n": [1, 2, 4, 8]})
    for peers, wanted in ((None, [1, 2, 5, 13]), (1, [5, 2, 5, 13])):
        found, _ = running(table, None, keys=[0], peers=peers, aggregates=[Aggregate("sum", BIGINT)])
        assert found.column(0).to_pylist() == wanted


def test_appended_rows_are_grouped_with_the_same_bits() -> None:
    table = records(random.Random(9), 300).select(["k", "x"]).filter(pa.array([True] * 300))
    values, _ = running(table, None, keys=[0], peers=None, aggregates=[Aggregate("sum", DOUBLE)])
    last = dict(zip(table.column("k").to_pylist(), bits(values.column(0)), strict=True))
    out, _ = grouped(
        Changes(records=table, operations=np.zeros(300, dtype=np.int64)),
        None,
        keys=1,
        aggregates=[Aggregate("sum", DOUBLE)],
    )
    assert dict(zip(out.records.column(0).to_pylist(), bits(out.records.column(1)), strict=True)) == last


def test_a_hostile_state_is_refused() -> None:
    table = pa.table({"k": ["a"], "t": [1], "x": [1.5], "s": ["x"], "n": [2]})
    _, state = STEP(table, None, peers=None)
    broken = [
        state.set_column(column, state.schema.field(column), pa.array([count]))
        for column, count in ((1, 0), (2, -1), (2, 0))
    ]
    hostile: Sequence[pa.Table] = (state.select([0]), pa.concat_tables([state, state]), *broken)
    for each in hostile:
        with pytest.raises(ValueError, match=r"state|twice|columns"):
            STEP(table, each, peers=None)
