"""Results of ad-hoc queries, stored in files so that neither the JVM nor this process holds them in memory.

PySpark would collect a result in several copies on the JVM's heap, and block forever once the heap is full. Here the
task writes each batch of rows to disk as soon as it is computed, as an RDD of Arrow batches that is persisted on disk.
"""

import math
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, Self

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema

from odf_common.errors import InvalidQuery
from odf_engine_spark.spark.error_messages import DISK, EngineFault
from odf_engine_spark.spark.jvm import Java, Spark
from odf_engine_spark.spark.query_limits import MIB, QueryLimits

LOCAL_FOLDER: Final = "spark.local.dir"  # the setting
RESULT_BATCH_RECORDS: Final = 4096  # the JVM holds one batch at a time
POLL_SECONDS: Final = 0.1  # between looks at the limits
# Kryo's frame of a byte array: its class, that it is not a reference, and its length plus one.
_FRAME: Final = b"\x15\x01"


@dataclass(frozen=True, slots=True)
class StoredResult:
    """Rows in open files, which are already unlinked: the data exists until the files are closed."""

    schema: pa.Schema
    files: tuple[BinaryIO, ...]

    def reader(self) -> pa.RecordBatchReader:
        """Return a reader of the rows; the files are closed at its end."""

        def batches() -> Iterator[pa.RecordBatch]:
            with self:
                yield from self.batches()

        return pa.RecordBatchReader.from_batches(self.schema, batches())

    def __enter__(self) -> Self:
        """Do nothing."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the files."""
        for file in self.files:
            file.close()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield all rows in batches, from the beginning."""
        for file in self.files:
            file.seek(0)
            while frame := file.read(len(_FRAME)):
                if frame != _FRAME:
                    raise EngineFault(f"a stored result has a frame {frame.hex()}")
                raw = file.read(_read_number(file) - 1)
                yield pa.ipc.read_record_batch(pa.py_buffer(raw), self.schema)


def run_into_files(spark: Spark, frame: Java, stop: Callable[[], object]) -> StoredResult:
    """Run a plan, and return its result in files; `stop` is called if the result or the temporary files get too large.

    Raises `InvalidQuery` in that case, and before the run if the plan has too many tasks.
    """
    limits, schema = spark.limits, _schema_of(spark, frame)
    physical = frame.queryExecution().executedPlan()
    for plan in (physical, *_items(physical.subqueriesAll())):
        _count_tasks(plan, limits)
    spark.session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(RESULT_BATCH_RECORDS))
    batches = frame.toArrowBatchRdd()
    batches.persist(spark.classes("org.apache.spark.api.java").StorageLevels.DISK_ONLY)
    folder, number = Path(str(spark.session.sparkContext.getConf().get(LOCAL_FOLDER))), batches.id()

    def stored_files() -> list[Path]:
        files = folder.glob(f"blockmgr-*/*/rdd_{number}_*")
        return sorted(files, key=lambda file: int(file.name.rpartition("_")[2]))

    def excess() -> InvalidQuery | None:
        return _too_large(limits) if sum(map(_size_of, stored_files())) > limits.result_bytes else None

    disk_limit = _disk_limit(folder, limits)
    try:
        with ended_on(lambda: excess() or disk_limit(), stop):
            batches.count()
        if fault := excess():  # it may have ended between two looks
            raise fault
        result = StoredResult(schema, tuple(file.open("rb") for file in stored_files()))
        if sum(batch.num_rows for batch in result.batches()) > limits.result_rows:
            with result:
                raise _too_many_rows(limits)
        return result
    finally:
        batches.unpersist(False)  # noqa: FBT003 - without waiting


def _disk_limit(folder: Path, limits: QueryLimits) -> Callable[[], InvalidQuery | None]:
    """Return a check that returns an error once Spark's new files take too much of the disk that is free now."""
    pattern = "blockmgr-*/*/*"  # what is sorted, grouped and joined, and results
    before, most = frozenset(folder.glob(pattern)), limits.disk_share * shutil.disk_usage(folder).free
    text = (
        f"the temporary files of queries have taken {most / MIB:,.0f} MiB, {limits.disk_share:.0%} of the free disk: "
        f"read fewer records, join on equal columns, or free space on {DISK}"
    )

    def fault() -> InvalidQuery | None:
        written = sum(_size_of(file) for file in folder.glob(pattern) if file not in before)
        return InvalidQuery(text=text) if written > most else None

    return fault


def _size_of(file: Path) -> int:
    """Return the size of a file in bytes, 0 if Spark has removed or renamed it."""
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0


@contextmanager
def ended_on(fault: Callable[[], InvalidQuery | None], stop: Callable[[], object]) -> Iterator[None]:
    """Poll `fault` during the `with` block; once it returns an error, call `stop`, and raise the error.

    The error replaces the one with which the block ends because of `stop`.
    """
    has_ended, found = threading.Event(), list[InvalidQuery]()

    def watch() -> None:
        while not has_ended.wait(POLL_SECONDS):
            if (error := fault()) is not None:
                found.append(error)
                stop()
                return

    watching = threading.Thread(target=watch, name="limits", daemon=True)
    watching.start()
    try:
        yield
    except Exception as error:
        if found:
            raise found[0] from error
        raise
    finally:
        has_ended.set()


def _count_tasks(plan: Java, limits: QueryLimits) -> int:
    """Return the number of tasks of a physical plan's last stage; raises `InvalidQuery` if a stage has too many."""
    below = [_count_tasks(child, limits) for child in _items(plan.children())]
    match plan.nodeName():
        case "Union":
            tasks = sum(below)
        case "CartesianProduct":
            tasks = math.prod(below)
        case "Exchange":  # to one partition, as the session's settings say
            tasks = 1
        case _:
            tasks = max(below, default=1)
    if tasks > limits.tasks:
        raise InvalidQuery(
            text=f"the query would run as {tasks:,} tasks, more than {limits.tasks:,}: a join that is not on equal "
            "columns multiplies the tasks of its two sides, and each UNION ALL adds to them; join on equal columns"
        )
    return tasks


def _items(seq: Java) -> list[Java]:
    """Return the elements of a Scala list."""
    return [seq.apply(index) for index in range(seq.size())]


def time_limit(limits: QueryLimits) -> Callable[[], InvalidQuery | None]:
    """Return a check that returns an error once a query, which starts now, has run for too long."""
    until = time.monotonic() + limits.run_seconds
    text = (
        f"the query did not finish within {limits.run_seconds:g} s (ODF_QUERY_TIMEOUT_MS): read fewer records, join "
        "on equal columns, or raise that setting"
    )
    return lambda: InvalidQuery(text=text) if time.monotonic() > until else None


def _too_large(limits: QueryLimits) -> InvalidQuery:
    return InvalidQuery(
        text=f"the result has more than {limits.result_bytes / MIB:,g} MiB (ODF_QUERY_MAX_BYTES): select fewer "
        "columns, aggregate, use LIMIT, or raise that setting"
    )


def _too_many_rows(limits: QueryLimits) -> InvalidQuery:
    return InvalidQuery(text=f"the result has more than {limits.result_rows:,} rows: aggregate, or use LIMIT")


def _schema_of(spark: Spark, frame: Java) -> pa.Schema:
    schema = DataFrame(frame, spark.session).schema
    return to_arrow_schema(schema, error_on_duplicated_field_names_in_struct=True, timezone="UTC")


def _read_number(file: BinaryIO) -> int:
    """Return an integer of variable length from a file: seven bits per byte, lowest bits first."""
    number = shift = 0
    while True:
        (byte,) = file.read(1)
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number
        shift += 7
