"""Event times of records, and the watermarks by which `plan/late_records.py` decides whether records are late.

Times are in microseconds; watermarks in chains are in nanoseconds.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.types as kind

from odf_common.data.columns import in_unit
from odf_common.metadata.engine_messages import Watermark
from odf_engine_spark.plan.delta import NEVER, Delta
from odf_engine_spark.transform.inputs import Input
from odf_engine_spark.values.operations import Numbers
from odf_engine_spark.values.spark_types import MICROSECONDS

MICROSECOND_NS: Final = 1000
_DAY_MICROSECONDS: Final = 86_400_000_000
_LONG_AGO: Final = -(1 << 62)  # for a record without event time


def delta_of(input_: Input, before: int | None) -> Delta:
    """Return the new records of an input as a `Delta`; `before` is the input's watermark before the request."""
    vocab = input_.vocab
    times = event_times(input_.records, vocab.event_time_column)
    system_times = event_times(input_.records, vocab.system_time_column)
    return Delta(
        records=input_.records,
        operations=np.asarray(input_.operations).astype(np.int64),
        complete=times + 1,
        late=watermarks_before(system_times, input_.watermarks, before),
        blocks=system_times,
        name=input_.name,
        vocab=vocab,
    )


def event_times(records: pa.Table, column: str) -> Numbers:
    """Return a timestamp or date column in microseconds; a date counts as its midnight."""
    values = records.column(column)
    if kind.is_date32(values.type):
        return (
            np.asarray(values.cast(pa.int32()).cast(pa.int64()).fill_null(_LONG_AGO // _DAY_MICROSECONDS))
            * _DAY_MICROSECONDS
        )
    return np.asarray(in_unit(values, MICROSECONDS).cast(pa.int64()).fill_null(_LONG_AGO))


def watermarks_before(system_times: Numbers, watermarks: Sequence[Watermark], before: int | None) -> Numbers:
    """Return, for each record, the watermark of the input before the record's block, in microseconds."""
    blocks = np.array([watermark.system_time.ms * 1000 for watermark in watermarks], dtype=np.int64)
    times = [before] + [watermark.event_time.ns for watermark in watermarks]
    values = np.array([NEVER if time is None else time // MICROSECOND_NS for time in times], dtype=np.int64)
    reached = np.maximum.accumulate(values)
    return np.asarray(reached[np.searchsorted(blocks, system_times, side="left")])


def last_watermark(watermarks: Sequence[Watermark], before: int | None) -> int | None:
    """Return the watermark of an input after the request, in nanoseconds."""
    return highest(max((watermark.event_time.ns for watermark in watermarks), default=None), before)


def microseconds(watermark: int | None) -> int | None:
    """Return a watermark in nanoseconds as microseconds, rounded down."""
    return None if watermark is None else watermark // MICROSECOND_NS


def highest(value: int | None, other: int | None) -> int | None:
    """Return the later of two watermarks, where None means unknown."""
    times = [time for time in (value, other) if time is not None]
    return max(times, default=None)
