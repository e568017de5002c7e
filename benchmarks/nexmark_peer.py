"""NEXMark's queries as Structured Streaming runs them: one micro-batch per file, its own checkpoint, Parquet files.

A peer is a process with its own JVM, which has the engine's settings but for the JIT and the heap that its state
needs. It uses the file source with `availableNow` and its own watermark: the greatest event time seen, less the
disorder of the stream.
"""

import os
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Final, Self

import pyarrow as pa
import pyarrow.parquet as pq
from memory import call_this_process
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from odf_common.metadata.steps import TransformSql
from odf_engine_spark.plan.prepared import steps_of
from odf_engine_spark.spark.session import start

JITS: Final[Mapping[str, str]] = {
    "the engine's JIT": "",
    "default JIT": "-XX:TieredStopAtLevel=4",
}
OVERRIDING: Final = "_JAVA_OPTIONS"  # the JVM reads this variable after the command line
HEAP: Final = "-Xmx6g"
PROVIDERS: Final[Mapping[str, str]] = {
    "state in memory": "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider",
    "state in RocksDB": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
}
EVENT_TIME: Final = "event_time"


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A query over files of its inputs, in the order of the micro-batches."""

    transform: TransformSql
    files: Mapping[str, Sequence[Path]]
    disorder: int
    """In ms: how much later than an event an earlier one may come."""
    partitions: int
    """Of the state: `spark.sql.shuffle.partitions`."""
    store: str
    """Of the state: a key of `PROVIDERS`."""
    folder: Path
    """Is created."""


class Peer:
    """A process that runs streams."""

    def __init__(self, jit: str) -> None:
        """Start the process."""
        self._pool = ProcessPoolExecutor(
            1, mp_context=get_context("spawn"), initializer=_begin, initargs=(jit,)
        )

    def __enter__(self) -> Self:
        """Return it."""
        return self

    def __exit__(self, *error: object) -> None:
        """End the process."""
        self._pool.shutdown()

    def seconds(self, work: Work) -> list[float]:
        """Return the seconds of each micro-batch with records, from its trigger until it is committed."""
        return self._pool.submit(_stream, work).result()


def written(work: Work) -> pa.Table:
    """Return the records that a stream wrote."""
    return pa.concat_tables([pq.read_table(file) for file in sorted((work.folder / "out").glob("*.parquet"))])


def _begin(jit: str) -> None:
    call_this_process(f"peer-{list(JITS).index(jit) + 1}")
    os.environ[OVERRIDING] = f"{JITS[jit]} {HEAP}"
    start("local[2]")


def _stream(work: Work) -> list[float]:
    running = SparkSession.getActiveSession()
    assert running is not None, "the process began with it"
    session = running.newSession()
    session.conf.set("spark.sql.shuffle.partitions", str(work.partitions))
    session.conf.set("spark.sql.streaming.stateStore.providerClass", PROVIDERS[work.store])
    for name, files in work.files.items():
        _source(session, work, files, work.folder / "in" / name).createOrReplaceTempView(name)
    *named, last = steps_of(work.transform)
    for step in named:
        session.sql(step.query).createOrReplaceTempView(str(step.alias))
    writer = session.sql(last.query).writeStream.format("parquet").trigger(availableNow=True)
    where = {"path": str(work.folder / "out"), "checkpointLocation": str(work.folder / "state")}
    query = writer.options(**where).start()
    try:
        query.awaitTermination()
    except PySparkException as error:  # which cannot be sent to another process
        raise RuntimeError(str(error)) from None
    batches = [progress for progress in query.recentProgress if progress["numInputRows"]]
    assert len(batches) == max(map(len, work.files.values())), "each file is a micro-batch"
    return [batch["durationMs"]["triggerExecution"] / 1000 for batch in batches]


def _source(session: SparkSession, work: Work, files: Sequence[Path], folder: Path) -> DataFrame:
    """Return a stream of files, which are copied to a folder in their order."""
    folder.mkdir(parents=True)
    for number, file in enumerate(files):
        copied = Path(shutil.copy(file, folder / f"{number:04}.parquet"))
        # The source reads files in the order of their modification times.
        os.utime(copied, (1_000_000 + number, 1_000_000 + number))
    schema = session.read.parquet(str(folder)).schema
    frame = session.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(folder))
    return frame.withWatermark(EVENT_TIME, f"{work.disorder} milliseconds")
