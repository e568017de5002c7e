"""Spark's errors in the words a person needs: message, line and position; no plan, no stack of the JVM."""

import re
from typing import Final

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import AnalysisException, IllegalArgumentException, PySparkException

from odf_common.errors import InvalidQuery

# What a call into the JVM may raise, or what its plans are too deep for.
FAULTS: Final = (PySparkException, Py4JJavaError, RecursionError)
TOO_DEEP: Final = "the query is nested too deeply: take steps, or fewer brackets"
_ADVICE: Final = re.compile(
    r"(?: If necessary s| S|(?<=\s)S)et \"?spark\.[\w.]+\"? to [\"\'`\w]+ to bypass this error\."
    r"| To enable existing features set [^.]*\.[^.]*\.[^.]*\."
)
_STACK: Final = re.compile(r"\n+(?:JVM stacktrace:|\s+at (?:org|java|scala)\.).*", re.DOTALL)
_INTERNAL: Final = "XX"  # begins the SQL state of errors that are Spark's own
LIMIT: Final = 2000  # characters


class EngineFault(RuntimeError):
    """Spark failed for a reason that is not in the query."""


def query_fault(error: Exception) -> InvalidQuery:
    """Return Spark's error as the user's fault; raises `EngineFault` where it is not."""
    if isinstance(error, RecursionError) or _overflowed(error):
        return InvalidQuery(text=TOO_DEEP)
    state, text = _said(error)
    text = _STACK.sub("", text.strip())
    # A window of a month has no state, nor has one of INTERVAL 1 HOUR.
    is_stateless = state is None and isinstance(error, AnalysisException)
    is_users = isinstance(error, IllegalArgumentException) or is_stateless
    if not is_users and (state is None or state.startswith(_INTERNAL)):
        raise EngineFault(text[:LIMIT]) from error
    if isinstance(error, AnalysisException):
        text = text.split(";\n", 1)[0]
        if error.getCondition() == "TABLE_OR_VIEW_NOT_FOUND":
            name = (error.getMessageParameters() or {}).get("relationName", "").replace("`", "")
            text = f"{no_table(name)}; {text.rpartition(';')[2].strip()}"
    lines = [line for line in _ADVICE.sub("", text).splitlines() if not line.startswith("Search path:")]
    return InvalidQuery(text="\n".join(lines).strip().rstrip(";")[:LIMIT])


def no_table(name: str) -> str:
    """Return the words for a table that a query cannot read."""
    return f"there is no table {name} among the inputs and the steps before"


def _overflowed(error: Exception) -> bool:
    return (
        isinstance(error, Py4JJavaError) and "StackOverflowError" in error.java_exception.getClass().getName()
    )


def _said(error: Exception) -> tuple[str | None, str]:
    """Return the SQL state, None where Spark gives none, and the message."""
    if isinstance(error, PySparkException):
        return error.getSqlState(), str(error)
    assert isinstance(error, Py4JJavaError)
    thrown = error.java_exception
    if thrown.getClass().getName().startswith("org.apache.spark.sql."):
        return thrown.getSqlState(), str(thrown.getMessage())
    return None, str(thrown.toString())  # such as java.lang.OutOfMemoryError: Java heap space
