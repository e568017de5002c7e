"""A client of the Smart Transfer Protocol in raw frames, whose mask is zero unless it is given."""

import base64
import os
import socket
import struct
from typing import Final

from odf_sync.smart.message_json import encode
from odf_sync.smart.messages import VERSION, VERSION_HEADER, Message

CITIES: Final = "alice/cities.population"
TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10


class Client:
    """One WebSocket, frame by frame."""

    def __init__(
        self,
        base: str,
        action: str = "pull",
        version: str = str(VERSION),
        method: str = "GET",
        path: str = "",
    ) -> None:
        host, _, port = base.removeprefix("http://").partition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=20)
        key = base64.b64encode(os.urandom(16)).decode()
        headers = {
            "Host": host,
            "Connection": "Upgrade",
            "Upgrade": "websocket",
            "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Key": key,
            VERSION_HEADER: version,
        }
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self.socket.sendall(
            f"{method} {path or f'/{CITIES}/{action}'} HTTP/1.1\r\n{lines}\r\n".encode("latin1")
        )
        self._received = b""
        while b"\r\n\r\n" not in self._received:
            self._received += self._read()
        head, _, self._received = self._received.partition(b"\r\n\r\n")
        self.status = int(head.split()[1])
        self.is_json = b"application/json" in head

    def send(self, opcode: int, payload: bytes, *, is_last: bool = True, length: int | None = None) -> None:
        """Send a frame; `length` is what it says about its payload."""
        self.socket.sendall(frame(opcode, payload, is_last=is_last, length=length))

    def ask(self, message: Message) -> bytes:
        """Send a message in a frame; return the next frame's payload."""
        self.send(TEXT, encode(message).encode())
        return self.receive()[1]

    def receive(self) -> tuple[int, bytes]:
        """Return opcode and payload of the next frame; of a close frame, once the connection has ended."""
        first, second = self._take(2)
        length = second & 127
        if length > 125:
            length = int.from_bytes(self._take(2 if length == 126 else 8))
        return first & 15, self._take(length)

    def close_code(self) -> int:
        """Return the code of the next frame but pongs, which closes; 0 if the connection ends without one."""
        try:
            opcode, payload = self.receive()
            while opcode == PONG:
                opcode, payload = self.receive()
        except (EOFError, ConnectionError):
            return 0
        assert opcode == CLOSE, (opcode, payload[:200])
        return int(struct.unpack(">H", payload[:2])[0])

    def _take(self, count: int) -> bytes:
        while len(self._received) < count:
            self._received += self._read()
        taken, self._received = self._received[:count], self._received[count:]
        return taken

    def _read(self) -> bytes:
        got = self.socket.recv(1 << 16)
        if not got:
            raise EOFError
        return got


def frame(
    opcode: int, payload: bytes, *, is_last: bool = True, length: int | None = None, mask: bytes = bytes(4)
) -> bytes:
    """Return a masked frame."""
    size = len(payload) if length is None else length
    short = size if size < 126 else 126 if size < 1 << 16 else 127
    more = b"" if short < 126 else size.to_bytes(2 if short == 126 else 8)
    masked = bytes(byte ^ mask[place % 4] for place, byte in enumerate(payload)) if any(mask) else payload
    return bytes([opcode | (128 if is_last else 0), 128 | short]) + more + mask + masked
