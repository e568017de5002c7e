import math
import random
from collections.abc import Sequence
from decimal import Decimal
from functools import partial
from typing import Literal

import pyarrow as pa
import pytest
from odf_testing.engine import FROM, HOUR, TO, A, Block, Make, R, flight, sql
from odf_testing.engine_changes import Row, changes, packed, plain

from odf_common.errors import InvalidQuery
from odf_engine_spark.aggregates.functions import Aggregate
from odf_engine_spark.operators.changes import NothingToRetract
from odf_engine_spark.operators.grouped import aggregate_groups

BIGINT, DOUBLE = pa.int64(), pa.float64()


def totals(rows: Sequence[Row], state: pa.Table | None = None) -> tuple[list[Row], pa.Table]:
    given = changes([pa.string(), BIGINT], rows)
    out, state = aggregate_groups(given, state, keys=1, aggregates=[Aggregate("sum", BIGINT)])
    return plain(out), state


def test_a_group_is_added_corrected_and_removed() -> None:
    out, state = totals([(A, "a", 1), (A, "b", 5), (A, "a", 2), (R, "b", 5), (R, "a", 2), (R, "a", 1)])
    assert out == [
        (A, "a", 1),
        (A, "b", 5),
        (FROM, "a", 1),
        (TO, "a", 3),
        (R, "b", 5),
        (FROM, "a", 3),
        (TO, "a", 1),
        (R, "a", 1),
    ]
    assert len(state) == 0


def test_a_change_without_effect_emits_nothing() -> None:
    assert totals([(A, "a", 1), (A, "a", 0), (A, "a", None)])[0] == [(A, "a", 1)]


def test_a_correction_within_a_group_is_one_step_and_between_groups_two() -> None:
    _, state = totals([(A, "a", 1)])
    assert totals([(FROM, "a", 1), (TO, "a", 3)], state)[0] == [(FROM, "a", 1), (TO, "a", 3)]
    assert totals([(FROM, "a", 1), (TO, "b", 3)], state)[0] == [(R, "a", 1), (A, "b", 3)]
    assert totals([(FROM, "a", 1), (TO, "a", 1)], state)[0] == []


@pytest.mark.parametrize("function", ["count", "sum", "avg", "min", "max"])
@pytest.mark.parametrize(
    ("rows", "wrong"),
    [
        ([(R, "a", 1)], 0),
        ([(A, "b", 1), (FROM, "a", 1), (TO, "a", 2)], 1),
        ([(A, "a", 1), (R, "a", 1), (R, "a", 1)], 2),
        ([(A, "a", None), (A, "a", None), (R, "a", 1)], 2),
        ([(A, "a", 1), (R, "a", None)], 1),
    ],
    ids=["no group", "no group to correct", "no group any more", "no value", "no record without a value"],
)
def test_a_retraction_of_a_record_that_was_not_there_is_found(
    function: Literal["count", "sum", "avg", "min", "max"], rows: list[Row], wrong: int
) -> None:
    aggregate = Aggregate(function, DOUBLE if function == "avg" else BIGINT)
    with pytest.raises(NothingToRetract) as caught:
        aggregate_groups(changes([pa.string(), BIGINT], rows), None, keys=1, aggregates=[aggregate])
    assert caught.value.row == wrong


@pytest.mark.parametrize("value", [2.0, math.nan, math.inf, -math.inf])
def test_a_retraction_of_another_value_is_found_once_no_record_remains(value: float) -> None:
    aggregate = Aggregate("sum", DOUBLE)
    with pytest.raises(NothingToRetract):
        aggregate_groups(
            changes([pa.string(), DOUBLE], [(A, "a", 1.0), (R, "a", value)]),
            None,
            keys=1,
            aggregates=[aggregate],
        )


def test_nulls_zeros_and_nans_are_keys_as_in_spark() -> None:
    rows = [(A, None, 1), (A, -0.0, 1), (A, 0.0, 1), (A, math.nan, 1), (A, None, 1), (A, -math.nan, 1)]
    out, state = aggregate_groups(
        changes([DOUBLE, BIGINT], rows), None, keys=1, aggregates=[Aggregate("count", BIGINT)]
    )
    assert len(state) == 3
    assert [str(row[1:]) for row in plain(out) if row[0] != FROM] == [
        "(None, 1)", "(0.0, 1)", "(0.0, 2)", "(nan, 1)", "(None, 2)", "(nan, 2)",
    ]  # fmt: skip


def test_in_lists_negative_zero_equals_zero_too() -> None:
    rows = [
        (A, [0.0, None], 1),
        (A, None, 1),
        (A, [], 1),
        (A, [-0.0, None], 1),
        (A, [math.nan], 1),
        (A, [-math.nan], 1),
    ]
    given = changes([pa.list_(pa.float64()), BIGINT], rows)
    _, state = aggregate_groups(given, None, keys=1, aggregates=[Aggregate("count", BIGINT)])
    assert state.column("records").to_pylist() == [2, 1, 1, 2]


def test_without_aggregates_rows_are_distinct() -> None:
    given = changes([pa.string()], [(A, "a"), (A, "a"), (R, "a"), (A, "b"), (R, "a")])
    out, state = aggregate_groups(given, None, keys=1, aggregates=[])
    assert plain(out) == [(A, "a"), (A, "b"), (R, "a")]
    assert state.num_rows == 1


def test_without_keys_all_rows_are_one_group() -> None:
    aggregates = [Aggregate("count", BIGINT), Aggregate("max", pa.string())]
    step = partial(aggregate_groups, keys=0, aggregates=aggregates)
    out, state = step(changes([BIGINT, pa.string()], []), None)
    assert plain(out) == []
    out, state = step(changes([BIGINT, pa.string()], [(A, 1, "x"), (A, 1, None)]), state)
    assert plain(out) == [(A, 1, "x"), (FROM, 1, "x"), (TO, 2, "x")]


def test_structs_are_keys() -> None:
    window = pa.struct([("start", BIGINT), ("end", BIGINT)])
    rows = [(A, {"start": 1, "end": 2}, 1), (A, None, 1), (A, {"start": 1, "end": 2}, 1)]
    out, _ = aggregate_groups(
        changes([window, BIGINT], rows), None, keys=1, aggregates=[Aggregate("count", BIGINT)]
    )
    assert [row[1:] for row in plain(out)][-1] == ({"start": 1, "end": 2}, 2)


def test_the_greatest_struct_and_list_survive_retractions() -> None:
    latest, tags = pa.struct([("at", BIGINT), ("x", DOUBLE)]), pa.list_(pa.field("element", pa.string()))
    step = partial(aggregate_groups, keys=1, aggregates=[Aggregate("max", latest), Aggregate("min", tags)])
    one, two, three = {"at": 1, "x": None}, {"at": 1, "x": -0.5}, {"at": 2, "x": math.nan}
    rows: list[Row] = [
        (A, "k", one, ["b"]),
        (A, "k", two, ["a", None]),
        (A, "k", three, []),
        (A, "k", None, None),
    ]
    out, state = step(changes([pa.string(), latest, tags], rows), None)
    assert str([row[2:] for row in plain(out) if row[0] != FROM]) == str(
        [(one, ["b"]), (two, ["a", None]), (three, [])]
    )
    out, state = step(changes([pa.string(), latest, tags], [(R, *rows[2][1:])]), state)
    assert plain(out)[1] == (TO, "k", two, ["a", None])
    out, _ = step(changes([pa.string(), latest, tags], [(R, *rows[1][1:])]), state)
    assert plain(out)[1] == (TO, "k", one, ["b"])


def test_the_average_of_decimals_is_rounded_half_up() -> None:
    step = partial(aggregate_groups, keys=0, aggregates=[Aggregate("avg", pa.decimal128(7, 5))])
    rows = [(A, Decimal("0.1")), (A, Decimal("0.0")), (A, Decimal("0.1"))]
    out, _ = step(changes([pa.decimal128(3, 1)], rows), None)
    assert [row[1] for row in plain(out)][-1] == Decimal("0.06667")
    out, _ = step(changes([pa.decimal128(3, 1)], [(A, -value) for _, value in rows]), None)
    assert [row[1] for row in plain(out)][-1] == Decimal("-0.06667")


@pytest.mark.parametrize(
    ("type_", "kind", "result", "value"),
    [
        (BIGINT, "sum", BIGINT, 2**63 - 1),
        (pa.decimal128(38, 0), "sum", pa.decimal128(38, 0), Decimal(10**38 - 1)),
        (pa.decimal128(38, 0), "avg", pa.decimal128(38, 4), Decimal(10**37)),
    ],
)
def test_totals_that_do_not_fit_are_refused(
    type_: pa.DataType, kind: str, result: pa.DataType, value: object
) -> None:
    given = changes([type_], [(A, value), (A, value)])
    with pytest.raises(InvalidQuery, match="ARITHMETIC_OVERFLOW"):
        aggregate_groups(given, None, keys=0, aggregates=[Aggregate(kind, result)])  # type: ignore[arg-type]


def test_the_state_of_min_and_max_is_not_read_before_a_retraction() -> None:
    step = partial(aggregate_groups, keys=1, aggregates=[Aggregate("max", BIGINT)])
    types, rows = [pa.string(), BIGINT], [(A, "k", at % 40) for at in range(200)]
    _, state = step(changes(types, rows), None)
    unordered = state.set_column(
        3, state.schema.field(3), pa.array([[*range(39, -1, -1)]], state.schema.field(3).type)
    )
    out, _ = step(changes(types, [(A, "k", 50)]), unordered)
    assert plain(out) == [(FROM, "k", 39), (TO, "k", 50)]
    out, state = step(changes(types, [(A, "k", 50), (R, "k", 50)]), state)
    assert plain(out) == [(FROM, "k", 39), (TO, "k", 50), (FROM, "k", 50), (TO, "k", 39)]
    with pytest.raises(ValueError, match="is inconsistent"):
        step(changes(types, [(R, "k", 39)]), unordered)


def test_types_that_do_not_fit_are_refused() -> None:
    for type_, aggregate in (
        (pa.string(), Aggregate("sum", BIGINT)),
        (pa.struct([("a", BIGINT)]), Aggregate("avg", DOUBLE)),
        (pa.decimal128(5, 2), Aggregate("sum", pa.decimal128(15, 3))),
    ):
        with pytest.raises(InvalidQuery, match=r"is not supported|cannot be aggregated"):
            aggregate_groups(changes([type_], []), None, keys=0, aggregates=[aggregate])


TYPES = (
    pa.string(),
    pa.int32(),
    DOUBLE,
    DOUBLE,
    BIGINT,
    pa.decimal128(10, 2),
    DOUBLE,
    pa.string(),
    pa.date32(),
)
AGGREGATES = (
    Aggregate("sum", DOUBLE),
    Aggregate("avg", DOUBLE),
    Aggregate("sum", BIGINT),
    Aggregate("sum", pa.decimal128(20, 2)),
    Aggregate("min", DOUBLE),
    Aggregate("max", pa.string()),
    Aggregate("count", BIGINT),
)


def random_rows(source: random.Random, count: int) -> list[Row]:
    """Return changes of rows; most retractions are of rows that exist, some are not."""

    def value() -> Row:
        x = source.choice([None, source.uniform(-1, 1) * 10 ** source.randrange(-20, 20), 0.1])
        y = source.choice([x, math.inf, -math.inf, math.nan]) if source.random() < 0.1 else x
        return (
            source.choice(["a", "b", None]), source.randrange(2), x, y,
            source.choice([None, source.randrange(-(2**55), 2**55)]), Decimal(source.randrange(-(10**10) + 1, 10**10)).scaleb(-2),
            source.choice([None, source.uniform(-1, 1), math.nan, math.inf]), source.choice([None, "x", "y", "ä", "𝄞"]), source.choice([None, 1]),
        )  # fmt: skip

    rows: list[Row] = []
    there: list[Row] = []
    while len(rows) < count:
        kind = source.random()
        if not there or kind < 0.5:
            there.append(value())
            rows.append((A, *there[-1]))
            continue
        gone = there.pop(source.randrange(len(there)))
        if kind < 0.75:
            rows.append((R, *gone))
        else:
            there.append((*gone[:2], *value()[2:]) if kind < 0.9 else value())
            rows += [(FROM, *gone), (TO, *there[-1])]
    return rows


def again(rows: Sequence[Row], *, is_exact: bool) -> Row | None:
    """Return the aggregates of a complete set of rows."""
    if not rows:
        return None

    def folded(values: Sequence[float]) -> float | None:
        if is_exact and all(map(math.isfinite, values)):
            return math.fsum(values) if values else None
        total = 0.0
        for value in values:
            total += value
        return total if values else None

    columns = [[value for value in column if value is not None] for column in zip(*rows, strict=True)]
    _, _, x, y, whole, money, least, text, day = columns
    total, mean = folded(x), folded(y)
    numbers = [value for value in least if not math.isnan(value)]
    return (
        total, None if mean is None else mean / len(y), sum(whole) if whole else None, sum(money),
        min(numbers) if numbers else (math.nan if least else None), max(text, default=None, key=lambda t: t.encode()), len(day),
    )  # fmt: skip


def expected(rows: Sequence[Row]) -> list[str]:
    """Return the expected output: each group is recomputed after each change."""
    groups: dict[Row, list[Row]] = {}
    touched: dict[tuple[Row, int], bool] = {}
    shown: dict[Row, str] = {}
    out = []
    for at, row in enumerate(rows):
        key, data = row[1:3], row[1:]
        group = groups.setdefault(key, [])
        if row[0] in (A, TO):
            group.append(data)
        else:
            group.remove(next(each for each in reversed(group) if each is data or repr(each) == repr(data)))
        for column in (2, 3):
            count = sum(1 for each in group if each[column] is not None)
            was_taken = row[0] in (R, FROM) and data[column] is not None
            touched[key, column] = count > 0 and (was_taken or touched.get((key, column), False))
        if row[0] == FROM and rows[at + 1][1:3] == key:
            continue
        exact = [again(group, is_exact=touched[key, column]) for column in (2, 3)]
        new = (
            None
            if exact[0] is None or exact[1] is None
            else repr((*key, exact[0][0], exact[1][1], *exact[0][2:]))
        )
        old = shown.pop(key, None)
        if new is not None:
            shown[key] = new
        if old is None and new is not None:
            out.append(f"{A} {new}")
        elif old is not None and new is None:
            out.append(f"{R} {old}")
        elif old != new:
            out += [f"{FROM} {old}", f"{TO} {new}"]
    return out


@pytest.mark.parametrize("seed", range(8))
def test_any_batching_gives_the_recounted_result_and_the_same_state(seed: int) -> None:
    source = random.Random(seed)
    rows = random_rows(source, 150)
    whole, end = aggregate_groups(changes(TYPES, rows), None, keys=2, aggregates=AGGREGATES)
    assert [f"{row[0]} {row[1:]!r}" for row in plain(whole)] == expected(rows)
    for _ in range(3):
        cuts = sorted(at for at in source.sample(range(151), 9) if at == 150 or rows[at][0] != TO)
        state, out, start = None, [], 0
        for cut in [*cuts, len(rows)]:
            part, state = aggregate_groups(
                changes(TYPES, rows[start:cut]), state, keys=2, aggregates=AGGREGATES
            )
            out += plain(part)
            start = cut
        assert repr(out) == repr(plain(whole))
        assert state is not None
        assert packed(state) == packed(end)


def test_a_hostile_state_is_refused() -> None:
    aggregates = [Aggregate("sum", DOUBLE), Aggregate("max", pa.string()), Aggregate("count", BIGINT)]
    step = partial(aggregate_groups, keys=1, aggregates=aggregates)
    types = [pa.string(), DOUBLE, pa.string(), BIGINT]
    given = changes(
        types, [(A, "k", 1.5, "x", 1), (A, "k", 2.5, "y", 1), (A, "k", 4.5, "z", 1), (R, "k", 4.5, "z", 1)]
    )
    _, state = step(given, None)

    def broken(column: int, value: object) -> pa.Table:
        field = state.schema.field(column)
        return state.set_column(column, field, pa.array([value], field.type))

    hostile = [
        state.select(range(len(state.columns) - 1)),
        pa.concat_tables([state, state]),
        state.cast(pa.schema([state.schema.field(0).with_type(pa.binary()), *list(state.schema)[1:]])),
        *(broken(1, value) for value in (0, -1, None)),
        *(broken(2, value) for value in (-1, 0, None)),
        *(broken(4, value) for value in (b"x", b"\x00\x00\x00", b"\xff\xff\x01", bytes(400))),
        broken(5, -1),
        *(broken(9, value) for value in ("zz", None)),
        *(broken(10, value) for value in (["y", "x"], ["y", "y"], ["y"], [], None)),
        *(broken(11, value) for value in ([1, 0], [1, -1], [1, 1, 1], None)),
        broken(12, ["zz"]),
        broken(13, -1),
    ]
    for table in hostile:
        with pytest.raises(ValueError, match=r".") as caught:
            step(given, table)
        assert not isinstance(caught.value, InvalidQuery)


def test_one_group_without_a_key(derive: Make) -> None:
    total = derive(
        sql("SELECT max(time_hour) AS event_time, count(*) AS n, avg(dep_delay) AS a FROM flights"),
        flights=[
            Block(rows=[flight(1, 1.0), flight(2, 3.0)]),
            Block(rows=[flight(2, 3.0, R)], watermark=HOUR),
        ],
    )
    assert total.pull().new_watermark is None
    one, two = (1, 1, 1.0), (2, 2, 2.0)
    assert total.rows() == [(A, *one), (FROM, *one), (TO, *two), (FROM, *two), (TO, *one)]


def test_peers_of_a_running_sum_are_equal_in_all_that_orders_them(derive: Make) -> None:
    query = (
        "SELECT time_hour AS event_time, flight, sum(dep_delay) OVER w AS s, count(*) OVER w AS n FROM flights "
        "WINDOW w AS (PARTITION BY origin ORDER BY time_hour, flight DESC)"
    )
    rows = [flight(1, 1.0, number=1), flight(1, 2.0, number=2), flight(1, 4.0, number=2), flight(2, 8.0)]
    running = derive(sql(query), flights=[Block(rows=rows, watermark=HOUR)])
    running.pull()
    assert [row[2:] for row in running.rows()] == [(2, 6.0, 2), (2, 6.0, 2), (1, 7.0, 3), (1, 15.0, 4)]
