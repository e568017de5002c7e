"""The views show all datasets and know no accounts: they serve programs on their own machine only."""

import asyncio
import errno
import http.client
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from odf_testing import other_user
from odf_testing.builders import a_dataset, a_hash
from odf_testing.certificates import self_signed
from odf_testing.coordinator import Coordinator
from odf_testing.http import running
from odf_testing.memory_store import MemoryBlobStore, MemoryCatalog, MemoryRefStore
from structlog.testing import capture_logs

from odf_cli.embedded.parts.tcp_ports import allocate
from odf_common.codec.envelopes import encode, envelope
from odf_common.dataset.open_rejects import Rejects
from odf_common.dataset.state_cache import ChainStates, NoStateCache
from odf_common.identity.dataset_refs import DatasetId
from odf_common.proto.odf.bus.v1 import bus_pb2 as bus
from odf_common.service.protection import Unprotected
from odf_common.service.settings import MULTI_TENANT, Settings
from odf_coordinator.catalog.datasets import Datasets
from odf_coordinator.views.app import make_app, reachable, read_heads
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


def datasets_of_nobody() -> Datasets:
    refs, blobs = MemoryRefStore(), MemoryBlobStore()
    return Datasets(
        catalog=MemoryCatalog(),
        states=ChainStates(blobs, refs, NoStateCache()),
        blobs=blobs,
        refs=refs,
        has_key=lambda _: False,
    )


@contextmanager
def serving(home: Path, **more: str) -> Iterator[str]:
    """Serve the pages as the worker does, with one dataset."""
    table = DatasetTable()
    table.apply_head(
        "did:odf:x", bus.Committed(head=bytes.fromhex("1620" + "00" * 32), alias="alice/secret"), None
    )
    app = make_app(settings(home, **more), table, datasets_of_nobody())
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
    port = allocate(tmp_path, ("views",))["views"]
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


def test_a_dataset_that_cannot_be_shown_hides_no_other(node: Coordinator, root: str) -> None:
    node.add(root, root.replace("name: cities", "name: rivers"))
    bad = node.find("cities").id
    rejects = Rejects(count=3, reason="is empty")

    def has_key(dataset: DatasetId) -> bool:
        if dataset == bad:
            raise OSError(errno.EIO, "Input/output error")
        return True

    table = DatasetTable()
    table.set_rejects(str(node.find("rivers").id), rejects)
    with capture_logs() as logs:
        read_heads(table, replace(node.datasets, has_key=has_key))
    rows = {row["alias"]: row for row in table.rows(0.0)}
    assert rows["rivers"]["head"] == str(node.find("rivers").state.head)
    assert (rows["rivers"]["rejected"], rows["rivers"]["records_per_second"]) == (0, 0.0)
    assert [(line["event"], line["dataset"]) for line in logs] == [("cannot show dataset", "cities")]


class FailingTable(DatasetTable):
    """Has a bug in what it does for one dataset."""

    def __init__(self, bad: DatasetId) -> None:
        super().__init__()
        self._bad = str(bad)

    def see(self, message: bus.Envelope, now: float) -> None:
        if message.dataset_id == self._bad:
            raise ValueError("a bug")
        super().see(message, now)


def test_they_follow_notifications_and_a_bad_one_hides_no_other(tmp_path: Path) -> None:
    good, bad = a_dataset(1), a_dataset(2)
    table = FailingTable(bad)
    app = make_app(settings(tmp_path), table, datasets_of_nobody())
    (follow,) = app.agents.values()
    head = bus.Committed(head=a_hash("head").raw, alias="cities")
    (key, sound), odd = encode(envelope(good, head)), encode(envelope(bad, head))

    async def send() -> None:
        async with follow.test_context() as agent:
            for name, value in ((key, b"\xff"), odd, (key, sound), (key, b"\xff")):
                await agent.put(value, key=name)

    with capture_logs() as logs:
        asyncio.run(send())
    assert [row["alias"] for row in table.rows(0.0)] == ["cities"]
    assert [line["event"] for line in logs][:2] == ["cannot read notification", "cannot show notification"]


def test_they_wait_for_a_broker_that_starts_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def is_awaited() -> bool:
        port = allocate(tmp_path, ("kafka",))["kafka"]
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


@pytest.mark.parametrize("path", PATHS)
def test_they_serve_no_other_user_of_the_machine(tmp_path: Path, path: str) -> None:
    with serving(tmp_path) as base:
        assert other_user.ask(base, "GET", path, user=os.geteuid())[0] in {200, 404}
        status, text = other_user.ask(base, "GET", path)
    assert (status, "secret" in text, "another user" in text) == (403, False, True)
