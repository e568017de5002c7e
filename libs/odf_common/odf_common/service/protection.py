"""Access to the node's own servers.

Beyond the loopback address they listen only with TLS, unless settings allow it. On it, where all users of the machine
reach them, gRPC asks for a secret of the home, and HTTP asks the kernel whose program the client is.
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
    """A server would listen beyond this machine without TLS."""

    MESSAGE = "{what} {address} would be open to other machines without protection"

    what: str
    address: str
    protection: str | None
    """The settings that would protect it; None: its server has no TLS."""

    def advice(self) -> str:
        """Return the settings that protect it, or permit it without."""
        tls = (
            f"set {self.protection}, or choose a loopback address"
            if self.protection
            else "choose a loopback address"
        )
        return f"{tls}; on a network that only trusted programs reach, set ODF_LISTEN_UNPROTECTED=1"


def require_protected(settings: Settings, what: str, address: str) -> None:
    """Raise `Unprotected` unless a server may listen at `host:port`; `what` is its setting, or its name."""
    tls = _tls_of(what)
    is_protected = tls is not None and tls.is_met(settings)
    if not (is_protected or settings.listen_unprotected or is_loopback(_host(address))):
        raise Unprotected(what=what, address=address, protection=tls.text if tls else None)


def listening_address(settings: Settings, address: str) -> str:
    """Return the `host:port` that the gRPC server at this address listens on.

    A name is resolved once when a server starts. A container gets another address when it joins a network again, so
    there ODF_GRPC_LISTEN_HOST takes the name's place.
    """
    if settings.grpc_listen_host is None:
        return address
    return f"{settings.grpc_listen_host}:{address.rpartition(':')[2]}"


def peer_tls(settings: Settings) -> PeerTls | None:
    """Return the TLS of gRPC between services, None if it is not configured; raises `InvalidInput` for a bad file."""
    certificate, key, authority = (
        settings.grpc_certificate_file,
        settings.grpc_key_file,
        settings.grpc_ca_file,
    )
    if certificate is None or key is None or authority is None:
        return None
    return PeerTls.read(certificate=certificate, key=key, authority=authority)


def secret_of(service: str) -> str:
    """Return the name of the secret that a service's callers send."""
    return ENGINE_SECRET if service == ENGINE_SERVICE else GRPC_SECRET


def peer_credentials(settings: Settings, address: str, secret: str = GRPC_SECRET) -> PeerCredentials:
    """Return the credentials of servers and clients at `host:port`: TLS, or a secret on the loopback address.

    The secret is created if the home has none. None for an address beyond loopback without TLS, which
    ODF_LISTEN_UNPROTECTED has allowed: there a secret would be sent in plain text.
    """
    # Commands create nothing, and start without the local store.
    from odf_common.adapters.local.secrets import ensure_secret  # noqa: PLC0415

    return _credentials(settings, address, secret, ensure_secret)


def command_credentials(settings: Settings, address: str, secret: str = GRPC_SECRET) -> PeerCredentials:
    """Return the same as `peer_credentials`, but None if the home has no secret.

    Raises `HomeOfAnotherUser` if it cannot be read.
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
    """Return the TLS of the HTTP server, None if it is not configured; raises `InvalidInput` for a bad file."""
    certificate, key = settings.http_certificate_file, settings.http_key_file
    if certificate is None or key is None:
        return None
    # Clients read the settings of peers here, too, and start without what only a server needs.
    from odf_common.adapters.server_tls import server_context  # noqa: PLC0415

    return server_context(certificate, key)


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches a host; the only name that counts is localhost."""
    if host == "localhost":
        return True
    try:
        address = ip_address(host)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).is_loopback


def why_not_local(*, peer: str | None, host: str, headers: Mapping[str, str]) -> str | None:
    """Return the reason why a request over HTTP is not, or may not be, from a program on this machine; None if it is.

    `host` is that of the request, with its port. The names matter too: a web page can make a browser on this machine
    send requests, and a proxy can forward them. Names of headers are compared as `headers` does.
    """
    if peer is None or not is_loopback(peer):
        return "the request comes from elsewhere"
    if any(name in headers for name in FORWARDED):
        return "the request was forwarded by a proxy"
    if not _is_loopback_url(f"//{host}"):
        return f"it was sent to {host}, which is not a loopback address"
    return "a web page from elsewhere sent it" if _is_of_foreign_page(headers) else None


def _is_of_foreign_page(headers: Mapping[str, str]) -> bool:
    """Return whether a browser says, in any of three ways, that a page of another machine sent a request.

    `Origin` comes with requests that a page could read the answer of, or that write; the others with links and images.
    """
    # A header may be there twice; each counts.
    pages = [value for name, value in headers.items() if name.lower() in PAGES]
    sites = [value.strip().lower() for name, value in headers.items() if name.lower() == "sec-fetch-site"]
    is_cross_site = any(site in CROSS_SITE for site in sites)
    # A page of this machine at another port, or by another of its names, is cross-site too, but gives its address,
    # and no page can give another's.
    return (is_cross_site and not pages) or not all(map(_is_loopback_url, pages))


def why_another_user(client: Sequence[Any] | None, server: Sequence[Any] | None) -> str | None:
    """Return the reason why a client of this machine may not act as the node's user.

    None if it may, or the kernel does not say.
    Arguments are the addresses of both ends of the connection, as sockets have them. Root may: it can read the home.
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
