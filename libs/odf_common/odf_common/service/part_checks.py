"""Checks of the parts of a node: each asks one for an answer, whether or not the part is ready."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final
from urllib.parse import urlsplit

from grpc_health.v1 import health_pb2, health_pb2_grpc

from odf_common.adapters.grpc.client import calling, channel, require_server
from odf_common.adapters.grpc.peer_secret import PeerCredentials
from odf_common.errors import OdfError, Unavailable
from odf_common.service.protection import ENGINE_SERVICE, peer_credentials, secret_of
from odf_common.service.settings import ENGINE, Settings

CHECK_TIMEOUT_SECONDS: Final = 2.0
Check = Callable[[], None]  # raises `OdfError` unless a part answers within `CHECK_TIMEOUT_SECONDS`


def checks_of(settings: Settings, services: Iterable[str]) -> Mapping[str, Check]:
    """Return the checks of Kafka, Redis and the bucket, if they are configured, and of these services."""
    from odf_common.adapters.kafka.admin import KafkaTopics  # noqa: PLC0415 commands need it seldom
    from odf_common.service.connections import kafka_cluster, redis_connection  # noqa: PLC0415

    checks: dict[str, Check] = {}
    if settings.kafka is not None:
        checks["kafka"] = partial(KafkaTopics(kafka_cluster(settings)).require_answer, CHECK_TIMEOUT_SECONDS)
    if settings.redis is not None:
        checks["redis"] = redis_connection(settings).require_answer
    if settings.store is not None:
        url = urlsplit(settings.store.endpoint or settings.s3_endpoint)
        address = f"{url.hostname}:{url.port or (443 if url.scheme == 'https' else 80)}"
        checks["store"] = partial(require_server, "the bucket", address, CHECK_TIMEOUT_SECONDS)
    for name in services:
        field = "engine" if name == ENGINE_SERVICE else f"{name}_grpc"
        configured: str | None = getattr(settings, field) or (ENGINE if name == ENGINE_SERVICE else None)
        if configured is not None:
            credentials = peer_credentials(settings, configured, secret_of(name))
            checks[name] = service_check(name, configured, credentials)
    return checks


def service_check(name: str, address: str, credentials: PeerCredentials) -> Check:
    """Return a check that asks a service for its health; one that is not ready yet answers, too."""
    health = health_pb2_grpc.HealthStub(channel(address, credentials))

    def check() -> None:
        with calling(name):
            health.Check(health_pb2.HealthCheckRequest(), timeout=CHECK_TIMEOUT_SECONDS)

    return check


def why_silent(error: OdfError) -> str:
    """Return the reason for which a part does not answer, without the part's name."""
    return (isinstance(error, Unavailable) and error.why) or str(error)
