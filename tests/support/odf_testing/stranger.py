"""What a program of another user of the machine gets from ports: `python -m odf_testing.stranger`, asked in JSON.

It reads `{"user": 65534, "ports": [["127.0.0.1", 5541], …], "requests": [[method, path, body], …]}`, gives up its rights
once all modules are imported, and writes one `Seen` for each port.
"""

import encodings.idna  # noqa: F401 - imported by the first connection, too late
import http.client
import json
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final, TypedDict

import grpc
from google.protobuf.descriptor import FileDescriptor
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from odf_common.proto.engine import engine_pb2
from odf_common.proto.odf.node.v1 import (
    access_pb2,
    coordinator_pb2,
    ingest_pb2,
    push_pb2,
    sync_pb2,
    verifier_pb2,
    webhooks_pb2,
)

NOBODY: Final = 65534
ANSWER_SECONDS: Final = 3.0
CLOSED: Final = "closed"
_FILES: Final = (
    health_pb2, reflection_pb2, engine_pb2, access_pb2, coordinator_pb2, ingest_pb2, push_pb2, sync_pb2, verifier_pb2, webhooks_pb2
)  # fmt: skip
_API_VERSIONS: Final = struct.pack(">ihhih", 10, 18, 0, 7, -1)  # which every Kafka answers
_METADATA: Final = struct.pack(">ihhihi", 14, 3, 1, 8, -1, -1)  # of all topics
Request = tuple[str, str, str]


class Seen(TypedDict):
    """What a port has answered."""

    port: int
    grpc: dict[str, str]
    """The status of each method; empty if it is no gRPC."""
    http: list[tuple[int, str]]
    """Status and body of each request; empty if it is no HTTP."""
    redis: str
    """The answer to PING; empty if it is no Redis."""
    kafka: str
    """The answer to a request for the metadata of all topics; empty if it is no Kafka."""
    other: str
    """What it answers to a line of text, if it is none of these."""


def see(
    ports: Iterable[tuple[str, int]], requests: Iterable[Request], *, user: int = NOBODY
) -> Mapping[int, Seen]:
    """Return what a program of this user gets from each port."""
    question = json.dumps({"user": user, "ports": list(ports), "requests": list(requests)})
    command = [sys.executable, "-m", "odf_testing.stranger"]
    done = subprocess.run(command, input=question, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return {seen["port"]: seen for seen in json.loads(done.stdout)}


def methods() -> Iterator[tuple[str, str]]:
    """Yield all methods of the node's services, of health checks and of reflection, and the kind of each."""
    for file in _FILES:
        described: FileDescriptor = file.DESCRIPTOR
        for service in described.services_by_name.values():
            for method in service.methods:
                sides = ("stream" if is_stream else "unary" for is_stream in _streams(method))
                yield f"/{service.full_name}/{method.name}", "_".join(sides)


def _streams(method: Any) -> tuple[bool, bool]:
    return method.client_streaming, method.server_streaming


def _seen(address: tuple[str, int], requests: Iterable[Request]) -> Seen:
    seen = Seen(port=address[1], grpc={}, http=[], redis="", kafka="", other="")
    if statuses := _grpc(f"{address[0]}:{address[1]}"):
        seen["grpc"] = statuses
    elif answers := _http(address, requests):
        seen["http"] = answers
    elif (answer := _exchange(address, b"*1\r\n$4\r\nPING\r\n"))[:1] in (b"+", b"-"):
        seen["redis"] = answer.decode()
    elif (answer := _exchange(address, _API_VERSIONS))[4:8] == struct.pack(">i", 7):
        seen["kafka"] = _exchange(address, _METADATA).decode("latin-1") or CLOSED
    else:
        seen["other"] = _exchange(address, b"m\nd\no0\ne\n").decode(errors="replace")
    return seen


def _grpc(address: str) -> dict[str, str]:
    statuses: dict[str, str] = {}
    with grpc.insecure_channel(address) as channel:
        for method, kind in methods():
            request = iter([b""]) if kind.startswith("stream") else b""
            try:
                answer = getattr(channel, kind)(method)(request, timeout=ANSWER_SECONDS)
                if kind.endswith("stream"):
                    next(answer, None)
                    answer.cancel()
                statuses[method] = "OK"
            except grpc.RpcError as error:
                statuses[method] = error.code().name
            if not statuses.keys() - {method} and statuses[method] in ("UNAVAILABLE", "DEADLINE_EXCEEDED"):
                return {}  # no gRPC
    return statuses


def _http(address: tuple[str, int], requests: Iterable[Request]) -> list[tuple[int, str]]:
    answers = []
    for method, path, body in requests:
        connection = http.client.HTTPConnection(*address, timeout=ANSWER_SECONDS)
        try:
            connection.request(method, path, body.encode(), {"Content-Type": "application/x-ndjson"})
            answer = connection.getresponse()
            first = answer.read1(1 << 20)  # of events more comes, and no end
            answers.append((answer.status, first.decode(errors="replace")))
        except (OSError, http.client.HTTPException):
            return []
        finally:
            connection.close()
    return answers


def _exchange(address: tuple[str, int], question: bytes) -> bytes:
    """Send bytes, and return the first that come back."""
    with suppress(OSError), socket.create_connection(address, ANSWER_SECONDS) as connection:
        connection.sendall(question)
        return connection.recv(4096)
    return b""


def main() -> None:
    """Answer the question on the standard input."""
    question = json.load(sys.stdin)
    os.setresgid(question["user"], question["user"], question["user"])
    os.setresuid(question["user"], question["user"], question["user"])
    with ThreadPoolExecutor(len(question["ports"])) as pool:
        found = pool.map(lambda port: _seen(tuple(port), question["requests"]), question["ports"])
        json.dump(list(found), sys.stdout)


if __name__ == "__main__":
    main()
