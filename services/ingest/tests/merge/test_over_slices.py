"""Whole strategies over real slices: random sources, keys, batches, restarts and resets, against a plain model."""

import random
import shutil
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from odf_testing.profiles import examples

from odf_common.chain.state import ChainState
from odf_common.data.columns import normalize_timestamps
from odf_common.data.slices import read_slice
from odf_common.data.stored_types import as_stored
from odf_common.errors import InvalidInput
from odf_common.hashing.multihash import Multihash
from odf_common.metadata.events import AddData, AddPushSource, DisablePushSource
from odf_common.metadata.scalars import Timestamp
from odf_common.metadata.steps import (
    MergeStrategy,
    MergeStrategyAppend,
    MergeStrategyChangelogStream,
    MergeStrategyLedger,
    MergeStrategySnapshot,
    MergeStrategyUpsertStream,
    ReadStepNdJson,
    Strings,
)
from odf_common.ports.store import ObjectKind, block_reader
from odf_ingest.commit.commit_queue import CommitQueues, Pools
from odf_ingest.commit.committer import position_of
from odf_ingest.commit.position import SourcePosition
from odf_ingest.commit.watermark import NewWatermark
from odf_ingest.errors import SnapshotRetractsTooMuch
from odf_ingest.history import run_file, run_store
from odf_ingest.history.history import DatasetHistory
from odf_ingest.merge import takes_whole_batches
from odf_ingest.prepare.preparer import Prepared
from odf_ingest.source_settings import SourceSettings, save_settings

APPEND, RETRACT, FROM, TO = range(4)
START = datetime(2020, 1, 1, tzinfo=UTC)
NAN = float("nan")
OTHER_NAN: float = struct.unpack("<d", struct.pack("<Q", 0xFFF8_0000_0000_0007))[0]
Row = Mapping[str, Any]

# What a key column may be: types as a reader may infer them, and few distinct values, so that keys meet again.
KEYS: Mapping[str, tuple[pa.DataType, Sequence[Any]]] = {
    "int8": (pa.int8(), [-1, 0, 1]),
    "int64": (pa.int64(), [-(2**63), 0, 2**53, 2**53 + 1]),
    "uint64": (pa.uint64(), [0, 2**64 - 2, 2**64 - 1]),
    "string": (pa.string(), ["", "a", "a\0", "b" * 70]),
    "large_string": (pa.large_string(), ["", "a", "b"]),
    "dictionary": (pa.dictionary(pa.int32(), pa.string()), ["a", "b", "c"]),
    "binary": (pa.binary(), [b"", b"\0", b"\0\0"]),
    "bool": (pa.bool_(), [True, False]),
    "decimal": (pa.decimal128(20, 3), [Decimal("0.001"), Decimal("-0.001"), Decimal(7)]),
    "uuid": (pa.uuid(), [UUID(int=1), UUID(int=2), UUID(int=2**127)]),
    "float": (pa.float64(), [0.0, -0.0, NAN, OTHER_NAN, 1.5]),
    "float32": (pa.float32(), [0.0, -0.0, NAN, 1.5]),
    "date": (pa.date32(), [date(1970, 1, 1), date(2020, 1, 1), date(1, 1, 1)]),
    "date64": (pa.date64(), [date(1970, 1, 1), date(2020, 1, 1)]),
    "time32": (pa.time32("s"), [time(0), time(0, 0, 1)]),
    "time64": (pa.time64("us"), [time(0), time(0, 0, 0, 1)]),
    **{
        f"timestamp {unit} {zone}": (pa.timestamp(unit, zone), [START, START + timedelta(seconds=1)])
        for unit in ("s", "ms", "us", "ns")
        for zone in (None, "UTC", "+02:00")
    },
}
VALUES: Sequence[Any] = [None, [], [None], [0.0], [-0.0], [NAN], [OTHER_NAN], [1.5, NAN]]


@dataclass
class TableBatch:
    """Port `Batch` for records in memory; None is a batch without any."""

    source: str
    records: pa.Table | None
    may_be_empty: bool = False

    def position_in(self, state: ChainState) -> SourcePosition:
        return position_of(state, self.source)

    def check(self, position: SourcePosition) -> None:
        pass

    def prepare(self, state: ChainState) -> Prepared:
        source = state.push_sources[self.source]
        return Prepared(
            source=source,
            records=self.records,
            moment=Timestamp.from_ms(0),
            greatest={},
            is_state=takes_whole_batches(source.merge),
        )

    def left_of(self, error: InvalidInput) -> Prepared:
        raise error

    def advance(self, position: SourcePosition, prepared: Prepared) -> tuple[SourcePosition, NewWatermark]:
        return position, None

    def before_proposal(self) -> None:
        pass


@dataclass
class Model:
    """What a dataset should hold: operations and rows in the order of their offsets within a key."""

    log: list[tuple[int, Row]] = field(default_factory=list)

    def take(self, strategy: MergeStrategy, rows: Sequence[Row], ops: Sequence[int]) -> None:
        match strategy:
            case MergeStrategyAppend():
                self._append(rows)
            case MergeStrategyLedger(primary_key=key):
                self._append(self._unseen(key, rows))
            case MergeStrategyChangelogStream():
                self.log += zip(ops, rows, strict=True)
            case MergeStrategyUpsertStream(primary_key=key):
                last = {key_of(row, key): (op, row) for op, row in zip(ops, rows, strict=True)}
                self._change(key, {one: row for one, (op, row) in last.items() if op != RETRACT})
                self._retract(key, [one for one, (op, _) in last.items() if op == RETRACT])
            case MergeStrategySnapshot(primary_key=key):
                new = {key_of(row, key): row for row in rows}
                gone = [one for one in self.current(key) if one not in new]
                self._change(key, new)
                self._retract(key, gone)

    def current(self, key: Strings) -> dict[object, Row]:
        found: dict[object, Row] = {}
        for op, row in self.log:
            if all(row[name] is not None for name in key):
                found.pop(key_of(row, key), None)
                if op in (APPEND, TO):
                    found[key_of(row, key)] = row
        return found

    def _append(self, rows: Iterable[Row]) -> None:
        self.log += ((APPEND, row) for row in sorted(rows, key=lambda row: row["event_time"]))

    def _unseen(self, key: Strings, rows: Sequence[Row]) -> list[Row]:
        seen = {key_of(row, key) for _, row in self.log if all(row[name] is not None for name in key)}
        kept = []
        for row in rows:
            if key_of(row, key) not in seen:
                seen.add(key_of(row, key))
                kept.append(row)
        return kept

    def _change(self, key: Strings, new: Mapping[object, Row]) -> None:
        known = self.current(key)
        for one, row in new.items():
            if one not in known:
                self.log.append((APPEND, row))
            elif content(known[one]) != content(row):
                self.log += [(FROM, known[one]), (TO, row)]

    def _retract(self, key: Strings, keys: Iterable[object]) -> None:
        known = self.current(key)
        self.log += [(RETRACT, known[one]) for one in keys if one in known]


def plain(value: Any) -> object:
    """Return a value that Python compares as stored values are compared."""
    if isinstance(value, float):
        return "NaN" if value != value else value.hex()  # noqa: PLR0124 - that is what tells it
    return tuple(map(plain, value)) if isinstance(value, list) else value


def key_of(row: Row, key: Strings) -> object:
    return tuple(plain(row[name]) for name in key)


def content(row: Row) -> object:
    return key_of(row, tuple(sorted(row)))


COLUMNS = ("k1", "k2", "v", "event_time")


def rows_of(records: pa.Table) -> list[Row]:
    """Return the records as they are read back, with all columns."""
    stored = as_stored(normalize_timestamps(records)).to_pylist()
    return [{name: row.get(name) for name in COLUMNS} for row in stored]


def stored_log(bench: Any) -> list[tuple[int, Row]]:
    log = []
    for event in bench.events():
        if isinstance(event, AddData) and event.new_data is not None:
            name = event.new_data.physical_hash
            table = read_slice(bench.blobs.local_path(bench.dataset, ObjectKind.DATA, name))
            log += list(zip(table.column("op").to_pylist(), rows_of(table), strict=True))
    return log


def by_key(log: Sequence[tuple[int, Row]], key: Strings) -> Mapping[object, list[object]]:
    found: dict[object, list[object]] = {}
    for op, row in log:
        found.setdefault(key_of(row, key), []).append((op, content(row)))
    return found


@dataclass(frozen=True, kw_only=True)
class Source:
    name: str
    strategy: MergeStrategy
    key: Strings
    columns: Strings  # those that its batches have
    has_ops: bool


STRATEGIES: Sequence[Callable[[Strings], MergeStrategy]] = [
    lambda key: MergeStrategyAppend(),
    lambda key: MergeStrategyLedger(primary_key=key),
    lambda key: MergeStrategyChangelogStream(primary_key=key),
    lambda key: MergeStrategyUpsertStream(primary_key=key),
    lambda key: MergeStrategySnapshot(primary_key=key),
]


@st.composite
def sources(draw: st.DrawFn, name: str) -> Source:
    key = draw(st.sampled_from([("k1",), ("k2",), ("k1", "k2")]))
    strategy = draw(st.sampled_from(STRATEGIES))(key)
    others = draw(st.sets(st.sampled_from(["k1", "k2", "v"])))
    has_ops = isinstance(strategy, MergeStrategyChangelogStream) or (
        isinstance(strategy, MergeStrategyUpsertStream) and draw(st.booleans())
    )
    columns = tuple(one for one in ("k1", "k2", "v") if one in {*key, *others})
    return Source(name=name, strategy=strategy, key=key, columns=(*columns, "event_time"), has_ops=has_ops)


@st.composite
def batches(draw: st.DrawFn, source: Source, types: Mapping[str, str]) -> tuple[pa.Table | None, list[int]]:
    """Return records and their operations, which only some sources give."""
    rows = draw(
        st.lists(st.fixed_dictionaries({name: cells(name, types) for name in source.columns}), max_size=8)
    )
    ops = [draw(st.sampled_from([APPEND, RETRACT])) if source.has_ops else APPEND for _ in rows]
    if isinstance(source.strategy, MergeStrategySnapshot):
        rows = list({key_of(row, source.key): row for row in rows}.values())
        ops = [APPEND] * len(rows)
    if isinstance(source.strategy, MergeStrategyChangelogStream):
        # Some of the rows are corrections: both halves, one directly after the other.
        is_correction = [draw(st.booleans()) for _ in rows]
        rows = [row for row, twice in zip(rows, is_correction, strict=True) for _ in range(1 + twice)]
        pairs = zip(ops, is_correction, strict=True)
        ops = [one for op, twice in pairs for one in ([FROM, TO] if twice else [op])]
    if not rows:
        return None, []
    arrays = {name: pa.array([row[name] for row in rows], arrow_type(name, types)) for name in source.columns}
    return pa.table(arrays), ops


def arrow_type(name: str, types: Mapping[str, str]) -> pa.DataType:
    fixed = {"v": pa.list_(pa.float64()), "event_time": pa.timestamp("ms", "UTC")}
    return fixed.get(name) or KEYS[types[name]][0]


def cells(name: str, types: Mapping[str, str]) -> st.SearchStrategy[Any]:
    if name == "v":
        return st.sampled_from(VALUES)
    if name == "event_time":
        return st.integers(0, 2).map(lambda hours: START + timedelta(hours=hours))
    return st.sampled_from(KEYS[types[name]][1])


STEPS = st.sampled_from(["batch"] * 6 + ["repeat", "restart", "reset", "index"])


@settings(
    max_examples=examples(60),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_a_dataset_holds_what_the_model_says(make_bench: Any, data: st.DataObject) -> None:
    types = {name: data.draw(st.sampled_from(sorted(KEYS)), label=name) for name in ("k1", "k2")}
    both = [data.draw(sources(name), label=name) for name in ("default", "other")]
    check(make_bench, types, both, data)


@pytest.mark.parametrize("type_", sorted(KEYS))
@settings(
    max_examples=examples(4),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_every_strategy_takes_keys_of_every_type(make_bench: Any, type_: str, data: st.DataObject) -> None:
    for strategy in STRATEGIES:
        made = strategy(("k1",))
        has_ops = isinstance(made, MergeStrategyChangelogStream)
        columns = ("k1", "v", "event_time")
        source = Source(name="default", strategy=made, key=("k1",), columns=columns, has_ops=has_ops)
        check(make_bench, {"k1": type_, "k2": type_}, [source], data, steps=4)


def check(
    make_bench: Any,
    types: Mapping[str, str],
    known: Sequence[Source],
    data: st.DataObject,
    steps: int = 10,
) -> None:
    read = ReadStepNdJson()
    bench = make_bench(known[0].strategy, read)
    for source in known[1:]:
        bench.propose(AddPushSource(source_name=source.name, read=read, merge=source.strategy))
    model = Model()
    past: list[tuple[Multihash, tuple[tuple[int, Row], ...]]] = [(bench.state.head, ())]
    last = None
    for _ in range(data.draw(st.integers(1, steps))):
        step = data.draw(STEPS, label="step")
        if step == "restart":
            bench.queues.forget(bench.dataset)
        elif step == "index":
            bench.queues.forget(bench.dataset)
            spoil(bench.blobs.index_folder(bench.dataset), data)
        elif step == "reset":
            head, log = data.draw(st.sampled_from(past), label="to")
            bench.refs.compare_and_set(bench.dataset, expected=bench.state.head, new=head)
            model.log = list(log)
        else:
            if step == "batch" or last is None:
                source = data.draw(st.sampled_from(known), label="source")
                last = source, *data.draw(batches(source, types), label="batch")
            source, records, ops = last
            commit(bench, model, source, records, ops)
            past.append((bench.state.head, tuple(model.log)))
        assert plain_log(stored_log(bench)) == plain_log(model.log)


def spoil(folder: Path, data: st.DataObject) -> None:
    """Lose the kept indexes, or one of their files, or change a byte of it."""
    files = sorted(file for file in folder.rglob("*") if file.is_file() and file.stat().st_size)
    how = data.draw(st.sampled_from(["lose all", "lose", "cut", "change"]), label="how")
    if how == "lose all" or not files:
        shutil.rmtree(folder, ignore_errors=True)
        return
    file = data.draw(st.sampled_from(files), label="file")
    content = bytearray(file.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1), label="place")
    content[place] ^= 1 << data.draw(st.integers(0, 7), label="bit")
    if how == "lose":
        file.unlink()
    else:
        file.write_bytes(content[:place] if how == "cut" else content)


def plain_log(log: Sequence[tuple[int, Row]]) -> list[object]:
    return [(op, content(row)) for op, row in log]


def commit(bench: Any, model: Model, source: Source, records: pa.Table | None, ops: Sequence[int]) -> None:
    batch = records
    if records is not None and source.has_ops:
        batch = records.append_column("op", pa.array(ops, pa.int32()))
    before = len(model.log)
    if records is not None or isinstance(source.strategy, MergeStrategySnapshot):
        model.take(source.strategy, [] if records is None else rows_of(records), ops)
    outcome = bench.queues.commit(bench.dataset, TableBatch(source.name, batch))
    added = stored_log(bench)[before:]
    assert outcome.count == len(added)
    assert by_key(added, source.key) == by_key(model.log[before:], source.key)
    # The order among keys is the order of their values, which the model has no word on.
    model.log[before:] = added


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


def test_ledgers_of_one_dataset_have_keys_of_their_own(make_bench: Any) -> None:
    bench = two_sources(
        make_bench, MergeStrategyLedger(primary_key=("a",)), MergeStrategyLedger(primary_key=("b",))
    )
    both = a_table(a=[1, 2], b=[10, 20])
    assert push(bench, both) == 2
    assert push(bench, both, "other") == 0
    assert push(bench, a_table(a=[10, 3], b=[1, 20]), "other") == 1
    assert push(bench, a_table(a=[3, 10], b=[30, 30])) == 1
    assert [row["a"] for row in bench.rows()] == [1, 2, 10, 3]


def test_a_ledger_goes_on_beside_a_source_without_its_key(make_bench: Any) -> None:
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
    save_settings(bench.blobs, bench.dataset, "default", SourceSettings(max_retracted_share=1.0))
    assert push(bench, None) == 200


@pytest.mark.parametrize("strategy", [MergeStrategyLedger, MergeStrategyUpsertStream, MergeStrategySnapshot])
def test_a_restart_reads_the_last_slice_and_without_an_index_each_slice_once(
    make_bench: Any, strategy: Callable[..., MergeStrategy]
) -> None:
    bench = make_bench(strategy(primary_key=("a",)), ReadStepNdJson())
    read: list[Multihash] = []

    def restart() -> None:
        bench.queues.forget(bench.dataset)
        history = bench.queues.queue(bench.dataset).history
        path: Callable[[Multihash], Path] = history._slice_path

        def counted(name: Multihash) -> Path:
            read.append(name)
            return path(name)

        history._slice_path = counted

    restart()
    for number in range(6):
        push(bench, a_table(a=list(range(number + 1))))
    assert read == []
    restart()
    push(bench, a_table(a=list(range(7))))
    assert len(read) == 1
    restart()
    read.clear()
    shutil.rmtree(bench.blobs.index_folder(bench.dataset))
    push(bench, a_table(a=list(range(8))))
    assert len(read) == len(set(read)) == 7
    push(bench, a_table(a=list(range(9))))
    assert len(read) == 7


@pytest.mark.parametrize("strategy", [MergeStrategyLedger, MergeStrategyUpsertStream, MergeStrategySnapshot])
def test_slices_are_the_same_bytes_with_an_index_kept_lost_or_none(
    make_bench: Any, strategy: Callable[..., MergeStrategy], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"CHUNK": 7, "STEP": 11, "MAX_BLOCK_ROWS": 3}.items():
        monkeypatch.setattr(run_file, name, value)
    monkeypatch.setattr(run_store, "IN_MEMORY", 20)
    monkeypatch.setattr(run_store, "FAN", 3)
    benches = [make_bench(strategy(primary_key=("a", "b")), ReadStepNdJson()) for _ in range(4)]
    plain, kept, lossy, restarted = benches
    monkeypatch.setattr(plain.queues, "_history", lambda _: history_in_memory(plain))
    source = random.Random(7)
    for number in range(40):
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


def history_in_memory(bench: Any) -> DatasetHistory:
    return DatasetHistory(
        block_reader(bench.blobs, bench.dataset),
        lambda name: bench.blobs.local_path(bench.dataset, ObjectKind.DATA, name),
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
        queues=CommitQueues(bench.blobs, bench.states, bench.queues._committer, Pools.shared(bench.pool)),
    )
    push(bench, a_table(a=[1]))
    before = bench.state.head
    push(bench, a_table(a=[2]))
    bench.refs.compare_and_set(bench.dataset, expected=bench.state.head, new=before)
    push(other, a_table(a=[3]))
    push(bench, a_table(a=[2, 3]))
    assert [row["a"] for row in bench.rows()] == [1, 3, 2]
