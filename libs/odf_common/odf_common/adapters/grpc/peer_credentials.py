"""Credentials between the parts of a node: mutual TLS, or a secret that is sent with each call.

With TLS, each part presents a certificate that is signed by the node's own authority. The secret is sent as
`authorization: Bearer …`. All users of a machine can reach its loopback address; the secret distinguishes the node's
own programs from those of other users. A client never sends it to a server of another user: while a part is stopped,
any program could listen at its address.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

import grpc

from odf_common.adapters.socket_users import (
    ServerOfAnotherUser,
    are_users_known,
    user_of_server,
    users_connected_to,
    users_of,
)
from odf_common.adapters.tls import ClientTls
from odf_common.errors import Refused


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerTls:
    """A certificate, its private key, and the authority that signs the certificates of all peers; in PEM."""

    certificate: bytes
    key: bytes = field(repr=False)
    authority: bytes

    @classmethod
    def read(cls, *, certificate: Path, key: Path, authority: Path) -> Self:
        """Read the files; raises `InvalidInput` with the name of a file that cannot be used."""
        ClientTls(ca_file=authority, certificate_file=certificate, key_file=key).context()
        return cls(
            certificate=certificate.read_bytes(), key=key.read_bytes(), authority=authority.read_bytes()
        )

    def for_server(self) -> grpc.ServerCredentials:
        """Return credentials of a server that refuses clients without a certificate from the authority."""
        pair = (self.key, self.certificate)
        return grpc.ssl_server_credentials([pair], root_certificates=self.authority, require_client_auth=True)

    def for_client(self) -> grpc.ChannelCredentials:
        """Return credentials of a client that presents the certificate and accepts only servers of the authority."""
        return grpc.ssl_channel_credentials(self.authority, self.key, self.certificate)


KEY: Final = "authorization"
SCHEME: Final = "Bearer "
LOOPBACK_HOSTS: Final = ("127.0.0.1", "::1")  # that the name localhost may stand for


class CallerUnknown(Refused):
    """A call does not carry the secret of the node."""

    ADVICE = (
        "run it as the node's user with the node's ODF_HOME, or set ODF_GRPC_SECRET_FILE to a copy of "
        "the file secrets/grpc in that home; for its engine, ODF_ENGINE_SECRET_FILE to a copy of "
        "secrets/engine"
    )

    text: str = (
        "the node belongs to another user of this machine, or has another home: the call lacks its secret"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerSecret:
    """The secret of a node, and the users whose servers may receive it."""

    text: str = field(repr=False)
    users: frozenset[int] | None = None
    """User ids of trusted servers; None if servers of all users are trusted."""

    @classmethod
    def in_home(cls, text: str, file: Path) -> Self:
        """Return a secret that is sent only to servers of root and of the user who owns the secret's file."""
        return cls(text=text, users=users_of(file))

    def header(self) -> tuple[str, str]:
        """Return the metadata entry with which a call carries the secret."""
        return (KEY, SCHEME + self.text)


PeerCredentials = PeerTls | PeerSecret | None
Call = Callable[[Any, Any], Any]


def hash_of_header(value: str | bytes) -> bytes:
    """Return a hash of the header's value, so that a server need not keep the secret itself in memory."""
    return hashlib.sha256(value.encode() if isinstance(value, str) else value).digest()


def require_own_server(secret: PeerSecret, address: str) -> None:
    """Raise `ServerOfAnotherUser` if a program of another user listens at `host:port` or is connected from there."""
    if secret.users is None or not are_users_known():
        return
    host, _, port = address.rpartition(":")
    hosts = LOOPBACK_HOSTS if host == "localhost" else (host.strip("[]"),)
    servers = [(name, int(port)) for name in hosts]
    for user in (*map(user_of_server, servers), *users_connected_to(servers)):
        if user is not None and user not in secret.users:
            raise ServerOfAnotherUser(what=f"address {address}", user=user)


# Any: requests and responses are messages of generated code.
class SecretSender(
    grpc.UnaryUnaryClientInterceptor,  # type: ignore[type-arg]
    grpc.UnaryStreamClientInterceptor,  # type: ignore[type-arg]
    grpc.StreamUnaryClientInterceptor,  # type: ignore[type-arg]
    grpc.StreamStreamClientInterceptor,  # type: ignore[type-arg]
):
    """Adds the secret to each call; raises `ServerOfAnotherUser` if the server belongs to another user."""

    def __init__(self, secret: PeerSecret, address: str) -> None:
        """Send the secret only to the server at `host:port`."""
        self._secret = secret
        self._address = address

    def intercept_unary_unary(self, continuation: Call, client_call_details: Any, request: Any) -> Any:
        return continuation(self._with_secret(client_call_details), request)

    def intercept_unary_stream(self, continuation: Call, client_call_details: Any, request: Any) -> Any:
        return continuation(self._with_secret(client_call_details), request)

    def intercept_stream_unary(
        self, continuation: Call, client_call_details: Any, request_iterator: Any
    ) -> Any:
        return continuation(self._with_secret(client_call_details), request_iterator)

    def intercept_stream_stream(
        self, continuation: Call, client_call_details: Any, request_iterator: Any
    ) -> Any:
        return continuation(self._with_secret(client_call_details), request_iterator)

    def _with_secret(self, details: Any) -> Any:
        require_own_server(self._secret, self._address)
        return details._replace(metadata=(*(details.metadata or ()), self._secret.header()))
