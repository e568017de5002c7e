"""Probes of the embedded Kafka and Redis."""

import asyncio
import os
import struct
from typing import Final

from odf_cli.embedded.credentials import PRODUCER
from odf_common.errors import Unavailable
from odf_common.ports.bus import FIXED_TOPICS
from odf_common.service.probes import Probe, answers, listens
from odf_common.service.settings import Settings

ANONYMOUS: Final = "ANONYMOUS"  # Kafka's name for clients that do not authenticate
# ApiVersions, the one request that every broker answers: key 18, version 0, correlation id, no client id.
_CORRELATION: Final = 7
_API_VERSIONS: Final = struct.pack(">ihhih", 10, 18, 0, _CORRELATION, -1)


def redis_answers(address: str, password: str) -> Probe:
    """Return a probe: Redis, of this process's user, accepts the password and answers PONG."""
    question = f"AUTH {password}\r\nPING\r\n".encode()
    return answers(address, question, b"+OK\r\n+PONG\r\n", users=frozenset({os.geteuid()}))


def kafka_answers(address: str) -> Probe:
    """Return a probe: the broker answers ApiVersions."""
    return answers(address, _API_VERSIONS, struct.pack(">i", _CORRELATION), skipped=4)  # the answer's size


def kafka_has_topics(settings: Settings) -> Probe:
    """Return a probe: the embedded broker answers; it creates and claims the fixed topics, and admits producers."""
    from odf_common.adapters.kafka.admin import KafkaTopics
    from odf_common.service.connections import kafka_cluster
    from odf_common.service.node_id import claim_topics

    is_listening = listens(settings.required("kafka"))

    def make() -> bool:
        try:
            topics = KafkaTopics(kafka_cluster(settings), prefix=settings.kafka_prefix)
            topics.ensure_topics(FIXED_TOPICS)
            for user in (PRODUCER, ANONYMOUS):  # the latter has a listener on a single-tenant node only
                topics.admit_producers(user)
            topics.admit_transactions(PRODUCER)
            # An embedded broker belongs to its home, even after the home was moved.
            claim_topics(settings, is_taking_over=True)
        except Unavailable:
            return False
        return True

    async def probe() -> bool:
        return await is_listening() and await asyncio.to_thread(make)

    return probe
