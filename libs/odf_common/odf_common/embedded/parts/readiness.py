"""Probes of the node's parts: a readiness probe is polled until it returns True, a liveness probe from then on.

The kernel accepts connections for a process that is stopped or hangs, so a liveness probe needs an answer.
"""

import asyncio
import os
import struct
from collections.abc import Awaitable, Callable
from typing import Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from odf_common.adapters.grpc.client import asyncio_channel
from odf_common.adapters.grpc.peer_secret import PeerCredentials, PeerSecret, require_own_server
from odf_common.adapters.socket_users import ServerOfAnotherUser, require_own_end
from odf_common.embedded.credentials import PRODUCER
from odf_common.errors import Unavailable
from odf_common.ports.bus import FIXED_TOPICS
from odf_common.service.settings import Settings

Probe = Callable[[], Awaitable[bool]]
PROBE_TIMEOUT_SECONDS: Final = 5.0
ANONYMOUS: Final = "ANONYMOUS"  # Kafka's name for clients that do not authenticate
# ApiVersions, the one request that every broker answers: key 18, version 0, correlation id, no client id.
_CORRELATION: Final = 7
_API_VERSIONS: Final = struct.pack(">ihhih", 10, 18, 0, _CORRELATION, -1)


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


def redis_answers(address: str, password: str) -> Probe:
    """Return a probe: Redis, of this process's user, accepts the password and answers PONG."""
    question = f"AUTH {password}\r\nPING\r\n".encode()
    return answers(address, question, b"+OK\r\n+PONG\r\n", users=frozenset({os.geteuid()}))


def kafka_answers(address: str) -> Probe:
    """Return a probe: the broker answers ApiVersions."""
    return answers(address, _API_VERSIONS, struct.pack(">i", _CORRELATION), skipped=4)  # the answer's size


def http_answers(address: str, path: str) -> Probe:
    """Return a probe: a web server answers a GET, with any status."""
    return answers(address, f"GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n".encode(), b"HTTP/1.")


def answers(
    address: str, question: bytes, answer: bytes, *, skipped: int = 0, users: frozenset[int] | None = None
) -> Probe:
    """Return a probe: the answer to `question` starts with `answer`, after `skipped` bytes.

    With `users` the question is sent to a server of one of them only.
    """
    host, _, port = address.rpartition(":")

    async def probe() -> bool:
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_SECONDS):
                reader, writer = await asyncio.open_connection(host, int(port))
                try:
                    if users is not None:
                        require_own_end(writer.get_extra_info("socket"), users)
                    writer.write(question)
                    start = await reader.readexactly(skipped + len(answer))
                finally:
                    writer.close()
        except (OSError, TimeoutError, EOFError, ServerOfAnotherUser):
            return False
        return start[skipped:] == answer

    return probe


def kafka_has_topics(settings: Settings) -> Probe:
    """Return a probe: the embedded broker answers; it creates and claims the fixed topics, and admits producers."""
    from odf_common.adapters.kafka.admin import KafkaTopics  # noqa: PLC0415 commands use other probes
    from odf_common.service.connections import kafka_cluster  # noqa: PLC0415
    from odf_common.service.node_id import claim_topics  # noqa: PLC0415

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


def grpc_serves(address: str, credentials: PeerCredentials = None) -> Probe:
    """Return a probe: the gRPC health service reports SERVING."""
    return _health_reported(address, credentials, frozenset({health_pb2.HealthCheckResponse.SERVING}))


def grpc_answers(address: str, credentials: PeerCredentials = None) -> Probe:
    """Return a probe: the gRPC health service answers, also that the service is not ready yet."""
    return _health_reported(
        address, credentials, frozenset(health_pb2.HealthCheckResponse.ServingStatus.values())
    )


def _health_reported(address: str, credentials: PeerCredentials, expected: frozenset[int]) -> Probe:
    stubs: list[health_pb2_grpc.HealthStub] = []
    metadata = (credentials.header(),) if isinstance(credentials, PeerSecret) else ()

    async def probe() -> bool:
        if not stubs:
            stubs.append(health_pb2_grpc.HealthStub(asyncio_channel(address, credentials)))
        try:
            if isinstance(credentials, PeerSecret):
                require_own_server(credentials, address)
            request = health_pb2.HealthCheckRequest()
            answer = await stubs[0].Check(request, timeout=PROBE_TIMEOUT_SECONDS, metadata=metadata)
        except (grpc.aio.AioRpcError, ServerOfAnotherUser):
            return False
        return answer.status in expected

    return probe


def once_listening(address: str, probe: Probe) -> Probe:
    """Return a probe that tries `probe` only if a server listens.

    While many services start, gRPC channels would cost more processor time than the services.
    """
    is_listening = listens(address)

    async def both() -> bool:
        return await is_listening() and await probe()

    return both
