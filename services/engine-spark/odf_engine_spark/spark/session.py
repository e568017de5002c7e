"""The warm Spark session of the process.

Fixed settings make equal requests give equal bits: UTC, ANSI mode, no adaptive plans, one partition. Static settings
prevent SQL from accessing anything outside (layer 2 of the sandbox).
"""

import atexit
import logging
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pyarrow as pa
import structlog
from pyspark.accumulators import AccumulatorTCPServer
from pyspark.sql import SparkSession

from odf_engine_spark.spark.function_registry import remove_unlisted
from odf_engine_spark.spark.jvm import Spark
from odf_engine_spark.spark.launching import bound_to_us
from odf_engine_spark.spark.listed_functions import ALLOWED_FUNCTIONS
from odf_engine_spark.spark.query_limits import QueryLimits
from odf_engine_spark.spark.stored_result import LOCAL_FOLDER

log = structlog.stdlib.get_logger(__name__)

_JAVA_OPTIONS: Final = (
    "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xss4m -Xshare:auto -Xlog:disable -XX:-UsePerfData "
    "-Djava.net.preferIPv4Stack=true -Duser.timezone=UTC -Duser.language=en -Duser.country=US -Dfile.encoding=UTF-8"
)
# What the sandbox of SQL lets through by mistake finds an XML parser that reads nothing else, and no way to a network:
# connections of `java.net` go through a proxy that does not exist. Spark's own are of another kind. The parsers are
# Java's own, which process securely by default: the one that Spark brings for streams ignores these limits.
_CLOSED_JAVA: Final = (
    "-Djavax.xml.stream.XMLInputFactory=com.sun.xml.internal.stream.XMLInputFactoryImpl "
    "-Djavax.xml.accessExternalDTD= -Djavax.xml.accessExternalSchema= -Djavax.xml.accessExternalStylesheet= "
    "-Djdk.xml.enableExtensionFunctions=false -Djdk.xml.entityExpansionLimit=1000 "
    "-Djdk.xml.totalEntitySizeLimit=1000000 -Djdk.xml.maxElementDepth=1000 "
    "-Dhttp.proxyHost=127.0.0.1 -Dhttp.proxyPort=9 -Dhttp.nonProxyHosts= "
    "-Dhttps.proxyHost=127.0.0.1 -Dhttps.proxyPort=9 -Dftp.nonProxyHosts= "
    "-DsocksProxyHost=127.0.0.1 -DsocksProxyPort=9 -DsocksNonProxyHosts="
)
_OPTIONS: Final = "spark.driver.extraJavaOptions"
_SETTINGS: Final[Mapping[str, str]] = {
    "spark.app.name": "odf-engine",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "2g",
    "spark.executor.killOnFatalError.depth": "0",  # a task that runs out of memory fails alone, the JVM continues
    # Peers of its ports need a secret, which Spark makes itself for a local master and keeps in its memory.
    "spark.authenticate": "true",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.eventLog.enabled": "false",
    "spark.log.level": "OFF",
    "spark.locality.wait": "0",
    "spark.scheduler.mode": "FAIR",
    "spark.shuffle.compress": "false",
    "spark.rdd.compress": "false",  # results of ad-hoc queries are read from Spark's files
    # The heap holds several copies of a result; a larger one would fill it, and be waited for forever.
    "spark.driver.maxResultSize": "448m",
    "spark.cleaner.periodicGC.interval": "1h",
    "spark.sql.ui.retainedExecutions": "1",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.sql.codegen.cache.maxEntries": "1000",
    # Equal bits
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.objectHashAggregate.sortBased.fallbackThreshold": str(2**31 - 1),
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.leafNodeDefaultParallelism": "1",
    "spark.sql.files.minPartitionNum": "1",
    "spark.sql.files.maxPartitionBytes": "8g",
    # One plan whatever the size: everything is in one partition, so nothing is exchanged or broadcast.
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.defaultSizeInBytes": "1000000",
    "spark.sql.maxSinglePartitionBytes": "9000000000000000000b",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MILLIS",
    "spark.sql.execution.arrow.localRelationThreshold": "64kb",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1000000",
    # No access to the outside
    "spark.sql.runSQLOnFiles": "false",
    "spark.sql.restrictedMode.enabled": "true",
    "spark.sql.reflect.allowList": "(?!)",
    "spark.sql.legacy.createHiveTableByDefault": "false",
    "spark.sql.scripting.enabled": "false",
    "spark.sql.variable.substitute": "false",  # the text of a query stays as it is: no ${env:HOME}
    "spark.sql.defaultUrlStreamHandlerFactory.enabled": "false",  # no URLs but those of Java
    "spark.sql.crossJoin.enabled": "true",
}
_WARM_UP: Final = (
    "SELECT id, name, upper(name) AS n FROM t WHERE id >= 0 AND name IS NOT NULL",
    "SELECT window, name, count(*) AS c, sum(v) AS s, max(v) AS m FROM t GROUP BY window(at, '1 hour'), name",
    "SELECT a.name, b.v FROM t AS a LEFT JOIN t AS b ON a.id = b.id ORDER BY a.name, b.v",
)


ARCHIVE: Final = Path(sys.prefix) / "share" / "odf" / "spark.jsa"  # Spark's classes, ready to be mapped


def start(
    master: str,
    *,
    limits: QueryLimits | None = None,
    archive_to: Path | None = None,
    variables: Mapping[str, str] | None = None,
) -> Spark:
    """Return a warm session, which has run a query of each shape; its JVM is killed when this process ends.

    Must be called from the main thread, because the JVM is killed with the thread that starts it. With `archive_to`,
    the JVM archives its loaded classes there on exit. The JVM's environment has `variables` in addition to those it
    needs.
    """
    for name in ("py4j", "SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    AccumulatorTCPServer.handle_error = _log_refusal  # type: ignore[method-assign, assignment]
    folder = _own_folder()
    builder = SparkSession.builder.master(master).config(LOCAL_FOLDER, folder)
    builder = builder.config(
        "spark.sql.warehouse.dir", f"{folder}/warehouse"
    )  # created by Spark, stays empty
    for name, value in _SETTINGS.items():
        builder = builder.config(name, value)
    options = f'{_JAVA_OPTIONS} {_CLOSED_JAVA} "-Djava.io.tmpdir={tempfile.gettempdir()}"'
    if archive_to is not None:
        options += f" -XX:ArchiveClassesAtExit={archive_to}"
    elif ARCHIVE.is_file():
        options += f" -XX:SharedArchiveFile={ARCHIVE}"
    builder = builder.config(_OPTIONS, options)
    with bound_to_us(variables or {}):
        spark = Spark(builder.getOrCreate(), limits or QueryLimits())
    remove_unlisted(spark, ALLOWED_FUNCTIONS)
    _warm(spark)
    return spark


def _log_refusal(_: object, __: object, ___: object) -> None:
    """Log a connection that Spark has refused.

    By default Spark prints a traceback, which any user who can connect to the port could cause.
    """
    log.warning("a connection to a port of Spark was refused", why=type(sys.exception()).__name__)


def stop(spark: Spark) -> None:
    """Stop the session and remove its folder; a service exits without running the usual exit functions."""
    folder = spark.session.sparkContext.getConf().get(LOCAL_FOLDER)
    spark.session.stop()
    shutil.rmtree(str(folder), ignore_errors=True)


def _own_folder() -> str:
    """Return a new folder for Spark's files, which is removed when the process exits normally."""
    folder = tempfile.mkdtemp(prefix="odf-spark-")
    atexit.register(
        shutil.rmtree, folder, ignore_errors=True
    )  # after the JVM, which is started later, has exited
    return folder


def _warm(spark: Spark) -> None:
    records = pa.table(
        {
            "id": pa.array(range(64), pa.int64()),
            "at": pa.array(range(64), pa.timestamp("us", "UTC")),
            "name": [str(number % 7) for number in range(64)],
            "v": [number / 3 for number in range(64)],
        }
    )
    isolated = spark.new_session()
    isolated.frame(isolated.relation(records)).createOrReplaceTempView("t")
    for sql in _WARM_UP:
        isolated.collect(isolated.frame(isolated.parse(sql)))
