"""NEXMark's queries as Structured Streaming runs them: one micro-batch per file, its own checkpoint, Parquet files.

A peer is a process with its own JVM, which has the engine's settings but for the JIT and the heap that its state
needs. It uses the file source with `availableNow` and its own watermark: the greatest event time seen, less the
disorder of the stream.

Structured Streaming syncs no file, while our commits are durable. So after each micro-batch, the stream waits until all
files that the batch wrote to its checkpoint and its sink are fsynced, several at a time, and then their folders. That
is part of the batch's time, which is measured from the end of the previous batch's fsyncs.
"""

import os
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final, Self

import pyarrow as pa
import pyarrow.parquet as pq
from memory import call_this_process
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from odf_common.metadata.events import TransformSql
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
SINK: Final = "out"
CHECKPOINT: Final = "state"
SYNCS: Final = 8  # fsyncs at a time


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
        """Return the seconds of each micro-batch with records, until it is committed and its files are fsynced."""
        return self._pool.submit(_stream, work).result()


def written(work: Work) -> pa.Table:
    """Return the records that a stream wrote."""
    return pa.concat_tables([pq.read_table(file) for file in sorted((work.folder / SINK).glob("*.parquet"))])


def _begin(jit: str) -> None:
    call_this_process(f"peer-{list(JITS).index(jit) + 1}")
    start("local[2]", variables={OVERRIDING: f"{JITS[jit]} {HEAP}"})


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
    where = {"path": str(work.folder / SINK), "checkpointLocation": str(work.folder / CHECKPOINT)}
    count = max(map(len, work.files.values()))
    query = writer.options(**where).start()
    try:
        seconds = _until_durable(query, work.folder, count)
        query.awaitTermination()
    except PySparkException as error:  # which cannot be sent to another process
        raise RuntimeError(str(error)) from None
    batches = [progress for progress in query.recentProgress if progress["numInputRows"]]
    assert len(batches) == count, "each file is a micro-batch"
    return seconds


def _until_durable(query: StreamingQuery, folder: Path, count: int) -> list[float]:
    """Return the seconds of that many batches, each until its files are fsynced; fewer if the stream fails.

    A stream signals after each batch, and needs this lock to begin the next one. The lock is fair: who waits for the
    signal has it first, so the stream waits for the fsyncs.
    """
    stream: Any = query._jsq.streamingQuery()  # noqa: SLF001 - PySpark does not expose it
    lock, signal = stream.awaitProgressLock(), stream.awaitProgressLockCondition()
    seconds: list[float] = []
    durable: dict[Path, int] = {}
    begun = time.perf_counter()
    lock.lock()
    try:
        while len(seconds) < count:
            while not (folder / CHECKPOINT / "commits" / f"{len(seconds)}").exists():
                if not stream.isActive():
                    return seconds
                getattr(signal, "await")()
            _sync_new_files((folder / SINK, folder / CHECKPOINT), durable)
            seconds.append((now := time.perf_counter()) - begun)
            begun = now
            next_offsets = folder / CHECKPOINT / "offsets" / f"{len(seconds)}"
            assert len(seconds) == 1 or not next_offsets.exists(), "the next batch waits for the fsyncs"
    finally:
        lock.unlock()
    return seconds


def _sync_new_files(folders: Iterable[Path], durable: dict[Path, int]) -> None:
    """Fsync the files that are not durable in this version, and the folders that have them; note what is durable."""
    found = {
        Path(entry): Path(entry).stat().st_mtime_ns
        for folder in folders
        for parent, _, names in os.walk(folder)
        for entry in (parent, *(f"{parent}/{name}" for name in names))
    }
    new = [path for path, changed in found.items() if durable.get(path) != changed]
    files, changed_folders = [path for path in new if path.is_file()], [path for path in new if path.is_dir()]
    with ThreadPoolExecutor(SYNCS) as pool:
        for paths in (files, changed_folders):
            list(pool.map(_sync, paths))
    durable.update(found)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


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
