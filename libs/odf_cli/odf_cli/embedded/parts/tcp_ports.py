"""Ports of the embedded node: free ports are chosen at the first start, and kept for later starts."""

import json
import os
import random
import socket
import tempfile
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

from odf_common.adapters.local.durable import lock_file
from odf_common.errors import Conflict, OdfError, Unavailable

FILE: Final = "ports.json"
LOOPBACK: Final = "127.0.0.1"
# Below the kernel's ephemeral ports (32768 and up on Linux): a client that keeps retrying a dead port in that range
# can connect to itself, and then the server cannot bind again.
FIRST_PORT: Final = 20_000
END_PORT: Final = 32_000
MAX_PORTS_TRIED: Final = 1000
# A part may listen on its port only minutes after it was chosen, and another node may choose its ports meanwhile.
CLAIM_SECONDS: Final = 600.0  # in which no other node of this user is given a port


class PortTaken(Conflict):
    """Another process listens on a port of this node."""

    MESSAGE = "port {port}, which this node's {name} had before, is in use by another process"

    name: str
    port: int

    def advice(self) -> str:
        """Return the advice to free the port or to choose a new one."""
        return (
            f"stop the process that listens on {LOOPBACK}:{self.port}, or choose a new port with `odf up --new-ports` "
            "and tell producers and peers"
        )


def allocate(home: Path, names: Iterable[str], *, must_keep: bool = False) -> Mapping[str, int]:
    """Return a port for each name, the same as at the last start if possible, and store them in the home.

    A new port is free, and was not given to another node of this user within `CLAIM_SECONDS`. A port that another
    process uses is replaced, or raises `PortTaken` with `must_keep`.
    """
    remembered = _earlier_ports(home)
    chosen: dict[str, int] = {}
    claims = claims_folder()
    with ExitStack() as stack:
        with suppress(OdfError):  # such as for a folder of someone else: then a collision is only unlikely
            stack.enter_context(lock_file(claims / "lock"))
        taken = _claimed_ports(claims) | set(remembered.values())
        for name in names:
            port = remembered.get(name, 0)
            if port in chosen.values() or not (port and is_free(port)):
                if port and port not in chosen.values() and must_keep:
                    raise PortTaken(name=name, port=port)
                port = _another(taken | set(chosen.values()))
            chosen[name] = port
        with suppress(OSError):
            for port in chosen.values():
                (claims / str(port)).touch()
    (home / FILE).write_text(json.dumps({**remembered, **chosen}, indent=2) + "\n")
    return chosen


def claims_folder() -> Path:
    """Return the folder in which nodes of this user record the ports that they have chosen."""
    return Path(tempfile.gettempdir()) / f"odf-ports-{os.getuid()}"


def is_free(port: int) -> bool:
    """Return whether a server can listen on a loopback port now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As a server does: lingering connections of its predecessor do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
            probe.listen(1)
        except OSError:
            return False
    return True


def _another(taken: set[int]) -> int:
    for _ in range(MAX_PORTS_TRIED):
        port = random.randrange(FIRST_PORT, END_PORT)  # noqa: S311 - not a secret
        if port not in taken and is_free(port):
            return port
    raise Unavailable(what="a free port", why=f"none found between {FIRST_PORT} and {END_PORT}")


def _claimed_ports(folder: Path) -> set[int]:
    """Return the ports that nodes have recorded recently, and delete older records."""
    ports: set[int] = set()
    with suppress(OSError):
        for file in folder.iterdir():
            if file.name.isdigit() and time.time() - file.stat().st_mtime < CLAIM_SECONDS:
                ports.add(int(file.name))
            elif file.name.isdigit():
                file.unlink()
    return ports


def _earlier_ports(home: Path) -> Mapping[str, int]:
    try:
        ports = json.loads((home / FILE).read_bytes())
    except (FileNotFoundError, json.JSONDecodeError):
        return {}
    return {str(name): int(port) for name, port in ports.items()}
