"""The engine, warm: a request over gRPC compared with the same query by Spark alone, in the same process.

Spark alone is `sql(…).toArrow()` over a table in memory: no files read or written, no offsets, no order,
no checkpoint.
"""

import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Final

from odf_testing.engine import (
    FLIGHTS,
    HOUR,
    HOURLY,
    LATE,
    VOCAB,
    WEATHER,
    Block,
    Chain,
    Derivative,
    flight,
    reading,
    sql,
)
from rows import Row, Target, held_against

from odf_common.adapters.grpc.engine_client import EngineClient
from odf_common.adapters.grpc.server import serve
from odf_common.metadata.engine_messages import TransformRequest, TransformResponseSuccess
from odf_common.metadata.events import TransformSql
from odf_engine_spark.plan.prepared import quote_name
from odf_engine_spark.server.grpc_servicer import register
from odf_engine_spark.spark.jvm import Spark
from odf_engine_spark.spark.session import start
from odf_engine_spark.transform.inputs import read_input

ROUNDS: Final = 25
WARM_UP: Final = 8
FEW: Final = 5  # rounds of slow cases
ROW_WISE: Final = Target(judged="ratio", sense="≤", bound=2)
WINDOWED: Final = Target(judged="value", sense="≤", bound=800)


class Wire:
    """Sends requests through a client."""

    def __init__(self, client: EngineClient) -> None:
        """Use this client."""
        self._client = client

    def execute(self, request: TransformRequest) -> TransformResponseSuccess:
        """Execute one step of a transform."""
        return self._client.execute_transform(request)


def run() -> list[Row]:
    """Return a row per kind of query."""
    spark = start("local[2]")
    server = serve("127.0.0.1:0", register(spark, is_signed=False))
    client = EngineClient(f"127.0.0.1:{server.port}")
    try:
        with tempfile.TemporaryDirectory(prefix="engine-") as folder:
            return _measured(spark, Wire(client), Path(folder))
    finally:
        client.close()
        server.stop(0)
        spark.session.stop()


def _measured(spark: Spark, wire: Wire, folder: Path) -> list[Row]:
    rows = []
    for count, target, rounds in ((1_000, ROW_WISE, ROUNDS), (100_000, None, FEW)):
        late = _derivative(wire, sql(LATE), folder / str(count), count)
        ours, alone = _in_turn(partial(_again, late), _alone(spark, late, [LATE]), rounds=rounds)
        case = f"row-wise query, {count:,} records"
        rows.append(held_against(case, ours, "ms", peer=("Spark alone", alone), target=target))
    hourly = _derivative(wire, sql(*HOURLY), folder / "hourly", 1_000)
    ours, alone = _in_turn(partial(_again, hourly), _alone(spark, hourly, [step[1] for step in HOURLY]))
    case = "windows and a join, 1,000 + 100 records"
    rows.append(held_against(case, ours, "ms", peer=("Spark alone", alone), target=WINDOWED))
    return rows


def _derivative(wire: Wire, transform: TransformSql, folder: Path, count: int) -> Derivative:
    folder.mkdir()
    flights = Chain(name="flights", schema=FLIGHTS, vocab=VOCAB, folder=folder)
    flights.add(
        Block(rows=[flight(n * 1000, float(n % 120), number=n) for n in range(count)], watermark=HOUR * 999)
    )
    chains = [flights]
    if len(transform.queries or ()) > 1:
        weather = Chain(name="weather", schema=WEATHER, vocab=VOCAB, folder=folder)
        weather.add(Block(rows=[reading(n * 10_000, float(n)) for n in range(100)], watermark=HOUR * 999))
        chains.append(weather)
    return Derivative(transforms=wire, transform=transform, chains=chains, folder=folder)


def _again(derivative: Derivative) -> None:
    """Repeat the first step."""
    derivative.checkpoint, derivative.done, derivative.next_offset = None, [], 0
    derivative.pull()


def _alone(spark: Spark, derivative: Derivative, queries: list[str]) -> Callable[[], None]:
    """Return the same query by Spark alone: its steps are views."""
    session = spark.new_session()
    for chain in derivative.chains:
        records = read_input(chain.part(0, len(chain.blocks))).records
        session.frame(session.relation(records)).createOrReplaceTempView(quote_name(chain.name))
    *steps, last = queries
    for name, step in zip("fw", steps, strict=False):
        session.session.sql(step).createOrReplaceTempView(name)

    def ask() -> None:
        session.session.sql(last).toArrow()

    return ask


def _in_turn(*works: Callable[[], None], rounds: int = ROUNDS) -> list[float]:
    """Return the median time of each, ms; interleaved, so that noise affects all equally."""
    times: list[list[float]] = [[] for _ in works]
    warm_up = min(WARM_UP, rounds)
    for turn in range(warm_up + rounds):
        for at, work in enumerate(works):
            begun = time.perf_counter()
            work()
            if turn >= warm_up:
                times[at].append(1000 * (time.perf_counter() - begun))
    return [median(seconds) for seconds in times]
