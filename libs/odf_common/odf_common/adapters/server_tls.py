"""TLS for servers that present a renewed certificate without a restart."""

import ssl
from pathlib import Path

import structlog

from odf_common.adapters.tls import present
from odf_common.errors import InvalidInput

log = structlog.stdlib.get_logger(__name__)


def server_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """Return the TLS context of a server for any client; raises the same `InvalidInput` as `ClientTls.context`.

    The certificate is read again when its files have changed, and presented from the next connection on.
    """
    context = _server_context(certificate, key)
    context.sni_callback = _Renewal(certificate, key, context).present
    return context


class _Renewal:
    """Keeps a server's certificate current; called at each handshake, even for clients that send no server name."""

    def __init__(self, certificate: Path, key: Path, context: ssl.SSLContext) -> None:
        self._files = (certificate, key)
        self._newest = context
        self._stamp = self._stamp_now()

    def present(self, connection: ssl.SSLObject, _name: str, _context: ssl.SSLContext) -> None:
        """Load the certificate again if it has changed.

        If it cannot be used, for example because its key is not written yet, the previous certificate stays in use.
        """
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
