"""TLS of servers, which present a renewed certificate without a restart."""

import ssl
from pathlib import Path

import structlog

from odf_common.adapters.tls import present
from odf_common.errors import InvalidInput

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
