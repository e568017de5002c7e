"""Limits on the resources that one query may take from the engine, which serves others at the same time.

Queries of people and their tools stay far below; what exceeds a limit would occupy the engine for longer than others
should wait, or its memory.
"""

from dataclasses import dataclass
from typing import Final

MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryLimits:
    """Limits on a query's text and plan, and on the run of an ad-hoc query.

    The largest accepted queries take about five seconds of a processor to be parsed, checked, analysed, optimised:
    3,700 ORs, a list of 5,000 values, 3,000 computed columns, 140 UNIONs of 20 columns.
    """

    text_characters: int = MIB
    """Characters of a query; comments count."""
    tokens: int = 50_000
    """Words, numbers, strings and signs of a query."""
    list_items: int = 5_000
    """Items of one list in parentheses, such as of an IN; Spark compares each with each."""
    steps: int = 100
    """Steps of a transform; `text_characters` counts all of them."""
    plan_size: int = 15_000
    """Expressions and columns of all parts of a plan, where WITH, `*`, CUBE and overlapping windows are written out."""
    result_columns: int = 5_000
    tasks: int = 10_000
    """Tasks of one stage of an ad-hoc query: while the scheduler makes them, about a second, no other query begins."""
    run_seconds: float = 600.0
    result_bytes: int = 1024 * MIB
    """Bytes of an ad-hoc result in Arrow's format."""
    result_rows: int = 100_000_000
    disk_share: float = 0.5
    """Part of the free disk that temporary files may take while an ad-hoc query runs, those of others included."""
    heap_share: float = 0.85
    """Part of the JVM's heap that may be in use after a collection; the rest is filled within a second."""
