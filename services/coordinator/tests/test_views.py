"""The views show all datasets and know no accounts: they serve programs on their own machine only."""

import asyncio
import http.client
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from odf_testing.certificates import self_signed
from odf_testing.http import running

from odf_common.adapters.memory import MemoryBlobStore, MemoryCatalog, MemoryRefStore
from odf_common.dataset.state_cache import ChainStates, NoStateCache
from odf_common.proto.odf.bus.v1 import bus_pb2 as bus
from odf_common.service.protection import Unprotected
from odf_common.service.settings import MULTI_TENANT, Settings
from odf_coordinator.catalog.registry import Datasets
from odf_coordinator.views.app import make_app, reachable
from odf_coordinator.views.table import DatasetTable

PATHS = ("/datasets", "/health", "/", "/nowhere")
FOREIGN = {
    "a proxy": {"X-Forwarded-For": "192.0.2.1"},
    "a proxy by the standard": {"Forwarded": "for=192.0.2.1"},
    "a name that was bound to this machine later": {"Host": "evil.example"},
    "a web page": {"Origin": "https://evil.example"},
    "a malformed host": {"Host": "["},
}


def settings(home: Path, **more: str) -> Settings:
    given = {"ODF_HOME": str(home), "ODF_KAFKA": "127.0.0.1:1", "ODF_VIEWS_HTTP": "127.0.0.1:1"}
    return Settings.from_env(given | more)


@contextmanager
def serving(home: Path, **more: str) -> Iterator[str]:
    """Serve the pages as the worker does, with one dataset."""
    table = DatasetTable()
    table.committed(
        "did:odf:x", bus.Committed(head=bytes.fromhex("1620" + "00" * 32), alias="alice/secret"), None
    )
    refs, blobs = MemoryRefStore(), MemoryBlobStore()
    datasets = Datasets(
        catalog=MemoryCatalog(),
        states=ChainStates(blobs, refs, NoStateCache()),
        blobs=blobs,
        refs=refs,
        has_key=lambda _: False,
    )
    app = make_app(settings(home, **more), table, datasets)
    with running(asyncio.run(app.web.wsgi())) as base:
        yield base.removeprefix("http://")


def ask(base: str, path: str, headers: dict[str, str]) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(base, timeout=10)
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read() or b"null")
    finally:
        connection.close()


@pytest.mark.parametrize("more", [{}, {"ODF_TENANCY": MULTI_TENANT}])
def test_a_program_on_the_machine_sees_all_datasets(tmp_path: Path, more: dict[str, str]) -> None:
    with serving(tmp_path, **more) as base:
        status, rows = ask(base, "/datasets", {})
        assert (status, [row["alias"] for row in rows]) == (200, ["alice/secret"])
        assert ask(base, "/health", {"Host": "localhost"}) == (200, {"status": "SERVING"})


@pytest.mark.parametrize("headers", FOREIGN.values(), ids=FOREIGN.keys())
def test_others_see_no_page_at_all(tmp_path: Path, headers: dict[str, str]) -> None:
    with serving(tmp_path) as base:
        for path in PATHS:
            status, body = ask(base, path, headers)
            assert status in {400, 403}
            assert "secret" not in str(body)


def test_they_serve_others_on_a_network_configured_as_trusted(tmp_path: Path) -> None:
    with serving(tmp_path, ODF_LISTEN_UNPROTECTED="1") as base:
        assert ask(base, "/datasets", {"Host": "views.example"})[0] == 200


@pytest.mark.parametrize("address", ["0.0.0.0:1", "[::]:1", "192.0.2.1:1", "node.example:1"])
def test_they_listen_beyond_loopback_only_if_configured(tmp_path: Path, address: str) -> None:
    certificate, key = self_signed(tmp_path)
    https = {"ODF_HTTP_CERTIFICATE_FILE": str(certificate), "ODF_HTTP_KEY_FILE": str(key)}
    with pytest.raises(Unprotected, match="ODF_VIEWS_HTTP"):
        make_app(settings(tmp_path, ODF_VIEWS_HTTP=address, **https), DatasetTable(), None)  # type: ignore[arg-type]


def test_the_process_does_not_start_with_an_open_address(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = {
        "ODF_HOME": str(tmp_path),
        "ODF_KAFKA": "127.0.0.1:1",
        "ODF_VIEWS_HTTP": f"0.0.0.0:{port}",
        "PATH": "/usr/bin",
    }
    done = subprocess.run(
        [sys.executable, "-m", "odf_coordinator.views"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "ODF_VIEWS_HTTP" in done.stdout + done.stderr
    assert "would be open to other machines" in done.stdout + done.stderr


def test_they_wait_for_a_broker_that_starts_later(monkeypatch: pytest.MonkeyPatch) -> None:
    async def is_awaited() -> bool:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = int(free.getsockname()[1])
        accepted = asyncio.Event()
        servers: list[asyncio.Server] = []

        def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.close()
            accepted.set()

        async def start_meanwhile(_: float) -> None:
            servers.append(await asyncio.start_server(accept, "127.0.0.1", port))

        monkeypatch.setattr(asyncio, "sleep", start_meanwhile)
        await reachable(f"127.0.0.1:{port}")
        (server,) = servers
        async with server:
            return await asyncio.wait_for(accepted.wait(), 5)

    assert asyncio.run(is_awaited())
