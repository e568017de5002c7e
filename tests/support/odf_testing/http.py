"""Runs an aiohttp application in a thread."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from aiohttp import web

from odf_testing.proxy import proxied


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
