"""Removes functions that are not listed from Spark's registries before any SQL runs, so that queries cannot call them.

Sessions copy the registries when they are created, so only those of the JVM and of the first session are changed.
"""

from collections.abc import Iterator
from typing import Final

from odf_engine_spark.spark.jvm import Java, Spark

_ANALYSIS: Final = "org.apache.spark.sql.catalyst.analysis"


def remove_unlisted(spark: Spark, listed: frozenset[str]) -> None:
    """Remove all functions from Spark whose names are not in `listed`.

    Must be called before other sessions are created.
    """
    state = spark.java.sessionState()
    of_jvm = [
        spark.singleton(f"{_ANALYSIS}.{name}").builtin()
        for name in ("FunctionRegistry", "TableFunctionRegistry")
    ]
    for registry in (*of_jvm, state.functionRegistry(), state.tableFunctionRegistry()):
        for identifier in _find_unlisted(registry, listed):
            registry.dropFunction(identifier)


def _find_unlisted(registry: Java, listed: frozenset[str]) -> Iterator[Java]:
    """Yield the identifiers of the functions that are not listed, with few calls into the JVM."""
    identifiers = registry.listFunction()
    for index, text in enumerate(str(identifiers.mkString("\n")).splitlines()):
        if text.rpartition(".")[2].strip("`") not in listed:
            yield identifiers.apply(index)
