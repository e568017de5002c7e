"""The watermark that a batch reaches, and which of its records are late: older than the watermark before it.

Event times are milliseconds since the epoch. The chain's watermark never decreases
(`odf_common/chain/rules/data_events.py`), so a lower one has no effect.
"""

import threading
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from odf_common.data.columns import Operation
from odf_common.identity.dataset_refs import DatasetId
from odf_common.metadata.scalars import Timestamp
from odf_ingest.merge.interface import MergeResult
from odf_ingest.prepare.event_time import event_times, max_event_time
from odf_ingest.prepare.preparer import PreparedRecords
from odf_ingest.source_settings import DAY_MS, HOUR_MS, MINUTE_MS, Milliseconds, SourceSettings

KEEP_WATERMARK: Final = "held"
# A watermark: milliseconds; None: the greatest event time of the batch's records; KEEP_WATERMARK: unchanged.
NewWatermark = int | Literal["held"] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FutureRecord:
    """The offset and the event time of a record that is too far in the future to raise the watermark."""

    offset: int
    time: Timestamp


@dataclass(frozen=True, slots=True, kw_only=True)
class Lateness:
    """Counts of late records, and of records that are too far in the future to raise the watermark.

    `most` is the greatest lateness in ms.
    """

    count: int = 0
    most: int = 0
    is_watermark_in_future: bool = False
    """Whether the watermark itself is in the future. Then records are late whatever the delay is."""
    future: int = 0
    """The number of records that are too far in the future to raise the watermark."""
    first_future: FutureRecord | None = None

    def plus(self, other: "Lateness") -> "Lateness":
        """Return the sum of both."""
        return Lateness(
            count=self.count + other.count,
            most=max(self.most, other.most),
            is_watermark_in_future=self.is_watermark_in_future or other.is_watermark_in_future,
            future=self.future + other.future,
            first_future=self.first_future or other.first_future,
        )


NONE_LATE: Final = Lateness()


def watermark_of(
    reached: NewWatermark, records: pa.Table, column: str, settings: SourceSettings, now: Timestamp
) -> Timestamp | None:
    """Return the batch's watermark minus the source's delay; None if the batch does not change the watermark.

    `reached` is the watermark that the batch itself has computed. If it is None, the latest event time is taken that is
    not further in the future than the source allows.
    """
    if reached == KEEP_WATERMARK:
        return None
    if reached is None:
        reached = max_event_time(records, column, latest_counted(settings, now)) if len(records) else None
    return None if reached is None else Timestamp.from_ms(reached - settings.watermark_delay)


def latest_counted(settings: SourceSettings, now: Timestamp) -> int | None:
    """Return the latest event time that may raise the watermark; None without a limit."""
    return now.ms + settings.max_future if settings.max_future.is_limited else None


def greatest_counted(
    prepared: PreparedRecords, column: str, settings: SourceSettings, now: Timestamp
) -> Mapping[int, int]:
    """Return per partition the greatest event time that may raise the watermark."""
    latest = latest_counted(settings, now)
    # The usual case needs no second look at the records.
    if latest is None or all(greatest <= latest for greatest in prepared.greatest.values()):
        return prepared.greatest
    assert prepared.records is not None
    result: dict[int, int] = {}
    start = 0
    for partition, count in prepared.rows.items():
        greatest = max_event_time(prepared.records.slice(start, count), column, latest)
        start += count
        if greatest is not None:
            result[partition] = greatest
    return result


def future_of(
    merged: MergeResult, column: str, settings: SourceSettings, now: Timestamp, first_offset: int
) -> Lateness:
    """Return the number of new records that are too far in the future to raise the watermark, and the first of them."""
    latest = latest_counted(settings, now)
    if latest is None or len(merged.records) == 0:
        return NONE_LATE
    times = event_times(merged.records, column)
    is_far = np.asarray(pc.fill_null(pc.greater(times, latest), fill_value=False))
    if merged.ops is not None:
        is_far &= np.isin(np.asarray(merged.ops), (Operation.APPEND, Operation.CORRECT_TO))
    if not is_far.any():
        return NONE_LATE
    place = int(is_far.argmax())
    first = FutureRecord(offset=first_offset + place, time=Timestamp.from_ms(times[place].as_py()))
    return Lateness(future=int(is_far.sum()), first_future=first)


def lateness_of(merged: MergeResult, column: str, watermark: Timestamp | None, now: Timestamp) -> Lateness:
    """Return the number of records that are older than the watermark before them.

    Retractions do not count, and corrections only if they replace a record by an older one.
    """
    if watermark is None or len(merged.records) == 0:
        return NONE_LATE
    times = event_times(merged.records, column)
    late = np.asarray(pc.fill_null(pc.less(times, watermark.ms), fill_value=False))
    if merged.ops is not None:
        late &= _is_new(np.asarray(merged.ops), times)
    if not late.any():
        return NONE_LATE
    oldest = int(pc.min(times.filter(pa.array(late))).as_py())
    return Lateness(
        count=int(late.sum()),
        most=watermark.ms - oldest,
        is_watermark_in_future=watermark.ms > now.ms + DAY_MS,
    )


def _is_new(ops: npt.NDArray[np.uint8], times: pa.ChunkedArray) -> npt.NDArray[np.bool_]:
    """Return a mask of the records that are appended, or are a +C older than its -C, which directly precedes it."""
    is_new: npt.NDArray[np.bool_] = ops == Operation.APPEND
    is_older = np.asarray(pc.fill_null(pc.less(times[1:], times[:-1]), fill_value=False))
    is_new[1:] |= (ops[1:] == Operation.CORRECT_TO) & is_older
    return is_new


def proposed_delay(most: int) -> Milliseconds:
    """Return a round duration of at least `most` ms."""
    unit = next((unit for unit in (MINUTE_MS, HOUR_MS, DAY_MS) if most < unit * _NEXT[unit]), DAY_MS)
    return Milliseconds(-(-most // unit) * unit)


_NEXT: Final = {MINUTE_MS: 60, HOUR_MS: 24, DAY_MS: 1}


class LateRecords:
    """Counts of late and of future records per source since the process started; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lateness: dict[tuple[DatasetId, str], Lateness] = defaultdict(Lateness)

    def add(self, dataset: DatasetId, source: str, late: Lateness) -> None:
        """Add the counts of a committed batch."""
        if late.count or late.future:
            with self._lock:
                self._lateness[dataset, source] = self._lateness[dataset, source].plus(late)

    def future(self) -> Mapping[tuple[DatasetId, str], Lateness]:
        """Return the counts of the sources with records that were too far in the future to raise the watermark."""
        with self._lock:
            return {key: late for key, late in self._lateness.items() if late.future}

    def lateness_of(self, dataset: DatasetId, source: str) -> Lateness:
        """Return the counts of a source."""
        with self._lock:
            return self._lateness.get((dataset, source), Lateness())
