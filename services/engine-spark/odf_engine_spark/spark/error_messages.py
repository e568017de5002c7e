"""Converts Spark's errors to messages for users, with line and position but without plans and stack traces."""

import re
from typing import Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, IllegalArgumentException, PySparkException

from odf_common.errors import InvalidQuery, StorageUnavailable, nearest
from odf_common.ports.engine import QueryOutOfMemory
from odf_engine_spark.spark.listed_functions import ALLOWED_FUNCTIONS, REFUSED_FUNCTIONS

# What a call into the JVM may raise, and what its plans may be nested too deeply for.
FAULTS: Final = (PySparkException, Py4JJavaError, RecursionError)
TOO_DEEP: Final = "the query is nested too deeply: split it into steps, or use fewer parentheses"
TOO_LARGE: Final = (
    "the query needs too much memory: read fewer records with a WHERE, make shorter strings and lists, or aggregate "
    "before you join"
)
TOO_MANY_ROWS: Final = (
    "the query needs too much memory: its result has more than 448 MiB for the records of one run; make fewer or "
    "shorter rows of each record"
)
# Java's heap is full, or Spark's part of it.
_NO_MEMORY: Final = re.compile(r"java\.lang\.OutOfMemoryError|SparkOutOfMemoryError|UNABLE_TO_ACQUIRE_MEMORY")
_NO_ROOM: Final = re.compile(r"is bigger than\s+(?:local\s+)?(?:maxResultSize|spark\.driver\.maxResultSize)")
_NO_END: Final = "Max iterations ("  # such as of columns that each build on the one before, in one SELECT
_DISK_FULL: Final = "No space left on device"
DISK: Final = "the disk of the engine's temporary files, outside of containers that of $ODF_HOME"
_ADVICE: Final = re.compile(
    r"(?: If necessary s| S|(?<=\s)S)et \"?spark\.[\w.]+\"? to [\"\'`\w]+ to bypass this error"
    r"(?:, and return NULL instead)?\."
    r"| To enable existing features set [^.]*\.[^.]*\.[^.]*\."
)
_STACK: Final = re.compile(r"\n+(?:JVM stacktrace:|\s+at (?:org|java|scala)\.).*", re.DOTALL)
_INTERNAL: Final = "XX"  # prefix of the SQL states of Spark's internal errors
_RESOURCE_STATES: Final = ("53", "54", _INTERNAL)  # prefixes of those of exhausted resources and limits, too
# What Java raises for a value that a function cannot take or compute, where Spark does not check it first.
_VALUE_ERRORS: Final = (
    "com.fasterxml.jackson.core.exc.StreamConstraintsException",
    "java.lang.ArithmeticException",
    "java.lang.NegativeArraySizeException",
    "java.lang.NumberFormatException",
    "java.time.DateTimeException",
)
_IS_THROWABLE: Final = re.compile(r"org\.apache\.spark\.Spark\w*Exception")  # these have a SQL state, or null
MAX_CAUSES: Final = 16
MAX_MESSAGE_CHARACTERS: Final = 2000


class EngineFault(RuntimeError):
    """Spark failed for a reason that is not in the query."""


def query_fault(error: Exception) -> InvalidQuery:
    """Return the user's error for an error of Spark; raises `EngineFault` if the query did not cause it.

    Raises `StorageUnavailable` if the disk is full.
    """
    if isinstance(error, RecursionError) or _is_stack_overflow(error):
        return InvalidQuery(text=TOO_DEEP)
    state, text = _state_and_message(error)
    # Other errors quote what users have written, which may look like one of these.
    if state is None or state.startswith(_RESOURCE_STATES):
        fault = _resource_fault(f"{text}\n{error}" if isinstance(error, Py4JJavaError) else text)
        if fault is not None:
            return fault
    text = _STACK.sub("", text.strip())
    # Some errors of the analyser have no SQL state: a window of a month, INTERVAL 1 HOUR.
    is_stateless = state is None and isinstance(error, AnalysisException)
    is_users = isinstance(error, IllegalArgumentException) or is_stateless
    if not is_users and (state is None or state.startswith(_INTERNAL)):
        cause = _fault_of_query(error) if state is None else None
        if cause is None:
            raise EngineFault(text[:MAX_MESSAGE_CHARACTERS]) from error
        text = cause
    if isinstance(error, AnalysisException):
        text = text.split(";\n", 1)[0]
        if error.getCondition() == "TABLE_OR_VIEW_NOT_FOUND":
            written = (error.getMessageParameters() or {}).get("relationName", "")
            name = written.replace("`", "")
            hint = _DOTTED.format(name=name) if "`.`" in written else ""
            text = f"{no_table(name)}{hint}; {text.rpartition(';')[2].strip()}"
        elif error.getCondition() == "UNRESOLVED_ROUTINE":
            name = (error.getMessageParameters() or {}).get("routineName", "").replace("`", "")
            text = f"{_no_function(name.rpartition('.')[2].lower())}; {text.rpartition(';')[2].strip()}"
    lines = [line for line in _ADVICE.sub("", text).splitlines() if not line.startswith("Search path:")]
    return InvalidQuery(text="\n".join(lines).strip().rstrip(";")[:MAX_MESSAGE_CHARACTERS])


_DOTTED: Final = "; if it is an input, put its name in backticks (`{name}`), or give the input an alias"


def no_table(name: str) -> str:
    """Return the message for a table that does not exist for a query."""
    return f"table {name} does not exist among the inputs and the earlier steps"


def _no_function(name: str) -> str:
    if restriction := REFUSED_FUNCTIONS.get(name):
        return f"{name}: {restriction}"
    similar = nearest(name, sorted(ALLOWED_FUNCTIONS))
    return f"there is no function {name}" + (f": did you mean {similar}?" if similar else "")


def _resource_fault(text: str) -> InvalidQuery | None:
    """Return the error for a query that exceeded a resource of the JVM, by the message of Spark's error, else None.

    Raises `StorageUnavailable` if the disk is full.
    """
    if _NO_END in text:
        return InvalidQuery(text=TOO_DEEP)
    if _NO_MEMORY.search(text):
        return QueryOutOfMemory(text=TOO_LARGE)
    if _DISK_FULL in text:
        raise StorageUnavailable(
            what="the disk of the engine's temporary files", why=_DISK_FULL, remedy=f"free space on {DISK}"
        )
    return InvalidQuery(text=TOO_MANY_ROWS) if _NO_ROOM.search(text) else None


def _is_stack_overflow(error: Exception) -> bool:
    return (
        isinstance(error, Py4JJavaError) and "StackOverflowError" in error.java_exception.getClass().getName()
    )


def _state_and_message(error: Exception) -> tuple[str | None, str]:
    """Return the SQL state of an error, None if Spark gives none, and its message."""
    if isinstance(error, PySparkException):
        return error.getSqlState(), str(error)
    assert isinstance(error, Py4JJavaError)
    thrown = error.java_exception
    if thrown.getClass().getName().startswith("org.apache.spark.sql."):
        return thrown.getSqlState(), str(thrown.getMessage())
    return None, str(thrown.toString())  # such as java.lang.OutOfMemoryError: Java heap space


def _fault_of_query(error: Exception) -> str | None:
    """Return the message of the first cause that is the fault of the query or of its records; None if there is none.

    Spark wraps an error of a task or sub-query in an exception without a SQL state.
    """
    thrown = error.java_exception if isinstance(error, Py4JJavaError) else getattr(error, "_origin", None)
    for _ in range(MAX_CAUSES):
        if thrown is None:
            return None
        name, message = str(thrown.getClass().getName()), str(thrown.getMessage())
        if name in _VALUE_ERRORS:
            return f"a function cannot compute a value: {message}"
        state = str(thrown.getSqlState() or _INTERNAL) if _IS_THROWABLE.match(name) else _INTERNAL
        if not state.startswith(_RESOURCE_STATES):
            return message
        thrown = thrown.getCause()
    return None
