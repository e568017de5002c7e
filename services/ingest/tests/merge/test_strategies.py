from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from odf_common.errors import InvalidInput
from odf_common.metadata.events import (
    DatasetVocabulary,
    MergeStrategy,
    MergeStrategyAppend,
    MergeStrategyChangelogStream,
    MergeStrategyLedger,
    MergeStrategySnapshot,
    MergeStrategyUpsertStream,
)
from odf_common.metadata.scalars import Strings
from odf_ingest.errors import IncompleteCorrection, OperationsMismatched, SnapshotRetractsTooMuch
from odf_ingest.history.dataset_history import Fresh
from odf_ingest.history.indexes import CurrentRows, KeyIndex
from odf_ingest.history.keys import Keys, key_array
from odf_ingest.merge import difference
from odf_ingest.merge.difference import RepeatedKey
from odf_ingest.merge.interface import MergeResult
from odf_ingest.merge.strategies import merge
from odf_ingest.source_settings import EmptySnapshot, Retractions, SourceSettings

START = datetime(2020, 1, 1, tzinfo=UTC)
Row = tuple[Any, ...]
SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string()), ("event_time", pa.timestamp("ms", "UTC"))])


class Past:
    """Port `History` that stores the appended records."""

    def __init__(self) -> None:
        self.index = KeyIndex()
        self.last = CurrentRows(("id",))

    @property
    def rows(self) -> pa.Table:
        return self.last.current()

    def fresh(self, key: Strings, keys: Keys) -> Fresh:
        return self.index.fresh(keys)

    def current(self, key: Strings, keys: Keys | None = None) -> pa.Table:
        return self.last.current(keys)

    def take(self, merged: MergeResult, key: Strings) -> None:
        _, fresh = self.index.fresh(key_array(merged.records, key))
        self.index.add(fresh)
        ops = merged.ops if merged.ops is not None else pa.array([0] * len(merged.records), pa.uint8())
        self.last.add(merged.records.append_column("op", ops), "op")


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
EMPTY_IS_RIGHT = SourceSettings(empty_snapshot=EmptySnapshot.RETRACT)
SNAPSHOT = MergeStrategySnapshot(primary_key=("id",))
CHANGELOG = MergeStrategyChangelogStream(primary_key=("id",))
UPSERT = MergeStrategyUpsertStream(primary_key=("id",))


def test_append_orders_by_event_time_nulls_first_and_keeps_the_order_of_equals() -> None:
    new = table((1, "c", 2), (2, "a", None), (3, "b", 1), (4, "d", 2))
    assert [row[1] for row in after(MergeStrategyAppend(), new)] == [2, 3, 1, 4]


def test_ledger_takes_the_first_record_of_each_key_and_orders_by_event_time() -> None:
    new = table((1, "late", 5), (2, "a", 1), (1, "again", 0))
    assert after(LEDGER, new) == [(0, 2, "a"), (0, 1, "late")]


def test_a_snapshot_appends_retracts_and_corrects_what_differs() -> None:
    past = past_of(SNAPSHOT, table((1, "a", 0), (2, "b", 0), (3, "c", 0)))
    found = after(SNAPSHOT, table((4, "d", 1), (2, "B", 1), (1, "a", None)), past)
    assert found == [(2, 2, "b"), (3, 2, "B"), (1, 3, "c"), (0, 4, "d")]


@pytest.mark.parametrize("threaded_from", [1, 1 << 16])
def test_a_snapshot_in_any_order_is_compared_row_by_row(
    threaded_from: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(difference, "PARALLEL_ROWS", threaded_from)
    old: list[Row] = [(number, f"v{number}", number) for number in range(20)]
    past = past_of(SNAPSHOT, table(*old))
    past.take(merge(SNAPSHOT, table(*old[:-1], (19, "x", 19)), past, DatasetVocabulary()), ("id",))
    new: list[Row] = [*old[:-1], (19, "x", 19), (20, "new", 20)]
    new[3], new[8] = (3, "other", 3), (8, "v8", 9)
    del new[5]
    found = after(SNAPSHOT, table(*new[::-3], *new[-2::-3], *new[-3::-3]), past)
    assert found == [
        *((2, 3, "v3"), (3, 3, "other")),
        (1, 5, "v5"),
        *((2, 8, "v8"), (3, 8, "v8")),
        (0, 20, "new"),
    ]


def test_a_null_new_event_time_alone_is_no_change_and_another_one_is() -> None:
    past = past_of(SNAPSHOT, table((1, "a", 0)))
    assert after(SNAPSHOT, table((1, "a", None)), past) == []
    assert after(SNAPSHOT, table((1, "a", 1)), past) == [(2, 1, "a"), (3, 1, "a")]


def test_only_compared_columns_count() -> None:
    strategy = MergeStrategySnapshot(primary_key=("id",), compare_columns=("v",))
    past = past_of(strategy, table((1, "a", 0)))
    assert after(strategy, table((1, "a", 1)), past) == []


def test_a_snapshot_with_the_same_key_twice_is_refused() -> None:
    twice = table((2, "a", 0), (1, "a", 0), (1, "b", 0))
    with pytest.raises(RepeatedKey, match="the key id = 1 in 2 records: records 2 and 3") as error:
        after(SNAPSHOT, twice)
    assert "WHERE" in error.value.advice()  # preprocess has no other way: it computes each record alone
    many = pa.concat_tables([twice] * 4)
    with pytest.raises(RepeatedKey, match=r"the key v = a in 8 records: records 1, .*, 7 and 3 more"):
        after(MergeStrategySnapshot(primary_key=("v",)), many)


@pytest.mark.parametrize("ops", [None, [4], [-1]])
def test_a_changelog_without_operations_is_refused(ops: list[int] | None) -> None:
    with pytest.raises(InvalidInput, match="op"):
        after(CHANGELOG, table((1, "a", 0), ops=ops))


def test_a_changelog_with_half_a_correction_is_refused() -> None:
    past = past_of(CHANGELOG, table((1, "a", 0), ops=[0]))
    whole = table((1, "a", 0), (2, "b", 0), (1, "c", 0), ops=[2, 0, 3])
    assert after(CHANGELOG, whole, past) == [(2, 1, "a"), (3, 1, "c"), (0, 2, "b")]
    with pytest.raises(InvalidInput, match="without a"):
        after(CHANGELOG, table((1, "a", 0), (2, "c", 0), ops=[2, 3]).slice(0, 1))
    with pytest.raises(InvalidInput, match="record 1: a -C without a"):
        after(CHANGELOG, table((1, "a", 0), (2, "c", 0), ops=[2, 3]))


def test_several_corrections_of_a_key_are_consecutive() -> None:
    new = table(
        (2, "x", 0), (1, "a", 0), (1, "b", 0), (2, "y", 0), (1, "b", 0), (1, "c", 0), ops=[2, 2, 3, 3, 2, 3]
    )
    past = past_of(CHANGELOG, table((1, "a", 0), (2, "x", 0), ops=[0, 0]))
    assert after(CHANGELOG, new, past) == [
        (2, 1, "a"),
        (3, 1, "b"),
        (2, 1, "b"),
        (3, 1, "c"),
        (2, 2, "x"),
        (3, 2, "y"),
    ]


def test_operations_of_a_key_stay_in_their_order_of_arrival() -> None:
    past = past_of(CHANGELOG, table((1, "a", 0), ops=[0]))
    new = table((1, "a", 0), (2, "z", 0), (1, "b", 0), ops=[1, 0, 0])
    assert after(CHANGELOG, new, past) == [(1, 1, "a"), (0, 1, "b"), (0, 2, "z")]
    new = table((1, "b", 0), (1, "b", 0), ops=[0, 1])
    assert after(CHANGELOG, new) == [(0, 1, "b"), (1, 1, "b")]


def test_a_correction_stays_in_one_piece_at_the_place_of_its_first_half() -> None:
    new = table((1, "a", 0), (1, "a", 0), (1, "b", 0), (1, "b", 0), ops=[0, 2, 1, 3])
    assert after(CHANGELOG, new) == [(0, 1, "a"), (2, 1, "a"), (3, 1, "b"), (1, 1, "b")]


@given(
    st.lists(
        st.tuples(st.sampled_from([0, 0, 1, 2, 2, 3, 3]), st.integers(1, 3), st.sampled_from("ab")),
        max_size=25,
    ),
    st.sets(st.integers(1, 24)),
    st.sampled_from(Retractions),
)
def test_the_result_for_a_key_does_not_depend_on_where_batches_were_cut(
    rows: list[Row], cuts: set[int], retractions: Retractions
) -> None:
    settings = SourceSettings(retractions=retractions)
    assert by_key(in_batches(rows, cuts, settings)) == by_key(in_batches(rows, set(), settings))


def by_key(found: tuple[list[Row], bool]) -> tuple[Mapping[int, list[Row]], bool]:
    rows, is_stopped = found
    return {key: [row for row in rows if row[1] == key] for key in (1, 2, 3)}, is_stopped


def in_batches(rows: Sequence[Row], cuts: set[int], settings: SourceSettings) -> tuple[list[Row], bool]:
    """Return what is appended when batches end at `cuts`, and whether the source stops at a half correction.

    Records before the first incomplete correction are committed; the rest begins the next batch.
    """
    appended: list[Row] = []
    past = Past()
    begin = 0
    for end in [*sorted(cut for cut in cuts if cut < len(rows)), len(rows)]:
        while begin < end:
            try:
                appended += fitting(rows[begin:end], past, settings)
            except IncompleteCorrection as error:
                if error.whole:
                    appended += fitting(rows[begin : begin + error.whole], past, settings)
                    begin += error.whole
                elif error.may_come:
                    break
                else:
                    return appended, True
            else:
                begin = end
    return appended, False


def fitting(rows: Sequence[Row], past: Past, settings: SourceSettings) -> list[Row]:
    """Append the rows that fit, and return them."""
    new = table(*((key, value, 0) for _, key, value in rows), ops=[row[0] for row in rows])
    try:
        merged = merge(CHANGELOG, new, past, DatasetVocabulary(), settings)
    except OperationsMismatched as error:
        return fitting([row for number, row in enumerate(rows) if number not in error.faults], past, settings)
    past.take(merged, ("id",))
    assert merged.ops is not None
    records = merged.records.to_pylist()
    return [(op, row["id"], row["v"]) for op, row in zip(merged.ops.to_pylist(), records, strict=True)]


def test_the_last_upsert_of_a_key_wins_and_equal_ones_change_nothing() -> None:
    past = past_of(UPSERT, table((1, "a", 0), (2, "b", 0), (3, "c", 0)))
    found = after(UPSERT, table((1, "x", 1), (1, "A", 1), (2, "b", 0), (4, "d", 1)), past)
    assert found == [(2, 1, "a"), (3, 1, "A"), (0, 4, "d")]


def test_an_upsert_may_remove_a_key() -> None:
    past = past_of(UPSERT, table((1, "a", 0), (2, "b", 0)))
    found = after(UPSERT, table((1, "whatever", 1), (9, "x", 1), (3, "c", 1), ops=[1, 1, 0]), past)
    assert found == [(1, 1, "a"), (0, 3, "c")]


def test_an_upsert_does_not_take_the_old_half_of_a_correction_for_a_state() -> None:
    past = past_of(UPSERT, table((1, "a", 0), (2, "b", 0)))
    found = after(UPSERT, table((1, "B", 1), (1, "a", 0), (2, "old", 0), (3, "x", 0), ops=[3, 2, 2, 2]), past)
    assert found == [(2, 1, "a"), (3, 1, "B")]
    assert after(UPSERT, table((1, "a", 0), ops=[2])) == []


def test_an_upsert_looks_up_the_keys_of_its_batch_only() -> None:
    past = past_of(UPSERT, table(*((number, "a", 0) for number in range(100))))
    asked: list[int] = []

    class Watched(Past):
        def current(self, key: Strings, keys: Keys | None = None) -> pa.Table:
            assert keys is not None
            asked.extend(keys.tolist())
            return past.current(key, keys)

    assert after(UPSERT, table((7, "b", 0), (100, "a", 0)), Watched()) == [
        (2, 7, "a"),
        (3, 7, "b"),
        (0, 100, "a"),
    ]
    assert asked == [7, 100]


MANY = [(number, "a", 0) for number in range(101)]


@pytest.mark.parametrize("allowed", [EMPTY_IS_RIGHT, SourceSettings(max_retracted_share=1.0)])
@pytest.mark.parametrize("rows", [1, 101])
def test_an_empty_snapshot_retracts_every_row_only_if_its_source_allows_that(
    rows: int, allowed: SourceSettings
) -> None:
    past = past_of(SNAPSHOT, table(*MANY[:rows]))
    with pytest.raises(
        SnapshotRetractsTooMuch, match=f"has no records and would retract {rows} of {rows} rows"
    ):
        after(SNAPSHOT, table(), past)
    merged = merge(SNAPSHOT, table(), past, DatasetVocabulary(), allowed)
    assert merged.ops is not None
    assert merged.ops.to_pylist() == [1] * rows
    assert after(SNAPSHOT, table(), Past()) == []


def test_an_empty_snapshot_is_refused_where_the_source_says_so() -> None:
    past = past_of(SNAPSHOT, table((1, "a", 0)))
    settings = SourceSettings(empty_snapshot=EmptySnapshot.REFUSE)
    with pytest.raises(InvalidInput, match="no records"):
        merge(SNAPSHOT, table(), past, DatasetVocabulary(), settings)


@pytest.mark.parametrize("kept", [0, 1, 50])
def test_a_snapshot_that_retracts_too_many_rows_is_refused(kept: int) -> None:
    past = past_of(SNAPSHOT, table(*MANY))
    with pytest.raises(SnapshotRetractsTooMuch) as raised:
        after(SNAPSHOT, table(*MANY[:kept]), past)
    assert (raised.value.retracted, raised.value.rows) == (101 - kept, 101)
    assert f"retract {101 - kept} of 101 rows" in str(raised.value)
    assert ("maxRetractedShare=1" if kept else "emptySnapshot=retract") in raised.value.advice()


def test_a_snapshot_may_retract_up_to_the_share_of_its_source() -> None:
    past = past_of(SNAPSHOT, table(*MANY))
    assert len(after(SNAPSHOT, table(*MANY[:51]), past)) == 50
    corrected = table(*((number, "b", 0) for number, _, _ in MANY))
    assert len(after(SNAPSHOT, corrected, past)) == 202, "corrections are not retractions"
    accepted = SourceSettings(max_retracted_share=1.0)
    assert len(merge(SNAPSHOT, table(), past, DatasetVocabulary(), accepted).records) == 101


@pytest.mark.parametrize(
    ("rows", "kept", "added"),
    [(11, 6, 0), (3, 2, 0), (2, 1, 0), (1, 0, 1), (3, 0, 2), (10, 0, 10), (10, 0, 5)],
)
def test_a_small_list_may_lose_half_of_its_rows_or_change_as_a_whole(
    rows: int, kept: int, added: int
) -> None:
    past = past_of(SNAPSHOT, table(*MANY[:rows]))
    new = table(*MANY[:kept], *MANY[50 : 50 + added])
    assert len(after(SNAPSHOT, new, past)) == rows - kept + added


@pytest.mark.parametrize(
    ("rows", "kept", "added"), [(11, 1, 0), (11, 5, 0), (3, 1, 0), (3, 0, 1), (10, 0, 4), (11, 0, 11)]
)
def test_a_list_that_is_large_or_has_become_shorter_may_not(rows: int, kept: int, added: int) -> None:
    past = past_of(SNAPSHOT, table(*MANY[:rows]))
    with pytest.raises(SnapshotRetractsTooMuch, match=f"retract {rows - kept} of {rows} rows"):
        after(SNAPSHOT, table(*MANY[:kept], *MANY[50 : 50 + added]), past)
