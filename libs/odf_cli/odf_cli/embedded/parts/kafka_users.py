"""Passwords of the embedded Kafka's users, set at its controller.

SCRAM needs its users in the cluster's metadata before their first connection; homes of earlier releases have none. The
controller listens before the broker does, but Kafka's client libraries for Python know no controllers.
"""

import hashlib
import os
import secrets
import struct
from collections.abc import Mapping
from typing import Final

from odf_cli.embedded.credentials import ADMIN
from odf_cli.embedded.parts.tcp_ports import LOOPBACK
from odf_common.service.probes import Probe, answers

# Kafka's least. The passwords are random: more iterations would make them no harder to guess.
ITERATIONS: Final = 4096
_SASL_HANDSHAKE: Final = 17, 1  # keys and versions of requests
_SASL_AUTHENTICATE: Final = 36, 0
_ALTER_USER_SCRAM_CREDENTIALS: Final = 51, 0
_SCRAM_SHA_256: Final = 1
_CORRELATION: Final = 7
_NO_CLIENT_ID: Final = -1
_NO_TAGS: Final = b"\0"


def kafka_has_users(port: int, password: str, users: Mapping[str, str]) -> Probe:
    """Return a probe: the controller has given users these passwords, as the super user with `password` asks it to."""
    plain = f"\0{ADMIN}\0{password}".encode()
    exchange = (
        (_request(_SASL_HANDSHAKE, b"\0\5PLAIN"), _response(b"\0\0\0\0\0\1\0\5PLAIN")),
        (_request(_SASL_AUTHENTICATE, struct.pack(">i", len(plain)) + plain), _response(bytes(8))),
        *(_password_change(user.encode(), text.encode()) for user, text in users.items()),
    )
    question, answer = map(b"".join, zip(*exchange, strict=True))
    return answers(f"{LOOPBACK}:{port}", question, answer, users=frozenset({os.geteuid()}))


def _password_change(user: bytes, password: bytes) -> tuple[bytes, bytes]:
    """Return a request that sets a user's password, and the answer of a controller that has done so."""
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
