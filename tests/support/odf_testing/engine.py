"""Inputs and outputs as plain rows, for tests and benchmarks of the engine."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from odf_common.identity.dataset_refs import DatasetId
from odf_common.metadata.engine_messages import (
    TransformRequest,
    TransformRequestInput,
    TransformResponseSuccess,
    Watermark,
)
from odf_common.metadata.events import DatasetVocabulary, OffsetInterval, SqlQueryStep, TransformSql
from odf_common.metadata.scalars import Timestamp

A, R, FROM, TO = 0, 1, 2, 3  # append, retract, correct from, correct to (RFC-015)
MINUTE = 60_000
HOUR = 60 * MINUTE
FLIGHTS = pa.schema(
    [
        pa.field("offset", pa.uint64(), nullable=False),
        pa.field("op", pa.uint8(), nullable=False),
        pa.field("system_time", pa.timestamp("ms", "UTC"), nullable=False),
        pa.field("time_hour", pa.timestamp("ms", "UTC"), nullable=False),
        pa.field("carrier", pa.string()),
        pa.field("flight", pa.int32()),
        pa.field("origin", pa.string()),
        pa.field("dest", pa.string()),
        pa.field("dep_delay", pa.float64()),
    ]
)
WEATHER = pa.schema([*list(FLIGHTS)[:4], pa.field("origin", pa.string()), pa.field("temp", pa.float64())])
VOCAB = DatasetVocabulary(event_time_column="time_hour")
LATE = "SELECT time_hour AS event_time, carrier, flight, origin, dest, dep_delay FROM flights WHERE dep_delay >= 60"
COUNTS = (
    "SELECT window.start AS event_time, origin, count(*) AS n, sum(dep_delay) AS delay FROM flights "
    "GROUP BY window(time_hour, '1 hour'), origin"
)
HOURLY = (
    (
        "f",
        (
            "SELECT window, origin, count(*) AS departures, sum(dep_delay) AS delay FROM flights "
            "GROUP BY window(time_hour, '1 hour'), origin"
        ),
    ),
    (
        "w",
        "SELECT window, origin, max(temp) AS temp FROM weather GROUP BY window(time_hour, '1 hour'), origin",
    ),
    (
        None,
        (
            "SELECT f.window.start AS event_time, f.origin, departures, delay, temp FROM f LEFT JOIN w "
            "ON f.origin = w.origin AND f.window = w.window"
        ),
    ),
)


@dataclass(frozen=True, kw_only=True)
class Block:
    """A block of an input: rows of (op, event time in ms, *data), and the watermark it sets."""

    rows: Sequence[tuple[object, ...]] = ()
    watermark: int | None = None


@dataclass(kw_only=True)
class Chain:
    """An input's chain: a slice per block with rows."""

    name: str
    schema: pa.Schema
    vocab: DatasetVocabulary
    folder: Path
    blocks: list[tuple[int, Path | None, int, int, int | None]] = field(default_factory=list)
    next_offset: int = 0

    def add(self, block: Block) -> None:
        """Append a block; its rows are numbered continuously."""
        system_time = 1_000_000 + 1000 * len(self.blocks)
        first, file = self.next_offset, None
        if block.rows:
            file = self.folder / f"{self.name}-{len(self.blocks)}"
            columns = list(zip(*block.rows, strict=True))
            numbers = list(range(first, first + len(block.rows)))
            arrays = [numbers, columns[0], [system_time] * len(numbers), *columns[1:]]
            table = pa.Table.from_arrays(
                [
                    pa.array(a, pa.int64() if pa.types.is_timestamp(f.type) else f.type).cast(f.type)
                    for a, f in zip(arrays, self.schema, strict=True)
                ],
                schema=self.schema,
            )
            pq.write_table(table, file, store_schema=False)
            self.next_offset += len(numbers)
        self.blocks.append((system_time, file, first, self.next_offset - 1, block.watermark))

    def part(self, start: int, end: int) -> TransformRequestInput:
        """Return the part of a request about the blocks from `start` to before `end`."""
        schema_file = self.folder / f"{self.name}-schema"
        pq.write_table(self.schema.empty_table(), schema_file, store_schema=False)
        blocks = self.blocks[start:end]
        with_data = [block for block in blocks if block[1]]
        return TransformRequestInput(
            dataset_id=DatasetId.of_key(self.name.encode().ljust(32, b"-")),
            dataset_alias=self.name,
            query_alias=self.name,
            vocab=self.vocab,
            offset_interval=OffsetInterval(start=with_data[0][2], end=with_data[-1][3])
            if with_data
            else None,
            data_paths=tuple(str(block[1]) for block in with_data),
            schema_file=str(schema_file),
            explicit_watermarks=tuple(
                Watermark(system_time=Timestamp.from_ms(block[0]), event_time=Timestamp.from_ms(block[4]))
                for block in blocks
                if block[4] is not None
            ),
        )


def flight(
    at: int, delay: float | None = 0.0, op: int = 0, origin: str = "JFK", number: int = 1
) -> tuple[object, ...]:
    """Return a row of `FLIGHTS`; event time in ms."""
    return (op, at, "AA", number, origin, "LAX", delay)


def reading(at: int, temp: float, origin: str = "JFK", op: int = 0) -> tuple[object, ...]:
    """Return a row of `WEATHER`; event time in ms."""
    return (op, at, origin, temp)


def sql(*steps: tuple[str | None, str] | str) -> TransformSql:
    """Return a transform of named steps and a last one."""
    queries = [
        SqlQueryStep(query=s) if isinstance(s, str) else SqlQueryStep(alias=s[0], query=s[1]) for s in steps
    ]
    return TransformSql(engine="spark", queries=tuple(queries))


def ms(answer: TransformResponseSuccess) -> int | None:
    """Return the output's watermark in ms."""
    return None if answer.new_watermark is None else answer.new_watermark.ms


class Executes(Protocol):
    """Executes requests: the engine itself, or something in front of it."""

    def execute(self, request: TransformRequest) -> TransformResponseSuccess:
        """Execute one step of a transform."""


@dataclass(kw_only=True)
class Derivative:
    """An output dataset, updated by requests block by block of its inputs."""

    transforms: Executes
    transform: TransformSql
    chains: Sequence[Chain]
    folder: Path
    done: list[int] = field(default_factory=list)
    tables: list[pa.Table] = field(default_factory=list)
    checkpoint: Path | None = None
    watermark: Timestamp | None = None
    next_offset: int = 0

    def pull(self, *until: int) -> TransformResponseSuccess:
        """Process the inputs' blocks up to these numbers, by default all."""
        done = self.done or [0] * len(self.chains)
        new = list(until) or [len(chain.blocks) for chain in self.chains]
        step = len(list(self.folder.glob("data-*")))
        data, checkpoint = self.folder / f"data-{step}", self.folder / f"checkpoint-{step}"
        answer = self.transforms.execute(self.request(done, new, data, checkpoint))
        table = pq.read_table(data)
        assert (answer.new_offset_interval is None) == (len(table) == 0)
        self.tables.append(table)
        self.next_offset += len(table)
        self.done, self.checkpoint, self.watermark = new, checkpoint, answer.new_watermark
        return answer

    def request(
        self, done: Sequence[int], new: Sequence[int], data: Path, checkpoint: Path
    ) -> TransformRequest:
        """Return the request for the blocks from `done` to before `new` of each input."""
        return TransformRequest(
            dataset_id=DatasetId.of_key(bytes(32)),
            dataset_alias="out",
            system_time=Timestamp.from_ms(9_000_000),
            vocab=DatasetVocabulary(),
            transform=self.transform,
            query_inputs=tuple(c.part(a, b) for c, a, b in zip(self.chains, done, new, strict=True)),
            next_offset=self.next_offset,
            prev_checkpoint_path=None if self.checkpoint is None else str(self.checkpoint),
            new_checkpoint_path=str(checkpoint),
            new_data_path=str(data),
        )

    def rows(self) -> list[tuple[object, ...]]:
        """Return (op, event time in ms, *data) of all records so far."""
        table = pa.concat_tables(self.tables)
        names = [name for name in table.column_names if name not in ("offset", "system_time")]
        columns = [table.column(name) for name in names]
        plain = [c.cast(pa.int64()) if pa.types.is_timestamp(c.type) else c for c in columns]
        return list(zip(*(c.to_pylist() for c in plain), strict=True))


Make = Callable[..., Derivative]  # takes a transform and inputs, each as name=blocks
