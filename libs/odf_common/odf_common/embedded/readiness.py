"""Readiness probes: each is polled until it returns True."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from odf_common.adapters.kafka.admin import KafkaTopics
from odf_common.errors import Unavailable
from odf_common.metadata.scalars import Timestamp
from odf_common.ports.bus import FIXED_TOPICS
from odf_common.service.settings import Settings
from odf_common.service.topic_claim import claim_topics

Probe = Callable[[], Awaitable[bool]]
PROBE_TIMEOUT_SECONDS: Final = 2.0
_OPTIONS: Final = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
)


def listens(address: str) -> Probe:
    """Return a probe: a server accepts connections at `host:port`."""
    host, _, port = address.rpartition(":")

    async def probe() -> bool:
        try:
            _, writer = await asyncio.wait_for(
                asyncio.open_connection(host, int(port)), PROBE_TIMEOUT_SECONDS
            )
        except (OSError, TimeoutError):
            return False
        writer.close()
        return True

    return probe


def redis_answers(address: str) -> Probe:
    """Return a probe: Redis answers PONG."""
    host, _, port = address.rpartition(":")

    async def probe() -> bool:
        try:
            reader, writer = await asyncio.wait_for(
                asyncio.open_connection(host, int(port)), PROBE_TIMEOUT_SECONDS
            )
            writer.write(b"PING\r\n")
            answer = await asyncio.wait_for(reader.readline(), PROBE_TIMEOUT_SECONDS)
        except (OSError, TimeoutError):
            return False
        writer.close()
        return answer == b"+PONG\r\n"

    return probe


def kafka_has_topics(settings: Settings) -> Probe:
    """Return a probe: the embedded broker answers; it creates and claims the fixed topics."""
    address = settings.required("kafka")
    is_listening = listens(address)

    def make() -> bool:
        try:
            KafkaTopics(address, prefix=settings.kafka_prefix).ensure_topics(FIXED_TOPICS)
            # An embedded broker belongs to its home, even after the home was moved.
            now = Timestamp.from_ms(time.time_ns() // 1_000_000)
            claim_topics(settings, now, is_taking_over=True)
        except Unavailable:
            return False
        return True

    async def probe() -> bool:
        return await is_listening() and await asyncio.to_thread(make)

    return probe


def grpc_serves(address: str) -> Probe:
    """Return a probe: the gRPC health service reports SERVING."""
    is_listening = listens(address)
    stubs: list[health_pb2_grpc.HealthStub] = []

    async def probe() -> bool:
        # The cheap check first: while many services start, gRPC channels would cost more CPU than the services.
        if not await is_listening():
            return False
        if not stubs:
            stubs.append(health_pb2_grpc.HealthStub(grpc.aio.insecure_channel(address, options=_OPTIONS)))
        try:
            answer = await stubs[0].Check(health_pb2.HealthCheckRequest(), timeout=PROBE_TIMEOUT_SECONDS)
        except grpc.aio.AioRpcError:
            return False
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    return probe
