"""Spark's errors in the words a person needs: message, line and position; no plan, no stack of the JVM."""

import re
from typing import Final

from pyspark.errors import AnalysisException, PySparkException

from odf_common.errors import InvalidQuery

_ADVICE: Final = re.compile(r' ?(?:If necessary s|S)et "?spark\.[^.]*\.[^"]*"?[^.]*\.(?= |$)', re.MULTILINE)
_STACK: Final = re.compile(r"\n+(?:JVM stacktrace:|\s+at (?:org|java|scala)\.).*", re.DOTALL)
LIMIT: Final = 2000  # characters


def query_fault(error: PySparkException) -> InvalidQuery:
    """Return Spark's error as the user's fault."""
    text = str(error).strip()
    if isinstance(error, AnalysisException):
        text = text.split(";\n", 1)[0]
    text = _ADVICE.sub("", _STACK.sub("", text))
    lines = [line for line in text.splitlines() if not line.startswith("Search path:")]
    return InvalidQuery(text="\n".join(lines).strip().rstrip(";")[:LIMIT])
