"""How an application runs its endpoints: shutdown, paths that could be calls, the limit on requests, the audit."""

import asyncio
import http.client
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import urllib3
from aiohttp import web
from odf_testing.builders import a_dataset
from odf_testing.http import running

from odf_common.adapters.local.catalog import LocalCatalog
from odf_common.identity.dataset_refs import Name
from odf_common.ports.store import CatalogEntry
from odf_common.service.audit import Audit
from odf_sync.access.access_store import AccessStore
from odf_sync.access.directory import Directory
from odf_sync.access.rate_limits import counted_address
from odf_sync.access.rules import Action, Visibility
from odf_sync.http import endpoints as module
from odf_sync.http.authorization import Authorizer
from odf_sync.http.endpoints import Endpoint, _gone_clients, application, counted_caller, reads_public_data


class Notes:
    """An audit that keeps its entries."""

    def __init__(self) -> None:
        self.statuses: list[int] = []

    def put(self, _: object, entry: Any) -> None:
        self.statuses.append(entry.status)


def authorizer_of(home: Path, *, is_multi_tenant: bool = False) -> Authorizer:
    catalog = LocalCatalog(home)
    catalog.add(CatalogEntry(alias="info", dataset_id=a_dataset()))
    directory = Directory(AccessStore(home), is_multi_tenant=is_multi_tenant)
    return Authorizer(catalog=catalog, local_writers="loopback", directory=directory)


def answering(text: str) -> Any:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(text=text)

    return answer


@contextmanager
def served(authorizer: Authorizer, *endpoints: Endpoint, audit: Notes | None = None) -> Iterator[str]:
    with running(application(authorizer, endpoints, audit=cast("Audit | None", audit))) as url:
        yield url.removeprefix("http://")


def ask(base: str, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection(base, timeout=10)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def test_an_endpoint_ends_its_open_requests_when_the_server_stops(tmp_path: Path) -> None:
    ended: list[web.Application] = []

    async def end(app: web.Application) -> None:
        ended.append(app)

    endpoint = Endpoint(method="GET", path="/info", handler=answering("hello"), summary="", on_shutdown=end)
    with served(authorizer_of(tmp_path), endpoint):
        assert ended == []
    assert len(ended) == 1


@pytest.mark.parametrize(("is_multi_tenant", "answer"), [(False, "records"), (True, "about read")])
def test_a_path_is_a_call_of_a_dataset_where_datasets_have_no_account(
    tmp_path: Path, is_multi_tenant: bool, answer: str
) -> None:
    about = Endpoint(method="GET", path="/info/{name}", handler=answering("about read"), summary="")
    read = Endpoint(method="GET", path="/read", handler=answering("records"), summary="", action=Action.READ)
    authorizer = authorizer_of(tmp_path, is_multi_tenant=is_multi_tenant)
    with served(authorizer, about, read) as base:
        assert ask(base, "/info/read") == (200, answer)
        assert ask(base, "/info/other") == (200, "about read")


def test_one_request_beyond_the_limit_succeeds_when_another_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_REQUESTS", 1)
    has_begun, may_end = threading.Event(), threading.Event()

    async def wait(_: web.Request) -> web.Response:
        has_begun.set()
        await asyncio.to_thread(may_end.wait, 10)
        return web.Response(text="hello")

    endpoint = Endpoint(method="GET", path="/info", handler=wait, summary="")
    with served(authorizer_of(tmp_path), endpoint) as base, ThreadPoolExecutor(1) as pool:
        first = pool.submit(ask, base, "/info")
        assert has_begun.wait(10)
        assert ask(base, "/info")[0] == 503
        may_end.set()
        assert first.result() == (200, "hello")
        assert ask(base, "/info") == (200, "hello")


def test_a_refusal_by_an_endpoint_without_dataset_is_recorded(tmp_path: Path) -> None:
    async def refuse(_: web.Request) -> web.Response:
        raise web.HTTPBadRequest(text="no")

    notes = Notes()
    endpoint = Endpoint(method="GET", path="/info", handler=refuse, summary="")
    with served(authorizer_of(tmp_path), endpoint, audit=notes) as base:
        assert ask(base, "/info") == (400, "no")
    assert notes.statuses == [400]


def test_only_a_read_of_a_dataset_that_everyone_may_read_is_one_of_public_data(tmp_path: Path) -> None:
    async def say(request: web.Request) -> web.Response:
        return web.Response(text=str(reads_public_data(request)))

    authorizer = authorizer_of(tmp_path)
    read, write = (
        Endpoint(method="GET", path=f"/{action}", handler=say, summary="", action=action)
        for action in (Action.READ, Action.WRITE)
    )
    with served(authorizer, read, write) as base:
        assert ask(base, "/info/read") == (200, "True")
        assert ask(base, "/info/write") == (200, "False")
        (entry,) = LocalCatalog(tmp_path).entries()
        authorizer.directory.set_visibility(entry.incarnation, Visibility.PRIVATE)
        assert ask(base, "/info/read") == (200, "False")


def test_limits_apply_per_account_or_else_per_address(tmp_path: Path) -> None:
    async def say(request: web.Request) -> web.Response:
        return web.Response(text=str(counted_caller(request)))

    authorizer = authorizer_of(tmp_path)
    account = authorizer.directory.add_account(Name("ann"), None)
    token = authorizer.directory.create_token(Name("ann"), label="")[0].text()
    with served(authorizer, Endpoint(method="GET", path="/info", handler=say, summary="")) as base:
        headers = {"Authorization": f"Bearer {token}"}
        assert urllib3.request("GET", f"http://{base}/info", headers=headers).data.decode() == str(account.id)
        assert ask(base, "/info") == (200, counted_address("127.0.0.1"))


def test_json_has_no_charset_and_text_has_one(tmp_path: Path) -> None:
    async def say(request: web.Request) -> web.Response:
        return web.json_response({}) if request.path == "/json" else web.Response(text="hello")

    endpoints = [Endpoint(method="GET", path=path, handler=say, summary="") for path in ("/json", "/text")]
    with served(authorizer_of(tmp_path), *endpoints) as base:
        types = [
            urllib3.request("GET", f"http://{base}{one.path}").headers["Content-Type"] for one in endpoints
        ]
    assert types == ["application/json", "text/plain; charset=utf-8"]


def test_a_disconnected_client_is_no_error_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    has_begun, is_gone = threading.Event(), threading.Event()

    async def send(request: web.Request) -> web.Response:
        has_begun.set()
        while request.transport is not None and not request.transport.is_closing():  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.01)
        is_gone.set()
        raise ConnectionResetError

    endpoint = Endpoint(method="GET", path="/info", handler=send, summary="")
    with served(authorizer_of(tmp_path), endpoint) as base:
        host, _, port = base.partition(":")
        with socket.create_connection((host, int(port)), timeout=10) as client:
            client.sendall(f"GET /info HTTP/1.1\r\nHost: {base}\r\n\r\n".encode())
            assert has_begun.wait(10)
        assert is_gone.wait(10)
    assert [one.message for one in caplog.records if one.levelname == "ERROR"] == []


@pytest.mark.parametrize("is_closing", [None, True, False])
def test_only_the_error_of_a_closed_connection_is_the_clients(is_closing: bool | None) -> None:
    transport = None if is_closing is None else SimpleNamespace(is_closing=lambda: is_closing)
    request = cast("web.Request", SimpleNamespace(path="/x", transport=transport))
    is_raised = is_closing is False  # such as of the connection to a store
    with pytest.raises(ConnectionError) if is_raised else nullcontext(), _gone_clients(request):
        raise ConnectionResetError
