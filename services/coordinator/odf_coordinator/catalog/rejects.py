"""Rejected messages of datasets whose sources are read here; of copies only their own node knows."""

import structlog

from odf_common.dataset.rejects import Rejects, open_rejects
from odf_common.errors import OdfError
from odf_coordinator.catalog.registry import Datasets, Known

log = structlog.get_logger(__name__)


def rejects_of(datasets: Datasets, known: Known) -> Rejects:
    """Return the rejected messages that wait for a decision; none, with a log line, where that cannot be read."""
    try:
        return open_rejects(datasets.blobs, known.state, known.entry.push_topics)
    except OdfError as error:
        log.warning("rejected messages not counted", dataset=known.alias, why=str(error))
        return Rejects()
