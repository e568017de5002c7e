"""Rejected messages of the datasets whose sources this node reads; not of copies."""

import structlog

from odf_common.dataset.rejects import Rejects, open_rejects
from odf_common.errors import OdfError
from odf_coordinator.catalog.registry import DatasetHandle, Datasets

log = structlog.stdlib.get_logger(__name__)


def rejects_of(datasets: Datasets, known: DatasetHandle) -> Rejects:
    """Return the rejected messages that await a decision; none, with a log line, if they cannot be read."""
    try:
        return open_rejects(datasets.blobs, known.state, known.entry.push_topics)
    except OdfError as error:
        log.warning("cannot count rejected messages", dataset=known.alias, why=str(error))
        return Rejects()
