"""How many rows came too late for a derivative and were dropped: counted as its transforms are committed, and kept.

The chain has no place for that, so it is a note of this node: a crash between a commit and the note loses what the
commit dropped, and a transform that is run again after a reset counts again. Copies have none.
"""

from contextlib import suppress
from typing import Final

import prometheus_client
import structlog

from odf_common.errors import OdfError
from odf_common.identity.did import DatasetId
from odf_common.ports.store import BlobStore
from odf_coordinator.catalog.registry import Known

log = structlog.get_logger(__name__)

NOTE: Final = "late"
LIMIT: Final = 1 << 63
LATE: Final = prometheus_client.Counter(
    "odf_transform_late_records_total", "Input records that came too late for their windows.", ("dataset",)
)


def late_rows(blobs: BlobStore, dataset: DatasetId) -> int:
    """Return how many rows came too late so far."""
    with suppress(ValueError):
        counted = int(blobs.note(dataset, NOTE) or 0)
        return counted if 0 <= counted < LIMIT else 0
    return 0


def forget_late(alias: str) -> None:
    """Drop the counter of a dataset that has gone."""
    with suppress(KeyError):
        LATE.remove(alias)


def count_late(blobs: BlobStore, known: Known, more: int) -> None:
    """Count what a transform dropped, now that it is committed; a note that cannot be written is logged."""
    if more:
        LATE.labels(known.alias).inc(more)
        try:
            blobs.set_note(known.id, NOTE, str(late_rows(blobs, known.id) + more))
        except OdfError as error:
            log.warning("late rows are not noted", dataset=known.alias, rows=more, why=str(error))
