"""What ingest tells Prometheus of itself."""

from contextlib import suppress
from typing import Final

from prometheus_client import Counter, Gauge, Histogram

RECORDS: Final = Counter("odf_ingest_records_total", "Records committed.", ("dataset", "source"))
BAD: Final = Counter(
    "odf_ingest_dead_letters_total",
    "Messages that were rejected: they are dead letters.",
    ("dataset", "source"),
)
LAG: Final = Gauge("odf_ingest_lag", "Messages waiting in the push topic.", ("dataset", "source"))
STOPPED: Final = Gauge("odf_ingest_stopped", "1 while the source is stopped.", ("dataset", "source"))
SECONDS: Final = Histogram(
    "odf_ingest_seconds",
    "Time from a batch's first message to its commit.",
    buckets=(0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 3, 10, 30, 100),
)


def forget(dataset: str, source: str) -> None:
    """Give back what is kept of a source that is gone."""
    for metric in (RECORDS, BAD, LAG, STOPPED):
        with suppress(KeyError):
            metric.remove(dataset, source)
