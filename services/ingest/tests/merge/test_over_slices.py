"""Strategies over real slices: sources next to each other, restarts, and indexes that are kept or lost."""

import random
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from odf_testing.table_batch import TableBatch

from odf_common.errors import InvalidInput
from odf_common.hashing.multihash import Multihash
from odf_common.identity.did import DatasetId
from odf_common.metadata.events import AddPushSource, DisablePushSource
from odf_common.metadata.steps import (
    MergeStrategy,
    MergeStrategyAppend,
    MergeStrategyLedger,
    MergeStrategySnapshot,
    MergeStrategyUpsertStream,
    ReadStepNdJson,
)
from odf_common.ports.store import ObjectKind, block_reader
from odf_ingest.commit.committer import CommitQueues, Pools
from odf_ingest.errors import SnapshotRetractsTooMuch
from odf_ingest.history.dataset_history import DatasetHistory
from odf_ingest.history.run_file import RunLimits
from odf_ingest.source_settings import EmptySnapshot

APPEND, RETRACT, FROM, TO = range(4)
START = datetime(2020, 1, 1, tzinfo=UTC)


def a_table(**columns: Sequence[Any]) -> pa.Table:
    rows = len(next(iter(columns.values())))
    arrays = {name: pa.array(values) for name, values in columns.items()}
    return pa.table({**arrays, "event_time": pa.array([START] * rows, pa.timestamp("ms", "UTC"))})


def two_sources(make_bench: Any, one: MergeStrategy, other: MergeStrategy) -> Any:
    bench = make_bench(one, ReadStepNdJson())
    bench.propose(AddPushSource(source_name="other", read=ReadStepNdJson(), merge=other))
    return bench


def push(bench: Any, records: pa.Table | None, source: str = "default") -> int:
    count: int = bench.queues.commit(bench.dataset, TableBatch(source, records)).count
    return count


def test_ledgers_of_one_dataset_have_separate_keys(make_bench: Any) -> None:
    bench = two_sources(
        make_bench, MergeStrategyLedger(primary_key=("a",)), MergeStrategyLedger(primary_key=("b",))
    )
    both = a_table(a=[1, 2], b=[10, 20])
    assert push(bench, both) == 2
    assert push(bench, both, "other") == 0
    assert push(bench, a_table(a=[10, 3], b=[1, 20]), "other") == 1
    assert push(bench, a_table(a=[3, 10], b=[30, 30])) == 1
    assert [row["a"] for row in bench.rows()] == [1, 2, 10, 3]


def test_a_ledger_continues_next_to_a_source_without_its_key(make_bench: Any) -> None:
    bench = two_sources(make_bench, MergeStrategyLedger(primary_key=("a",)), MergeStrategyAppend())
    assert push(bench, a_table(a=[1], b=[1])) == 1
    assert push(bench, a_table(b=[2]), "other") == 1
    assert push(bench, a_table(a=[1, 2], b=[3, 3])) == 1
    bench.queues.forget(bench.dataset)
    assert push(bench, a_table(a=[1, 2, 3], b=[4, 4, 4])) == 1


@pytest.mark.parametrize("strategy", [MergeStrategyLedger, MergeStrategyUpsertStream, MergeStrategySnapshot])
@pytest.mark.parametrize("key", ["a", "b"])
def test_dictionaries_that_another_source_appends_are_known_as_their_values(
    make_bench: Any, strategy: Callable[..., MergeStrategy], key: str
) -> None:
    bench = two_sources(make_bench, strategy(primary_key=(key,)), MergeStrategyAppend())
    plain = a_table(a=["x"], b=["y"])
    encoded = plain.set_column(0, "a", plain.column("a").dictionary_encode())
    assert [push(bench, plain) for _ in range(2)] == [1, 0]
    assert push(bench, encoded, "other") == 1
    assert push(bench, plain) == 0
    assert push(bench, encoded) == 0


def test_a_column_that_differs_from_another_only_in_case_is_refused(make_bench: Any) -> None:
    bench = two_sources(make_bench, MergeStrategyAppend(), MergeStrategyAppend())
    assert push(bench, a_table(a=[1])) == 1
    with pytest.raises(InvalidInput, match="column A: the dataset spells it a"):
        push(bench, a_table(A=[2]), "other")
    assert push(bench, a_table(a=[2]), "other") == 1


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC"])
def test_a_key_of_inferred_times_is_known_again(make_bench: Any, unit: str, zone: str | None) -> None:
    records = a_table(a=[1]).append_column("at", pa.array([START], pa.timestamp(unit, zone)))
    for strategy in (MergeStrategyLedger, MergeStrategyUpsertStream, MergeStrategySnapshot):
        bench = make_bench(strategy(primary_key=("at",)), ReadStepNdJson())
        assert [push(bench, records) for _ in range(3)] == [1, 0, 0]
        bench.queues.forget(bench.dataset)
        assert push(bench, records) == 0


def test_a_time_that_cannot_be_stored_is_refused(make_bench: Any) -> None:
    bench = make_bench(MergeStrategyAppend(), ReadStepNdJson())
    seconds = pa.array([2**60], pa.int64()).cast(pa.timestamp("s"))
    with pytest.raises(InvalidInput, match="out of the range"):
        push(bench, a_table(a=[1]).append_column("at", seconds))


def test_a_snapshot_without_records_retracts_all_and_a_snapshot_after_it_begins_again(
    make_bench: Any,
) -> None:
    bench = make_bench(MergeStrategySnapshot(primary_key=("a",)), ReadStepNdJson())
    bench.set(empty_snapshot=EmptySnapshot.RETRACT)
    assert push(bench, None) == 0, "nothing is known yet"
    assert push(bench, a_table(a=[1, 2])) == 2
    assert [push(bench, None) for _ in range(2)] == [2, 0]
    assert push(bench, a_table(a=[1])) == 1
    assert [(row["op"], row["a"]) for row in bench.rows()] == [(0, 1), (0, 2), (1, 1), (1, 2), (0, 1)]


def test_settings_of_the_source_say_what_a_snapshot_may_retract(make_bench: Any) -> None:
    bench = make_bench(MergeStrategySnapshot(primary_key=("a",)), ReadStepNdJson())
    push(bench, a_table(a=list(range(200))))
    head = bench.state.head
    with pytest.raises(SnapshotRetractsTooMuch, match="retract 200 of 200 rows"):
        push(bench, None)
    assert bench.state.head == head
    bench.set(max_retracted_share=1.0)
    assert push(bench, None) == 200


@pytest.mark.parametrize("strategy", [MergeStrategyLedger, MergeStrategyUpsertStream, MergeStrategySnapshot])
def test_a_restart_reads_the_last_slice_and_without_an_index_each_slice_once(
    make_bench: Any, strategy: Callable[..., MergeStrategy]
) -> None:
    bench = make_bench(strategy(primary_key=("a",)), ReadStepNdJson())

    def restart() -> list[Multihash]:
        bench.queues.forget(bench.dataset)
        read: list[Multihash] = bench.record_slice_reads()
        return read

    read = restart()
    for number in range(6):
        push(bench, a_table(a=list(range(number + 1))))
    assert read == []
    read = restart()
    push(bench, a_table(a=list(range(7))))
    assert len(read) == 1
    read = restart()
    shutil.rmtree(bench.blobs.index_folder(bench.dataset))
    push(bench, a_table(a=list(range(8))))
    assert len(read) == len(set(read)) == 7
    push(bench, a_table(a=list(range(9))))
    assert len(read) == 7


@pytest.mark.parametrize("strategy", [MergeStrategyLedger, MergeStrategyUpsertStream, MergeStrategySnapshot])
def test_slices_are_the_same_bytes_with_an_index_kept_lost_or_none(
    make_bench: Any, strategy: Callable[..., MergeStrategy], monkeypatch: pytest.MonkeyPatch
) -> None:
    benches = [make_bench(strategy(primary_key=("a", "b")), ReadStepNdJson()) for _ in range(4)]
    plain, kept, lossy, restarted = benches
    for bench in benches:
        bench.set(max_retracted_share=1.0)
    for bench in benches:
        monkeypatch.setattr(bench.queues, "_history", partial(history, bench, is_kept=bench is not plain))
    source = random.Random(7)
    for number in range(20):
        rows = source.sample(range(150), source.choice([3, 20, 90]))
        table = a_table(
            a=[row % 10 for row in rows], b=[f"{row}" for row in rows], c=[source.random() for _ in rows]
        )
        for bench in benches:
            push(bench, table)
        restarted.queues.forget(restarted.dataset)
        if number % 3 == 0:
            shutil.rmtree(lossy.blobs.index_folder(lossy.dataset), ignore_errors=True)
        if number % 7 == 6:
            kept.queues.forget(kept.dataset)
        assert len({bench.state.head for bench in benches}) == 1


def history(bench: Any, dataset: DatasetId, *, is_kept: bool) -> DatasetHistory:
    return DatasetHistory(
        block_reader(bench.blobs, dataset),
        lambda name: bench.blobs.local_path(dataset, ObjectKind.DATA, name),
        bench.blobs.index_folder(dataset) if is_kept else None,
        RunLimits(runs_per_merge=3, keys_in_memory=20, keys_per_merge_step=11, block_rows=3),
    )


def test_indexes_that_no_source_needs_are_removed(make_bench: Any) -> None:
    bench = two_sources(
        make_bench, MergeStrategyLedger(primary_key=("a",)), MergeStrategyUpsertStream(primary_key=("b",))
    )
    for source in ("default", "other", "default"):
        push(bench, a_table(a=[1], b=[1]), source)
        push(bench, a_table(a=[1, 2], b=[2, 1]), source)
    folder: Path = bench.blobs.index_folder(bench.dataset)
    assert sorted(one.name.split("-")[0] for one in folder.iterdir()) == ["keys", "rows"]
    bench.propose(DisablePushSource(source_name="default"))
    bench.queues.forget(bench.dataset)
    push(bench, a_table(a=[3], b=[3]), "other")
    assert [one.name.split("-")[0] for one in folder.iterdir()] == ["rows"]


@pytest.mark.parametrize("strategy", [MergeStrategyLedger, MergeStrategyUpsertStream])
def test_the_slice_in_memory_is_not_taken_for_that_of_another_process(
    make_bench: Any, strategy: Callable[..., MergeStrategy]
) -> None:
    bench = make_bench(strategy(primary_key=("a",)), ReadStepNdJson())
    other = replace(
        bench,
        queues=CommitQueues(bench.blobs, bench.states, bench.queues._committer, Pools.sharing(bench.pool)),
    )
    push(bench, a_table(a=[1]))
    before = bench.state.head
    push(bench, a_table(a=[2]))
    bench.refs.compare_and_set(bench.dataset, expected=bench.state.head, new=before)
    push(other, a_table(a=[3]))
    push(bench, a_table(a=[2, 3]))
    assert [row["a"] for row in bench.rows()] == [1, 3, 2]
