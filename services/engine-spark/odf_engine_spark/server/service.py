"""Builds the engine's service from the settings."""

import os
import socket
import sys
import threading
from collections.abc import Callable
from typing import Final

import structlog

from odf_common.service.environment import IsolatedEnvironment
from odf_common.service.protection import ENGINE_SECRET
from odf_common.service.run import Service
from odf_common.service.settings import ENGINE
from odf_engine_spark.server.grpc_servicer import register
from odf_engine_spark.server.standby import NotWanted, await_turn
from odf_engine_spark.spark.heartbeat import Heartbeat
from odf_engine_spark.spark.jvm import Spark
from odf_engine_spark.spark.query_limits import QueryLimits
from odf_engine_spark.spark.session import start, stop

log = structlog.stdlib.get_logger(__name__)

WATCH_SECONDS: Final = 1.0  # between checks for a JVM that hangs; one that exits is noticed at once
HUNG_AFTER_SECONDS: Final = 60.0  # without a response from the JVM
EXIT_JVM_LOST: Final = 70  # exit code: the supervisor restarts the process


def build(env: IsolatedEnvironment) -> Service:
    """Return the service after warming up its session. It listens only then, so that no first query is slow."""
    settings = env.settings
    limits = QueryLimits(run_seconds=settings.query_timeout_ms / 1000, result_bytes=settings.query_max_bytes)
    spark = start(settings.spark_master, limits=limits)
    heartbeat = Heartbeat(spark)
    return Service(
        name="engine-spark",
        grpc=register(
            spark,
            is_signed=settings.signed_columns,
            is_well=heartbeat.is_well,
            on_stuck=lambda: _end(spark, "a cancelled task does not stop"),
        ),
        grpc_address=settings.engine or ENGINE,
        caller_secret=ENGINE_SECRET,
        background=(_watch(spark, heartbeat), heartbeat.run),
        on_stop=lambda: stop(spark),
    )


def build_worker(env: IsolatedEnvironment) -> Service:
    """Return the service once its session is warm and the keeper lets it serve; exits if it is not needed.

    The JVM is watched from the start: a worker whose JVM is lost exits, so that the keeper does not rely on it.
    """
    service = build(env)
    try:
        await_turn(socket.socket(fileno=sys.stdin.fileno()), meanwhile=service.background)
    except NotWanted:
        os._exit(0)
    return service


def _watch(spark: Spark, heartbeat: Heartbeat) -> Callable[[threading.Event], None]:
    """Return a background task that exits the process once the JVM has exited or hangs, to be restarted."""

    def watch(stop: threading.Event) -> None:
        while not stop.is_set():
            if spark.await_exit(WATCH_SECONDS) and not stop.is_set():
                _end(spark, "the JVM has ended")
            if heartbeat.silence > HUNG_AFTER_SECONDS:
                _end(spark, "the JVM does not respond")

    return watch


def _end(spark: Spark, why: str) -> None:
    log.error("the engine ends", why=why)
    spark.kill()  # a hanging JVM does not notice that this process has exited
    os._exit(EXIT_JVM_LOST)
