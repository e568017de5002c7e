"""The Spark jobs of a request: they form one job group, in the scheduler pool of the request's thread."""

import threading
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from typing import Final

from py4j.protocol import Py4JError

from odf_engine_spark.spark.jvm import Java, Spark

TASK: Final = "Executor task launch worker for task"  # prefix of the thread's name; the stage's id follows
_CALL: Final = "py4j.commands."  # in the stack of a thread that executes a call from Python


def begin(spark: Spark, name: str) -> Java:
    """Assign the jobs that this thread starts from now on to a request, and return the JVM thread of its calls."""
    _clear_stop(spark)
    context = spark.session.sparkContext
    context.setJobGroup(name, name, interruptOnCancel=True)
    context.setLocalProperty("spark.scheduler.pool", threading.current_thread().name)
    return spark.method("java.lang.Thread.currentThread")()


def cancel(spark: Spark, name: str) -> None:
    """Cancel the running and the future jobs of a request.

    A task checks for cancellation between two records, so a record that expands to a billion rows delays it.
    """
    context: Java = spark.session.sparkContext._jsc.sc()  # noqa: SLF001 - PySpark cancels running jobs only
    context.cancelJobGroupAndFutureJobs(name)


def tasks_of(spark: Spark, name: str) -> Iterator[Java]:
    """Yield the JVM threads that currently run tasks of a request."""
    return running_tasks(spark, _stages_of(spark, name))


def _stages_of(spark: Spark, name: str) -> Collection[int]:
    """Return the stages of a request's jobs, including jobs that began during the cancellation."""
    tracker = spark.session.sparkContext.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(name)]
    return {stage for info in jobs if info is not None for stage in info.stageIds}


def executes_call(spark: Spark, thread: Java) -> bool:
    """Return whether a JVM thread is executing a call from Python, for example to plan a query."""
    return _CALL in str(spark.method("scala.runtime.ScalaRunTime.stringOf")(thread.getStackTrace()))


def stop_threads(threads: Iterable[Java]) -> None:
    """Raise an error in each of these JVM threads (`Thread.stop`); it may take effect later.

    Java's own loops, and those of Spark's functions, check no flag. Java deprecates this method because shared state
    may remain inconsistent; a query that computes for seconds does not change any. Java 20 and later do not support it.
    """
    for thread in threads:
        with suppress(Py4JError):
            thread.stop()


def _clear_stop(spark: Spark) -> None:
    """Discard an error of `stop_threads` that reaches this JVM thread only after its previous request has ended."""
    for _ in range(2):  # the error, then the interrupt that comes with it
        with suppress(Py4JError):
            spark.method("java.lang.Thread.interrupted")()
            return


def running_tasks(spark: Spark, stages: Collection[int]) -> Iterator[Java]:
    """Yield the JVM threads that run tasks of these stages.

    Each is yielded as soon as its name has been checked, because threads of the pool quickly take other tasks.
    """
    if not stages:
        return
    for thread in spark.method("java.lang.Thread.getAllStackTraces")().keySet().toArray():
        name = str(thread.getName())
        if name.startswith(TASK) and any(f" in stage {stage}." in name for stage in stages):
            yield thread
