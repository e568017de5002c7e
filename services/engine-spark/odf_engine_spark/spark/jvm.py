"""The calls into Spark's JVM that the engine makes: parse, analyse, pass records in, collect records.

Each call over py4j takes a fraction of a millisecond, so trees are transferred as a whole, as JSON. Objects of the JVM
are untyped in Python: they have the type `Java`, and are only used in this service.
"""

import json
import os
import select
import socket
import subprocess
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, reduce
from typing import IO, Any, Final, cast

import pyarrow as pa
from py4j.java_gateway import JavaClass, JavaMember, JavaObject, is_instance_of
from py4j.protocol import STATIC_PREFIX
from pyspark.errors.exceptions.captured import unwrap_spark_exception
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.serializers import ArrowCollectSerializer
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.util import _do_server_auth

from odf_engine_spark.spark.query_limits import QueryLimits
from odf_engine_spark.spark.tree import Tree, read_tree

Java = Any  # an object of the JVM
LOOPBACK: Final = "127.0.0.1"
OPTIMIZER: Final = "org.apache.spark.sql.catalyst.optimizer"
_SQL_UTILS: Final = "org.apache.spark.sql.api.python.PythonSQLUtils"
_NIL: Final = "scala.collection.immutable.Nil"
_MAX_BUILT_ELEMENTS: Final = 3  # up to which a list is shorter to build than to copy


@dataclass(frozen=True, slots=True)
class Spark:
    """An isolated session of the warm JVM, with its own views and settings, and shared threads and caches."""

    session: SparkSession
    limits: QueryLimits = field(default_factory=QueryLimits)

    def new_session(self) -> "Spark":
        """Return a new isolated session on the same JVM."""
        return replace(self, session=self.session.newSession())

    def classes(self, package: str) -> "Classes":
        """Return the classes of a Java package."""
        return Classes(self._client, package)

    def method(self, name: str) -> Java:
        """Return a static Java method by its qualified name."""
        return _static_method(self._client, name)

    def singleton(self, name: str) -> Java:
        """Return a Scala object by its qualified name."""
        return _singleton(self._client, name)

    @property
    def java(self) -> Java:
        """Return the Java object of the session."""
        return self.session._jsparkSession  # noqa: SLF001 - the public interface has no parser and no plans

    def is_alive(self) -> bool:
        """Return whether the JVM is running."""
        process = self._process
        return process is None or process.poll() is None

    def await_exit(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds until the JVM has exited, and return whether it has."""
        process = self._process
        if process is None:
            time.sleep(timeout)
            return False
        try:
            handle = os.pidfd_open(process.pid)
        except ProcessLookupError:
            return True
        try:
            # Popen.wait would poll, and select() takes no more than 1,024 open files.
            exited = select.poll()
            exited.register(handle, select.POLLIN)
            exited.poll(timeout * 1000)
        finally:
            os.close(handle)
        return process.poll() is not None

    def kill(self) -> None:
        """Kill the JVM immediately."""
        if self._process is not None:
            self._process.kill()

    @property
    def _gateway(self) -> Java:
        return self.session.sparkContext._gateway  # noqa: SLF001 - as above

    @property
    def _client(self) -> Java:
        return self._gateway._gateway_client  # noqa: SLF001 - as above

    @property
    def _process(self) -> "subprocess.Popen[bytes] | None":
        process: subprocess.Popen[bytes] | None = self._gateway.proc
        return process

    def parse(self, sql: str) -> Java:
        """Return the parsed plan of a query, not yet analysed; raises Spark's `ParseException`."""
        # The parser takes its settings, such as those on variables in the text, from the thread's active session.
        self.singleton("org.apache.spark.sql.classic.SparkSession").setActiveSession(self.java)
        return self.java.sessionState().sqlParser().parsePlan(sql)

    def asks_present(self, plan: Java) -> bool:
        """Return whether an analysed plan has a string literal, such as 'now', that means the current time."""
        plain = self.singleton(f"{OPTIMIZER}.ReplaceExpressions").apply(plan)
        resolved = self.singleton(f"{OPTIMIZER}.SpecialDatetimeValues").apply(plain)
        return not resolved.fastEquals(plain)

    def frame(self, plan: Java) -> Java:
        """Return a data frame of a plan, analysed and ready to run; raises Spark's `AnalysisException`."""
        return self.method("org.apache.spark.sql.classic.Dataset.ofRows")(self.java, plan)

    def arrow_session(self) -> "Spark":
        """Return a new session that keeps even small relations in Arrow format until a task reads them."""
        session = self.session.newSession()
        session.conf.set("spark.sql.execution.arrow.localRelationThreshold", "0b")
        return replace(self, session=session)

    def relation(self, records: pa.Table, at_a_time: int | None = None) -> Java:
        """Return records as a leaf of a plan; their columns must have Spark's types.

        They are passed to the JVM in memory.

        `at_a_time` limits the number of records per Arrow batch.
        """
        with os.fdopen(os.memfd_create("records"), "wb") as sink:
            with pa.ipc.new_stream(sink, records.schema) as stream:
                # A table without records has no batch, and Spark plans none differently from an empty one.
                if not len(records):
                    stream.write_batch(pa.RecordBatch.from_pylist([], records.schema))
                stream.write_table(records, max_chunksize=at_a_time)
            sink.flush()
            file = f"/proc/{os.getpid()}/fd/{sink.fileno()}"
            batches = self.method(f"{_SQL_UTILS}.readArrowStreamFromFile")(file)
            frame = self.method(f"{_SQL_UTILS}.toDataFrame")(batches, spark_schema(records.schema), self.java)
            return frame.queryExecution().analyzed()

    def collect(self, frame: Java) -> pa.Table:
        """Run a plan, and return its rows in the order of Spark's partitions."""
        frame.queryExecution().executedPlan()  # an error of planning would leave the call below waiting forever
        # Not `toArrow`, whose cast refuses a null struct for the null fields in it, if these are required. The JVM
        # waits for a connection without limit, so the socket, which may be one open file too many, exists before.
        with socket.socket() as connection:
            port, secret, result = frame.collectAsArrowToPython()
            connection.connect((LOOPBACK, port))
            try:
                batches = _receive_batches(connection, secret)
            finally:
                connection.close()  # or a JVM that still sends would wait as well
                with unwrap_spark_exception():
                    result.getResult()
        if batches:
            return pa.Table.from_batches(batches)
        schema = DataFrame(frame, self.session).schema
        return to_arrow_schema(schema, timezone="UTC").empty_table()

    def seq(self, items: Iterable[Java]) -> Java:
        """Return a Scala list, built with few calls: most lists are empty or have one element."""
        elements = list(items)
        if len(elements) > _MAX_BUILT_ELEMENTS:
            return self.method("org.apache.spark.api.python.PythonUtils.toSeq")(elements)
        pair = getattr(self.classes("scala.collection.immutable"), "$colon$colon")
        return reduce(lambda tail, item: pair(item, tail), reversed(elements), self.singleton(_NIL))

    def objects(self, items: Sequence[Java]) -> Java:
        """Return a Java array of objects."""
        array = self._gateway.new_array(JavaClass("java.lang.Object", self._client), len(items))
        for index, item in enumerate(items):
            array[index] = item
        return array

    def is_a(self, value: Java, name: str) -> bool:
        """Return whether a value is an instance of a Java class, given by its qualified name."""
        return isinstance(value, JavaObject) and bool(is_instance_of(self._gateway, value, name))


def _receive_batches(connection: socket.socket, secret: str) -> list[pa.RecordBatch]:
    with connection.makefile("rwb") as stream:
        _do_server_auth(stream, secret)
        return list(ArrowCollectSerializer().load_stream(cast("IO[bytes]", stream)))


@dataclass(frozen=True, slots=True)
class Classes:
    """The classes of a Java package, as attributes.

    py4j's own packages ask the JVM about each part of a name: to find that `org` is not a class, it searches all jars.
    """

    client: Java
    package: str

    def __getattr__(self, name: str) -> Java:
        """Return a class; if it does not exist, its use fails."""
        return JavaClass(f"{self.package}.{name}", self.client)


@lru_cache(maxsize=256)
def _static_method(client: Java, name: str) -> Java:
    class_name, _, method = name.rpartition(".")
    return JavaMember(method, None, f"{STATIC_PREFIX}{class_name}", client)


@lru_cache(maxsize=256)
def _singleton(client: Java, name: str) -> Java:
    return getattr(JavaClass(f"{name}$", client), "MODULE$")


def tree_of(plan: Java) -> Tree:
    """Return a plan as a tree of plain values; the queries that its WITH defines become further children."""
    nodes = json.loads(plan.toJSON())
    expansions = [node for node in nodes if node["class"].endswith(".Expand")]
    if any(node["projections"] is None for node in expansions):
        for node, other in zip(expansions, _expansions(plan), strict=True):
            node["projections"] = other
    tree = read_tree(nodes)
    if not any(node.kind == "UnresolvedWith" for node in tree.walk()):
        return tree
    return tree.with_children(_named_queries(plan))


def _expansions(plan: Java) -> list[Any]:
    """Return the projections of the expansions in a plan, in pre-order, as Spark omits some of them from its JSON."""
    below = [
        expansion
        for index in range(plan.children().size())
        for expansion in _expansions(plan.children().apply(index))
    ]
    if plan.getClass().getSimpleName() != "Expand":
        return below
    lists = [plan.projections().apply(index) for index in range(plan.projections().size())]
    return [
        [[json.loads(list_.apply(index).toJSON()) for index in range(list_.size())] for list_ in lists],
        *below,
    ]


def _named_queries(plan: Java) -> tuple[Tree, ...]:
    """Return the queries that WITH defines anywhere in an unresolved plan, as Spark omits them from its JSON."""
    queries: list[Tree] = []
    if plan.getClass().getSimpleName() == "UnresolvedWith":
        relations = plan.cteRelations()
        queries.extend(tree_of(relations.apply(index)._2()) for index in range(relations.size()))  # noqa: SLF001 - a tuple
    for part in (plan.children(), plan.subqueries()):
        for index in range(part.size()):
            queries.extend(_named_queries(part.apply(index)))
    return tuple(queries)


def spark_schema(schema: pa.Schema) -> str:
    """Return an Arrow schema as Spark's schema JSON."""
    return from_arrow_schema(schema).json()
