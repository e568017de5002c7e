"""Web servers that record the requests: of static files, used as a repository, and of pages that tests script."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


@dataclass(slots=True)
class StaticServer:
    """Its address, and the requested paths so far."""

    url: str
    asked: list[str] = field(default_factory=list)


@contextmanager
def serving(folder: Path) -> Iterator[StaticServer]:
    """Serve a folder on a free loopback port inside the block."""
    asked: list[str] = []

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            asked.append(self.path)

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield StaticServer(url=f"http://127.0.0.1:{server.server_port}", asked=asked)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@dataclass(slots=True)
class Page:
    """What a server answers at a path; each field can be changed while it serves."""

    body: bytes = b""
    etag: str | None = None
    modified: str | None = None
    """As in `Last-Modified`."""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    obeys: bool = True
    """Whether conditional requests are answered with 304."""
    breaks: list[int] = field(default_factory=list)
    """For each of the next requests: the connection ends after that many bytes of the body."""
    fails: list[int] = field(default_factory=list)
    """For each of the next requests: the status instead of the page."""
    pause: float = 0.0
    """Seconds before each 1,000 bytes of the body."""


@dataclass(slots=True)
class PageServer:
    """Its address, its pages by path, and the headers of each request so far, lower case, with `path`."""

    url: str
    pages: dict[str, Page] = field(default_factory=dict)
    requests: list[dict[str, str]] = field(default_factory=list)


@contextmanager
def serving_pages() -> Iterator[PageServer]:
    """Serve pages on a free loopback port inside the block: validators, redirects, slow and broken answers."""
    served = PageServer(url="")

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            pass

        def do_GET(self) -> None:
            asked = {name.lower(): value for name, value in self.headers.items()}
            served.requests.append({"path": self.path, **asked})
            page = served.pages.get(self.path) or served.pages.get(self.path.partition("?")[0])
            page = page or Page(status=404)
            if page.fails:
                page = Page(status=page.fails.pop(0))
            self._answer(page, is_same=page.obeys and _is_same(page, asked))

        def _answer(self, page: Page, *, is_same: bool) -> None:
            body = b"" if is_same else page.body
            self.send_response(304 if is_same else page.status)
            validators = {"ETag": page.etag, "Last-Modified": page.modified}
            own = {name: value for name, value in validators.items() if value is not None}
            length = {} if is_same else {"Content-Length": str(len(body))}
            for name, value in {**own, **length, **page.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if page.breaks and not is_same:
                body = body[: page.breaks.pop(0)]
                self.close_connection = True
            for start in range(0, len(body), 1000):
                time.sleep(page.pause)
                self.wfile.write(body[start : start + 1000])

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    served.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request, with its body."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


@contextmanager
def serving_answers(answer: Callable[[Request], Page | None]) -> Iterator[str]:
    """Answer requests of all methods by a function inside the block; None breaks the connection. Yield the address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            pass

        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            asked = Request(method=self.command, path=self.path, headers=dict(self.headers), body=body)
            page = answer(asked)
            if page is None:
                self.close_connection = True
                return
            self.send_response(page.status)
            for name, value in {"Content-Length": str(len(page.body)), **page.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(page.body)

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _answer  # noqa: N815 the base class's names

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _is_same(page: Page, asked: dict[str, str]) -> bool:
    if "if-none-match" in asked:
        return asked["if-none-match"] == page.etag
    return page.modified is not None and asked.get("if-modified-since") == page.modified
