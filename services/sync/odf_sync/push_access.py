"""Who may push over HTTP while there is no access control: programs on this machine, unless settings say otherwise."""

from ipaddress import IPv6Address, ip_address
from typing import Final
from urllib.parse import urlsplit

from aiohttp import web

from odf_sync.ingest_client import PushRefused

LOOPBACK, ANYWHERE, OFF = "loopback", "anywhere", "off"  # values of ODF_HTTP_INGEST
FORWARDED: Final = ("Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Real-IP", "Via")


def require_allowed(request: web.Request, who: str) -> None:
    """Raise `PushRefused` unless the request comes from where pushes are accepted."""
    if who == ANYWHERE:
        return
    if who == OFF:
        raise _forbidden(
            "this node takes no pushes over HTTP", "set ODF_HTTP_INGEST=loopback, or use `odf ingest`"
        )
    why = _not_local(request)
    if why is not None:
        raise _forbidden(
            f"only programs on the node's machine may push over HTTP: {why}",
            "push there; or, on a trusted network, set ODF_HTTP_INGEST=anywhere",
        )


def _not_local(request: web.Request) -> str | None:
    """Return why a request is not, or may not be, from a program on this machine; None if it is.

    The names matter too: a web page can make a browser on this machine send requests, and a proxy can forward them.
    """
    peer = request.transport.get_extra_info("peername") if request.transport is not None else None
    if peer is None or not _is_loopback(str(peer[0])):
        return "the request comes from elsewhere"
    if any(name in request.headers for name in FORWARDED):
        return "the request was forwarded by a proxy"
    if not _is_loopback(urlsplit(f"//{request.host}").hostname or ""):
        return f"it was sent to {request.host}, which is no loopback address"
    origin = request.headers.get("Origin")
    if origin is not None and not _is_loopback(urlsplit(origin).hostname or ""):
        return "a web page from elsewhere sent it"
    return None


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        address = ip_address(host)
    except ValueError:
        return False
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return address.is_loopback


def _forbidden(text: str, hint: str) -> PushRefused:
    return PushRefused(status=403, error="PushForbidden", text=text, hint=hint)
