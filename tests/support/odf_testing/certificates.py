"""A self-signed certificate, and a proxy that presents it for a server without TLS."""

import datetime as dt
import ipaddress
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID


def self_signed(folder: Path) -> tuple[Path, Path]:
    """Return the files of a certificate for 127.0.0.1 and of its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    files = folder / "cert.pem", folder / "key.pem"
    files[0].write_bytes(made.public_bytes(Encoding.PEM))
    files[1].write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return files


@contextmanager
def tls_in_front_of(address: str, certificate: Path, key: Path, *, is_mutual: bool = True) -> Iterator[str]:
    """Accept TLS connections on a free loopback port inside the block, and pass them on to a server in plain text.

    If it is mutual, clients have to present a certificate that `certificate` has signed. The value is the port's
    `127.0.0.1:port`.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=certificate)
    context.load_cert_chain(certificate, key)
    context.verify_mode = ssl.CERT_REQUIRED if is_mutual else ssl.CERT_NONE
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=_accept, args=(server, context, address), daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        with suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)  # wakes up `accept`


def _accept(server: socket.socket, context: ssl.SSLContext, address: str) -> None:
    with suppress(OSError):
        while True:
            raw, _ = server.accept()
            threading.Thread(target=_serve, args=(raw, context, address), daemon=True).start()


def _serve(raw: socket.socket, context: ssl.SSLContext, address: str) -> None:
    host, _, port = address.rpartition(":")
    with (
        raw,
        suppress(OSError),
        context.wrap_socket(raw, server_side=True) as near,
        socket.create_connection((host, int(port))) as far,
    ):
        back = threading.Thread(target=_pump, args=(far, near), daemon=True)
        back.start()
        _pump(near, far)
        back.join()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65_536):
            sink.sendall(data)
    for end in (source, sink):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
