"""Prometheus metrics that every service has."""

from typing import Final

from prometheus_client import Counter, Gauge, Histogram, start_http_server

from odf_common.errors import Unavailable
from odf_common.service.protection import http_tls, is_loopback, require_protected
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
    """Serve the metrics of this process over HTTP if a port is configured: https beyond the loopback address.

    Raises `Unavailable` if the port is in use, `Unprotected` if the host is not to be listened on, and `InvalidInput`
    for a bad file of a certificate.
    """
    port, host = settings.metrics_port, settings.metrics_host
    if port is None:
        return
    require_protected(settings, "ODF_METRICS_HOST", f"{host}:{port}")
    certificate = key = None
    if not is_loopback(host.strip("[]")) and http_tls(settings) is not None:
        certificate, key = str(settings.http_certificate_file), str(settings.http_key_file)
    try:
        start_http_server(port, host.strip("[]"), certfile=certificate, keyfile=key)
    except OSError as error:
        raise Unavailable(what=f"port {port} for metrics", why=error.strerror or str(error)) from error
