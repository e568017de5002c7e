"""TLS: files that an administrator names, checked when they are read.

Servers present a renewed certificate without a restart.
"""

import ssl
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from odf_common.errors import InvalidInput


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTls:
    """Whom a client trusts, and the certificate that it presents."""

    ca_file: Path | None = None
    """CA certificates in PEM; None: the system's."""
    certificate_file: Path | None = None
    """The client's own certificate and its chain in PEM; None: it presents none."""
    key_file: Path | None = None
    key_password: str | None = field(default=None, repr=False)
    checks_hostname: bool = True

    def context(self) -> ssl.SSLContext:
        """Return the context of a connection; raises `InvalidInput` naming the file that cannot be used."""
        context = _trusting(self.ca_file)
        context.check_hostname = self.checks_hostname
        if self.certificate_file is not None:
            present(context, self.certificate_file, self.key_file, self.key_password)
        return context


def _trusting(ca_file: Path | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except (OSError, ValueError) as error:
        text = f"not a file of CA certificates in PEM: {_why(error)}"
        raise InvalidInput(where=str(ca_file), text=text) from error


def present(context: ssl.SSLContext, certificate: Path, key: Path | None, password: str | None) -> None:
    """Add a certificate to a context; raises `InvalidInput` naming the files if they cannot be used."""
    try:
        # Without a password OpenSSL would ask the terminal for one.
        context.load_cert_chain(certificate, key, password or "")
    except (OSError, ValueError) as error:
        text = f"not a certificate and its private key in PEM: {_why(error)}"
        raise InvalidInput(where=f"{certificate}, {key or 'no key file'}", text=text) from error


def _why(error: OSError | ValueError) -> str:
    return getattr(error, "strerror", None) or getattr(error, "reason", None) or str(error)


log = structlog.stdlib.get_logger(__name__)


def server_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """Return the TLS of a server that any client may connect to; raises `InvalidInput` as `ClientTls.context` does.

    A renewed certificate is presented from the next connection on: the files are read again once they have changed.
    """
    context = _server_context(certificate, key)
    context.sni_callback = _Renewal(certificate, key, context).present
    return context


class _Renewal:
    """The newest certificate of a server; called at each handshake, even of clients that name no server."""

    def __init__(self, certificate: Path, key: Path, context: ssl.SSLContext) -> None:
        self._files = (certificate, key)
        self._newest = context
        self._stamp = self._stamp_now()

    def present(self, connection: ssl.SSLObject, _name: str, _context: ssl.SSLContext) -> None:
        """Present the newest certificate; one that cannot be used, as its key is not written yet, changes nothing."""
        stamp = self._stamp_now()
        if stamp != self._stamp:
            self._stamp = stamp
            try:
                self._newest = _server_context(*self._files)
            except InvalidInput as error:
                log.warning("a renewed certificate is not used", why=str(error))
        connection.context = self._newest

    def _stamp_now(self) -> tuple[tuple[int, int, int], ...] | None:
        try:
            stats = [file.stat() for file in self._files]
        except OSError:  # it is being replaced
            return None
        return tuple((stat.st_ino, stat.st_mtime_ns, stat.st_size) for stat in stats)


def _server_context(certificate: Path, key: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    present(context, certificate, key, None)
    return context
