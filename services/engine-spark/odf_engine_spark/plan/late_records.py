"""Drops late records before they are passed to Spark, and counts them; `analysis/times.py` has the rule."""

import numpy as np
import pyarrow as pa

from odf_engine_spark.analysis.times import Lateness
from odf_engine_spark.plan.delta import NEVER, Delta
from odf_engine_spark.spark.logical_plans import COMPLETE, LATE
from odf_engine_spark.spark.progress import Progress
from odf_engine_spark.values.operations import Numbers


def drop_late(delta: Delta, rule: Lateness, bound: int, progress: Progress) -> pa.Table:
    """Return the new records of a stream with hidden columns, without late records, which are counted in `progress`.

    `bound` is how long after a window's end its records are not late yet (hint LATE), in microseconds.
    """
    late = np.full(len(delta.records), NEVER) if delta.late is None else delta.late
    # The comparison keeps the subtraction from wrapping around below the smallest int64.
    late = np.where(late < NEVER + bound, NEVER, late - bound)
    is_late = last_ends(delta.complete - 1, rule) <= late
    # Without overlapping windows a record that is kept is late for none of them.
    late = late if rule.slide < rule.size else np.full(len(late), NEVER)
    table = delta.records
    for name, values in ((COMPLETE, delta.complete), (LATE, late)):
        table = table.append_column(name, pa.array(values, pa.int64()))
    if is_late.any():
        progress.late(int(is_late.sum()))
        table = table.filter(pa.array(~is_late))
    return table


def last_ends(times: Numbers, rule: Lateness) -> Numbers:
    """Return, for each time, the end of the last window that contains it."""
    if rule.unit:
        return _unit_ends(times, rule.unit)
    return np.floor_divide(times - rule.offset, rule.slide) * rule.slide + rule.size + rule.offset


def first_ends(times: Numbers, rule: Lateness) -> Numbers:
    """Return, for each time, the end of the first window that contains it."""
    return last_ends(times, rule) - (rule.size - rule.slide)


def _unit_ends(times: Numbers, unit: str) -> Numbers:
    """Return, for each time, the end of its month, quarter or year."""
    months = {"m": 1, "q": 3, "y": 12}[unit]
    number = times.astype("datetime64[us]").astype("datetime64[M]").astype(np.int64)
    ends = (np.floor_divide(number, months) + 1) * months
    return np.asarray(ends.astype("datetime64[M]").astype("datetime64[us]").astype(np.int64))
