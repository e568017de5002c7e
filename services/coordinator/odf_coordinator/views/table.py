"""The content of the views: one row per dataset, computed from notifications. Pure; the time is a parameter."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, TypedDict

from odf_common.codec.times import time_of
from odf_common.dataset.open_rejects import Rejects
from odf_common.hashing.multihash import Multihash
from odf_common.metadata.scalars import record_count
from odf_common.proto.odf.bus.v1 import bus_pb2 as bus

WINDOW_SECONDS: Final = 60.0  # seconds over which throughput is counted


class Row(TypedDict):
    """A dataset as JSON.

    `lag` is the number of messages that wait in its sources, `rejected` that of rejected messages that await a
    decision. `stage` is the engine's current stage for a derivative, of which `rows` of `total` rows are done.
    """

    dataset_id: str
    alias: str
    head: str
    last_offset: int | None
    watermark: str | None
    records_per_second: float
    lag: int
    rejected: int
    rejected_reason: str | None
    stage: str | None
    rows: int
    total: int


@dataclass(slots=True)
class _Dataset:
    alias: str = ""
    head: str = ""
    sequence_number: int = -1
    last_offset: int | None = None
    watermark: str | None = None
    lags: dict[str, int] = field(default_factory=dict)
    rejects: Rejects = field(default_factory=Rejects)
    work: bus.TransformProgress = field(default_factory=bus.TransformProgress)
    growth: deque[tuple[float, int]] = field(default_factory=deque)  # (time, added records)

    def forget_growth(self, now: float) -> None:
        """Drop the records that were added before the time window for throughput."""
        while self.growth and self.growth[0][0] <= now - WINDOW_SECONDS:
            self.growth.popleft()


class DatasetTable:
    """The heads, watermarks, lag and throughput of all datasets."""

    def __init__(self) -> None:
        self._datasets: dict[str, _Dataset] = {}

    def see(self, message: bus.Envelope, now: float) -> None:
        """Apply a notification; `now` is in seconds."""
        match message.WhichOneof("body"):
            case "committed":
                self.apply_head(message.dataset_id, message.committed, now)
            case "dataset_removed":
                self._datasets.pop(message.dataset_id, None)
            case "ingest_progress":
                progress = message.ingest_progress
                dataset = self._datasets.setdefault(message.dataset_id, _Dataset())
                if progress.source_name:
                    dataset.lags[progress.source_name] = progress.lag
                if progress.HasField("rejected"):
                    dataset.rejects = Rejects(count=progress.rejected, reason=progress.rejected_reason)
            case "transform_progress":
                self._datasets.setdefault(message.dataset_id, _Dataset()).work = message.transform_progress
            case _:
                pass

    def apply_head(self, dataset_id: str, body: bus.Committed, now: float | None) -> None:
        """Apply a new head. Without `now`, its records do not count as throughput, because their time is unknown."""
        dataset = self._datasets.setdefault(dataset_id, _Dataset())
        last = body.last_offset if body.HasField("last_offset") else None
        grown = record_count(last) - record_count(dataset.last_offset)
        if now is not None and dataset.sequence_number >= 0:
            dataset.growth.append((now, max(grown, 0)))
            dataset.forget_growth(now)
        dataset.alias = body.alias or dataset.alias
        dataset.head = str(Multihash.from_bytes(body.head))
        dataset.sequence_number = body.sequence_number
        dataset.last_offset = last
        dataset.work = bus.TransformProgress()
        dataset.watermark = str(time_of(body.watermark)) if body.HasField("watermark") else None

    def set_rejects(self, dataset_id: str, rejects: Rejects) -> None:
        """Set a dataset's rejected messages that await a decision."""
        self._datasets.setdefault(dataset_id, _Dataset()).rejects = rejects

    def rows(self, now: float) -> Iterator[Row]:
        """Yield the datasets, ordered by name, with the throughput as of `now`."""
        for dataset_id, dataset in sorted(self._datasets.items(), key=lambda item: item[1].alias.lower()):
            if not dataset.head:
                continue
            dataset.forget_growth(now)
            yield Row(
                dataset_id=dataset_id,
                alias=dataset.alias,
                head=dataset.head,
                last_offset=dataset.last_offset,
                watermark=dataset.watermark,
                records_per_second=round(sum(count for _, count in dataset.growth) / WINDOW_SECONDS, 3),
                lag=sum(dataset.lags.values()),
                rejected=dataset.rejects.count,
                rejected_reason=dataset.rejects.reason or None,
                stage=dataset.work.stage or None,
                rows=dataset.work.rows,
                total=dataset.work.total,
            )
