"""A server that responds over sockets as recorded, and records how a client differs from the recorded one."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from aiohttp import WSMsgType, web

from odf_testing.http import running
from odf_testing.recorded_transfers import FOLDERS, PATIENCE_SECONDS, RECORDED_HOST, Line, body_of, plain_of

COMPARED = ("authorization", "x-odf-smtp-version", "content-type")
ANSWERED = ("content-type", "allow")


@dataclass
class Script:
    """A server that answers as recorded; `asked` are the requests it got, `faults` the unexpected ones."""

    lines: list[Line]
    replaced: Mapping[str, str] = field(default_factory=dict)
    """Texts in recorded messages of the client that another client has otherwise."""
    extra: Mapping[str, bytes] = field(default_factory=dict)
    """Paths that were not asked for in the recording."""
    asked: list[str] = field(default_factory=list)
    did: list[str] = field(default_factory=list)
    """Requests, messages and close frames of the client in the order in which they came."""
    faults: list[str] = field(default_factory=list)
    closed: list[tuple[int | None, str]] = field(default_factory=list)
    _played: set[int] = field(default_factory=set)

    @property
    def recorded(self) -> list[str]:
        """Return the recorded requests."""
        return [f"{line['method']} {line['path']}" for line in self.lines if "path" in line]

    @property
    def recorded_acts(self) -> list[str]:
        """Return the expected value of `did` for a client that acts like the recorded one."""
        return [_act(line) for line in self.lines if line["from"] == "client"]

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(f"{request.method} {request.path_qs}")
        self.did.append(self.asked[-1])
        line = self._line(request)
        if line is None:
            known = self.extra.get(request.path)
            if known is None:
                self.faults.append(f"not recorded, or not that often: {self.asked[-1]}")
            return web.Response(status=404) if known is None else web.Response(body=known)
        self._compare_headers(request, line)
        rest = [one for one in self.lines if one["conn"] == line["conn"] and one is not line]
        if line["kind"] == "ws-open":
            return await self._converse(request, rest[1:])
        if _meaning(await request.read()) != _meaning(body_of(line)):
            self.faults.append(f"another body at {request.path}")
        headers = {name: rest[0]["headers"][name] for name in ANSWERED if name in rest[0]["headers"]}
        return web.Response(status=rest[0]["status"], body=body_of(rest[0]), headers=headers)

    def _line(self, request: web.Request) -> Line | None:
        """Return the next recorded request of this kind."""
        for line in self.lines:
            asked = (line.get("method"), line.get("path"))
            if asked == (request.method, request.path_qs) and line["conn"] not in self._played:
                self._played.add(line["conn"])
                return line
        return None

    def _compare_headers(self, request: web.Request, line: Line) -> None:
        expected = {name: line["headers"].get(name) for name in COMPARED}
        found = {name: request.headers.get(name) for name in COMPARED}
        if found != expected:
            self.faults.append(f"{found} instead of {expected} at {request.path}")
        if "content-length" in line["headers"] and request.content_length is None:
            self.faults.append(f"no length at {request.path}")
        if line["headers"].get("upgrade") != request.headers.get("upgrade"):
            self.faults.append(f"upgrade to {request.headers.get('upgrade')} at {request.path}")

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
                    self.did.append(_act(line))
                case "server", "ws-text":
                    await socket.send_str(self._replaced(line["body"]).replace(RECORDED_HOST, base))
                case "client", "ws-close":
                    await self._closed(socket, line)
                case _:
                    await self._close(request, socket, line)
        return socket

    async def _closed(self, socket: web.WebSocketResponse, line: Line) -> None:
        """Record how the client ends the exchange."""
        if not socket.closed:
            frame = await socket.receive(PATIENCE_SECONDS)
            self.closed.append((frame.data, frame.extra or ""))
        self.did.append(_act(line))

    async def _close(self, request: web.Request, socket: web.WebSocketResponse, line: Line) -> None:
        if line["code"] is not None:
            await socket.close(code=line["code"], message=line["reason"].encode()[:123])
        elif request.transport is not None:
            request.transport.abort()

    def _replaced(self, text: str) -> str:
        for old, new in self.replaced.items():
            text = text.replace(old, new)
        return text


def _act(line: Line) -> str:
    return f"{line['method']} {line['path']}" if "path" in line else f"{line['kind']} {line['seq']}"


def _meaning(content: bytes) -> Any:
    try:
        plain = json.loads(content)
    except ValueError:
        return content
    return _opened(plain) if isinstance(plain, dict) else content


def _opened(plain: dict[str, Any]) -> dict[str, Any]:
    """Return JSON whose strings are decoded as JSON, too."""
    return {key: _meaning(held.encode()) if isinstance(held, str) else held for key, held in plain.items()}


def in_order(acts: list[str]) -> list[str]:
    """Return acts with concurrent ones sorted: consecutive requests for objects."""
    groups = [(are_objects, list(group)) for are_objects, group in groupby(acts, _is_object)]
    return [act for are_objects, group in groups for act in (sorted(group) if are_objects else group)]


def _is_object(act: str) -> bool:
    return any(f"/{folder}/" in act for folder in FOLDERS[1:])


@contextmanager
def scripted(script: Script) -> Iterator[str]:
    """Serve a script; yield the server's URL."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", script.answer)
    with running(app) as base:
        yield base
