"""A program of another user on the port of a stopped Kafka or Redis gets no password."""

import asyncio
import base64
import hashlib
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Producer

from odf_cli.embedded.credentials import (
    ADMIN,
    KAFKA_SECRETS,
    PRODUCER,
    client_settings,
    with_kafka,
    with_redis,
)
from odf_cli.embedded.parts.readiness import kafka_has_users, redis_answers
from odf_common.adapters.kafka.client_config import common
from odf_common.adapters.local.secrets import REDIS_SECRET, ensure_secret
from odf_common.adapters.redis import RedisConnection
from odf_common.errors import Unavailable
from odf_common.service.connections import kafka_cluster, redis_connection
from odf_common.service.probes import Probe
from odf_common.service.settings import Settings

PASSWORD = "s3cret"
# It takes one connection, and writes what comes. With an argument it listens no more once it has the connection.
IMPOSTOR = """
import os, socket, sys
os.setresuid(65534, 65534, 65534)
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
connection = server.accept()[0]
if sys.argv[1:]:
    server.close()
connection.settimeout(2)
try:
    print(connection.recv(1000), flush=True)
except TimeoutError:
    print("silence", flush=True)
"""


@contextmanager
def impostor(*arguments: str) -> Iterator[tuple[int, Callable[[], str]]]:
    """Yield the port of another user's server, and what it was sent."""
    with subprocess.Popen(
        [sys.executable, "-c", IMPOSTOR, *arguments], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline()), process.stdout.readline
        process.kill()


@pytest.mark.parametrize("arguments", [(), ("closes",)], ids=["listens", "listens no more"])
def test_an_impostor_on_redis_port_gets_no_password(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    ensure_secret(tmp_path, REDIS_SECRET)
    with impostor(*arguments) as (port, sent):
        connection = redis_connection(with_redis(Settings(home=tmp_path), f"127.0.0.1:{port}"))
        with pytest.raises(
            Unavailable, match=rf"{port} is in use .* another user \(uid 65534\).*`ss -tlnpe`"
        ):
            connection.require_answer()
        assert sent() == "b''\n"
        assert connection.ask(lambda client: client.ping(), otherwise=False) is False


def test_an_existing_redis_may_be_any_user_s() -> None:
    with impostor() as (port, sent):
        with pytest.raises(Unavailable):
            RedisConnection(f"127.0.0.1:{port}", password=PASSWORD).require_answer()
        assert PASSWORD in sent()


PROBES: dict[str, Callable[[int], Probe]] = {
    "redis": lambda port: redis_answers(f"127.0.0.1:{port}", PASSWORD),
    "kafka": lambda port: kafka_has_users(port, PASSWORD, {ADMIN: PASSWORD}),
}


@pytest.mark.parametrize("make", PROBES.values(), ids=PROBES)
def test_an_impostor_gets_no_password_from_probes(make: Callable[[int], Probe]) -> None:
    async def story(port: int) -> bool:
        return await make(port)()

    with impostor() as (port, sent):
        assert not asyncio.run(story(port))
        assert sent() == "b''\n"


class KafkaImpostor:
    """Takes part in SASL by any mechanism without knowing a password, and keeps what it is sent."""

    def __init__(self) -> None:
        self.mechanisms: list[str] = []
        self.sent = b""
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._server.close()

    def _serve(self) -> None:
        while True:
            try:
                connection = self._server.accept()[0]
            except OSError:
                return
            with suppress(OSError, struct.error), connection, connection.makefile("rb") as stream:
                while True:
                    (size,) = struct.unpack(">i", stream.read(4))
                    request = stream.read(size)
                    self.sent += request
                    answer = request[4:8] + self._answer(request)
                    connection.sendall(struct.pack(">i", len(answer)) + answer)

    def _answer(self, request: bytes) -> bytes:
        key, version, _, client_length = struct.unpack_from(">hhih", request)
        body = request[10 + max(client_length, 0) :]
        match key:
            case 18 if version:  # ApiVersions, of which it knows the first version only
                return struct.pack(">hi", 35, 0)
            case 18:
                known = ((3, 0, 1), (17, 0, 1), (18, 0, 0), (36, 0, 0))
                return struct.pack(">hi", 0, len(known)) + b"".join(
                    struct.pack(">hhh", *one) for one in known
                )
            case 17:
                self.mechanisms.append(body[2:].decode())
                return struct.pack(">hi", 0, 1) + body
            case _:
                text = self._scram(body[4:].decode(errors="replace")).encode()
                return struct.pack(">hhi", 0, -1, len(text)) + text

    def _scram(self, message: str) -> str:
        fields = dict(pair.partition("=")[::2] for pair in message.split(","))
        if "p" in fields:
            return f"v={base64.b64encode(hashlib.sha256(b'a guess').digest()).decode()}"
        return f"r={fields.get('r', '')}more,s={base64.b64encode(bytes(16)).decode()},i=4096"


@pytest.mark.parametrize("user", KAFKA_SECRETS)
def test_an_impostor_on_kafka_s_port_gets_no_password_and_is_recognised(tmp_path: Path, user: str) -> None:
    password = ensure_secret(tmp_path, KAFKA_SECRETS[user])
    kafka = KafkaImpostor()
    lines = client_settings(kafka.address, PRODUCER, password).splitlines()
    settings = (
        dict(common(kafka_cluster(with_kafka(Settings(home=tmp_path), kafka.address))))
        if user == ADMIN
        else dict(line.split("=", 1) for line in lines if not line.startswith(("#", "sasl.jaas")))
    )
    errors: list[KafkaError] = []
    producer = Producer({**settings, "error_cb": errors.append})
    try:
        while not any(error.code() == KafkaError._AUTHENTICATION for error in errors):
            producer.poll(0.1)
    finally:
        kafka.close()
    assert set(kafka.mechanisms) == {"SCRAM-SHA-256"}
    assert f"n={user},".encode() in kafka.sent
    assert b"p=" in kafka.sent, "it has answered the challenge"
    assert password.encode() not in kafka.sent
