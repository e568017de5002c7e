"""The Spark jobs of one request: one group, in the scheduler pool of its thread."""

import threading
from collections.abc import Callable, Collection
from typing import Final

from odf_engine_spark.spark.jvm import Java, Spark

HasEnded = Callable[[], bool]
TASK: Final = "Executor task launch worker for task"  # prefix of the thread's name; the stage's id follows


def begin(spark: Spark, name: str) -> None:
    """Assign the jobs that this thread starts from now on to the request."""
    context = spark.session.sparkContext
    context.setJobGroup(name, name, interruptOnCancel=True)
    context.setLocalProperty("spark.scheduler.pool", threading.current_thread().name)


def cancel(spark: Spark, name: str) -> HasEnded:
    """Cancel the request's running and future jobs; return a function that reports whether its tasks have ended.

    Tasks check for cancellation between two records: one that turns a record into a billion rows notices late.
    """
    context: Java = spark.session.sparkContext._jsc.sc()  # noqa: SLF001 - PySpark cancels running jobs only
    tracker = spark.session.sparkContext.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(name)]
    stages = {stage for info in jobs if info is not None for stage in info.stageIds}
    context.cancelJobGroupAndFutureJobs(name)
    return lambda: not _is_at_work(spark, stages)


def _is_at_work(spark: Spark, stages: Collection[int]) -> bool:
    threads = spark.method("java.lang.Thread.getAllStackTraces")().keySet().toArray()
    names = [str(thread.getName()) for thread in threads]
    return any(name.startswith(TASK) and f" in stage {stage}." in name for name in names for stage in stages)
