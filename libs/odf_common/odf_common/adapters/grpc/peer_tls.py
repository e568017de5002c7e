"""Mutual TLS between the parts of a node: each presents a certificate that the node's own authority has signed."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import grpc

from odf_common.adapters.tls import ClientTls


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerTls:
    """A certificate, its key, and the authority that signs all peers' certificates; in PEM."""

    certificate: bytes
    key: bytes = field(repr=False)
    authority: bytes

    @classmethod
    def read(cls, *, certificate: Path, key: Path, authority: Path) -> Self:
        """Read the files; raises `InvalidInput` naming the one that cannot be used."""
        ClientTls(ca_file=authority, certificate_file=certificate, key_file=key).context()
        return cls(
            certificate=certificate.read_bytes(), key=key.read_bytes(), authority=authority.read_bytes()
        )

    def for_server(self) -> grpc.ServerCredentials:
        """Return credentials with which a server refuses clients without a certificate of the authority."""
        pair = (self.key, self.certificate)
        return grpc.ssl_server_credentials([pair], root_certificates=self.authority, require_client_auth=True)

    def for_client(self) -> grpc.ChannelCredentials:
        """Return credentials that present the certificate, and trust servers that the authority has signed."""
        return grpc.ssl_channel_credentials(self.authority, self.key, self.certificate)
