"""Prometheus metrics of ingest."""

from contextlib import suppress
from typing import Final

from prometheus_client import Counter, Gauge, Histogram

RECORDS: Final = Counter("odf_ingest_records_total", "Records committed.", ("dataset", "source"))
BAD: Final = Counter(
    "odf_ingest_dead_letters_total",
    "Rejected messages, now dead letters.",
    ("dataset", "source"),
)
LATE: Final = Counter(
    "odf_ingest_late_records_total",
    "Late records: committed, but older than the watermark before them.",
    ("dataset", "source"),
)
PUSHES: Final = Counter("odf_ingest_pushes_total", "Accepted pushes that were settled.", ("state",))
LAG: Final = Gauge(
    "odf_ingest_lag", "Messages in the push topic that are not ingested yet.", ("dataset", "source")
)
STOPPED: Final = Gauge("odf_ingest_stopped", "Topics at which the source is stopped.", ("dataset", "source"))
SECONDS: Final = Histogram(
    "odf_ingest_seconds",
    "Time from a batch's first message to its commit.",
    buckets=(0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 3, 10, 30, 100),
)


def forget(dataset: str, source: str) -> None:
    """Remove the metrics of a removed source."""
    for metric in (RECORDS, BAD, LATE, LAG, STOPPED):
        with suppress(KeyError):
            metric.remove(dataset, source)
