"""NEXMark's queries, one batch after the other: our transactions, and Structured Streaming's micro-batches.

Both run the same SQL over the same files, warm. Ours is a whole transaction without the broker: the plan, the engine
over gRPC, its result hashed, data, checkpoint, block and head fsynced. The peer's is planning, the query, files, state
and its logs. It syncs none of them by itself: the benchmark fsyncs what each batch wrote before the next one begins,
and counts that. The start of a stream is not counted, nor is the first batch of either. The peer may choose: it runs
with one and with two partitions of state, with the engine's JIT and with Java's default one, with state in memory and
in RocksDB; the fastest of these eight is measured, several times, and so is ours; they take turns to begin.

In the end both must have the same records: all of them for q0 and q3, those of the windows that both have closed for
q5 and q7. The batches' sizes are in events of the stream, of which 92 % are bids.
"""

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from statistics import fmean, median
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from chained import Coordinator
from nexmark_peer import EVENT_TIME, JITS, PROVIDERS, Peer, Work, written
from odf_testing.engine_manifests import root_schema, snapshots, transform_of
from odf_testing.engine_nexmark import START, nexmark
from rows import Row, Target, held_against
from transactions import engine

from odf_common.adapters.grpc.engine_client import EngineClient
from odf_common.metadata.events import TransformSql
from odf_common.metadata.scalars import Timestamp
from odf_common.ports.store import ObjectKind
from odf_coordinator.definitions.drafts import Manifest

EXAMPLE: Final = Path(__file__).parents[1] / "examples" / "nexmark"
KNOWN: Final = snapshots(EXAMPLE)
INPUTS: Final = ("persons", "auctions", "bids")
QUERIES: Final = ("q0", "q3", "q5", "q7")
WINDOW: Final = 10_000  # ms, of q5 and q7
BATCHES: Final[Mapping[int, int]] = {1_000: 6, 10_000: 5, 100_000: 4}  # number by size in events
REPEATS: Final = 5
WARM: Final = 3  # batches of the smallest size, before any is measured
WARM_EVENTS: Final = 10_000  # of a batch while both warm up, at most
PARTITIONS: Final = (1, 2)
JITTER: Final = 500  # ms
GAP: Final = 20  # ms between two events
PEER: Final = "Structured Streaming, its files fsynced"
TARGET: Final = Target(judged="ratio", sense="≤", bound=1)

STATELESS: Final = "q0"  # which keeps no state, so that its place does not matter


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """How a peer runs."""

    jit: str
    partitions: int
    store: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Batches:
    """The stream in batches: records of each input, and the watermark after it."""

    records: Sequence[Mapping[str, pa.Table]]
    watermarks: Sequence[int]


@dataclass(slots=True, kw_only=True)
class Ours:
    """Our run of all queries: seconds per batch and records by query; the files of the inputs' slices."""

    seconds: dict[str, list[float]] = field(default_factory=lambda: {query: [] for query in QUERIES})
    results: dict[str, pa.Table] = field(default_factory=dict)
    files: dict[str, list[Path]] = field(default_factory=lambda: {name: [] for name in INPUTS})


def run() -> list[Row]:
    """Return a row per size and query: ms per batch."""
    return measured(BATCHES)


def measured(batches: Mapping[int, int], *, repeats: int = REPEATS) -> list[Row]:
    """Return the rows for that many batches of each size, the median of that number of repeats."""
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="nexmark-")))
        _, client = stack.enter_context(engine())
        peers = {jit: stack.enter_context(Peer(jit)) for jit in JITS}
        _Size(home / "warm", client, peers, _batches(min(*batches, WARM_EVENTS), WARM)).choose()
        rows: list[Row] = []
        for size, count in batches.items():
            rows += _Size(home / f"{size}", client, peers, _batches(size, count)).rows(size, repeats)
        return rows


class _Size:
    """The measurements with one size of batches."""

    def __init__(self, home: Path, client: EngineClient, peers: Mapping[str, Peer], batches: Batches) -> None:
        """Measure nothing yet."""
        self._home, self._client, self._peers, self._batches = home, client, peers, batches
        self._runs = 0

    def rows(self, size: int, repeats: int) -> list[Row]:
        """Return a row per query."""
        first, choices = self.choose()
        ours: dict[str, list[float]] = {query: [] for query in QUERIES}
        theirs: dict[str, list[float]] = {query: [] for query in QUERIES}

        def run_ours() -> None:
            mine = self._ours()
            for query in QUERIES:
                ours[query].append(_ms(mine.seconds[query]))

        def run_theirs() -> None:
            for query in QUERIES:
                theirs[query].append(_ms(self._theirs(query, first.files, choices[query])))

        for number in range(repeats):
            for run_one in (run_ours, run_theirs) if number % 2 == 0 else (run_theirs, run_ours):
                run_one()
        batches = len(self._batches.records) - 1  # of which the mean is taken
        return [
            _row(size, query, ours[query], theirs[query], choice=choices[query], batches=batches)
            for query in QUERIES
        ]

    def choose(self) -> tuple[Ours, dict[str, Choice]]:
        """Run everything once; return our run, and how the peer is fastest. Asserts that the results are equal."""
        ours = self._ours()
        choices: dict[str, Choice] = {}
        for query in QUERIES:
            times: dict[Choice, float] = {}
            for choice in _choices(query):
                times[choice] = _ms(self._theirs(query, ours.files, choice, ours.results[query]))
            choices[query] = min(times, key=times.__getitem__)
        return ours, choices

    def _ours(self) -> Ours:
        """Commit the batches to new roots; after each, transform every derivative."""
        self._runs += 1
        coordinator = Coordinator(self._home / f"node-{self._runs}", self._client)
        names = (*INPUTS, *QUERIES)
        manifests = [Manifest(name=name, text=(EXAMPLE / f"{name}.yaml").read_bytes()) for name in names]
        coordinator.creator.add(manifests, is_replacing=False)
        find = coordinator.datasets.find
        roots = {name: find(name).id for name in INPUTS}
        derived = {query: find(f"nexmark.{query}").id for query in QUERIES}
        done = Ours()
        for records, watermark in zip(self._batches.records, self._batches.watermarks, strict=True):
            for name, root in roots.items():
                file = coordinator.append(root, records[name], Timestamp.from_ms(watermark))
                done.files[name].append(file)
            for query, derivative in derived.items():
                done.seconds[query].append(coordinator.transform(derivative)[0])
        for query, derivative in derived.items():
            slices = coordinator.blobs.names(derivative, ObjectKind.DATA)
            files = [coordinator.blobs.local_path(derivative, ObjectKind.DATA, slice_) for slice_ in slices]
            done.results[query] = pa.concat_tables([pq.read_table(file) for file in files])
        return done

    def _theirs(
        self,
        query: str,
        files: Mapping[str, Sequence[Path]],
        choice: Choice,
        expected: pa.Table | None = None,
    ) -> list[float]:
        """Run a stream; return seconds by batch. Its records must be the expected ones, if there are any."""
        transform = transform_of(KNOWN[f"nexmark.{query}"])
        assert isinstance(transform.transform, TransformSql)
        with tempfile.TemporaryDirectory(prefix="stream-", dir=self._home) as folder:
            work = Work(
                transform=transform.transform,
                files={input_.dataset_ref: files[input_.dataset_ref] for input_ in transform.inputs},
                disorder=JITTER,
                partitions=choice.partitions,
                store=choice.store,
                folder=Path(folder),
            )
            seconds = self._peers[choice.jit].seconds(work)
            if expected is not None:
                _require_equal(query, expected, written(work), self._batches.watermarks[-1])
        return seconds


def _choices(query: str) -> list[Choice]:
    stores = list(PROVIDERS)[:1] if query == STATELESS else PROVIDERS
    return [
        Choice(jit=jit, partitions=partitions, store=store)
        for jit, partitions, store in product(JITS, PARTITIONS, stores)
    ]


def _batches(size: int, count: int) -> Batches:
    stream = nexmark(size * count, seed=1, blocks=count, gap=GAP, jitter=JITTER).blocks
    batches = [{name: _table(name, stream[name][number].rows) for name in INPUTS} for number in range(count)]
    return Batches(records=batches, watermarks=[START + size * (number + 1) * GAP for number in range(count)])


def _table(name: str, rows: Sequence[tuple[object, ...]]) -> pa.Table:
    """Return an input's records without system columns, of which rows have the operation type."""
    schema = root_schema(KNOWN[name])
    fields = [field for field in schema if field.name not in ("offset", "op", "system_time")]
    columns = list(zip(*rows, strict=True))[1:]
    plain = (pa.int64() if pa.types.is_timestamp(field.type) else field.type for field in fields)
    arrays = [
        pa.array(values, kind).cast(field.type)
        for field, kind, values in zip(fields, plain, columns, strict=True)
    ]
    return pa.table(arrays, schema=pa.schema(fields))


def _require_equal(query: str, ours: pa.Table, theirs: pa.Table, reached: int) -> None:
    """Raise AssertionError unless both have the same records, in any order, of windows that both have closed."""
    names = theirs.column_names
    mine, its = _plain(ours, names), _plain(theirs, names)
    assert len(its), f"{query} gives records"
    if query in ("q5", "q7"):
        closed = min(pc.max(_window_end(query, table)).as_py() for table in (mine, its))
        assert closed - START >= (reached - START) // 2, f"{query}: both closed half the windows"
        mine, its = (table.filter(pc.less_equal(_window_end(query, table), closed)) for table in (mine, its))
    order = [(name, "ascending") for name in names]
    assert mine.sort_by(order).equals(its.sort_by(order)), f"{query}: {len(mine)} and {len(its)} records"


def _window_end(query: str, table: pa.Table) -> pa.ChunkedArray:
    """Return the end of each record's window: q5's event time, and the end of the one that has q7's."""
    times = table.column(EVENT_TIME)
    if query == "q5":
        return times
    return pc.multiply(pc.add(pc.divide(times, WINDOW), 1), WINDOW)


def _plain(table: pa.Table, names: Sequence[str]) -> pa.Table:
    columns = []
    for name in names:
        column = table.column(name)
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.timestamp("ms", "UTC")).cast(pa.int64())
        columns.append(column.combine_chunks())
    return pa.table(dict(zip(names, columns, strict=True)))


def _row(
    size: int, query: str, ours: list[float], theirs: list[float], *, choice: Choice, batches: int
) -> Row:
    chosen = f"{choice.jit}, partitions: {choice.partitions}"
    if query != STATELESS:
        chosen += f", {choice.store}"
    return held_against(
        f"{query}, {size:,} events a batch, median of {len(ours)} runs of {batches}",
        median(ours),
        "ms/batch",
        peer=(f"{PEER}, {chosen}", median(theirs)),
        target=TARGET,
        detail={
            "lowest": round(min(ours), 1),
            "highest": round(max(ours), 1),
            "its lowest": round(min(theirs), 1),
            "its highest": round(max(theirs), 1),
        },
    )


def _ms(seconds: Sequence[float]) -> float:
    """Return the mean of all batches but the first, in ms."""
    return 1000 * fmean(seconds[1:])
