"""Health checks of the parts of a node: each passes if the part answers, even that it is not ready."""

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
    """Return the checks, by part, of Kafka, Redis, the bucket and `services`, as far as they are configured."""
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
    """Return a check that passes if an HTTP server sends any response.

    A mere connection would not do: the kernel accepts connections for a frozen process.
    """
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
    """Return a check that passes if a service answers a gRPC health check, even that it is not ready yet."""
    health = health_pb2_grpc.HealthStub(channel(address, credentials))

    def check() -> None:
        with calling(name):
            health.Check(health_pb2.HealthCheckRequest(), timeout=CHECK_TIMEOUT_SECONDS)

    return check


def why_silent(error: OdfError) -> str:
    """Return the reason why a part does not answer, without the name of the part."""
    return (isinstance(error, Unavailable) and error.why) or str(error)
