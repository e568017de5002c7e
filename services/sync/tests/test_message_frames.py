"""The frames of messages, as a reader sees them that takes only what RFC 6455 allows, in the limits of kamu's library."""

import base64
import hashlib
import json
import random
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Final

import pytest
from odf_testing.builders import a_chain, a_hash, a_seed
from odf_testing.sync_node import SyncNode, open_exchanges

from odf_common.errors import InvalidInput
from odf_common.hashing.multihash import physical_hash_of
from odf_common.metadata.events import SetInfo
from odf_common.ports.store import CatalogEntry, ObjectKind
from odf_sync.http import serve_pull
from odf_sync.smart import archive, channel
from odf_sync.smart import messages as msg
from odf_sync.smart.archive import write_archive
from odf_sync.smart.connection import connect
from odf_sync.smart.exchange import PULL, PUSH, TransferRefused
from odf_sync.smart.message_json import encode, numbers
from odf_sync.transfer import push_to_node

MIB: Final = 1024**2
FRAME_BYTES, MESSAGE_BYTES = 16 * MIB, 64 * MIB  # the limits of tungstenite, which kamu does not change
CONTINUATION, TEXT, CLOSE, PING, PONG = 0, 1, 8, 9, 10
GUID: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
SWITCHED: Final = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: %s\r\n\r\n"
REQUEST: Final = msg.PushRequest(
    transfer_plan=msg.TransferPlan(num_blocks=1),
    force_update_if_diverged=False,
    visibility_for_created_dataset=msg.DatasetVisibility.PRIVATE,
)
UPGRADE: Final = {
    "Host": "node",
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": base64.b64encode(bytes(16)).decode(),
    msg.VERSION_HEADER: str(msg.VERSION),
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

    def closed(self) -> tuple[int, bytes]:
        """Return code and reason of a close frame, which is the next one."""
        first, size = self._take(2)
        assert first == 128 | CLOSE
        payload = self._take(size)
        return int.from_bytes(payload[:2]), payload[2:]

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
        client.send(encode(msg.PullRequest(force_update_if_diverged=False)).encode())
        assert json.loads(client.message())["Ok"]["transfer_plan"]["num_blocks"] == 2
        client.send(encode(msg.MetadataRequest()).encode())
        text = client.message()
        assert len(json.loads(text)["blocks"]["payload"]) > characters // 2
        assert (len(client.frames) > 1) == (len(text) > channel.FRAME_BYTES)
        assert max(client.frames) <= channel.FRAME_BYTES


@contextmanager
def strict_server(serve: Callable[[StrictReader], None]) -> Iterator[str]:
    """Yield the URL of a server that takes one WebSocket, and fail if it finds an invalid frame."""

    def accept() -> None:
        accepted, _ = listener.accept()
        with accepted:
            reader = StrictReader(socket=accepted, is_server=True)
            key = re.search(r"(?i)sec-websocket-key: *(\S+)", reader.headers())
            assert key is not None
            proof = base64.b64encode(hashlib.sha1(key[1].encode() + GUID, usedforsecurity=False).digest())
            accepted.sendall(SWITCHED % proof)
            serve(reader)

    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        listener.settimeout(30)
        served = pool.submit(accept)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        served.result(30)


def blocks_of(size: int) -> msg.NewBlocks:
    """Return a message whose JSON has this many bytes."""
    around = len(encode(msg.NewBlocks(new_blocks=msg.BlocksBatch(num_blocks=1, payload=b"\0")))) - 1
    numbers = size - around  # each has a digit and a comma, but for one of two digits, and the last comma
    payload = bytes(numbers // 2) + (b"\0" if numbers % 2 else b"")
    payload = payload if numbers % 2 else payload[:-1] + b"\x0a"
    return msg.NewBlocks(new_blocks=msg.BlocksBatch(num_blocks=1, payload=payload))


@pytest.mark.parametrize("size", [channel.FRAME_BYTES, FRAME_BYTES + 1, MESSAGE_BYTES])
def test_a_client_sends_long_messages_in_valid_frames(size: int) -> None:
    message = blocks_of(size)

    def serve(reader: StrictReader) -> None:
        reader.message()
        reader.send(encode(msg.PushAccepted()).encode())
        assert reader.message().decode() == encode(message)
        assert sum(reader.frames) == size
        assert 0 < min(reader.frames) <= max(reader.frames) <= channel.FRAME_BYTES
        reader.send(encode(msg.BlocksAccepted()).encode())

    with strict_server(serve) as url, connect(f"{url}/push", PUSH, {}) as connection:
        connection.send(REQUEST)
        connection.expect(msg.PushAccepted)
        connection.send(message)
        connection.expect(msg.BlocksAccepted)


def test_a_client_sends_nothing_of_a_message_that_is_too_long() -> None:
    def serve(reader: StrictReader) -> None:
        reader.message()
        reader.send(encode(msg.PushAccepted()).encode())
        with pytest.raises(AssertionError):
            reader.message()
        assert not reader.frames, "the next frame closes"

    with strict_server(serve) as url, connect(f"{url}/push", PUSH, {}) as connection:
        connection.send(REQUEST)
        connection.expect(msg.PushAccepted)
        with pytest.raises(InvalidInput, match=f"{MESSAGE_BYTES + 1} bytes; others take"):
            connection.send(blocks_of(MESSAGE_BYTES + 1))


@pytest.mark.parametrize("size", [0, 1, 64, 200, 490, 513, 5000])
def test_the_blocks_of_a_part_fit_into_a_message(size: int) -> None:
    """They are random: blocks that compress fit all the more."""
    source = random.Random(size)
    blocks = [source.randbytes(size) + number.to_bytes(2) for number in range(1000)]
    out = BytesIO()
    write_archive(((physical_hash_of(raw), raw) for raw in blocks), out)
    counted = sum(archive.HEADER_BYTES + len(raw) for raw in blocks)
    assert len(out.getvalue()) <= counted
    assert (
        channel.AROUND_BYTES + len(numbers(out.getvalue()))
        <= counted * MESSAGE_BYTES / push_to_node.PART_BYTES
    )


def listed(count: int) -> msg.DownloadsRequest:
    file = msg.ObjectFile(object_type=msg.ObjectType.DATA_SLICE, physical_hash=a_hash("x"), size=1)
    return msg.DownloadsRequest(object_files=(file,) * count)


@contextmanager
def pulling(node: SyncNode, url: str) -> Iterator[StrictReader]:
    """Yield a client that has the blocks."""
    with closing((client := upgraded(url, "/cities/pull")).socket):
        for message in (msg.PullRequest(force_update_if_diverged=False), msg.MetadataRequest()):
            client.send(encode(message).encode())
            client.message()
        yield client


def test_lists_of_objects_are_sent_in_valid_frames_and_refused_if_nobody_could_receive_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = SyncNode(tmp_path)
    hold(node, "cities", 0)
    monkeypatch.setattr(serve_pull, "MORE_OBJECTS", 20_000)
    with node.served() as url, pulling(node, url) as client:
        client.send(encode(listed(10_000)).encode())
        text = client.message()
        assert len(json.loads(text)["object_transfer_strategies"]) == 10_000
        assert len(client.frames) > 2
        assert max(client.frames) <= channel.FRAME_BYTES
        monkeypatch.setattr(channel, "MAX_SENT_MESSAGE_BYTES", len(text) - 1)
        client.send(encode(listed(10_000)).encode())
        with pytest.raises(AssertionError):
            client.message()
        assert b"more bytes; others take" in client._received


def test_objects_of_blocks_that_the_client_has_may_be_listed_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = SyncNode(tmp_path)
    node.add_cities(["Oslo"])
    before = node.head("cities")
    node.coordinator.push("cities", "Bern", minute=1)
    monkeypatch.setattr(serve_pull, "MORE_OBJECTS", 0)
    with node.served() as url, connect(f"{url}/cities/pull", PULL, {}) as connection:
        connection.send(msg.PullRequest(begin_after=before, force_update_if_diverged=False))
        assert connection.expect(msg.PullAccepted).transfer_plan.num_objects == 1
        connection.send(msg.MetadataRequest())
        connection.expect(msg.MetadataReply)
        for count in (3, 3):
            connection.send(listed(count))
            assert len(connection.expect(msg.DownloadsReply).object_transfer_strategies) == count
        connection.send(listed(1))
        with pytest.raises(TransferRefused, match="more objects than the chain refers to"):
            connection.expect(msg.DownloadsReply)


def test_an_answer_is_not_written_to_its_end_for_a_client_that_has_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, located, has_gone = SyncNode(tmp_path), list[object](), threading.Event()

    def place(*_: object) -> msg.TransferUrl:
        located.append(_)
        assert has_gone.wait(10)
        return msg.TransferUrl(url="http://localhost/object")

    hold(node, "cities", 0)
    monkeypatch.setattr(serve_pull, "MORE_OBJECTS", 20_000)
    monkeypatch.setattr(serve_pull, "url_of", place)
    with node.served() as url:
        with pulling(node, url) as client:
            client.send(encode(listed(20_000)).encode())
            while not located:
                time.sleep(0.01)
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        time.sleep(0.2)  # until the server knows
        has_gone.set()
        count = 0
        while count != len(located):
            count = len(located)
            time.sleep(0.5)
    assert 0 < count < 10_000


@pytest.mark.parametrize(("size", "is_taken"), [(17 * MIB, True), (33 * MIB, False)])
def test_a_client_may_list_all_objects_of_a_long_chain_at_once(
    tmp_path: Path, size: int, *, is_taken: bool
) -> None:
    node = SyncNode(tmp_path)
    hold(node, "cities", 0)
    first, last = encode(listed(1)).encode()[:-2], encode(listed(1)).encode().partition(b"[")[2]
    with node.served() as url, pulling(node, url) as client:
        if is_taken:
            client.send(first + b"," + b" " * (size - len(first) - len(last)) + last)
            assert len(json.loads(client.message())["object_transfer_strategies"]) == 2
        else:  # at the header already
            client.socket.sendall(bytes([128 | TEXT, 128 | 127]) + size.to_bytes(8) + bytes(4))
            assert client.closed() == (1009, b"")


def test_messages_are_received_in_frames_of_any_size(tmp_path: Path) -> None:
    node = SyncNode(tmp_path)
    hold(node, "cities", 0)
    text = encode(msg.PullRequest(force_update_if_diverged=False)).encode()
    ping = bytes([128 | PING, 128, 0, 0, 0, 0])
    pieces = [text[:1], b"", text[1:20], text[20:]]
    sent = [
        bytes([0 if number else TEXT, 128 | len(piece), *bytes(4)]) + piece
        for number, piece in enumerate(pieces)
    ]
    with node.served() as url, closing((client := upgraded(url, "/cities/pull")).socket):
        client.socket.sendall(ping.join(sent) + bytes([128, 128, *bytes(4)]))
        for _ in sent[1:]:
            assert client._take(2) == bytes([128 | PONG, 0])
        assert "Ok" in json.loads(client.message())


def test_a_client_asks_for_objects_in_short_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_exchanges(monkeypatch)
    monkeypatch.setattr(msg, "LISTED", 2)
    asked: list[int] = []

    def noted(message: msg.Message) -> str:
        if isinstance(message, msg.DownloadsRequest):
            asked.append(len(message.object_files))
        return encode(message)

    there, here = SyncNode(tmp_path / "there"), SyncNode(tmp_path / "here")
    there.add_cities(*([name] for name in "abcde"))
    monkeypatch.setattr(channel, "encode", noted)
    with there.served() as url:
        here.pull(f"odf+{url}/cities", "cities")
    assert here.content("cities") == there.content("cities")
    assert sum(asked) > 4
    assert max(asked) == 2
