"""Probes of servers. A readiness probe is polled until it returns True, a liveness probe from then on.

A liveness probe needs an answer, because the kernel accepts connections even for a process that is stopped or hangs.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from odf_common.adapters.grpc.client import asyncio_channel
from odf_common.adapters.grpc.peer_credentials import PeerCredentials, PeerSecret, require_own_server
from odf_common.adapters.socket_users import ServerOfAnotherUser, require_own_end

Probe = Callable[[], Awaitable[bool]]
PROBE_TIMEOUT_SECONDS: Final = 5.0


def listens(address: str) -> Probe:
    """Return a probe that succeeds if a server accepts connections at `host:port`."""
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


def http_answers(address: str, path: str) -> Probe:
    """Return a probe that succeeds if a web server answers a GET request, with any status."""
    return answers(address, f"GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n".encode(), b"HTTP/1.")


def answers(
    address: str, question: bytes, answer: bytes, *, skipped: int = 0, users: frozenset[int] | None = None
) -> Probe:
    """Return a probe that succeeds if the answer to `question`, after `skipped` bytes, starts with `answer`.

    If `users` is given, the question is sent only to a server that runs as one of these users (uids).
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


def grpc_serves(address: str, credentials: PeerCredentials = None) -> Probe:
    """Return a probe that succeeds if the gRPC health service reports SERVING."""
    return _health_reported(address, credentials, frozenset({health_pb2.HealthCheckResponse.SERVING}))


def grpc_answers(address: str, credentials: PeerCredentials = None) -> Probe:
    """Return a probe that succeeds if the gRPC health service answers, even that the service is not ready yet."""
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
    """Return a probe that first checks that a server is listening, and only then runs `probe`.

    While many services start, gRPC channels that fail to connect would cost more processor time than the services do.
    """
    is_listening = listens(address)

    async def both() -> bool:
        return await is_listening() and await probe()

    return both
