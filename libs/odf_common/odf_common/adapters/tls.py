"""TLS settings of clients; the configured files are checked when they are read."""

import ssl
from dataclasses import dataclass, field
from pathlib import Path

from odf_common.errors import InvalidInput


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTls:
    """The CA certificates that a client trusts, and the certificate that it presents."""

    ca_file: Path | None = None
    """CA certificates in PEM; if None, those of the system."""
    certificate_file: Path | None = None
    """The client's certificate and its chain in PEM; if None, the client presents no certificate."""
    key_file: Path | None = None
    key_password: str | None = field(default=None, repr=False)
    checks_hostname: bool = True

    def context(self) -> ssl.SSLContext:
        """Return a TLS context; raises `InvalidInput` with the name of a file that cannot be used."""
        context = _trusting_context(self.ca_file)
        context.check_hostname = self.checks_hostname
        if self.certificate_file is not None:
            present(context, self.certificate_file, self.key_file, self.key_password)
        return context


def _trusting_context(ca_file: Path | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except (OSError, ValueError) as error:
        text = f"not a file of CA certificates in PEM: {_why(error)}"
        raise InvalidInput(where=str(ca_file), text=text) from error


def present(context: ssl.SSLContext, certificate: Path, key: Path | None, password: str | None) -> None:
    """Load a certificate into a context; raises `InvalidInput` with the names of the files if they cannot be used."""
    try:
        # Without a password OpenSSL would ask the terminal for one.
        context.load_cert_chain(certificate, key, password or "")
    except (OSError, ValueError) as error:
        text = f"not a certificate and its private key in PEM: {_why(error)}"
        raise InvalidInput(where=f"{certificate}, {key or 'no key file'}", text=text) from error


def _why(error: OSError | ValueError) -> str:
    return getattr(error, "strerror", None) or getattr(error, "reason", None) or str(error)
