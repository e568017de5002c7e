"""Recorded exchanges of another implementation (`tests/vectors/transfer`), played over real sockets.

Either side may be ours: `play_client` sends what was recorded to a server, `scripted` answers a client as recorded.
"""

import asyncio
import base64
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import WSMsgType, web

from odf_common.codec.flatbuffers import block_hash, decode_block
from odf_common.hashing.multihash import Multihash
from odf_common.hashing.physical import physical_hash_of
from odf_common.identity.did import DatasetId
from odf_common.metadata.events import Seed
from odf_sync.smart.archive import read_archive
from odf_testing.http import running

VECTORS = Path(__file__).parents[3] / "tests" / "vectors"
RECORDED_HOST = "http://node.example"
PATIENCE_SECONDS = 10.0
Line = dict[str, Any]


def lines_of(case: str) -> list[Line]:
    text = (VECTORS / "transfer" / f"{case}.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def with_texts(lines: list[Line], replaced: Mapping[str, str]) -> list[Line]:
    """Return the lines with other texts, such as the token and ids of accounts of the node under test."""
    text = json.dumps(lines)
    for old, new in replaced.items():
        text = text.replace(old, new)
    changed: list[Line] = json.loads(text)
    return changed


def body_of(line: Line) -> bytes:
    text: str = line.get("body", "")
    return base64.b64decode(text) if line.get("encoding") == "base64" else text.encode()


def plain_of(text: str, base: str) -> Any:
    """Return a message without what may differ: the server's address, the bytes of archives, texts of errors."""
    return _normal(json.loads(text.replace(base, RECORDED_HOST)))


def _normal(plain: Any) -> Any:
    if isinstance(plain, dict):
        if "payload" in plain:
            return {**plain, "payload": blocks_in(plain)}
        return {key: "" if key == "error_message" else _normal(value) for key, value in plain.items()}
    if isinstance(plain, list):
        return [_normal(one) for one in plain if not _is_login(one)]
    return plain


def _is_login(plain: Any) -> bool:
    return isinstance(plain, dict) and plain.get("name") == "authorization"


def blocks_in(batch: Mapping[str, Any]) -> list[tuple[Multihash, bytes]]:
    return list(read_archive(BytesIO(bytes(batch["payload"])), count=batch["num_blocks"]))


@dataclass
class Pool:
    """All blocks and objects that appear in recordings and vectors."""

    blocks: dict[Multihash, bytes] = field(default_factory=dict)
    objects: dict[Multihash, bytes] = field(default_factory=dict)

    def chain(self, head: Multihash) -> list[tuple[Multihash, bytes]]:
        """Return the blocks up to a head, oldest first."""
        found: list[tuple[Multihash, bytes]] = []
        name: Multihash | None = head
        while name is not None:
            found.append((name, self.blocks[name]))
            name = decode_block(self.blocks[name]).block.prev_block_hash
        return found[::-1]


def all_recorded() -> Pool:
    pool = Pool()
    for file in VECTORS.glob("datasets/*/*/*"):
        if file.parent.name in ("blocks", "data"):
            content = file.read_bytes()
            (pool.blocks if file.parent.name == "blocks" else pool.objects)[physical_hash_of(content)] = (
                content
            )
    for case in VECTORS.glob("transfer/*.jsonl"):
        lines = lines_of(case.stem)
        paths = {line["conn"]: line["path"] for line in lines if "path" in line}
        for line in lines:
            _collect(pool, line, paths[line["conn"]])
    return pool


def _collect(pool: Pool, line: Line, path: str) -> None:
    if line["kind"] == "ws-text" and "payload" in line["body"]:
        plain = json.loads(line["body"])
        for _, raw in blocks_in(plain.get("blocks") or plain.get("new_blocks")):
            pool.blocks[block_hash(raw)] = raw
    elif line["kind"].startswith("http") and line.get("body"):
        content = body_of(line)
        (pool.blocks if "/blocks/" in path else pool.objects)[physical_hash_of(content)] = content


def dataset_of(chain: list[tuple[Multihash, bytes]]) -> DatasetId:
    event = decode_block(chain[0][1]).block.event
    assert isinstance(event, Seed)
    return event.dataset_id


async def play_client(base: str, lines: list[Line], *, is_logged_in: bool = False) -> None:
    """Send what the recorded client sent, and assert that every answer has the recorded meaning.

    Tokens are sent if the client is logged in, else it is a program on the node's machine.
    """
    player = _Player(base=base, is_logged_in=is_logged_in)
    async with aiohttp.ClientSession() as session:
        for line in lines:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await player.play(session, line)


@dataclass
class _Player:
    base: str
    is_logged_in: bool
    answers: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    sockets: dict[int, aiohttp.ClientWebSocketResponse] = field(default_factory=dict)

    async def play(self, session: aiohttp.ClientSession, line: Line) -> None:
        conn, key = line["conn"], (line["from"], line["kind"])
        match key:
            case ("client", "http-request"):
                self.answers[conn] = await self._ask(session, line)
            case ("server", "http-response"):
                status, body = self.answers[conn]
                assert status == line["status"], (line, body)
                if line["headers"].get("content-type") == "application/json":
                    assert json.loads(body) == json.loads(body_of(line))
                elif status in (200, 400):
                    assert body == body_of(line)
            case ("client", "ws-open"):
                headers = self._sent(line)
                self.sockets[conn] = await session.ws_connect(
                    self.base + line["path"], headers=headers, autoclose=False, max_msg_size=0
                )
            case ("client", "ws-text"):
                await self.sockets[conn].send_str(line["body"].replace(RECORDED_HOST, self.base))
            case ("server", "ws-text"):
                frame = await self.sockets[conn].receive()
                assert frame.type is WSMsgType.TEXT, (line, frame)
                assert plain_of(frame.data, self.base) == plain_of(line["body"], self.base), line
            case ("client", "ws-close"):
                await self.sockets[conn].close(code=line["code"] or 1000, message=line["reason"].encode())
            case ("server", "ws-close"):
                await self._closed(self.sockets[conn], line)
            case _:
                assert key == ("server", "ws-open")

    async def _ask(self, session: aiohttp.ClientSession, line: Line) -> tuple[int, bytes]:
        headers = self._sent(line)
        if headers.get("upgrade") == "websocket":
            headers["connection"] = "upgrade"
        data = body_of(line) or None
        async with session.request(
            line["method"], self.base + line["path"], headers=headers, data=data
        ) as answer:
            return answer.status, await answer.read()

    async def _closed(self, socket: aiohttp.ClientWebSocketResponse, line: Line) -> None:
        if not socket.closed:
            frame = await socket.receive()
            assert frame.type is WSMsgType.CLOSE, frame
            assert plain_of(frame.extra or "null", self.base) == plain_of(line["reason"], self.base), line
            await socket.close()
        if line["code"] is not None:  # None: the recorded server drops the connection, which is a defect
            assert socket.close_code == line["code"], line

    def _sent(self, line: Line) -> dict[str, str]:
        left_out = {"content-length", *(() if self.is_logged_in else ("authorization",))}
        return {name: value for name, value in line["headers"].items() if name not in left_out}


@dataclass
class Script:
    """A server that answers as recorded; `asked` are the requests it got, `faults` what came instead of the recorded."""

    lines: list[Line]
    replaced: Mapping[str, str] = field(default_factory=dict)
    """Texts in recorded messages of the client that another client has otherwise."""
    extra: Mapping[str, bytes] = field(default_factory=dict)
    """Paths that were not asked for in the recording."""
    asked: list[str] = field(default_factory=list)
    tokens: set[str | None] = field(default_factory=set)
    faults: list[str] = field(default_factory=list)
    closed: list[tuple[int | None, str]] = field(default_factory=list)

    @property
    def recorded(self) -> list[str]:
        """Return the recorded requests."""
        return [f"{line['method']} {line['path']}" for line in self.lines if "path" in line]

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(f"{request.method} {request.path}")
        self.tokens.add(request.headers.get("Authorization"))
        opened = [line for line in self.lines if line.get("path") == request.path and "method" in line]
        matching = [line for line in opened if line["method"] == request.method]
        if not matching:
            known = self.extra.get(request.path)
            return web.Response(status=404) if known is None else web.Response(body=known)
        (line, *_) = matching
        rest = [one for one in self.lines if one["conn"] == line["conn"] and one is not line]
        if line["kind"] == "ws-open":
            return await self._converse(request, rest[1:])
        if request.method == "PUT" and await request.read() != body_of(line):
            self.faults.append(f"another body at {request.path}")
        if rest[0]["status"] == 101:
            self.faults.append("no upgrade")
        return web.Response(status=rest[0]["status"], body=body_of(rest[0]))

    async def _converse(self, request: web.Request, lines: list[Line]) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(max_msg_size=0, autoclose=False)
        await socket.prepare(request)
        base = f"{request.scheme}://{request.host}"
        for line in lines:
            match line["from"], line["kind"]:
                case "client", "ws-text":
                    frame = await socket.receive(PATIENCE_SECONDS)
                    expected = plain_of(self._replaced(line["body"]), base)
                    if frame.type is not WSMsgType.TEXT or plain_of(frame.data, base) != expected:
                        self.faults.append(f"{frame} instead of {expected}"[:2000])
                        break
                case "server", "ws-text":
                    await socket.send_str(self._replaced(line["body"]).replace(RECORDED_HOST, base))
                case "client", "ws-close":
                    frame = await socket.receive(PATIENCE_SECONDS)
                    self.closed.append((frame.data, frame.extra or ""))
                case _:
                    await socket.close(code=line["code"] or 1000, message=line["reason"].encode()[:123])
        return socket

    def _replaced(self, text: str) -> str:
        for old, new in self.replaced.items():
            text = text.replace(old, new)
        return text


@contextmanager
def scripted(script: Script) -> Iterator[str]:
    """Serve a script; yield the server's URL."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", script.answer)
    with running(app) as base:
        yield base
