"""An FTP server of a folder that records the commands it gets."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pyftpdlib.authorizers import DummyAuthorizer
from pyftpdlib.handlers import FTPHandler
from pyftpdlib.servers import FTPServer

USER, PASSWORD = "reader", "hush hush"
POLL_SECONDS = 0.02


@dataclass(slots=True, kw_only=True)
class FolderServer:
    """Its address, the commands so far, and what tests script; each field can be changed while it serves."""

    port: int
    commands: list[str] = field(default_factory=list)
    unknown: set[str] = field(default_factory=set)
    """Commands that the server does not know."""
    silent: set[str] = field(default_factory=set)
    """Commands that the server does not answer."""
    breaks: int = 0
    """How many of the next transfers break off."""
    advertised: str = ""
    """The address in replies to `PASV`, if not its own."""

    @property
    def host(self) -> str:
        """Return host and port."""
        return f"127.0.0.1:{self.port}"


@contextmanager
def serving_ftp(folder: Path) -> Iterator[FolderServer]:
    """Serve a folder inside the block: to anonymous users, and to `USER` with `PASSWORD`, whose home is `own` in it."""
    authorizer = DummyAuthorizer()
    authorizer.add_anonymous(str(folder))
    (folder / "own").mkdir()
    authorizer.add_user(USER, PASSWORD, str(folder / "own"))
    served = FolderServer(port=0)

    class Handler(FTPHandler):  # type: ignore[misc]  # it has no types
        auth_failed_timeout = 0

        def process_command(self, cmd: str, *args: object, **named: object) -> None:
            served.commands.append(cmd)
            if cmd in served.silent:
                return
            if cmd in served.unknown:
                self.respond(f"502 {cmd} is not implemented.")
                return
            if cmd == "PASV":
                self.masquerade_address = served.advertised or None
            if cmd == "RETR" and served.breaks:
                served.breaks -= 1
                self.respond("150 Here it comes.")
                self.data_channel.send(b"{")
                self.close()
                return
            super().process_command(cmd, *args, **named)

    Handler.authorizer = authorizer
    server = FTPServer(("127.0.0.1", 0), Handler)
    served.port = server.address[1]
    is_over = threading.Event()

    def serve() -> None:
        while not is_over.is_set():
            server.serve_forever(timeout=POLL_SECONDS, blocking=False)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield served
    finally:
        is_over.set()
        thread.join()
        server.close_all()
