"""The views show all datasets and know no accounts: they serve programs on their own machine only."""

import asyncio
import base64
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
from types import SimpleNamespace
from typing import Any

import faust
import pytest
from aiohttp import web
from odf_testing import other_user
from odf_testing.builders import a_dataset, a_hash
from odf_testing.certificates import self_signed
from odf_testing.coordinator import Coordinator
from odf_testing.http import running
from odf_testing.memory_store import MemoryBlobStore, MemoryCatalog, MemoryRefStore
from structlog.testing import capture_logs

from odf_cli.embedded.parts.tcp_ports import allocate
from odf_common.adapters.kafka.cluster import OAUTHBEARER, KafkaCluster, Sasl
from odf_common.adapters.tls import ClientTls
from odf_common.codec.envelopes import Body, encode, envelope
from odf_common.dataset.open_rejects import Rejects
from odf_common.dataset.state_cache import ChainStates, NoStateCache
from odf_common.errors import Unavailable
from odf_common.hashing.multihash import physical_hash_of
from odf_common.identity.dataset_refs import DatasetId
from odf_common.identity.keys import generate
from odf_common.proto.odf.bus.v1 import bus_pb2 as bus
from odf_common.service.protection import Unprotected
from odf_common.service.settings import MULTI_TENANT, Settings
from odf_coordinator.catalog.datasets import Datasets
from odf_coordinator.views import credentials
from odf_coordinator.views.app import make_app, reachable, read_heads
from odf_coordinator.views.credentials import ClientCredentialsGrant, credentials_for
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


DATASET = generate().dataset_id
HEAD = physical_hash_of(b"head")


def committed(last_offset: int | None, *, number: int = 1) -> bus.Committed:
    return bus.Committed(
        head=HEAD.raw, sequence_number=number, last_offset=last_offset, watermark={}, alias="cities"
    )


def test_a_row_shows_the_latest_report() -> None:
    table = DatasetTable()
    table.apply_head(str(DATASET), committed(None), now=None)

    table.see(envelope(DATASET, committed(9, number=2)), 100.0)
    table.see(envelope(DATASET, bus.IngestProgress(source_name="a", lag=3)), 100.0)
    progress = bus.IngestProgress(source_name="b", lag=4, rejected=2, rejected_reason="is empty")
    table.see(envelope(DATASET, progress), 100.0)

    (row,) = table.rows(100.0)
    assert row == {
        "dataset_id": str(DATASET),
        "alias": "cities",
        "head": str(HEAD),
        "last_offset": 9,
        "watermark": "1970-01-01T00:00:00Z",
        "records_per_second": round(10 / 60, 3),
        "lag": 7,
        "rejected": 2,
        "rejected_reason": "is empty",
        "stage": None,
        "rows": 0,
        "total": 0,
    }


@pytest.mark.parametrize("end", [bus.TransformProgress(), committed(9, number=2)])
def test_a_row_shows_the_progress_of_the_engine_until_it_ends(end: Body) -> None:
    table = DatasetTable()
    table.apply_head(str(DATASET), committed(None), now=None)
    table.see(envelope(DATASET, bus.TransformProgress(stage="computing", rows=3, total=5)), 100.0)
    (row,) = table.rows(100.0)
    assert (row["stage"], row["rows"], row["total"]) == ("computing", 3, 5)
    table.see(envelope(DATASET, end), 101.0)
    (row,) = table.rows(101.0)
    assert (row["stage"], row["rows"], row["total"]) == (None, 0, 0)


def test_throughput_is_that_of_the_last_minute() -> None:
    table = DatasetTable()
    table.apply_head(str(DATASET), committed(599), now=None)
    table.see(envelope(DATASET, committed(1199, number=2)), 100.0)

    assert [row["records_per_second"] for row in table.rows(159.0)] == [10.0]
    assert [row["records_per_second"] for row in table.rows(160.0)] == [0.0]


def test_a_table_that_nobody_reads_keeps_a_minute_of_throughput() -> None:
    table = DatasetTable()
    table.apply_head(str(DATASET), committed(999), now=None)
    for second in range(1000, 1400):
        table.see(envelope(DATASET, committed(second, number=second)), float(second))
    assert len(table._datasets[str(DATASET)].growth) == 60
    assert [row["records_per_second"] for row in table.rows(1399.0)] == [1.0]


def test_a_removed_dataset_is_gone() -> None:
    table = DatasetTable()
    table.apply_head(str(DATASET), committed(1), now=None)

    table.see(envelope(DATASET, bus.DatasetRemoved(alias="cities")), 1.0)

    assert list(table.rows(1.0)) == []


def test_only_records_that_arrived_while_watching_count_as_throughput() -> None:
    table = DatasetTable()
    table.see(envelope(DATASET, committed(599)), 100.0)  # may have existed before
    table.see(envelope(DATASET, committed(299, number=2)), 101.0)  # reset
    table.apply_head(str(DATASET), committed(899, number=3), now=None)  # history
    assert [row["records_per_second"] for row in table.rows(102.0)] == [0.0]
    table.see(envelope(DATASET, committed(959, number=4)), 103.0)
    table.see(envelope(DATASET, committed(959, number=5)), 104.0)
    assert [row["records_per_second"] for row in table.rows(104.0)] == [1.0]


def test_the_records_after_the_first_block_count_as_throughput() -> None:
    table = DatasetTable()
    table.see(envelope(DATASET, committed(None, number=0)), 100.0)
    table.see(envelope(DATASET, committed(59)), 101.0)
    assert [row["records_per_second"] for row in table.rows(102.0)] == [1.0]


def test_rows_are_sorted_by_name_and_only_of_datasets_with_a_head() -> None:
    table = DatasetTable()
    others = [generate().dataset_id for _ in range(3)]
    for dataset, alias in zip(others, ("b", "A", "c"), strict=True):
        body = committed(1)
        body.alias = alias
        table.see(envelope(dataset, body), 1.0)
    table.see(envelope(generate().dataset_id, bus.TransformProgress(stage="computing")), 1.0)
    assert [row["alias"] for row in table.rows(1.0)] == ["A", "b", "c"]
    unnamed = committed(2, number=2)
    unnamed.alias = ""
    table.see(envelope(others[0], unnamed), 2.0)
    assert [row["alias"] for row in table.rows(2.0)] == ["A", "b", "c"]


SCRAM = Sasl(mechanism="SCRAM-SHA-256", username="ann", password="hush")
BEARER = Sasl(mechanism=OAUTHBEARER, username="ann", password="hush", token_url="http://127.0.0.1:1/")


def cluster(*, is_tls: bool, sasl: Sasl | None) -> KafkaCluster:
    return KafkaCluster("127.0.0.1:1", tls=ClientTls() if is_tls else None, sasl=sasl)


def test_a_cluster_without_protection_needs_no_credentials() -> None:
    assert credentials_for(cluster(is_tls=False, sasl=None)) is None


def test_a_cluster_with_tls_only_is_trusted_by_its_certificate() -> None:
    found: Any = credentials_for(cluster(is_tls=True, sasl=None))
    assert isinstance(found, faust.SSLCredentials)
    assert found.context is not None


@pytest.mark.parametrize("is_tls", [False, True])
def test_a_name_and_a_password_are_sent_as_the_cluster_asks(*, is_tls: bool) -> None:
    found: Any = credentials_for(cluster(is_tls=is_tls, sasl=SCRAM))
    assert isinstance(found, faust.SASLCredentials)
    assert (found.username, found.password, found.mechanism.value) == ("ann", "hush", "SCRAM-SHA-256")
    assert (found.ssl_context is not None) == is_tls


@pytest.mark.parametrize("is_tls", [False, True])
def test_tokens_are_used_where_the_cluster_takes_them(*, is_tls: bool) -> None:
    found: Any = credentials_for(cluster(is_tls=is_tls, sasl=BEARER))
    assert isinstance(found, faust.OAuthCredentials)
    assert isinstance(found.oauth_cb, ClientCredentialsGrant)
    assert (found.ssl_context is not None) == is_tls


class Endpoint:
    """A token endpoint, which answers with `answer` and notes the requests."""

    def __init__(self, answer: web.Response | dict[str, object]) -> None:
        self.answer = answer
        self.requests: list[tuple[str, dict[str, str]]] = []

    @contextmanager
    def running(self) -> Iterator[str]:
        app = web.Application()
        app.router.add_post("/token", self._serve)
        app.router.add_get("/elsewhere", self._serve)
        with running(app) as base:
            yield f"{base}/token"

    async def _serve(self, request: web.Request) -> web.Response:
        form = {name: str(value) for name, value in (await request.post()).items()}
        self.requests.append((request.headers.get("Authorization", ""), form))
        if isinstance(self.answer, web.Response):
            return self.answer
        number = len(self.requests)
        return web.json_response({name: f"{value}{number}" for name, value in self.answer.items()})


@pytest.mark.parametrize("scope", [None, "kafka"])
def test_a_token_is_asked_for_with_name_secret_and_scope(scope: str | None) -> None:
    endpoint = Endpoint({"access_token": "token"})
    with endpoint.running() as url:
        sasl = Sasl(mechanism=OAUTHBEARER, username="änn", password="h:ush", token_url=url, token_scope=scope)
        assert asyncio.run(ClientCredentialsGrant(sasl).token()) == "token1"
    ((login, form),) = endpoint.requests
    assert base64.b64decode(login.removeprefix("Basic ")).decode() == "änn:h:ush"
    assert form == {"grant_type": "client_credentials"} | ({"scope": scope} if scope else {})


def test_a_token_is_renewed_before_it_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(credentials, "time", SimpleNamespace(monotonic=lambda: now[0]))
    endpoint = Endpoint({"access_token": "token", "expires_in": 10})  # 101, 102 … seconds
    found = []
    with endpoint.running() as url:
        grant = ClientCredentialsGrant(
            Sasl(mechanism=OAUTHBEARER, username="ann", password="hush", token_url=url)
        )
        for now[0] in (1000.0, 1080.0, 1080.8, 1162.0, 1162.4):
            found.append(asyncio.run(grant.token()))
    assert found == ["token1", "token1", "token2", "token2", "token3"]


def test_a_token_without_a_lifetime_is_used_once() -> None:
    endpoint = Endpoint({"access_token": "token"})
    with endpoint.running() as url:
        grant = ClientCredentialsGrant(
            Sasl(mechanism=OAUTHBEARER, username="ann", password="hush", token_url=url)
        )
        assert [asyncio.run(grant.token()) for _ in range(2)] == ["token1", "token2"]


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (401, '{"access_token": "token"}'),
        (200, "junk"),
        (200, "[]"),
        (200, "{}"),
        (200, '{"access_token": "token", "expires_in": "soon"}'),
        (302, ""),
    ],
)
def test_an_endpoint_that_gives_no_token_is_named_without_the_secret(status: int, text: str) -> None:
    endpoint = Endpoint(web.Response(status=status, text=text, headers={"Location": "/elsewhere"}))
    with endpoint.running() as url:
        sasl = Sasl(mechanism=OAUTHBEARER, username="ann", password="hush", token_url=url)
        with pytest.raises(Unavailable) as refused:
            asyncio.run(ClientCredentialsGrant(sasl).token())
    assert f"Kafka cannot be reached: no token from {url}" in str(refused.value)
    assert "hush" not in str(refused.value)
    assert len(endpoint.requests) == 1


def test_an_endpoint_that_nobody_serves_is_unavailable() -> None:
    with pytest.raises(Unavailable, match=r"no token from http://127\.0\.0\.1:1/: ClientConnectorError"):
        asyncio.run(ClientCredentialsGrant(BEARER).token())
