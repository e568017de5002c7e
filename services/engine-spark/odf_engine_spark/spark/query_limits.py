"""Limits on the resources of one query, as the engine serves other requests at the same time.

Typical queries stay far below them. A query that exceeds a limit would occupy the engine, or its memory, for longer
than other requests should wait.
"""

from dataclasses import dataclass
from typing import Final

MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryLimits:
    """Limits on the text and the plan of a query, and on the run of an ad-hoc query.

    The largest accepted queries take about five seconds of CPU time for parsing, checks, analysis and optimisation:
    3,700 ORs, a list of 5,000 values, 3,000 computed columns, or 140 UNIONs of 20 columns.
    """

    text_characters: int = MIB
    """The maximum number of characters of a query, comments included."""
    tokens: int = 50_000
    """The maximum number of tokens of a query."""
    list_items: int = 5_000
    """The maximum number of items of a list in parentheses, such as for IN; Spark compares each pair of items."""
    steps: int = 100
    """The maximum number of steps of a transform; `text_characters` applies to all steps together."""
    plan_size: int = 15_000
    """The maximum number of expressions and columns in a plan, with WITH, `*`, CUBE, overlapping windows expanded."""
    result_columns: int = 5_000
    tasks: int = 10_000
    """The maximum number of tasks of a stage in an ad-hoc query; Spark schedules these in about a second.

    No other query can begin during that second.
    """
    run_seconds: float = 600.0
    result_bytes: int = 1024 * MIB
    """The maximum size of an ad-hoc query's result in Arrow format, in bytes."""
    result_rows: int = 100_000_000
    disk_share: float = 0.5
    """The share of the free disk that temporary files of all requests may take while an ad-hoc query runs."""
    heap_share: float = 0.85
    """The share of the JVM's heap that may be in use after a collection; the rest can be filled within a second."""
