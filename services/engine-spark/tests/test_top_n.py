"""The top rows of each partition, compared with sorting the rows again after each change."""

import math
import random
from collections.abc import Sequence
from functools import partial

import numpy as np
import pyarrow as pa
import pytest
from odf_testing.engine_changes import Row, changes, packed, plain

from odf_common.errors import InvalidQuery
from odf_engine_spark.operators.changes import Changes, NothingToRetract
from odf_engine_spark.operators.grouped import grouped
from odf_engine_spark.operators.top_n import SortKey, top_n

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
        kept.append(packed(grouped(given, None, keys=1, aggregates=[])[1]))
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
