"""Prometheus metrics that every service has."""

from typing import Final

from prometheus_client import Counter, Gauge, Histogram, start_http_server

from odf_common.errors import Unavailable
from odf_common.service.protection import require_protected
from odf_common.service.settings import Settings

MESSAGES: Final = Counter("odf_messages_total", "Handled messages, by outcome.", ("topic", "outcome"))
SECONDS: Final = Histogram(
    "odf_message_seconds",
    "Time from reading a message until its results are sent.",
    ("topic",),
    buckets=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100),
)
PARTITIONS: Final = Gauge("odf_owned_partitions", "Partitions read by this instance.", ("topic",))
RETRIES: Final = Counter(
    "odf_retries_total", "Retries because a part of the node was unavailable, by error.", ("error",)
)


def expose(settings: Settings) -> None:
    """Serve the metrics of this process over HTTP if a port is configured.

    Raises `Unavailable` if the port is in use, `Unprotected` if the host is not to be listened on.
    """
    port, host = settings.metrics_port, settings.metrics_host
    if port is None:
        return
    require_protected(settings, "ODF_METRICS_HOST", f"{host}:{port}")
    try:
        start_http_server(port, host.strip("[]"))
    except OSError as error:
        raise Unavailable(what=f"port {port} for metrics", why=error.strerror or str(error)) from error
