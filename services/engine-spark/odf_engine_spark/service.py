"""Where the engine meets its settings."""

import os
import threading
from collections.abc import Callable
from typing import Final

import structlog

from odf_common.runtime.environment import Environment
from odf_common.runtime.service import Service
from odf_common.runtime.settings import ENGINE
from odf_engine_spark.jvm import Spark
from odf_engine_spark.server import register
from odf_engine_spark.session import start

log = structlog.stdlib.get_logger(__name__)

WATCH_SECONDS: Final = 0.5
LOST: Final = 70  # exit code: the supervisor restarts


def build(env: Environment) -> Service:
    """Return the service once its session is warm: before that nobody can reach it, so nobody finds it slow."""
    settings = env.settings
    spark = start(settings.spark_master)
    return Service(
        name="engine-spark",
        grpc=register(spark, is_signed=settings.signed_columns),
        grpc_address=settings.engine or ENGINE,
        background=(_watch(spark),),
        on_stop=spark.session.stop,
    )


def _watch(spark: Spark) -> Callable[[threading.Event], None]:
    """Return a watch over the JVM: without it the process is of no use, and ends to be started anew."""

    def watch(stop: threading.Event) -> None:
        while not stop.wait(WATCH_SECONDS):
            if not spark.is_alive():
                log.error("the JVM has ended")
                os._exit(LOST)

    return watch
