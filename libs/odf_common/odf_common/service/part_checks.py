"""Health checks of a node's parts: each asks one part for any answer; the part need not be ready."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Final

from grpc_health.v1 import health_pb2, health_pb2_grpc

from odf_common.adapters.grpc.client import calling, channel
from odf_common.adapters.grpc.peer_credentials import PeerCredentials
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
        checks["store"] = http_check("the bucket", settings.store.endpoint or settings.s3_endpoint)
    for name in services:
        field = "engine" if name == ENGINE_SERVICE else f"{name}_grpc"
        configured: str | None = getattr(settings, field) or (ENGINE if name == ENGINE_SERVICE else None)
        if configured is not None:
            credentials = peer_credentials(settings, configured, secret_of(name))
            checks[name] = service_check(name, configured, credentials)
    return checks


def http_check(what: str, url: str) -> Check:
    """Return a check that an HTTP server answers, whatever it answers; a frozen one still accepts connections."""
    import urllib3  # noqa: PLC0415 commands need it seldom

    from odf_common.adapters.networks import Pools, cause_of  # noqa: PLC0415

    timeout = urllib3.Timeout(total=CHECK_TIMEOUT_SECONDS)
    pools = Pools(timeout=timeout, retries=False)

    def check() -> None:
        try:
            # A certificate is an answer: whom to trust is for the bucket's client.
            with suppress(urllib3.exceptions.SSLError):
                pools.request("HEAD", url, redirect=False).close()
        except urllib3.exceptions.HTTPError as error:
            raise Unavailable(what=what, why=cause_of(error)) from error

    return check


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
