import math
import random
import re
from collections.abc import Sequence
from decimal import Decimal
from functools import partial

import numpy as np
import pyarrow as pa
import pytest
from odf_testing.engine_changes import Row, changes, packed, plain

from odf_common.errors import InvalidQuery
from odf_engine_spark.aggregates.functions import Aggregate
from odf_engine_spark.operators.changes import Changes, NothingToRetract
from odf_engine_spark.operators.grouped import aggregate_groups
from odf_engine_spark.operators.running import running
from odf_engine_spark.operators.top_n import SortKey, top_n
from odf_engine_spark.spark.jvm import Spark

A, R, FROM, TO = 0, 1, 2, 3
SCORES = (pa.string(), pa.string(), pa.int64())
best = partial(top_n, partition=[], order=[SortKey(2, is_ascending=False)], limit=2)
MATCHES = [
    (A, "t1", "Alice", 100), (A, "t1", "Bob", 80), (A, "t2", "Alice", 70),
    (A, "t2", "Charlie", 90), (A, "t3", "Bob", 60), (A, "t3", "Charlie", 110),
]  # fmt: skip


def test_the_leaderboard_of_rfc_015() -> None:
    out, _ = best(changes(SCORES, MATCHES), None)
    assert plain(out) == [
        (A, "t1", "Alice", 100, 1),
        (A, "t1", "Bob", 80, 2),
        (FROM, "t1", "Bob", 80, 2),
        (TO, "t2", "Charlie", 90, 2),
        (FROM, "t1", "Alice", 100, 1),
        (TO, "t3", "Charlie", 110, 1),
        (FROM, "t2", "Charlie", 90, 2),
        (TO, "t1", "Alice", 100, 2),
    ]
    assert out.records.schema.types[-1] == pa.int32()


def test_a_retraction_brings_back_rows_that_had_dropped_out() -> None:
    _, state = best(changes(SCORES, MATCHES), None)
    out, state = best(changes(SCORES, [(R, "t1", "Alice", 100)]), state)
    assert plain(out) == [(FROM, "t1", "Alice", 100, 2), (TO, "t2", "Charlie", 90, 2)]
    gone = [(R, *row[1:]) for row in MATCHES if row[3] != 100]
    out, state = best(changes(SCORES, gone), state)
    assert plain(out)[-1] == (R, "t3", "Charlie", 110, 1)
    assert len(state) == 0


def test_a_correction_is_applied_as_a_whole() -> None:
    _, state = best(changes(SCORES, MATCHES[:3]), None)
    out, state = best(changes(SCORES, [(FROM, "t1", "Bob", 80), (TO, "t1", "Bob", 120)]), state)
    assert plain(out) == [
        (FROM, "t1", "Alice", 100, 1),
        (TO, "t1", "Bob", 120, 1),
        (FROM, "t1", "Bob", 80, 2),
        (TO, "t1", "Alice", 100, 2),
    ]
    out, _ = best(changes(SCORES, [(FROM, "t2", "Alice", 70), (TO, "t2", "Alice", 60)]), state)
    assert plain(out) == []


def test_of_equal_rows_the_latest_is_retracted() -> None:
    types = (pa.string(), pa.float64(), pa.string())
    step = partial(top_n, partition=[0], order=[SortKey(1)], limit=1)
    rows = [
        (A, "k", 0.0, "one"),
        (A, "k", -0.0, "two"),
        (R, "k", 0.0, "two"),
    ]
    out, state = step(changes(types, rows), None)
    assert plain(out) == [(A, "k", 0.0, "one", 1)]
    assert state.column(2).to_pylist() == ["one"]
    for unknown in [(R, "k", 1.0, "x"), (R, "q", 0.0, "one"), (FROM, "k", 0.0, "two")]:
        with pytest.raises(NothingToRetract):
            step(changes(types, [(A, "q", 1.0, "x"), unknown]), state)


def test_columns_that_are_not_output_order_and_distinguish_rows() -> None:
    types = (pa.string(), pa.int64())
    step = partial(top_n, partition=[], order=[SortKey(1)], limit=1, outputs=1)
    out, state = step(changes(types, [(A, "a", 5), (A, "a", 4), (A, "b", 3), (R, "b", 3), (R, "a", 4)]), None)
    assert plain(out) == [(A, "a", 1), (FROM, "a", 1), (TO, "b", 1), (FROM, "b", 1), (TO, "a", 1)]
    assert state.column(1).to_pylist() == [5]


@pytest.mark.parametrize("nulls_first", [True, False])
@pytest.mark.parametrize("is_ascending", [True, False])
def test_order_is_that_of_spark(*, is_ascending: bool, nulls_first: bool) -> None:
    order = [SortKey(0, is_ascending, nulls_first)]
    for type_, ascending in (
        (pa.float64(), [-math.inf, -1.5, 0.0, 2.0, math.inf, math.nan]),
        (pa.string(), ["", "B", "a", "ä", "\uffee", "𝄞"]),
        (pa.bool_(), [False, True]),
        (pa.binary(), [b"\x01", b"\xff"]),
        (pa.list_(pa.int64()), [[], [None], [None, 3], [-1], [-1, 2], [5]]),
        (
            pa.struct([("a", pa.int64()), ("b", pa.string())]),
            [{"a": None, "b": "z"}, {"a": 1, "b": None}, {"a": 1, "b": ""}],
        ),
    ):
        values = [*ascending, None]
        random.Random(5).shuffle(values)
        out, _ = top_n(
            changes([type_], [(A, value) for value in values]), None, partition=[], order=order, limit=9
        )
        places: dict[object, object] = {}
        for row in plain(out):
            places[row[2]] = row[1]
        found = [places[place] for place in sorted(places, key=str)]
        wanted: list[object] = list(ascending if is_ascending else reversed(ascending))
        assert repr(found) == repr([None, *wanted] if nulls_first else [*wanted, None])


def test_types_without_order_and_states_of_other_columns_are_refused() -> None:
    with pytest.raises(InvalidQuery, match="cannot be ordered"):
        top_n(
            changes([pa.map_(pa.string(), pa.int64())], []), None, partition=[], order=[SortKey(0)], limit=1
        )
    _, state = best(changes(SCORES, MATCHES), None)
    others = (
        state.select([0, 1, 3]),
        state.rename_columns(["0", "1", "x", "first"]),
        state.drop_columns(["first"]),
    )
    for hostile in others:
        with pytest.raises(ValueError, match="other columns"):
            best(changes(SCORES, []), hostile)


@pytest.mark.parametrize(
    ("flags", "op"), [([True] * 6, A), ([False] * 6, R), ([True, True, *[False] * 4], R)]
)
def test_a_state_whose_first_rows_are_not_the_first_is_refused(flags: list[bool], op: int) -> None:
    _, state = best(changes(SCORES, MATCHES), None)
    assert state.column("first").to_pylist() == [True, False, False, False, False, True]
    hostile = state.set_column(3, state.schema.field(3), pa.array(flags))
    with pytest.raises(ValueError, match="top rows"):
        best(changes(SCORES, [(op, *MATCHES[0][1:])]), hostile)


def test_appended_rows_are_compared_with_the_top_rows_only() -> None:
    _, state = best(changes(SCORES, MATCHES), None)
    low = state.column(2).to_pylist()[:1] + [10**6] * 4 + state.column(2).to_pylist()[5:]
    out, _ = best(
        changes(SCORES, [(A, "t4", "Bob", 105)]), state.set_column(2, state.schema.field(2), pa.array(low))
    )
    assert plain(out) == [(FROM, "t1", "Alice", 100, 2), (TO, "t4", "Bob", 105, 2)]


def test_values_under_nulls_are_not_in_the_state() -> None:
    dirty = pa.Array.from_buffers(
        pa.int64(), 2, [pa.py_buffer(b"\x02"), pa.array([7, 1], pa.int64()).buffers()[1]]
    )
    kept = []
    for column in (dirty, pa.array([None, 1], pa.int64())):
        given = Changes(records=pa.table({"a": column}), operations=np.array([A, A]))
        kept.append(packed(top_n(given, None, partition=[0], order=[SortKey(0)], limit=1)[1]))
        kept.append(packed(aggregate_groups(given, None, keys=1, aggregates=[])[1]))
    assert kept[:2] == kept[2:]


def expected(rows: Sequence[Row], limit: int) -> list[Row]:
    """Return the expected output: each partition is sorted again after each change."""
    there: list[Row] = []
    out: list[Row] = []

    def first(partition: object) -> list[Row]:
        mine = [row for row in there if row[0] == partition]
        mine.sort(key=lambda row: (row[1] is not None, -(row[1] or 0), row[2]))  # type: ignore[operator]
        return mine[:limit]

    at = 0
    while at < len(rows):
        change = rows[at : at + 2] if rows[at][0] == FROM else rows[at : at + 1]
        at += len(change)
        partitions = list(dict.fromkeys(row[1] for row in change))
        before = [first(partition) for partition in partitions]
        for op, *data in change:
            if op in (A, TO):
                there.append(tuple(data))
            else:
                del there[len(there) - 1 - there[::-1].index(tuple(data))]
        for old, new in zip(before, map(first, partitions), strict=True):
            for place in range(max(len(old), len(new))):
                if place >= len(old):
                    out.append((A, *new[place], place + 1))
                elif place >= len(new):
                    out.append((R, *old[place], place + 1))
                elif old[place] != new[place]:
                    out += [(FROM, *old[place], place + 1), (TO, *new[place], place + 1)]
    return out


def random_rows(source: random.Random, count: int) -> list[Row]:
    there: list[Row] = []
    rows: list[Row] = []
    while len(rows) < count:
        new = (
            source.choice("ab"),
            source.choice([None, *range(4)]),
            source.choice("xyz"),
            source.randrange(3),
        )
        kind = source.random()
        if not there or kind < 0.6:
            rows.append((A, *new))
            there.append(new)
            continue
        gone = there.pop(source.randrange(len(there)))
        if kind < 0.8:
            rows.append((R, *gone))
        else:
            rows += [(FROM, *gone), (TO, *new)]
            there.append(new)
    return rows


@pytest.mark.parametrize("seed", range(6))
def test_any_batching_gives_the_sorted_result_and_the_same_state(seed: int) -> None:
    source = random.Random(seed)
    rows, limit = random_rows(source, 120), 1 + seed % 4
    types = (pa.string(), pa.int64(), pa.string(), pa.int64())
    order = [SortKey(1, is_ascending=False), SortKey(2)]
    step = partial(top_n, partition=[0], order=order, limit=limit)
    whole, end = step(changes(types, rows), None)
    assert plain(whole) == expected(rows, limit)
    for _ in range(3):
        cuts = sorted(at for at in source.sample(range(120), 9) if rows[at][0] != TO)
        state, out, start = None, [], 0
        for cut in [*cuts, len(rows)]:
            part, state = step(changes(types, rows[start:cut]), state)
            out += plain(part)
            start = cut
        assert out == plain(whole)
        assert state is not None
        assert packed(state) == packed(end)


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
    out, _ = aggregate_groups(
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
