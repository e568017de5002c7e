"""Which records are late, and which windows close (design: law 5). Times in milliseconds, watermarks in nanoseconds."""

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as kind

from odf_common.data.types import TIMESTAMP
from odf_common.metadata.engine import Watermark
from odf_engine_spark.changelog import Numbers

MS: Final = 1_000_000  # nanoseconds
_NEVER: Final = np.iinfo(np.int64).min


def window_ends(records: pa.Table, column: str, size: int) -> Numbers:
    """Return the end of the window that each record belongs to; `size` in milliseconds."""
    times = event_times(records, column)
    return np.floor_divide(times, size) * size + size


def event_times(records: pa.Table, column: str) -> Numbers:
    """Return event times as whole milliseconds; a date is its midnight."""
    values = records.column(column)
    if kind.is_date32(values.type):
        return np.asarray(values.cast(pa.int32())).astype(np.int64) * 86_400_000
    return np.asarray(values.cast(TIMESTAMP, safe=False).cast(pa.int64()))


def is_late(
    ends: Numbers, system_times: Numbers, watermarks: Sequence[Watermark], before: int | None
) -> npt.NDArray[np.bool_]:
    """Tell which records came after their window had ended by the input's watermark as of the block before theirs.

    `before` is the watermark before the first block of the request.
    """
    blocks = np.array([each.system_time.ms for each in watermarks], dtype=np.int64)
    held = [before] + [each.event_time.ns for each in watermarks]
    known = np.array([_NEVER if each is None else each // MS for each in held], dtype=np.int64)
    reached = np.maximum.accumulate(known)
    return np.asarray(ends <= reached[np.searchsorted(blocks, system_times, side="left")])


def last_watermark(watermarks: Sequence[Watermark], before: int | None) -> int | None:
    """Return the input's watermark after the request; nanoseconds."""
    return highest(max((each.event_time.ns for each in watermarks), default=None), before)


def floor_watermark(watermark: int | None, size: int) -> int | None:
    """Return the latest edge of a window that is not after the watermark; `size` in milliseconds."""
    return None if watermark is None else watermark // (size * MS) * (size * MS)


def highest(one: int | None, other: int | None) -> int | None:
    """Return the later of two watermarks, one of which may be unknown."""
    known = [each for each in (one, other) if each is not None]
    return max(known, default=None)
