"""Any batches of any sources, with restarts, resets and lost indexes: the dataset equals a plain model."""

import shutil
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
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
from odf_testing.table_batch import TableBatch

from odf_common.data.columns import as_stored, normalize_timestamps
from odf_common.data.slices import read_slice
from odf_common.hashing.multihash import Multihash
from odf_common.metadata.events import (
    AddData,
    AddPushSource,
    MergeStrategy,
    MergeStrategyAppend,
    MergeStrategyChangelogStream,
    MergeStrategyLedger,
    MergeStrategySnapshot,
    MergeStrategyUpsertStream,
    ReadStepNdJson,
)
from odf_common.metadata.scalars import Strings
from odf_common.ports.store import ObjectKind
from odf_ingest.source_settings import Retractions, SourceSettings, save_settings

APPEND, RETRACT, FROM, TO = range(4)
START = datetime(2020, 1, 1, tzinfo=UTC)
NAN = float("nan")
OTHER_NAN: float = struct.unpack("<d", struct.pack("<Q", 0xFFF8_0000_0000_0007))[0]
Row = Mapping[str, Any]

# Key columns: types as a reader may infer them, and few distinct values, so that keys repeat.
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
class Model:
    """The expected content of a dataset: operations and rows in the order of their offsets within a key."""

    log: list[tuple[int, Row]] = field(default_factory=list)

    def take(self, source: "Source", rows: Sequence[Row], ops: Sequence[int]) -> None:
        match source.strategy:
            case MergeStrategyAppend():
                self._append(rows)
            case MergeStrategyLedger(primary_key=key):
                self._append(self._unseen(key, rows))
            case MergeStrategyChangelogStream(primary_key=key):
                self._follow(key, rows, ops, completes=source.completes)
            case MergeStrategyUpsertStream(primary_key=key):
                states = [(op, row) for op, row in zip(ops, rows, strict=True) if op != FROM]
                last = {key_of(row, key): (op, row) for op, row in states}
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

    def _follow(self, key: Strings, rows: Sequence[Row], ops: Sequence[int], *, completes: bool) -> None:
        """Take the changes that fit the record of their key; both halves of a correction, or neither."""
        known = self.current(key)
        changes = zip(ops, rows, strict=True)
        for op, row in changes:
            new = next(changes)[1] if op == FROM else row
            old = known.get(key_of(row, key))
            is_same = old is not None and (completes or content(old) == content(row))
            if old is not None if op == APPEND else not is_same:
                continue
            if op != APPEND:
                assert old is not None
                self.log.append((op, old))
                del known[key_of(row, key)]
            if op != RETRACT:
                self.log.append((TO if op == FROM else APPEND, new))
                known[key_of(row, key)] = new

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
    completes: bool = False  # the -R and -C of a changelog


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
    return Source(
        name=name,
        strategy=strategy,
        key=key,
        columns=(*columns, "event_time"),
        has_ops=has_ops,
        completes=draw(st.booleans()),
    )


@st.composite
def batches(
    draw: st.DrawFn, source: Source, types: Mapping[str, str], known: Mapping[object, Row]
) -> tuple[pa.Table | None, list[int]]:
    """Return records and their operations, if the source has any; `known` are the dataset's current records."""
    rows = draw(
        st.lists(st.fixed_dictionaries({name: cells(name, types) for name in source.columns}), max_size=8)
    )
    is_upsert = isinstance(source.strategy, MergeStrategyUpsertStream)
    kinds = [APPEND, RETRACT, FROM, TO] if is_upsert else [APPEND, RETRACT]
    ops = [draw(st.sampled_from(kinds)) if source.has_ops else APPEND for _ in rows]
    if isinstance(source.strategy, MergeStrategySnapshot):
        rows = list({key_of(row, source.key): row for row in rows}.values())
        ops = [APPEND] * len(rows)
    if isinstance(source.strategy, MergeStrategyChangelogStream):
        # Some of the rows are corrections: both halves, one directly after the other.
        is_correction = [draw(st.booleans()) for _ in rows]
        rows = [row for row, twice in zip(rows, is_correction, strict=True) for _ in range(1 + twice)]
        pairs = zip(ops, is_correction, strict=True)
        ops = [one for op, twice in pairs for one in ([FROM, TO] if twice else [op])]
        # Most take back the record that the dataset has.
        rows = [
            dict(known.get(key_of(row, source.key), row))
            if op in (RETRACT, FROM) and draw(st.integers(0, 3))
            else row
            for op, row in zip(ops, rows, strict=True)
        ]
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
def test_a_dataset_equals_the_model(make_bench: Any, data: st.DataObject) -> None:
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
    for source in known:
        retractions = Retractions.COMPLETE if source.completes else Retractions.STRICT
        chosen = SourceSettings(max_retracted_share=1.0, retractions=retractions)
        save_settings(bench.blobs, bench.dataset, source.name, chosen)
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
                last = source, *data.draw(batches(source, types, model.current(source.key)), label="batch")
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
        model.take(source, [] if records is None else rows_of(records), ops)
    outcome = bench.queues.commit(bench.dataset, TableBatch(source.name, batch))
    added = stored_log(bench)[before:]
    assert outcome.count == len(added)
    assert by_key(added, source.key) == by_key(model.log[before:], source.key)
    # Keys are ordered by value, which the model does not define.
    model.log[before:] = added
