"""The messages of a source's next batch, its limits (which `source.py` applies), and how its parts are joined."""

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from odf_ingest.prepare.batch import Part
from odf_ingest.read.message_buffer import MessageBuffer

MAX_BATCH_BYTES: Final = 64 * 1024 * 1024  # of a batch that grows because it lacks a later message
MAX_DELAY_SECONDS: Final = 10.0  # that such a batch waits for more messages


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """When a batch, which becomes a slice, is full: bytes of raw messages, or seconds after its first message.

    They are the settings `slice_max_bytes` and `slice_max_delay_ms`; `PushSource.due` says when the time is up,
    later while a source is behind. `PushSource.add` cuts by bytes and, where the plan or a search for a bad message
    wants it, by number of messages.
    """

    size: int
    delay: float
    most: int = MAX_BATCH_BYTES

    @property
    def top(self) -> int:
        """Return the bytes of the largest batch."""
        return max(self.size, self.most)

    def after(self, tries: int) -> "BatchLimits":
        """Return the limits after `tries` batches that were too short: doubled each time."""
        if tries == 0:
            return self
        times = 2 ** min(tries, 32)
        delay = max(self.delay, min(max(self.delay, 0.05) * times, MAX_DELAY_SECONDS))
        return BatchLimits(size=min(self.size * times, self.top), delay=delay, most=self.most)


@dataclass(slots=True, kw_only=True)
class BatchBuffer:
    """Messages of the next batch."""

    start: dict[int, int]
    parts: list[Part] = field(default_factory=list)
    size: int = 0
    count: int = 0
    begun: float = 0.0


def joined_by_partition(parts: list[Part]) -> list[Part]:
    """Join each partition's parts, partitions ascending."""
    grouped: dict[int, list[Part]] = {}
    for part in parts:
        grouped.setdefault(part.partition, []).append(part)
    return [_joined(grouped[number]) for number in sorted(grouped)]


def _joined(parts: list[Part]) -> Part:
    values = MessageBuffer.joined([part.values for part in parts])
    start, stop = parts[0].offsets[0], parts[-1].offsets[-1] + 1
    has_gaps = stop - start != len(values)
    timestamps = [part.timestamps for part in parts if part.timestamps is not None]
    return Part(
        partition=parts[0].partition,
        values=values,
        offsets=[offset for part in parts for offset in part.offsets] if has_gaps else range(start, stop),
        timestamps=np.concatenate(timestamps) if timestamps else None,
        keys=[key for part in parts for key in part.keys],
        headers={
            name: [header for part in parts for header in part.headers[name]] for name in parts[0].headers
        },
    )
