"""The user whose program has the other end of a connection on this machine, as reported by the kernel.

The kernel is queried over netlink (sock_diag), which takes about 20 µs, however many sockets there are. Where netlink
is not allowed, as in some sandboxes, the tables in `/proc/net` are read, which takes a millisecond or more.
"""

import errno
import os
import socket
import stat
import struct
from collections.abc import Collection, Iterator
from contextlib import suppress
from functools import cache, lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Final, NamedTuple

from odf_common.errors import Unavailable

ROOT: Final = 0
LOOPBACK: Final = "127.0.0.1"
ANY: Final = {4: "0.0.0.0", 6: "::"}  # noqa: S104 - of a socket that listens, not to listen on
KERNEL_ANSWER_SECONDS: Final = 1.0
# From linux/netlink.h, linux/sock_diag.h, linux/inet_diag.h and net/tcp_states.h.
_SOCK_DIAG: Final = 4
_SOCK_DIAG_BY_FAMILY: Final = 20
_REQUEST: Final = 1
_LISTEN: Final = 10
_ANY_COOKIE: Final = 0xFFFFFFFF
_HEADER: Final = struct.Struct("=IHHII")  # length, type, flags, sequence number, port
_QUERY: Final = struct.Struct("=BBBxI")  # family, protocol, extensions, states
_PORTS: Final = struct.Struct(">HH")
_INTERFACE_AND_COOKIE: Final = struct.Struct("=III")
_ANSWER: Final = struct.Struct("=BBBB48xIIIII")  # family, state, …; expires, two queues, user, inode

Address = tuple[str, int]


class _Socket(NamedTuple):
    """An entry in the kernel's table of TCP sockets."""

    state: int
    user: int
    inode: int
    """Inode of the socket; 0 if no program has the socket any more, so that its user is unknown and reported as 0."""


class ServerOfAnotherUser(Unavailable):
    """A program of another user is listening at an address of the node; nothing was sent to it."""

    MESSAGE = "{what} is in use by a program of another user (uid {user}): nothing was sent to it"
    ADVICE = "find it with `ss -tlnpe` as root and end it; or choose new ports with `odf up --new-ports`"

    user: int


def users_of(secret: Path) -> frozenset[int]:
    """Return the users whose servers may receive the secret: the file's owner, this process's user, and root."""
    return frozenset({secret.stat().st_uid, os.geteuid(), ROOT})


def require_own_end(connection: socket.socket, users: frozenset[int]) -> None:
    """Raise `ServerOfAnotherUser` if the server of this connection runs as a user who is not in `users`.

    The kernel reports the user of the accepted socket. A connection that is not accepted yet is still queued at the
    listening socket. That socket is queried first: afterwards, the connection could be accepted, and another
    program could listen.
    """
    if not are_users_known():
        return
    client, server = connection.getsockname()[:2], connection.getpeername()[:2]
    listening, accepted = user_of_server(server), user_of_client(server, client)
    user = listening if accepted is None else accepted
    if user is not None and user not in users:
        raise ServerOfAnotherUser(what=f"address {server[0]}:{server[1]}", user=user)


def user_of_client(client: Address, server: Address) -> int | None:
    """Return the user whose program has connected from `client` to `server`; None if that program has closed it.

    The result is only valid if `are_users_known`.
    """
    found = _find_socket(client, server)
    return found.user if found is not None and found.state != _LISTEN and found.inode else None


def user_of_server(address: Address) -> int | None:
    """Return the user whose program listens at an address of this machine; None if no program does."""
    found = _find_socket(address, (ANY[_ip(address).version], 0))
    return found.user if found is not None and found.state == _LISTEN and found.inode else None


def users_connected_to(servers: Collection[Address]) -> Iterator[int]:
    """Yield the users who own the other ends of this process's connections to `servers`.

    A connection can outlive the listening socket, so its user may differ from the one who listens now. Complete
    addresses are compared, because anyone may connect to this process from the same port at another address.
    """
    wanted = {(_ip(server), server[1]) for server in servers}
    ports = {port for _, port in wanted}
    # Before each call, with hundreds of files: most are no sockets, and most sockets have other ports.
    for descriptor in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208 - paths take as long as the rest
        ends = _ends_of(descriptor)
        if ends is not None and ends[1][1] in ports and (_ip(ends[1]), ends[1][1]) in wanted:
            user = user_of_client(ends[1], ends[0])
            if user is not None:
                yield user


def _ends_of(descriptor: int) -> tuple[Address, Address] | None:
    """Return the local and the remote address of an open socket; None unless it is an IP connection."""
    try:
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            return None
        end = socket.socket(socket.AF_INET6, socket.SOCK_STREAM, fileno=descriptor)
    except OSError:  # closed since
        return None
    try:
        other = end.getpeername()
        if not isinstance(other, tuple) or not isinstance(other[0], str):
            return None
        return end.getsockname()[:2], other[:2]
    except OSError:  # without another end
        return None
    finally:
        end.detach()  # it was not duplicated, and is never closed here


@cache
def are_users_known() -> bool:
    """Return whether the kernel reports the owner of a socket to this process; tested once, by a connection."""
    with suppress(OSError), socket.create_server((LOOPBACK, 0)) as server:
        address = server.getsockname()
        with socket.create_connection(address, timeout=KERNEL_ANSWER_SECONDS) as client:
            users = (user_of_client(client.getsockname(), address), user_of_server(address))
            return users == (os.geteuid(), os.geteuid())
    return False


def _find_socket(local: Address, remote: Address) -> _Socket | None:
    try:
        return _query_netlink(local, remote)
    except OSError:
        return _read_proc_tables(local, remote)


def _query_netlink(local: Address, remote: Address) -> _Socket | None:
    """Return the socket, None if it does not exist; raises `OSError` if the kernel does not answer."""
    ends = (_ip(local), _ip(remote))
    family = socket.AF_INET if ends[0].version == ends[1].version == 4 else socket.AF_INET6
    query = (
        _QUERY.pack(family, socket.IPPROTO_TCP, 0, _ANY_COOKIE)
        + _PORTS.pack(local[1], remote[1])
        + b"".join(end.packed.ljust(16, b"\0") for end in ends)
        + _INTERFACE_AND_COOKIE.pack(0, _ANY_COOKIE, _ANY_COOKIE)
    )
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as kernel:
        kernel.settimeout(KERNEL_ANSWER_SECONDS)
        kernel.send(_HEADER.pack(_HEADER.size + len(query), _SOCK_DIAG_BY_FAMILY, _REQUEST, 1, 0) + query)
        answer = kernel.recv(4096)
    kind = _HEADER.unpack_from(answer)[1]
    if kind != _SOCK_DIAG_BY_FAMILY:
        (number,) = struct.unpack_from("=i", answer, _HEADER.size)
        if number == -errno.ENOENT:
            return None
        raise OSError(-number, os.strerror(-number))
    _, state, _, _, _, _, _, user, inode = _ANSWER.unpack_from(answer, _HEADER.size)
    return _Socket(state, user, inode)


def _read_proc_tables(local: Address, remote: Address) -> _Socket | None:
    """Return the socket from the tables in `/proc/net`, None if it is not listed or they cannot be read."""
    # A server may listen at its address, or at all of the machine's.
    places = [local] if remote[1] else [local, *((host, local[1]) for host in ANY.values())]
    ends = {
        (ours, theirs) for place in places for ours in _proc_forms(place) for theirs in _proc_forms(remote)
    }
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in Path("/proc/net", table).read_text().splitlines()[1:]:
                _, ours, theirs, state, _, _, _, user, _, inode, *_ = line.split()
                if (ours, theirs) in ends:
                    return _Socket(int(state, 16), int(user), int(inode))
    return None


def _proc_forms(address: Address) -> Iterator[str]:
    """Yield the forms in which the tables show an address: as IPv4, and as that of an IPv6 socket that accepts IPv4."""
    ip, port = _ip(address), address[1]
    forms = [ip.packed]
    if isinstance(ip, IPv4Address):
        forms.append(bytes(16) if int(ip) == 0 else b"\0" * 10 + b"\xff\xff" + ip.packed)
    for packed in forms:
        words = struct.unpack(f"={len(packed) // 4}I", packed)
        yield "".join(f"{word:08X}" for word in words) + f":{port:04X}"


def _ip(address: Address) -> IPv4Address | IPv6Address:
    return _parse_ip(address[0])


@lru_cache(maxsize=256)
def _parse_ip(host: str) -> IPv4Address | IPv6Address:
    ip = ip_address(host.partition("%")[0])
    return (isinstance(ip, IPv6Address) and ip.ipv4_mapped) or ip
