from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from odf_common.errors import InvalidInput
from odf_common.metadata.steps import (
    MergeStrategy,
    MergeStrategyAppend,
    MergeStrategyChangelogStream,
    MergeStrategyLedger,
    MergeStrategySnapshot,
    MergeStrategyUpsertStream,
    Strings,
)
from odf_common.metadata.vocabulary import DatasetVocabulary
from odf_ingest.errors import HalfCorrection
from odf_ingest.history import _last_of_each
from odf_ingest.merge import Merged, merge
from odf_ingest.merge_keys import KeyIndex, key_array

START = datetime(2020, 1, 1, tzinfo=UTC)
Row = tuple[Any, ...]
SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string()), ("event_time", pa.timestamp("ms", "UTC"))])


class Past:
    """Port `History` that is told what was appended."""

    def __init__(self) -> None:
        self.index = KeyIndex()
        self.rows = pa.table({})

    def seen(self, key: Strings) -> KeyIndex:
        return self.index

    def current(self, key: Strings) -> pa.Table:
        return self.rows

    def take(self, merged: Merged, key: Strings) -> None:
        _, fresh = self.index.fresh(key_array(merged.records, key))
        self.index.add(fresh)
        ops = merged.ops if merged.ops is not None else pa.array([0] * len(merged.records), pa.uint8())
        self.rows = _last_of_each(self.rows, merged.records, ops, key)


def table(*rows: Row, ops: Sequence[int] | None = None) -> pa.Table:
    """Records of id, value, and hours after the start or None."""
    made = pa.Table.from_pylist(
        [
            {
                "id": number,
                "v": value,
                "event_time": None if hours is None else START + timedelta(hours=hours),
            }
            for number, value, hours in rows
        ],
        schema=SCHEMA,
    )
    return made if ops is None else made.append_column("op", pa.array(ops, pa.int32()))


def after(strategy: MergeStrategy, new: pa.Table, past: Past | None = None) -> list[Row]:
    merged = merge(strategy, new, past or Past(), DatasetVocabulary())
    ops = [0] * len(merged.records) if merged.ops is None else merged.ops.to_pylist()
    return [(op, row["id"], row["v"]) for op, row in zip(ops, merged.records.to_pylist(), strict=True)]


def past_of(strategy: MergeStrategy, new: pa.Table) -> Past:
    past = Past()
    past.take(merge(strategy, new, past, DatasetVocabulary()), ("id",))
    return past


LEDGER = MergeStrategyLedger(primary_key=("id",))
SNAPSHOT = MergeStrategySnapshot(primary_key=("id",))
CHANGELOG = MergeStrategyChangelogStream(primary_key=("id",))
UPSERT = MergeStrategyUpsertStream(primary_key=("id",))


def test_append_orders_by_event_time_nulls_first_and_keeps_the_order_of_equals() -> None:
    new = table((1, "c", 2), (2, "a", None), (3, "b", 1), (4, "d", 2))
    assert [row[1] for row in after(MergeStrategyAppend(), new)] == [2, 3, 1, 4]


def test_append_keeps_duplicates() -> None:
    assert len(after(MergeStrategyAppend(), table((1, "a", 0), (1, "a", 0)))) == 2


def test_ledger_takes_the_first_record_of_each_key_and_orders_by_event_time() -> None:
    new = table((1, "late", 5), (2, "a", 1), (1, "again", 0))
    assert after(LEDGER, new) == [(0, 2, "a"), (0, 1, "late")]


def test_ledger_drops_keys_that_are_known() -> None:
    past = past_of(LEDGER, table((1, "a", 0), (2, "b", 0)))
    assert after(LEDGER, table((2, "x", 1), (3, "c", 1)), past) == [(0, 3, "c")]


def test_ledger_is_idempotent() -> None:
    new = table((1, "a", 0), (2, "b", 0))
    assert after(LEDGER, new, past_of(LEDGER, new)) == []


def test_the_first_snapshot_is_appended_by_key() -> None:
    assert after(SNAPSHOT, table((2, "b", 0), (1, "a", 1))) == [(0, 1, "a"), (0, 2, "b")]


def test_a_snapshot_appends_retracts_and_corrects_what_differs() -> None:
    past = past_of(SNAPSHOT, table((1, "a", 0), (2, "b", 0), (3, "c", 0)))
    found = after(SNAPSHOT, table((4, "d", 1), (2, "B", 1), (1, "a", None)), past)
    assert found == [(2, 2, "b"), (3, 2, "B"), (1, 3, "c"), (0, 4, "d")]


def test_the_same_snapshot_again_changes_nothing() -> None:
    new = table((1, "a", 0), (2, None, 0))
    assert after(SNAPSHOT, new, past_of(SNAPSHOT, new)) == []


def test_a_null_new_event_time_alone_is_no_change_and_another_one_is() -> None:
    past = past_of(SNAPSHOT, table((1, "a", 0)))
    assert after(SNAPSHOT, table((1, "a", None)), past) == []
    assert after(SNAPSHOT, table((1, "a", 1)), past) == [(2, 1, "a"), (3, 1, "a")]


def test_only_compared_columns_count() -> None:
    strategy = MergeStrategySnapshot(primary_key=("id",), compare_columns=("v",))
    past = past_of(strategy, table((1, "a", 0)))
    assert after(strategy, table((1, "a", 1)), past) == []


def test_nulls_are_changes_against_values() -> None:
    past = past_of(SNAPSHOT, table((1, None, 0), (2, "b", 0)))
    assert [row[0] for row in after(SNAPSHOT, table((1, "a", 0), (2, None, 0)), past)] == [2, 3, 2, 3]


def test_a_retracted_key_that_comes_back_is_new() -> None:
    past = past_of(SNAPSHOT, table((1, "a", 0), (2, "b", 0)))
    past.take(merge(SNAPSHOT, table((2, "b", 0)), past, DatasetVocabulary()), ("id",))
    assert after(SNAPSHOT, table((1, "a", 0), (2, "b", 0)), past) == [(0, 1, "a")]


def test_a_snapshot_with_the_same_key_twice_is_refused() -> None:
    with pytest.raises(InvalidInput, match="same key"):
        after(SNAPSHOT, table((1, "a", 0), (1, "b", 0)))


def test_replaying_a_history_of_snapshots_gives_the_last_one() -> None:
    states: list[Mapping[int, str]] = [{1: "a", 2: "b"}, {2: "B", 3: "c"}, {}, {1: "a", 3: "C"}]
    past = Past()
    for state in states:
        new = table(*((key, value, 0) for key, value in state.items()))
        past.take(merge(SNAPSHOT, new, past, DatasetVocabulary()), ("id",))
        assert {row["id"]: row["v"] for row in past.rows.to_pylist()} == state


def test_a_changelog_carries_its_own_operations() -> None:
    new = table((2, "b", 0), (1, "old", 0), (1, "new", 0), ops=[0, 2, 3])
    assert after(CHANGELOG, new) == [(2, 1, "old"), (3, 1, "new"), (0, 2, "b")]


@pytest.mark.parametrize("ops", [None, [4], [-1]])
def test_a_changelog_without_operations_is_refused(ops: list[int] | None) -> None:
    with pytest.raises(InvalidInput, match="op"):
        after(CHANGELOG, table((1, "a", 0), ops=ops))


def test_a_changelog_with_half_a_correction_is_refused() -> None:
    whole = table((1, "a", 0), (2, "b", 0), (1, "c", 0), ops=[2, 0, 3])
    assert after(CHANGELOG, whole) == [(2, 1, "a"), (3, 1, "c"), (0, 2, "b")]
    with pytest.raises(InvalidInput, match="without its"):
        after(CHANGELOG, table((1, "a", 0), (2, "c", 0), ops=[2, 3]).slice(0, 1))
    with pytest.raises(InvalidInput, match="record 1: a -C without its"):
        after(CHANGELOG, table((1, "a", 0), (2, "c", 0), ops=[2, 3]))


def test_several_corrections_of_a_key_follow_on_each_other() -> None:
    new = table(
        (2, "x", 0), (1, "a", 0), (1, "b", 0), (2, "y", 0), (1, "b", 0), (1, "c", 0), ops=[2, 2, 3, 3, 2, 3]
    )
    assert after(CHANGELOG, new) == [
        (2, 1, "a"),
        (3, 1, "b"),
        (2, 1, "b"),
        (3, 1, "c"),
        (2, 2, "x"),
        (3, 2, "y"),
    ]


@pytest.mark.parametrize(
    ("keys", "ops", "whole", "may_come"),
    [
        ([1], [2], 0, True),
        ([1], [3], 0, False),
        ([1, 1, 2, 1], [2, 3, 0, 2], 3, True),
        ([1, 2, 1, 3, 2, 4], [2, 2, 3, 0, 3, 2], 5, True),
        ([5, 1, 2, 1], [0, 2, 2, 3], 1, True),
        ([5, 1, 2, 1], [0, 2, 3, 3], 1, False),
    ],
)
def test_it_is_told_what_comes_before_the_first_correction_that_is_not_whole(
    keys: list[int], ops: list[int], whole: int, may_come: bool
) -> None:
    with pytest.raises(HalfCorrection) as raised:
        after(CHANGELOG, table(*((key, "a", 0) for key in keys), ops=ops))
    assert (raised.value.whole, raised.value.may_come) == (whole, may_come)


def test_the_last_upsert_of_a_key_wins_and_equal_ones_change_nothing() -> None:
    past = past_of(UPSERT, table((1, "a", 0), (2, "b", 0), (3, "c", 0)))
    found = after(UPSERT, table((1, "x", 1), (1, "A", 1), (2, "b", 0), (4, "d", 1)), past)
    assert found == [(2, 1, "a"), (3, 1, "A"), (0, 4, "d")]


def test_an_upsert_may_take_a_key_away() -> None:
    past = past_of(UPSERT, table((1, "a", 0), (2, "b", 0)))
    found = after(UPSERT, table((1, "whatever", 1), (9, "x", 1), (3, "c", 1), ops=[1, 1, 0]), past)
    assert found == [(1, 1, "a"), (0, 3, "c")]
