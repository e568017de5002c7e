"""The frames of messages, as a reader sees them that takes only what RFC 6455 allows, in the limits of kamu's library."""

import base64
import json
import random
import socket
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest
from odf_testing.builders import a_chain, a_seed
from odf_testing.sync_node import SyncNode

from odf_common.metadata.events import SetInfo
from odf_common.ports.store import CatalogEntry, ObjectKind
from odf_sync.smart import channel
from odf_sync.smart.message_json import encode
from odf_sync.smart.messages import VERSION, VERSION_HEADER, MetadataRequest, PullRequest

MIB: Final = 1024**2
FRAME_BYTES, MESSAGE_BYTES = 16 * MIB, 64 * MIB  # the limits of tungstenite, which kamu does not change
CONTINUATION, TEXT = 0, 1
UPGRADE: Final = {
    "Host": "node",
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": base64.b64encode(bytes(16)).decode(),
    VERSION_HEADER: str(VERSION),
}


@dataclass(slots=True, kw_only=True)
class StrictReader:
    """One end of a WebSocket, which asserts that each frame from the other end is valid."""

    socket: socket.socket
    is_server: bool
    frames: list[int] = field(default_factory=list)
    """The sizes of the frames of the last message."""
    _received: bytes = b""

    def headers(self) -> str:
        while b"\r\n\r\n" not in self._received:
            self._received += self._read()
        head, _, self._received = self._received.partition(b"\r\n\r\n")
        return head.decode()

    def message(self) -> bytes:
        """Return the next message."""
        self.frames, found, is_last = [], bytearray(), False
        while not is_last:
            first, second = self._take(2)
            is_last = first >= 128
            assert first & 127 == (CONTINUATION if self.frames else TEXT)
            assert (second >= 128) == self.is_server, "clients mask their frames, servers do not"
            size = self._size(second & 127)
            assert size <= FRAME_BYTES
            assert len(found) + size <= MESSAGE_BYTES
            key = self._take(4) * (size // 4 + 1) if self.is_server else bytes(size)
            found += (int.from_bytes(self._take(size)) ^ int.from_bytes(key[:size])).to_bytes(size)
            self.frames.append(size)
        return bytes(found)

    def send(self, payload: bytes) -> None:
        """Send a message in one frame, its mask zero."""
        mask = b"" if self.is_server else bytes(4)
        size = bytes([127 | (128 if mask else 0)]) + len(payload).to_bytes(8)
        self.socket.sendall(bytes([128 | TEXT]) + size + mask + payload)

    def _size(self, short: int) -> int:
        if short < 126:
            return short
        size = int.from_bytes(self._take(2 if short == 126 else 8))
        assert size > (125 if short == 126 else 0xFFFF), "a length has its shortest form"
        assert size < 1 << 63
        return size

    def _take(self, count: int) -> bytes:
        pieces, size = [self._received], len(self._received)
        while size < count:
            pieces.append(self._read())
            size += len(pieces[-1])
        found = b"".join(pieces)
        self._received = found[count:]
        return found[:count]

    def _read(self) -> bytes:
        got = self.socket.recv(1 << 18)
        if not got:
            raise EOFError
        return got


def upgraded(url: str, path: str) -> StrictReader:
    """Return a client's end."""
    host, _, port = url.removeprefix("http://").partition(":")
    reader = StrictReader(socket=socket.create_connection((host, int(port)), timeout=30), is_server=False)
    lines = "".join(f"{name}: {value}\r\n" for name, value in UPGRADE.items())
    reader.socket.sendall(f"GET {path} HTTP/1.1\r\n{lines}\r\n".encode())
    assert reader.headers().startswith("HTTP/1.1 101")
    return reader


def hold(node: SyncNode, alias: str, characters: int) -> None:
    """Add a dataset with a text that compresses to half of its size."""
    text = random.Random(characters).randbytes(characters // 2).hex()
    chain = a_chain(a_seed(), SetInfo(description=text))
    for block in chain.blocks:
        node.blobs.put(chain.state.dataset_id, ObjectKind.BLOCK, block.hash, block.raw)
    node.refs.compare_and_set(chain.state.dataset_id, expected=None, new=chain.state.head)
    node.catalog.add(CatalogEntry(alias=alias, dataset_id=chain.state.dataset_id))


@pytest.mark.parametrize("characters", [0, 1_000, 30_000, 700_000, 3_000_000])
def test_archives_are_sent_in_valid_frames(tmp_path: Path, characters: int) -> None:
    node = SyncNode(tmp_path)
    hold(node, "cities", characters)
    with node.served() as url, closing((client := upgraded(url, "/cities/pull")).socket):
        client.send(encode(PullRequest(force_update_if_diverged=False)).encode())
        assert json.loads(client.message())["Ok"]["transfer_plan"]["num_blocks"] == 2
        client.send(encode(MetadataRequest()).encode())
        text = client.message()
        assert len(json.loads(text)["blocks"]["payload"]) > characters // 2
        assert (len(client.frames) > 1) == (len(text) > channel.FRAME_BYTES)
        assert max(client.frames) <= channel.FRAME_BYTES
