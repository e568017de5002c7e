"""TCP connections that end within ten seconds of losing their peer, instead of the hours that Linux waits by default.

The kernel asks the peer of an idle connection whether it is there, which costs a packet in some seconds and wakes no
process. It tells a peer that has gone, or has another address, from one that is only slow. Whether a process that is
there still answers is for the timeouts of each client.
"""

import socket
import struct
from collections.abc import Iterable
from typing import Final

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
    """Let the kernel end a connection whose peer has gone."""
    for level, name, value in options:
        connection.setsockopt(level, name, value)


def open_socket(target: tuple[int, int, int, str, object]) -> socket.socket:
    """Return a socket for a connection to a result of `getaddrinfo`, as aiohttp's `socket_factory`."""
    family, kind, protocol, _, _ = target
    opened = socket.socket(family, kind, protocol)
    watch(opened, WHILE_IDLE)
    return opened


def is_lost(connection: socket.socket) -> bool:
    """Return whether a peer has not acknowledged what was sent to it; one that only reads nothing has."""
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO.size)
    attempts, unacknowledged, since_ms = _INFO.unpack(info)
    return bool(attempts and unacknowledged and since_ms > UNACKNOWLEDGED_MS)
