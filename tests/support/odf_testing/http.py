"""Runs an aiohttp application in a thread, on its own or behind a proxy."""

import asyncio
import os
import re
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Final

from aiohttp import web

CONFIGURATION: Final = Path(__file__).parents[3] / "deploy" / "compose" / "nginx.conf"
START_SECONDS: Final = 10.0
SAYS_WHO_SENT: Final = re.compile(r"^ *proxy_set_header (?:Host|X-Forwarded-For) .*\n", re.MULTILINE)


def configuration(
    folder: Path, port: int, server: str, *, certificate: tuple[Path, Path] | None, names_clients: bool
) -> str:
    """Return the configuration for `server`, a URL, with files in a folder; without a certificate it is plain HTTP.

    `names_clients` keeps the lines that set `Host` and `X-Forwarded-For`.
    """
    # First of all, since the files that are named below may be in /tmp.
    text = (
        CONFIGURATION.read_text().replace("/tmp/", f"{folder}/").replace("/dev/stderr", f"{folder}/error.log")
    )
    if not names_clients:
        text, count = SAYS_WHO_SENT.subn("", text)
        assert count == 2
    if certificate is None:
        text = re.sub(r"^ *ssl_.*\n", "", text, flags=re.MULTILINE)
    else:
        for name, file in zip(("http.pem", "http-key.pem"), certificate, strict=True):
            text = _replaced(text, f"/run/secrets/http/{name}", str(file))
    text = _replaced(text, "listen 8443 ssl;", f"listen 127.0.0.1:{port}{' ssl' if certificate else ''};")
    text = _replaced(text, "https://sync:5545", server)
    return _replaced(text, "worker_processes auto;", "worker_processes 1;")


def _replaced(text: str, old: str, new: str) -> str:
    assert old in text, old
    return text.replace(old, new)


@contextmanager
def proxied(
    folder: Path,
    server: str,
    *,
    certificate: tuple[Path, Path] | None = None,
    names_clients: bool = True,
    is_of_node_user: bool = False,
) -> Iterator[str]:
    """Run nginx in front of `server` inside the block, and yield its URL; its workers are of another user than root.

    `is_of_node_user` runs them as the user of the tests.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    folder.mkdir()
    text = configuration(folder, port, server, certificate=certificate, names_clients=names_clients)
    if os.geteuid() == 0:
        text = f"user {'root root' if is_of_node_user else 'nobody nogroup'};\n{text}"
    file = folder / "nginx.conf"
    file.write_text(text)
    program = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
    assert program is not None, "nginx is missing: make testsetup"
    command = [program, "-e", str(folder / "error.log"), "-c", str(file), "-g", "daemon off;"]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL) as nginx:
        try:
            _wait_for(port, nginx, folder)
            yield f"http{'s' if certificate else ''}://127.0.0.1:{port}"
        finally:
            nginx.terminate()


def _wait_for(port: int, nginx: "subprocess.Popen[bytes]", folder: Path) -> None:
    until = time.monotonic() + START_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            log = folder / "error.log"
            assert nginx.poll() is None, log.read_text() if log.exists() else "nginx has ended"
            assert time.monotonic() < until
            time.sleep(0.02)
        else:
            return


@contextmanager
def running(app: web.Application, proxy: Path | None = None) -> Iterator[str]:
    """Serve an application on a free port of loopback, behind a proxy if there is a folder for its files; yield its URL."""
    loop = asyncio.new_event_loop()
    runner = web.AppRunner(app, access_log=None, lingering_time=0.5, auto_decompress=False)

    async def start() -> int:
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        return int(runner.addresses[0][1])

    port = loop.run_until_complete(start())
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        base = f"http://127.0.0.1:{port}"
        with nullcontext(base) if proxy is None else proxied(proxy, base) as url:
            yield url
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
