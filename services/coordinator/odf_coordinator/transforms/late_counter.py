"""Late records: how many a derivative dropped, counted when its transforms are committed.

The chain has no field for it, so it is a note of this node: a crash between a commit and the note loses that commit's
count, and a transform repeated after a reset counts again. Copies have none. The engine drops the records
(`odf_engine_spark/plan/late_records.py`); those of a root are kept, and counted by ingest (`commit/watermark.py`).
"""

from contextlib import suppress
from typing import Final

import prometheus_client
import structlog

from odf_common.errors import OdfError
from odf_common.identity.did import DatasetId
from odf_common.ports.store import BlobStore
from odf_coordinator.catalog.datasets import DatasetHandle

log = structlog.stdlib.get_logger(__name__)

NOTE: Final = "late"
COUNT_END: Final = 1 << 63
LATE: Final = prometheus_client.Counter(
    "odf_transform_late_records_total",
    "Late records: a derivative dropped them because their windows had ended.",
    ("dataset",),
)


def late_rows(blobs: BlobStore, dataset: DatasetId) -> int:
    """Return the number of rows that were too late so far."""
    with suppress(ValueError):
        counted = int(blobs.note(dataset, NOTE) or 0)
        return counted if 0 <= counted < COUNT_END else 0
    return 0


def forget_late(alias: str) -> None:
    """Drop the counter of a deleted dataset."""
    with suppress(KeyError):
        LATE.remove(alias)


def count_late(blobs: BlobStore, handle: DatasetHandle, more: int) -> None:
    """Add the rows that a committed transform dropped; a failure to write the note is logged."""
    if more:
        LATE.labels(handle.alias).inc(more)
        try:
            blobs.set_note(handle.id, NOTE, str(late_rows(blobs, handle.id) + more))
        except OdfError as error:
            log.warning("cannot record late rows", **handle.log_facts, rows=more, why=str(error))
