"""Detection of dead TCP connections, and restrictions on the hosts that requests may be sent to.

Connections end within ten seconds after their peer has gone, instead of the hours that are Linux's default. The
kernel probes an idle connection, which costs one packet every few seconds and wakes no process. This distinguishes
a peer that has gone, or has another address, from a slow one. Whether a running process still answers is left to
each client's timeout.

Polling sources, webhooks and other nodes can name arbitrary hosts. Allowed are public addresses and the networks in the
settings. The connection uses the address that was checked, because the name may resolve to another address the next
time (DNS rebinding, server-side request forgery).
"""

import ipaddress
import socket
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, Self

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import NameResolutionError, NewConnectionError

from odf_common.errors import Refused

CONNECT_SECONDS: Final = 10.0  # for an attempt
FIRST_PROBE_SECONDS: Final = 3  # until the first probe
NEXT_PROBE_SECONDS: Final = 2  # between two
MAX_LOST_PROBES: Final = 3  # without an answer
UNACKNOWLEDGED_MS: Final = 9000  # of what was sent

# Of what Linux knows of a connection: repetitions, packets without acknowledgement, milliseconds since the last one.
_INFO: Final = struct.Struct("2xB21xI28xI")
Options = tuple[tuple[int, int, int], ...]

# Of connections on which much is sent to other nodes: one that stores what it got may read nothing for minutes, which
# the kernel counts as unacknowledged, too.
WHILE_IDLE: Final[Options] = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, FIRST_PROBE_SECONDS),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, NEXT_PROBE_SECONDS),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, MAX_LOST_PROBES),
)
# Of all others.
ALWAYS: Final[Options] = (*WHILE_IDLE, (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNACKNOWLEDGED_MS))


def watch(connection: socket.socket, options: Iterable[tuple[int, int, int]]) -> None:
    """Set the options by which the kernel ends a connection whose peer has gone."""
    for level, name, value in options:
        connection.setsockopt(level, name, value)


def open_socket(target: tuple[int, int, int, str, object]) -> socket.socket:
    """Return an unconnected socket for a result of `getaddrinfo`; for use as aiohttp's `socket_factory`."""
    family, kind, protocol, _, _ = target
    opened = socket.socket(family, kind, protocol)
    watch(opened, WHILE_IDLE)
    return opened


def is_lost(connection: socket.socket) -> bool:
    """Return whether the peer has failed for too long to acknowledge data; a slow reader still acknowledges."""
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO.size)
    attempts, unacknowledged, since_ms = _INFO.unpack(info)
    return bool(attempts and unacknowledged and since_ms > UNACKNOWLEDGED_MS)


Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
DEFAULT_PORTS: Final = {"http": 80, "https": 443}
NO_TLS: Final = "WRONG_VERSION_NUMBER"  # OpenSSL's reason: the first bytes are those of another protocol
NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
SITE_LOCAL: Final = ipaddress.IPv6Network("fec0::/10")  # deprecated, and global by `ipaddress`


class AddressForbidden(Refused):
    """An address is neither public nor allowed in the node's settings."""

    ADVICE = (
        "if this node may connect to it, start it with ODF_FETCH_NETWORKS set to the networks that are "
        "allowed, such as 127.0.0.0/8 (separated by commas)"
    )

    text: str = ""
    host: str
    address: str

    def __str__(self) -> str:
        """Return a message with the host and its address."""
        at = "" if self.host.strip("[]") == self.address else f" at {self.address}"
        return f"{self.host}{at} is not a public address, and the settings do not allow it"


@dataclass(frozen=True, slots=True)
class Networks:
    """Networks that are allowed in addition to public addresses."""

    allowed: tuple[Network, ...] = ()

    @classmethod
    def parse(cls, names: tuple[str, ...]) -> Self:
        """Parse networks such as `10.1.0.0/16`; raises `ValueError`."""
        return cls(tuple(ipaddress.ip_network(name) for name in names))

    def addresses(self, host: str, port: int) -> list[tuple[socket.AddressFamily, tuple[str, int]]]:
        """Return the addresses of a host; raises `AddressForbidden` if any of them is not allowed, or `OSError`."""
        answers = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        for _, _, _, _, address in answers:
            self.require(host, str(address[0]))
        return [(family, (str(address[0]), int(address[1]))) for family, _, _, _, address in answers]

    def connect(self, host: str, port: int, sockets: Options = ALWAYS) -> socket.socket:
        """Connect to a checked address of the host; raises `AddressForbidden`, `OSError`, `UnicodeError`."""
        why = OSError("no address")
        for family, address in self.addresses(host, port):
            connected = socket.socket(family, socket.SOCK_STREAM)
            watch(connected, sockets)
            try:
                connected.settimeout(CONNECT_SECONDS)
                connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connected.connect(address)
            except OSError as error:
                connected.close()
                why = error
            else:
                return connected
        raise why

    def include(self, text: str) -> bool:
        """Return whether an IP address is in one of the networks; raises `ValueError` if the text is not an address."""
        address = ipaddress.ip_address(text.partition("%")[0])
        return any(_is_in(address, network) for network in self.allowed)

    def require(self, host: str, text: str) -> None:
        """Raise `AddressForbidden` unless the address `text` of `host` is public or in an allowed network."""
        if self.include(text):
            return
        address = ipaddress.ip_address(text.partition("%")[0])
        for embedded in _embedded_addresses(address) or (address,):
            is_public = embedded.is_global and not (
                embedded.is_multicast or embedded.is_reserved or _is_in(embedded, SITE_LOCAL)
            )
            if not is_public and not any(_is_in(embedded, network) for network in self.allowed):
                raise AddressForbidden(host=host, address=str(address))


PUBLIC: Final = Networks()


def cause_of(error: Exception) -> str:
    """Return the reason why a request of urllib3 failed, without names of classes."""
    cause = getattr(error, "reason", None) or error
    if NO_TLS in str(cause):
        return "the server does not speak TLS at this port; http:// instead of https://?"
    return str(cause).rpartition(": ")[2]


class Pools(urllib3.PoolManager):
    """A pool of HTTP connections with a timeout; a connection ends if its peer has gone."""

    def __init__(self, *, timeout: urllib3.Timeout, sockets: Options = ALWAYS, **options: Any) -> None:
        """Create a pool whose connections have these socket options."""
        socket_options = [*HTTPConnection.default_socket_options, *sockets]
        super().__init__(timeout=timeout, socket_options=socket_options, **options)


def restricted_pools(
    networks: Networks, *, timeout: urllib3.Timeout, sockets: Options = ALWAYS, **options: Any
) -> Pools:
    """Return a connection pool that connects only to allowed addresses; for others it raises `AddressForbidden`."""

    class Plain(HTTPConnection):
        def _new_conn(self) -> socket.socket:
            return _connect(self, networks, sockets)

    class Secure(HTTPSConnection):
        def _new_conn(self) -> socket.socket:
            return _connect(self, networks, sockets)

    class PlainPool(HTTPConnectionPool):
        ConnectionCls = Plain

    class SecurePool(HTTPSConnectionPool):
        ConnectionCls = Secure

    pools = Pools(timeout=timeout, sockets=sockets, **options)
    pools.pool_classes_by_scheme = {"http": PlainPool, "https": SecurePool}
    return pools


def _connect(connection: HTTPConnection, networks: Networks, sockets: Options) -> socket.socket:
    host = connection.host.strip("[]")
    try:
        return networks.connect(host, connection.port or 80, sockets)
    except (socket.gaierror, UnicodeError) as error:
        raise NameResolutionError(host, connection, socket.gaierror(str(error))) from error
    except OSError as error:
        raise NewConnectionError(connection, f"{error.strerror or error}") from error


def _is_in(address: Address, network: Network) -> bool:
    return address.version == network.version and address in network


def _embedded_addresses(address: Address) -> tuple[Address, ...]:
    """Return the IPv4 addresses that an IPv6 address contains, as translation and tunnels do."""
    if isinstance(address, ipaddress.IPv4Address):
        return ()
    addresses = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
    if address in NAT64:
        addresses.append(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
    return tuple(address for address in addresses if address is not None)
