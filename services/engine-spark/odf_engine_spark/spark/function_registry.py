"""Functions that are not listed do not exist for Spark: they are removed from its registries before any SQL runs.

Sessions copy Spark's registries when they are created, so those of the JVM and of the first session are enough.
"""

from collections.abc import Iterator
from typing import Final

from odf_engine_spark.spark.jvm import Java, Spark

_ANALYSIS: Final = "org.apache.spark.sql.catalyst.analysis"


def remove_unlisted(spark: Spark, listed: frozenset[str]) -> None:
    """Remove each function from Spark whose name is not `listed`; call it before other sessions are created."""
    state = spark.java.sessionState()
    of_jvm = [
        spark.singleton(f"{_ANALYSIS}.{name}").builtin()
        for name in ("FunctionRegistry", "TableFunctionRegistry")
    ]
    for registry in (*of_jvm, state.functionRegistry(), state.tableFunctionRegistry()):
        for identifier in _find_unlisted(registry, listed):
            registry.dropFunction(identifier)


def _find_unlisted(registry: Java, listed: frozenset[str]) -> Iterator[Java]:
    """Yield the identifiers of a registry's other functions; few calls, as there are hundreds of functions."""
    identifiers = registry.listFunction()
    for index, text in enumerate(str(identifiers.mkString("\n")).splitlines()):
        if text.rpartition(".")[2].strip("`") not in listed:
            yield identifiers.apply(index)
