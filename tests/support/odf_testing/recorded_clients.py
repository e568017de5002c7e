"""A client that sends recorded requests to a server over sockets, and checks that every response is the recorded one."""

import asyncio
import json
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

import aiohttp
from aiohttp import WSMsgType

from odf_testing.recorded_transfers import PATIENCE_SECONDS, RECORDED_HOST, Line, body_of, plain_of

JSON, TEXT = "application/json", "text/plain"
IN_OWN_WORDS = (400, 415, 422)  # if the body is an error message
FORBIDDEN = 403
LENGTH, ALLOW = "content-length", "allow"
HEADERS = ("content-type", LENGTH, ALLOW)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The response of a server."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def answered(
    lines: list[Line], conn: int, *, status: int, headers: Mapping[str, str] | None = None, body: str = ""
) -> list[Line]:
    """Return the lines with another answer to one request, for where the recorded server is wrong."""
    changes = {"status": status, "headers": dict(headers or {}), "body": body, "encoding": ""}
    assert any(line["conn"] == conn and "status" in line for line in lines)
    return [
        {**line, **changes} if line["conn"] == conn and line["kind"] == "http-response" else line
        for line in lines
    ]


async def play_client(base: str, lines: list[Line]) -> None:
    """Send what the recorded client sent, and assert that every answer is as recorded.

    Of a text that says what is wrong, and of an error's message in a transfer, only the presence is: each
    implementation has its own words.
    """
    player = _Player(base=base)
    async with aiohttp.ClientSession() as session:
        for line in lines:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await player.play(session, line)


@dataclass
class _Player:
    base: str
    requests: dict[int, Line] = field(default_factory=dict)
    answers: dict[int, Answer] = field(default_factory=dict)
    sockets: dict[int, aiohttp.ClientWebSocketResponse] = field(default_factory=dict)
    closing: dict[int, Line] = field(default_factory=dict)
    """Recorded close frames of the client that were sent, and were not answered yet."""

    async def play(self, session: aiohttp.ClientSession, line: Line) -> None:
        conn, key = line["conn"], (line["from"], line["kind"])
        match key:
            case ("client", "http-request"):
                self.requests[conn], self.answers[conn] = line, await self._ask(session, line)
            case ("server", "http-response"):
                self._compare(self.requests[conn], self.answers[conn], line)
            case ("client", "ws-open"):
                self.sockets[conn] = await session.ws_connect(
                    self.base + line["path"], headers=_sent(line), autoclose=False, max_msg_size=0
                )
            case ("client", "ws-text"):
                await self.sockets[conn].send_str(line["body"].replace(RECORDED_HOST, self.base))
            case ("server", "ws-text"):
                frame = await self.sockets[conn].receive()
                assert frame.type is WSMsgType.TEXT, (line, frame)
                assert plain_of(frame.data, self.base) == plain_of(line["body"], self.base), line
            case ("client", "ws-close"):
                await self._close(self.sockets[conn], line)
            case ("server", "ws-close"):
                await self._closed(self.sockets[conn], line)
            case _:
                assert key == ("server", "ws-open")

    async def _ask(self, session: aiohttp.ClientSession, line: Line) -> Answer:
        headers = _sent(line)
        if headers.get("upgrade") == "websocket":
            headers["connection"] = "upgrade"
        content = body_of(line)
        async with session.request(
            line["method"],
            self.base + line["path"],
            headers=headers,
            data=content or None,
            skip_auto_headers=("content-type",),
        ) as answer:
            found = {name.lower(): value for name, value in answer.headers.items()}
            return Answer(status=answer.status, headers=found, body=await answer.read())

    def _compare(self, asked: Line, answer: Answer, line: Line) -> None:
        where = f"{asked['method']} {asked['path']}: {answer}"
        assert answer.status == line["status"], where
        recorded, body = line["headers"], body_of(line)
        names = {name for name in HEADERS if name in recorded}
        if media_type(recorded) == JSON:  # with or without spaces
            assert json.loads(answer.body) == json.loads(body.decode().replace(RECORDED_HOST, self.base)), (
                where
            )
            names.discard(LENGTH)
        elif media_type(recorded) == TEXT and answer.status in IN_OWN_WORDS:
            assert answer.body, where
            names.discard(LENGTH)
        else:
            assert answer.body == body, where
        if answer.status == FORBIDDEN:  # the recorded server also says which methods it has
            names.discard(ALLOW)
        expected = {name: recorded[name] for name in names}
        assert {name: answer.headers.get(name) for name in names} == expected, where
        assert "www-authenticate" not in answer.headers, where

    async def _close(self, to_server: aiohttp.ClientWebSocketResponse, line: Line) -> None:
        """Send the recorded close frame, or drop the connection; nothing if the server has closed it."""
        if line["code"] is None:
            connection = to_server.get_extra_info("socket")
            if connection is not None:
                connection.shutdown(socket.SHUT_RDWR)
        elif not to_server.closed:
            reason = struct.pack("!H", line["code"]) + line["reason"].encode()
            await to_server.send_frame(reason, WSMsgType.CLOSE)
            self.closing[line["conn"]] = line

    async def _closed(self, to_server: aiohttp.ClientWebSocketResponse, line: Line) -> None:
        """Assert that the server sends the recorded close frame.

        Where the recorded server drops the connection, which is a defect, the frame answers that of the client.
        """
        expected = self.closing[line["conn"]] if line["code"] is None else line
        frame = await to_server.receive()
        assert frame.type is WSMsgType.CLOSE, (line, frame)
        assert frame.data == expected["code"], (line, frame)
        assert _reason(frame.extra, self.base) == _reason(expected["reason"], self.base), line
        await to_server.close()


def media_type(headers: Mapping[str, str]) -> str:
    return headers.get("content-type", "").partition(";")[0]


def _reason(text: str | None, base: str) -> object:
    return plain_of(text, base) if text and text.startswith("{") else text or ""


def _sent(line: Line) -> dict[str, str]:
    return {name: value for name, value in line["headers"].items() if name != "content-length"}
