"""Probes of the embedded Kafka and Redis. The readiness of Kafka includes its users, passwords and topics."""

import asyncio
import hashlib
import os
import secrets
import struct
from collections.abc import Mapping
from typing import Final

from odf_cli.embedded.credentials import ADMIN, PRODUCER
from odf_cli.embedded.parts.tcp_ports import LOOPBACK
from odf_common.errors import Unavailable
from odf_common.ports.bus import FIXED_TOPICS
from odf_common.service.probes import Probe, answers, listens
from odf_common.service.settings import Settings

ANONYMOUS: Final = "ANONYMOUS"  # Kafka's name for clients that do not authenticate
# ApiVersions, the one request that every broker answers: key 18, version 0, correlation id, no client id.
_CORRELATION: Final = 7
_API_VERSIONS: Final = struct.pack(">ihhih", 10, 18, 0, _CORRELATION, -1)


def redis_answers(address: str, password: str) -> Probe:
    """Return a probe that succeeds if a Redis of this process's user accepts the password and answers PING."""
    question = f"AUTH {password}\r\nPING\r\n".encode()
    return answers(address, question, b"+OK\r\n+PONG\r\n", users=frozenset({os.geteuid()}))


def kafka_answers(address: str) -> Probe:
    """Return a probe that succeeds if the broker answers an ApiVersions request."""
    return answers(address, _API_VERSIONS, struct.pack(">i", _CORRELATION), skipped=4)  # the answer's size


def kafka_has_topics(settings: Settings) -> Probe:
    """Return a probe that creates and claims the fixed topics, and admits producers, once the broker answers.

    It succeeds after all of that has been done.
    """
    from odf_common.adapters.kafka.admin import KafkaTopics
    from odf_common.service.connections import kafka_cluster
    from odf_common.service.node_home import claim_topics

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


# Kafka's least. The passwords are random: more iterations would make them no harder to guess.
ITERATIONS: Final = 4096
_SASL_HANDSHAKE: Final = 17, 1  # keys and versions of requests
_SASL_AUTHENTICATE: Final = 36, 0
_ALTER_USER_SCRAM_CREDENTIALS: Final = 51, 0
_SCRAM_SHA_256: Final = 1
_NO_CLIENT_ID: Final = -1
_NO_TAGS: Final = b"\0"


# SCRAM needs its users in the cluster's metadata before their first connection; homes of earlier releases have none.
# The controller listens before the broker does, but Kafka's client libraries for Python know no controllers.
def kafka_has_users(port: int, password: str, users: Mapping[str, str]) -> Probe:
    """Return a probe that sets the passwords of users at the controller, as the super user with `password`.

    It succeeds after the controller has confirmed them.
    """
    plain = f"\0{ADMIN}\0{password}".encode()
    exchange = (
        (_request(_SASL_HANDSHAKE, b"\0\5PLAIN"), _response(b"\0\0\0\0\0\1\0\5PLAIN")),
        (_request(_SASL_AUTHENTICATE, struct.pack(">i", len(plain)) + plain), _response(bytes(8))),
        *(_password_change(user.encode(), text.encode()) for user, text in users.items()),
    )
    question, answer = map(b"".join, zip(*exchange, strict=True))
    return answers(f"{LOOPBACK}:{port}", question, answer, users=frozenset({os.geteuid()}))


def _password_change(user: bytes, password: bytes) -> tuple[bytes, bytes]:
    """Return a request that sets a user's password, and the response of a controller that has done so."""
    salt = secrets.token_bytes(16)
    salted = hashlib.pbkdf2_hmac("sha256", password, salt, ITERATIONS)
    method = struct.pack(">bi", _SCRAM_SHA_256, ITERATIONS)
    change = _compact(user) + method + _compact(salt) + _compact(salted) + _NO_TAGS
    result = _compact(user) + b"\0\0\0" + _NO_TAGS  # no error, no message
    # Lengths of lists are encoded plus one: no deletions, one change; one result, after a time without throttling.
    return (
        _request(_ALTER_USER_SCRAM_CREDENTIALS, _NO_TAGS + b"\1" + b"\2" + change + _NO_TAGS),
        _response(_NO_TAGS + bytes(4) + b"\2" + result + _NO_TAGS),
    )


def _request(kind: tuple[int, int], body: bytes) -> bytes:
    return _with_length(struct.pack(">hhih", *kind, _CORRELATION, _NO_CLIENT_ID) + body)


def _response(body: bytes) -> bytes:
    return _with_length(struct.pack(">i", _CORRELATION) + body)


def _with_length(message: bytes) -> bytes:
    return struct.pack(">i", len(message)) + message


def _compact(text: bytes) -> bytes:
    return bytes([len(text) + 1]) + text
