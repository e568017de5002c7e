"""Configuration and construction of Kafka clients: low latency, no message loss, no automatic creation of topics."""

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, TypeAlias

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from odf_common.adapters.kafka.cluster import OAUTHBEARER, KafkaCluster, Sasl
from odf_common.adapters.tls import ClientTls
from odf_common.errors import Unavailable

Config: TypeAlias = Mapping[str, str | int | bool]

# For an answer; a fetch may take `FETCH_WAIT_MS` more. Without it the connection is closed, and the next one goes to
# the address that the broker's name has by then. A message that was not acknowledged has some seconds left for that.
ANSWER_MS: Final = 6000
CONNECT_MS: Final = 5000
DELIVERY_MS: Final = 10_000
FETCH_WAIT_MS: Final = 1000
SESSION_TIMEOUT_MS: Final = 6000  # without a heartbeat; the least that brokers accept by default
POLL_LIMIT_MS: Final = 3_600_000  # a replay may keep one handler busy for long
IDLE_MS: Final = 9000  # without a byte, until a connection is closed
LATE_LOG_SECONDS: Final = 5.0  # a client logs what happened to it when it is polled
STARTING_SECONDS: Final = 30.0  # in which a broker that starts together with its clients answers
REPEATED_LOG_SECONDS: Final = 30.0  # between two log lines of the same kind


class _OnceInAWhile(logging.Filter):
    """Limits the rate of similar log lines: a client that cannot connect logs several times per second."""

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        kind = record.getMessage().partition(" ")[0]
        if record.created - self._last.get(kind, 0.0) < REPEATED_LOG_SECONDS:
            return False
        self._last[kind] = record.created
        return True


class _StartupFilter(logging.Filter):
    """Logs refused connections at level debug during startup, because the broker of a node starts at the same time."""

    def __init__(self) -> None:
        super().__init__()
        self.ends_at = time.monotonic() + STARTING_SECONDS

    def filter(self, record: logging.LogRecord) -> bool:
        if time.monotonic() < self.ends_at and "Connection refused" in record.getMessage():
            record.levelno, record.levelname = logging.DEBUG, logging.getLevelName(logging.DEBUG)
        return LOGGER.isEnabledFor(record.levelno)


# librdkafka's; of the standard library, since the binding calls it.
LOGGER: Final = logging.getLogger("kafka")
_STARTING: Final = _StartupFilter()
LOGGER.addFilter(_STARTING)
LOGGER.addFilter(_OnceInAWhile())


def note_connected() -> None:
    """Record that a broker has answered; refused connections are logged normally soon after."""
    _STARTING.ends_at = min(_STARTING.ends_at, time.monotonic() + LATE_LOG_SECONDS)


def common(cluster: KafkaCluster) -> Config:
    """Return the configuration that all clients share: security, detection of dead connections, quick reconnects."""
    return {
        "bootstrap.servers": cluster.bootstrap,
        **_security(cluster),
        "allow.auto.create.topics": False,
        "socket.nagle.disable": True,
        "socket.keepalive.enable": True,
        "socket.timeout.ms": ANSWER_MS,
        "socket.connection.setup.timeout.ms": CONNECT_MS,
        "broker.address.ttl": 1000,
        "reconnect.backoff.ms": 50,
        "reconnect.backoff.max.ms": 500,
        "retry.backoff.ms": 50,
        "retry.backoff.max.ms": 500,
        "topic.metadata.propagation.max.ms": 3000,
        "log.connection.close": False,
    }


def new_consumer(config: Mapping[str, Any]) -> Consumer:
    """Return a consumer with this configuration (`consumer_config`, `group_config`).

    Raises `Unavailable` if its threads cannot be started.
    """
    with _translate_lack_of_threads():
        return Consumer({**config}, logger=LOGGER)


def new_producer(config: Mapping[str, Any]) -> Producer:
    """Return a producer with this configuration (`producer_config`).

    Raises `Unavailable` if its threads cannot be started.
    """
    with _translate_lack_of_threads():
        return Producer({**config}, logger=LOGGER)


def new_admin_client(config: Mapping[str, Any]) -> AdminClient:
    """Return an admin client; raises `Unavailable` if its threads cannot be started."""
    with _translate_lack_of_threads():
        return AdminClient({**config}, logger=LOGGER)


@contextmanager
def _translate_lack_of_threads() -> Iterator[None]:
    try:
        yield
    except KafkaException as error:
        if "thread" not in error.args[0].str():  # it has no code of its own
            raise
        raise unavailable(error) from error


def producer_config(cluster: KafkaCluster) -> Config:
    """Return the configuration of a producer: idempotent, ordered, acknowledged by all replicas, without linger."""
    return {
        **common(cluster),
        "enable.idempotence": True,
        "acks": "all",
        "linger.ms": 0,
        "compression.type": "none",
        "partitioner": "murmur2_random",
        "delivery.timeout.ms": DELIVERY_MS,
        "message.max.bytes": 16 * 1024 * 1024,
    }


def consumer_config(cluster: KafkaCluster, *, group: str) -> Config:
    """Return the configuration of a consumer that assigns its partitions itself and commits no offsets."""
    return {
        **common(cluster),
        "group.id": group,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "earliest",
        "max.poll.interval.ms": POLL_LIMIT_MS,
        "coordinator.query.interval.ms": 1000,
        "fetch.min.bytes": 1,
        # The broker answers at once when there is a message; a longer wait makes an idle node cheaper. A partition that
        # is assigned to a client with others is first fetched when the fetch in flight returns.
        "fetch.wait.max.ms": FETCH_WAIT_MS,
        "fetch.error.backoff.ms": 50,
        "fetch.queue.backoff.ms": 50,
        "enable.partition.eof": False,
    }


def group_config(
    cluster: KafkaCluster, *, group: str, session_timeout_ms: int, instance: str | None
) -> Config:
    """Return the configuration of a member of a consumer group.

    A member with a static `instance` name keeps its partitions over a restart, without a rebalance.
    """
    heartbeat_ms = max(session_timeout_ms // 4, 250)
    return {
        **consumer_config(cluster, group=group),
        "partition.assignment.strategy": "cooperative-sticky",
        "session.timeout.ms": session_timeout_ms,
        "heartbeat.interval.ms": heartbeat_ms,
        # A request to join has no answer before all other members have joined, which may take `POLL_LIMIT_MS`. Its
        # connection may die meanwhile, so it is sent again on another one.
        "connections.max.idle.ms": max(IDLE_MS, 2 * heartbeat_ms),
        **({"group.instance.id": instance} if instance else {}),
    }


def _security(cluster: KafkaCluster) -> Config:
    if cluster.tls is None and cluster.sasl is None:
        return {}
    return {
        "security.protocol": cluster.security_protocol,
        **(_tls(cluster.tls) if cluster.tls else {}),
        **(_sasl(cluster.sasl) if cluster.sasl else {}),
    }


def _tls(tls: ClientTls) -> Config:
    files = {
        "ssl.ca.location": tls.ca_file,
        "ssl.certificate.location": tls.certificate_file,
        "ssl.key.location": tls.key_file,
        "ssl.key.password": tls.key_password,
    }
    return {
        **{name: str(value) for name, value in files.items() if value is not None},
        "ssl.endpoint.identification.algorithm": "https" if tls.checks_hostname else "none",
    }


def _sasl(sasl: Sasl) -> Config:
    if sasl.mechanism != OAUTHBEARER:
        return {
            "sasl.mechanism": sasl.mechanism,
            "sasl.username": sasl.username,
            "sasl.password": sasl.password,
        }
    return {
        "sasl.mechanism": OAUTHBEARER,
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.client.id": sasl.username,
        "sasl.oauthbearer.client.secret": sasl.password,
        "sasl.oauthbearer.token.endpoint.url": sasl.token_url or "",
        **({"sasl.oauthbearer.scope": sasl.token_scope} if sasl.token_scope else {}),
    }


def unavailable(error: KafkaException | KafkaError) -> Unavailable:
    """Return `Unavailable` with the reason that a Kafka error gives."""
    cause = error.args[0] if isinstance(error, KafkaException) else error
    if not isinstance(cause, KafkaError):
        return Unavailable(what="Kafka", why=str(cause))
    is_late = cause.code() == KafkaError._TIMED_OUT  # noqa: SLF001 - public, although its name is not
    return Unavailable(what="Kafka", why="no answer in time" if is_late else cause.str())
