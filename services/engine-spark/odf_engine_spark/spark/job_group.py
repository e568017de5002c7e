"""The Spark jobs of one request: one group, in the scheduler pool of its thread."""

import threading
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from typing import Final

from py4j.protocol import Py4JError

from odf_engine_spark.spark.jvm import Java, Spark

TASK: Final = "Executor task launch worker for task"  # prefix of the thread's name; the stage's id follows
_CALL: Final = "py4j.commands."  # in the stack of a thread that executes a call from Python


def begin(spark: Spark, name: str) -> Java:
    """Assign the jobs that this thread starts from now on to the request; return the JVM's thread of its calls."""
    _clear_stop(spark)
    context = spark.session.sparkContext
    context.setJobGroup(name, name, interruptOnCancel=True)
    context.setLocalProperty("spark.scheduler.pool", threading.current_thread().name)
    return spark.method("java.lang.Thread.currentThread")()


def cancel(spark: Spark, name: str) -> None:
    """Cancel the request's running and future jobs.

    Tasks check for cancellation between two records: one that turns a record into a billion rows notices late.
    """
    context: Java = spark.session.sparkContext._jsc.sc()  # noqa: SLF001 - PySpark cancels running jobs only
    context.cancelJobGroupAndFutureJobs(name)


def tasks_of(spark: Spark, name: str) -> Iterator[Java]:
    """Yield the threads that run the request's tasks right now."""
    return running_tasks(spark, _stages_of(spark, name))


def _stages_of(spark: Spark, name: str) -> Collection[int]:
    """Return the stages of a request's jobs, also of those that began while it was cancelled."""
    tracker = spark.session.sparkContext.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(name)]
    return {stage for info in jobs if info is not None for stage in info.stageIds}


def executes_call(spark: Spark, thread: Java) -> bool:
    """Return whether a thread of the JVM executes a call from Python, such as one that plans a query."""
    return _CALL in str(spark.method("scala.runtime.ScalaRunTime.stringOf")(thread.getStackTrace()))


def stop_threads(threads: Iterable[Java]) -> None:
    """Throw an error in threads of the JVM, in each as soon as it is yielded; it reaches them sooner or later.

    Java's own loops, and those of Spark's functions, look at no flag. Java deprecates this since the thread may leave
    shared state unfinished: a query that computes for seconds changes none. Java 20 and later have no such call.
    """
    for thread in threads:
        with suppress(Py4JError):
            thread.stop()


def _clear_stop(spark: Spark) -> None:
    """Discard an error of `stop_threads` that reached this thread after its former request had ended."""
    for _ in range(2):  # the error, then the interrupt that comes with it
        with suppress(Py4JError):
            spark.method("java.lang.Thread.interrupted")()
            return


def running_tasks(spark: Spark, stages: Collection[int]) -> Iterator[Java]:
    """Yield each thread right after its name has shown that it runs such a task: threads of the pool take others."""
    if not stages:
        return
    for thread in spark.method("java.lang.Thread.getAllStackTraces")().keySet().toArray():
        name = str(thread.getName())
        if name.startswith(TASK) and any(f" in stage {stage}." in name for stage in stages):
            yield thread
