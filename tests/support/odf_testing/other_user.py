"""A program of another user of the machine, which exchanges bytes with a server on the loopback address."""

import subprocess
import sys
from collections.abc import Mapping
from typing import Final

NOBODY: Final = 65534
EXCHANGE_SECONDS: Final = 30.0
_PROGRAM: Final = """
import encodings.idna, os, socket, sys
user = int(sys.argv[3])
os.setresgid(user, user, user)
os.setresuid(user, user, user)
with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=10) as connection:
    connection.sendall(sys.stdin.buffer.read())
    while part := connection.recv(65536):
        sys.stdout.buffer.write(part)
"""


def exchange(address: str, request: bytes, *, user: int = NOBODY) -> bytes:
    """Send bytes to `host:port` as another user, and return all that the server sends until it closes."""
    host, _, port = address.rpartition(":")
    command = [sys.executable, "-c", _PROGRAM, host.strip("[]"), port, str(user)]
    done = subprocess.run(command, input=request, capture_output=True, timeout=EXCHANGE_SECONDS, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def ask(
    address: str,
    method: str,
    path: str,
    *,
    headers: Mapping[str, str] | None = None,
    body: bytes = b"",
    user: int = NOBODY,
) -> tuple[int, str]:
    """Send a request over HTTP as another user; return the status and the body of the response."""
    lines = {"Host": address, "Content-Length": str(len(body)), "Connection": "close", **(headers or {})}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    answer = exchange(address, f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + body, user=user)
    first, _, text = answer.decode(errors="replace").partition("\r\n\r\n")
    return int(first.split(" ", 2)[1]), text
