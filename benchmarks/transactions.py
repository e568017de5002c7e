"""Transactions of 1,000 records, one after the other, through a row-wise and a windowed derivative, each committed.

The time is measured from the request of the transform until its block is committed: the plan, the engine over gRPC,
what it wrote read back and hashed, four files fsynced. Each fifth is compared with the same query by Spark alone over
the same records, `sql(…).toArrow()` in the same warm JVM over a table in memory, and with fsyncs of as many files of
the same sizes. The root's own commits are not timed. Each transaction closes a window. Spark alone exchanges records by
key before it aggregates them; the engine declares that they are in one partition, so a ratio may be below 1.

A first call goes to another engine that has just started, in a separate process: the derivative was added while this
one ran, so that its query is new to the other.
"""

import logging
import multiprocessing
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import structlog
from chained import HOUR, RECORDS, Coordinator, Pair, add, departures, found
from durable import durable
from rows import Row, Target, held_against

from odf_common.adapters.grpc.engine_client import EngineClient
from odf_common.adapters.grpc.server import serve
from odf_engine_spark.plan.prepared import quote_name
from odf_engine_spark.server.grpc_servicer import register
from odf_engine_spark.spark.jvm import Spark
from odf_engine_spark.spark.session import start
from odf_engine_spark.values.spark_types import spark_schema_of
from odf_engine_spark.values.spark_values import in_spark

TRANSACTIONS: Final = 200  # is in the name of each row; `transactions_long` has 1,000
YOUNG: Final = 100  # transactions of the chain with which the long one is compared
TURNS: Final = 100  # transactions of both, interleaved
WARM: Final = 20
PEERED: Final = 5  # for each fifth transaction its peers are measured
IDLE: Final = 60.0  # seconds
ROW_WISE: Final = (
    "SELECT time_hour AS event_time, carrier, flight, origin, dest, dep_delay FROM flights "
    "WHERE dep_delay >= 60"
)
WINDOWED: Final = (
    "SELECT window.start AS event_time, carrier, count(*) AS departures, sum(dep_delay) AS delay FROM flights "
    "GROUP BY window(time_hour, '1 hour'), carrier"
)
QUERIES: Final = {"row-wise": ROW_WISE, "windowed": WINDOWED}
STRETCH: Final = {"row-wise": 150, "windowed": 400}  # ms
WANTED: Final = Target(judged="ratio", sense="≤", bound=2)
FLAT: Final = Target(judged="ratio", sense="≤", bound=1.2)
SIZES: Final = {"data": 12_000, "checkpoints": 20_000, "blocks": 600, "refs": 76}  # bytes
PEER: Final = "Spark alone + 4 files fsynced"


@dataclass(slots=True, kw_only=True)
class Times:
    """Seconds of each transaction: ours, Spark alone, and the disk's share."""

    ours: list[float] = field(default_factory=list)
    alone: list[float] = field(default_factory=list)
    disk: list[float] = field(default_factory=list)


def run() -> list[Row]:
    """Return rows for both kinds of query: transactions, length of history, idle, and first calls."""
    return measured(TRANSACTIONS, IDLE)


def measured(transactions: int, idle: float) -> list[Row]:
    """Return the rows for that many transactions and idle seconds."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="transactions-") as folder, engine() as (spark, client):
        home = Path(folder)
        coordinator = Coordinator(home / "node", client)
        pairs = {}
        for kind, query in QUERIES.items():
            pairs[kind] = add(coordinator, kind, query)
            times = through(pairs[kind], spark, home / kind, transactions)
            rows += _of_transactions(kind, times)
        for kind, query in QUERIES.items():
            rows.append(_of_history(kind, pairs[kind], add(coordinator, f"{kind}.young", query)))
        rows += _of_idleness(pairs, idle)
        rows += [_of_first(kind, coordinator, home / "node", pairs[kind]) for kind in QUERIES]
    return rows


@contextmanager
def engine() -> Iterator[tuple[Spark, EngineClient]]:
    """Start a new engine, and return a client of it."""
    spark = start("local[2]")
    server = serve("127.0.0.1:0", register(spark, is_signed=False))
    client = EngineClient(f"127.0.0.1:{server.port}")
    try:
        yield spark, client
    finally:
        client.close()
        server.stop(0)
        spark.session.stop()


def through(pair: Pair, spark: Spark, folder: Path, count: int) -> Times:
    """Run transactions, interleaved with their peers."""
    folder.mkdir()
    session, times = spark.new_session(), Times()
    query = QUERIES[folder.name]
    for at in range(-WARM, count):
        pair.push()
        ours, records = pair.transform()
        if at >= 0:
            times.ours.append(ours)
        if at % PEERED:
            continue
        alone, count_alone = _alone(session, query, _records(folder.name, pair.blocks - 1))
        assert count_alone == records, "both run over the same records"
        disk = durable(folder, SIZES)
        if at >= 0:
            times.alone.append(alone)
            times.disk.append(disk)
    return times


def _records(kind: str, block: int) -> pa.Table:
    """Return what a query reads after a block: its records, or those of the window it closes."""
    if kind == "row-wise":
        return departures(block)
    records = pa.concat_tables([departures(number) for number in range(max(block - 1, 0), block + 1)])
    moments = records.column("time_hour").cast(pa.int64())
    return records.filter(pc.equal(pc.divide(moments, HOUR), block))


def _alone(spark: Spark, query: str, records: pa.Table) -> tuple[float, int]:
    in_rows = in_spark(records, spark_schema_of(records.schema)).combine_chunks()
    spark.frame(spark.relation(in_rows)).createOrReplaceTempView(quote_name("flights"))
    begun = time.perf_counter()
    result = spark.session.sql(query).toArrow()
    return time.perf_counter() - begun, len(result)


def _of_transactions(kind: str, times: Times) -> list[Row]:
    count = len(times.ours)
    case = f"{kind}: transaction of {RECORDS:,}, p{{}} of {count:,}"
    limits = [alone + disk for alone, disk in zip(times.alone, times.disk, strict=True)]
    detail = {"spark alone": _ms(times.alone, 50), "fsyncs": _ms(times.disk, 50)}
    half = _ms(times.ours, 50)
    stretch = Target(judged="value", sense="≤", bound=STRETCH[kind])
    return [
        held_against(case.format(50), half, "ms", peer=(PEER, _ms(limits, 50)), target=WANTED, detail=detail),
        held_against(case.format(99), _ms(times.ours, 99), "ms", peer=(PEER, _ms(limits, 99))),
        Row(case=f"{kind}: the same p50, against the clock", value=half, unit="ms", target=stretch),
    ]


def _of_history(kind: str, old: Pair, young: Pair) -> Row:
    """Compare a long chain with a short one, interleaved, so that noise affects both equally."""
    for _ in range(YOUNG):
        _next(young)
    before = old.blocks
    both = [(_next(old), _next(young)) for _ in range(TURNS)]
    ours, against = (_ms([pair[at] for pair in both], 50) for at in (0, 1))
    case = f"{kind}: after {before:,} transactions, p50"
    return held_against(case, ours, "ms", peer=(f"after {YOUNG}", against), target=FLAT)


def _of_idleness(pairs: dict[str, Pair], idle: float) -> list[Row]:
    """Let the engine rest before the next call of each kind."""
    rows = []
    for kind, pair in pairs.items():
        warm = _warm(pair)
        pair.push()
        time.sleep(idle)
        seconds, _ = pair.transform()
        case = f"{kind}: first call after {idle:g} idle s"
        rows.append(held_against(case, 1000 * seconds, "ms", peer=("warm", warm)))
    return rows


def _of_first(kind: str, coordinator: Coordinator, home: Path, known: Pair) -> Row:
    name = f"{kind}.first"
    add(coordinator, name, QUERIES[kind]).push()
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn) as pool:
        seconds = pool.submit(_first_call, home, name).result()
    case = f"{kind}: first call of an engine that has just started"
    return held_against(case, 1000 * seconds, "ms", peer=("warm", _warm(known)))


def _warm(pair: Pair) -> float:
    return _ms([_next(pair) for _ in range(WARM)], 50)


def _next(pair: Pair) -> float:
    pair.push()
    return pair.transform()[0]


def _first_call(home: Path, name: str) -> float:
    """Return the seconds of a derivative's transform by a new engine."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    with engine() as (_, client):
        pair = found(Coordinator(home, client), name)
        return pair.transform()[0]


def _ms(seconds: Sequence[float], percent: int) -> float:
    return 1000 * float(np.percentile(seconds, percent))
