"""Access control of the node's own servers.

On addresses other than loopback they listen only with TLS, unless a setting allows otherwise. All users of the machine
can reach the loopback address, so there gRPC requires a secret that is stored in the home, and HTTP asks the kernel
which user the client program runs as.
"""

import os
import ssl
from collections.abc import Callable, Mapping, Sequence
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from odf_common.adapters.grpc.peer_credentials import PeerCredentials, PeerSecret, PeerTls
from odf_common.adapters.local.secrets import find_secret, read_secret, secret_file
from odf_common.adapters.socket_users import ROOT, are_users_known, user_of_client
from odf_common.errors import InvalidInput
from odf_common.service.settings import (
    GRPC_TLS,
    HTTP_TLS,
    METRICS_TLS_AND_TOKEN,
    Condition,
    Settings,
)

GRPC_SECRET: Final = "grpc"  # noqa: S105 - names of files in the home
ENGINE_SECRET: Final = "engine"  # noqa: S105 - the engine runs SQL of users: what it reads opens no other service
ENGINE_SERVICE: Final = "engine-spark"
VIEWS: Final = "views"  # a separate process, started with the coordinator
# Services in display order, and the settings with their addresses.
SERVICE_ADDRESSES: Final = {
    "ingest": "ingest_grpc",
    "coordinator": "coordinator_grpc",
    ENGINE_SERVICE: "engine",
    "verifier": "verifier_grpc",
    "sync": "sync_grpc",
}
USERS_UNKNOWN: Final = (
    "the system does not say whose a connection is: over HTTP all its users count as the node's own"
)
FORWARDED: Final = ("Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Real-IP", "Via")
PAGES: Final = ("origin", "referer")
CROSS_SITE: Final = ("cross-site", "same-site")  # values of `Sec-Fetch-Site`; of no page: `none`


class Unprotected(InvalidInput):
    """A server would be reachable from other machines without TLS."""

    MESSAGE = "{what} {address} would be open to other machines without protection"

    what: str
    address: str
    protection: str | None
    """The settings that would enable TLS; None if the server does not support TLS."""

    def advice(self) -> str:
        """Return the settings that protect the server, and the one that permits it to run without TLS."""
        tls = (
            f"set {self.protection}, or choose a loopback address"
            if self.protection
            else "choose a loopback address"
        )
        return f"{tls}; on a network that only trusted programs reach, set ODF_LISTEN_UNPROTECTED=1"


def require_protected(settings: Settings, what: str, address: str) -> None:
    """Raise `Unprotected` unless a server may listen at `host:port`; `what` is the server's setting or its name."""
    tls = _tls_of(what)
    is_protected = tls is not None and tls.is_met(settings)
    if not (is_protected or settings.listen_unprotected or is_loopback(_host(address))):
        raise Unprotected(what=what, address=address, protection=tls.text if tls else None)


def listening_address(settings: Settings, address: str) -> str:
    """Return the `host:port` on which the gRPC server with this configured address listens.

    A server resolves a host name only once, when it starts, but a container gets another address when it rejoins a
    network. In containers ODF_GRPC_LISTEN_HOST therefore replaces the host.
    """
    if settings.grpc_listen_host is None:
        return address
    return f"{settings.grpc_listen_host}:{address.rpartition(':')[2]}"


def peer_tls(settings: Settings) -> PeerTls | None:
    """Return the TLS configuration of gRPC between services; None if it is not configured.

    Raises `InvalidInput` if one of its files cannot be used.
    """
    certificate, key, authority = (
        settings.grpc_certificate_file,
        settings.grpc_key_file,
        settings.grpc_ca_file,
    )
    if certificate is None or key is None or authority is None:
        return None
    return PeerTls.read(certificate=certificate, key=key, authority=authority)


def secret_of(service: str) -> str:
    """Return the name of the secret that callers of a service send."""
    return ENGINE_SECRET if service == ENGINE_SERVICE else GRPC_SECRET


def peer_credentials(settings: Settings, address: str, secret: str = GRPC_SECRET) -> PeerCredentials:
    """Return the credentials for gRPC at `host:port`: TLS if configured, else a secret on the loopback address.

    The secret is created if the home has none. The result is None for an address beyond loopback without TLS, which
    ODF_LISTEN_UNPROTECTED permits: a secret would be sent there in plain text.
    """
    # Commands create nothing, and start without the local store.
    from odf_common.adapters.local.secrets import ensure_secret  # noqa: PLC0415

    return _credentials(settings, address, secret, ensure_secret)


def command_credentials(settings: Settings, address: str, secret: str = GRPC_SECRET) -> PeerCredentials:
    """Return the same as `peer_credentials`, but never create a secret: None if the home has none.

    Raises `HomeOfAnotherUser` if the secret cannot be read.
    """
    return _credentials(settings, address, secret, find_secret)


def _credentials(
    settings: Settings, address: str, secret: str, in_home: Callable[[Path, str], str | None]
) -> PeerCredentials:
    tls = peer_tls(settings)
    if tls is not None or not is_loopback(_host(address)):
        return tls
    if (configured := _secret_file(settings, secret)) is not None:
        return PeerSecret(text=read_secret(configured))
    text = in_home(settings.home, secret)
    return None if text is None else PeerSecret.in_home(text, secret_file(settings.home, secret))


def _secret_file(settings: Settings, secret: str) -> Path | None:
    return settings.engine_secret_file if secret == ENGINE_SECRET else settings.grpc_secret_file


def _host(address: str) -> str:
    return address.rpartition(":")[0].strip("[]")


def http_tls(settings: Settings) -> ssl.SSLContext | None:
    """Return the TLS context of the HTTP server; None if it is not configured.

    Raises `InvalidInput` if one of its files cannot be used.
    """
    certificate, key = settings.http_certificate_file, settings.http_key_file
    if certificate is None or key is None:
        return None
    # Clients read the settings of peers here, too, and start without what only a server needs.
    from odf_common.adapters.server_tls import server_context  # noqa: PLC0415

    return server_context(certificate, key)


def is_loopback(host: str) -> bool:
    """Return whether a host can be reached only from this machine: a loopback IP address, or the name `localhost`."""
    if host == "localhost":
        return True
    try:
        address = ip_address(host)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).is_loopback


def why_not_local(*, peer: str | None, host: str, headers: Mapping[str, str]) -> str | None:
    """Return the reason why an HTTP request may come from another machine; None if a local program has sent it.

    `host` is the `Host` header, with its port. The address of the peer is not enough: a web page can make a browser on
    this machine send requests, and a proxy can forward them. `headers` must look up names without regard to case.
    """
    if peer is None or not is_loopback(peer):
        return "the request comes from elsewhere"
    if any(name in headers for name in FORWARDED):
        return "the request was forwarded by a proxy"
    if not _is_loopback_url(f"//{host}"):
        return f"it was sent to {host}, which is not a loopback address"
    return "a web page from elsewhere sent it" if _is_of_foreign_page(headers) else None


def _is_of_foreign_page(headers: Mapping[str, str]) -> bool:
    """Return whether one of three headers says that a web page of another machine made the browser send a request.

    Browsers send `Origin` with requests that write or whose response the page may read. For links and images they send
    the headers Referer or Sec-Fetch-Site.
    """
    # A header may be there twice; each counts.
    pages = [value for name, value in headers.items() if name.lower() in PAGES]
    sites = [value.strip().lower() for name, value in headers.items() if name.lower() == "sec-fetch-site"]
    is_cross_site = any(site in CROSS_SITE for site in sites)
    # A page of this machine at another port, or by another of its names, is cross-site too, but gives its address,
    # and no page can give another's.
    return (is_cross_site and not pages) or not all(map(_is_loopback_url, pages))


def why_another_user(client: Sequence[Any] | None, server: Sequence[Any] | None) -> str | None:
    """Return the reason why a client on this machine may not act as the node's user; None if it may.

    `client` and `server` are the addresses of both ends of the connection, as sockets return them. The result is also
    None if the kernel does not report users. Root is allowed, because it can read the home in any case.
    """
    if client is None or server is None or not are_users_known():
        return None
    match user_of_client((client[0], client[1]), (server[0], server[1])):
        case None:
            return "its program has closed the connection"
        case user if user in (os.geteuid(), ROOT):
            return None
        case user:
            return f"a program of another user of this machine (uid {user}) sent it"


def _is_loopback_url(url: str) -> bool:
    try:
        return is_loopback(urlsplit(url).hostname or "")
    except ValueError:
        return False


def _tls_of(what: str) -> Condition | None:
    match what:
        case "ODF_SYNC_HTTP":
            return HTTP_TLS
        case "ODF_METRICS_HOST":
            return METRICS_TLS_AND_TOKEN
        case "ODF_VIEWS_HTTP":
            return None
        case _:
            return GRPC_TLS
