"""NEXMark's queries, warm: our engine, one request per block, and Structured Streaming, one micro-batch per block.

Both run the same SQL in the same JVM over the same files, and write Parquet files and their own checkpoint. Spark's
stream is the file source with `availableNow`, one file per micro-batch, and its own watermark: the greatest event time
seen, less the disorder of the stream. Queries that it refuses have no peer.
"""

import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Final

from odf_testing.engine import Chain, Derivative
from odf_testing.engine_manifests import derive, snapshots
from odf_testing.engine_nexmark import nexmark
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from rows import Row, Target, held_against

from odf_common.metadata.steps import TransformSql
from odf_engine_spark.plan.prepared import steps_of
from odf_engine_spark.spark.session import start
from odf_engine_spark.transform.transform import Transforms

EXAMPLE: Final = Path(__file__).parents[1] / "examples" / "nexmark"
QUERIES: Final = ("q0", "q1", "q2", "q3", "q5", "q7", "q8", "q11", "q17", "q18", "q19")
EVENTS: Final = 40_000
BLOCKS: Final = 8
WARM_UP: Final = 2  # blocks with records, before any query is measured
JITTER: Final = 500  # ms
PEER: Final = "Structured Streaming"
TARGET: Final = Target(judged="ratio", sense="≥", bound=1)


def run() -> list[Row]:
    """Return a row per query: records of its inputs per second."""
    spark = start("local[2]")
    try:
        transforms, known = Transforms(spark, is_signed=False), snapshots(EXAMPLE)
        blocks = nexmark(EVENTS, seed=1, blocks=BLOCKS, jitter=JITTER).blocks
        few = {name: [*each[:WARM_UP], each[-1]] for name, each in blocks.items()}
        with tempfile.TemporaryDirectory(prefix="nexmark-") as folder:
            for query in QUERIES:
                place = Path(folder) / "warm-up" / query
                _measured(spark.session, derive(transforms, known, f"nexmark.{query}", few, place), query)
            return [
                _measured(
                    spark.session,
                    derive(transforms, known, f"nexmark.{query}", blocks, Path(folder) / query),
                    query,
                )
                for query in QUERIES
            ]
    finally:
        spark.session.stop()


def _measured(session: SparkSession, derivative: Derivative, query: str) -> Row:
    ours, theirs = _requests(derivative), _stream(session.newSession(), derivative)
    assert sum(len(table) for table in derivative.tables)
    records = sum(chain.next_offset for chain in derivative.chains)
    case = f"{query}, {records:,} records, {len(derivative.tables)} requests"
    if theirs is None:
        return Row(case=case, value=records / ours, unit="records/s", peer=f"{PEER}: refused")
    return held_against(case, records / ours, "records/s", peer=(PEER, records / theirs), target=TARGET)


def _requests(derivative: Derivative) -> float:
    """Return the seconds for processing one block after the other."""
    begun = time.perf_counter()
    for until in range(1, len(derivative.chains[0].blocks) + 1):
        derivative.pull(*(until for _ in derivative.chains))
    return time.perf_counter() - begun


def _stream(session: SparkSession, derivative: Derivative) -> float | None:
    """Return the seconds of a stream over the same files; None if Spark refuses the query."""
    folder = derivative.folder
    for chain in derivative.chains:
        _source(session, chain, folder / "in" / chain.name).createOrReplaceTempView(chain.name)
    assert isinstance(derivative.transform, TransformSql)
    *named, last = steps_of(derivative.transform)
    try:
        for step in named:
            session.sql(step.query).createOrReplaceTempView(str(step.alias))
        begun = time.perf_counter()
        writer = session.sql(last.query).writeStream.format("parquet").trigger(availableNow=True)
        where = {"path": str(folder / "out"), "checkpointLocation": str(folder / "state")}
        writer.options(**where).start().awaitTermination()
    except AnalysisException:
        return None
    return time.perf_counter() - begun


def _source(session: SparkSession, chain: Chain, folder: Path) -> DataFrame:
    """Return a stream of a chain's slices, which are copied to a folder in their order."""
    folder.mkdir(parents=True)
    for number, (_, file, *_) in enumerate(chain.blocks):
        if file is not None:
            copied = Path(shutil.copy(file, folder / f"{number:04}.parquet"))
            # The source reads files in the order of their modification times.
            os.utime(copied, (1_000_000 + number, 1_000_000 + number))
    schema = session.read.parquet(str(folder)).schema
    frame = session.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(folder))
    return frame.withWatermark(chain.vocab.event_time_column, f"{JITTER} milliseconds")
