"""A plain web server of static files, used as a repository; it records the requests."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
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
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield StaticServer(url=f"http://127.0.0.1:{server.server_port}", asked=asked)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
