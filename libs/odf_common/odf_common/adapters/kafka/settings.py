"""librdkafka's settings: low latency, no loss, no auto-created topics."""

import logging
from collections.abc import Mapping
from typing import Final, TypeAlias

from confluent_kafka import KafkaError, KafkaException

from odf_common.errors import Unavailable

Config: TypeAlias = Mapping[str, str | int | bool]

DELIVERY_MS: Final = 10_000
SESSION_TIMEOUT_MS: Final = 6000  # without a heartbeat; the least that brokers accept by default
POLL_LIMIT_MS: Final = 3_600_000  # a replay may keep one handler busy for long
QUIET_SECONDS: Final = 30.0  # between two log lines of the same kind


class _OnceInAWhile(logging.Filter):
    """Rate-limits lines of the same kind: a client that cannot connect logs several times a second."""

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        kind = record.getMessage().partition(" ")[0]
        if record.created - self._last.get(kind, 0.0) < QUIET_SECONDS:
            return False
        self._last[kind] = record.created
        return True


LOGGER: Final = logging.getLogger("kafka")
LOGGER.addFilter(_OnceInAWhile())


def common(bootstrap: str) -> Config:
    """Return the settings of all clients: quick reconnects when the broker is back."""
    return {
        "bootstrap.servers": bootstrap,
        "allow.auto.create.topics": False,
        "socket.nagle.disable": True,
        "reconnect.backoff.ms": 50,
        "reconnect.backoff.max.ms": 500,
        "retry.backoff.ms": 50,
        "retry.backoff.max.ms": 500,
        "topic.metadata.propagation.max.ms": 3000,
        "log.connection.close": False,
    }


def producing(bootstrap: str) -> Config:
    """Return a producer's settings: acknowledged by all replicas, ordered, idempotent, without delay."""
    return {
        **common(bootstrap),
        "enable.idempotence": True,
        "acks": "all",
        "linger.ms": 0,
        "compression.type": "none",
        "partitioner": "murmur2_random",
        "delivery.timeout.ms": DELIVERY_MS,
        "message.max.bytes": 16 * 1024 * 1024,
    }


def consuming(
    bootstrap: str, *, group: str, session_timeout_ms: int = SESSION_TIMEOUT_MS, instance: str | None = None
) -> Config:
    """Return a consumer's settings. A static `instance` that returns gets its partitions back without a rebalance."""
    return {
        **common(bootstrap),
        "group.id": group,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "earliest",
        "partition.assignment.strategy": "cooperative-sticky",
        "session.timeout.ms": session_timeout_ms,
        "heartbeat.interval.ms": max(session_timeout_ms // 4, 250),
        "max.poll.interval.ms": POLL_LIMIT_MS,
        "coordinator.query.interval.ms": 1000,
        "fetch.min.bytes": 1,
        "fetch.wait.max.ms": 250,
        "fetch.error.backoff.ms": 50,
        "fetch.queue.backoff.ms": 50,
        "enable.partition.eof": False,
        **({"group.instance.id": instance} if instance else {}),
    }


def unavailable(error: KafkaException | KafkaError) -> Unavailable:
    """Return the project's error for a Kafka error."""
    cause = error.args[0] if isinstance(error, KafkaException) else error
    text = cause.str() if isinstance(cause, KafkaError) else str(cause)
    return Unavailable(what="Kafka", why=text)
