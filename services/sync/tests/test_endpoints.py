"""Endpoints: who may use them, which paths they have, and how faults are answered."""

import asyncio
import errno
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
from odf_common.errors import Damaged, NotFound, OdfError, StorageUnavailable, Unavailable
from odf_common.identity.dataset_refs import Name
from odf_common.ports.store import CatalogEntry
from odf_common.service.audit import Audit
from odf_sync.access.access_store import AccessStore
from odf_sync.access.directory import Directory
from odf_sync.access.rate_limits import counted_address
from odf_sync.access.rules import Account, Action, Caller, Scope, Visibility
from odf_sync.http import endpoints as module
from odf_sync.http.authorization import Authorizer, HttpRefusal
from odf_sync.http.endpoints import (
    Endpoint,
    _gone_clients,
    _handle,
    application,
    counted_caller,
    dataset_of,
    reads_public_data,
)

ELSEWHERE = {"X-Forwarded-For": "192.0.2.1"}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    async def name_dataset(request: web.Request) -> web.Response:
        try:
            return web.Response(text=dataset_of(request).alias)
        except KeyError:
            return web.Response(text="new")

    async def greet(_: web.Request) -> web.Response:
        return web.Response(text="hello")

    catalog = LocalCatalog(tmp_path_factory.mktemp("home"))
    for dataset, alias in enumerate(("orders", "alice/orders")):
        catalog.add(CatalogEntry(alias=alias, dataset_id=a_dataset(dataset)))
    endpoints = [Endpoint(method="GET", path="/info", handler=greet, summary="")]
    endpoints += [
        Endpoint(method="GET", path=f"/{action}", handler=name_dataset, summary="", action=action)
        for action in Action
    ]
    with running(application(Authorizer(catalog=catalog, local_writers="loopback"), endpoints)) as base:
        yield base.removeprefix("http://")


def authorizer_of(home: Path) -> Authorizer:
    return Authorizer(catalog=LocalCatalog(home), local_writers="loopback")


def ask(base: str, method: str, path: str, headers: dict[str, str] | None = None) -> tuple[int, str]:
    connection = http.client.HTTPConnection(base, timeout=10)
    try:
        connection.request(method, path, headers=headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("method", "path", "headers", "answer"),
    [
        ("GET", "/info", {}, (200, "hello")),
        ("GET", "/orders/read", ELSEWHERE, (200, "orders")),
        ("GET", "/Alice/Orders/read", ELSEWHERE, (200, "alice/orders")),
        ("GET", "/nobody/orders/read", {}, (404, "Not Found")),
        ("PUT", "/nobody/orders/read", ELSEWHERE, (404, "Not Found")),
        ("GET", "/orders/write", {}, (200, "orders")),
        ("GET", "/orders/write", ELSEWHERE, (403, "")),
        ("GET", "/nothing/write", {}, (404, "")),
        ("GET", "/nothing/create", {}, (200, "new")),
        ("GET", "/orders/create", {}, (200, "orders")),
        ("GET", "/nothing/create", ELSEWHERE, (401, '{"message": "Unauthenticated"}')),
        ("GET", "/b%C3%A4d/create", {}, (404, "")),
        ("PUT", "/orders/read", {}, (405, "")),
        ("PUT", "/orders/read", ELSEWHERE, (403, "")),
        ("OPTIONS", "/orders/read", ELSEWHERE, (405, "")),
        ("GET", "/nowhere", {}, (404, "Not Found")),
        ("GET", "/orders/", {}, (404, "Not Found")),
    ],
)
def test_each_request_is_authorized_before_its_handler_runs(
    served: str, method: str, path: str, headers: dict[str, str], answer: tuple[int, str]
) -> None:
    assert ask(served, method, path, headers) == answer


@pytest.mark.parametrize("header", ["Basic YTpi", "Bearer", "Bearer ", "token"])
@pytest.mark.parametrize("path", ["/info", "/orders/read", "/nowhere"])
def test_a_header_without_bearer_token_is_invalid_everywhere(served: str, path: str, header: str) -> None:
    assert ask(served, "GET", path, {"Authorization": header}) == (400, "Invalid Bearer token header")


ANN = Account(id=a_dataset("ann"), name=Name("ann"))
UNAUTHORIZED = {"message": "Unauthorized"}


@pytest.mark.parametrize(
    ("is_multi_tenant", "writers", "caller", "name", "body", "hint"),
    [
        (True, "loopback", Caller(account=ANN), "bob/orders", UNAUTHORIZED, ""),
        (True, "loopback", Caller(account=ANN), "alice/orders", None, ""),
        (False, "loopback", Caller(account=ANN, scope=Scope.READ), "alice/orders", None, "odf token create"),
        (False, "off", Caller(), "alice/orders", None, "ODF_HTTP_INGEST=loopback"),
        (False, "loopback", Caller(why_not_local="far"), "alice/orders", None, "ODF_HTTP_INGEST=anywhere"),
    ],
)
def test_a_refusal_says_what_would_allow_it_on_a_single_tenant_node(
    tmp_path: Path,
    *,
    is_multi_tenant: bool,
    writers: str,
    caller: Caller,
    name: str,
    body: dict[str, str] | None,
    hint: str,
) -> None:
    catalog, directory = LocalCatalog(tmp_path), Directory(AccessStore(None), is_multi_tenant=is_multi_tenant)
    entry = CatalogEntry(alias="alice/orders", dataset_id=a_dataset())
    catalog.add(entry)
    directory.set_visibility(entry.incarnation, Visibility.PUBLIC)
    authorizer = Authorizer(catalog=catalog, local_writers=writers, directory=directory)
    with pytest.raises(HttpRefusal) as refused:
        authorizer.require(caller, name, Action.CREATE)
    found = refused.value
    assert (found.status, found.body) == (403, body)
    assert hint in found.hint
    assert bool(found.hint) == bool(found.text) == bool(hint)
    assert caller.why_not_local is None or caller.why_not_local in found.text


def test_while_accounts_cannot_be_read_no_request_to_a_dataset_is_allowed(tmp_path: Path) -> None:
    async def greet(_: web.Request) -> web.Response:
        return web.Response(text="hello")

    (tmp_path / "access.db").write_bytes(b"damaged" * 100)
    catalog = LocalCatalog(tmp_path)
    catalog.add(CatalogEntry(alias="orders", dataset_id=a_dataset()))
    directory = Directory(AccessStore(tmp_path), is_multi_tenant=False)
    authorizer = Authorizer(catalog=catalog, local_writers="anywhere", directory=directory)
    read = Endpoint(method="GET", path="/read", handler=greet, summary="", action=Action.READ)
    info = Endpoint(method="GET", path="/info", handler=greet, summary="")
    with running(application(authorizer, (read, info))) as url:
        base = url.removeprefix("http://")
        assert ask(base, "GET", "/orders/read") == (503, "")
        assert ask(base, "GET", "/info") == (200, "hello")


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (StorageUnavailable(), 503),
        (OSError(errno.EMFILE, "Too many open files"), 503),
        (Unavailable(what="ingest"), 503),
        (NotFound(what="block"), 404),
        (Damaged(file="head", why="its content is not a hash"), 500),
    ],
)
def test_a_fault_of_the_store_is_answered_without_the_details_of_the_log(
    tmp_path: Path, error: OdfError, status: int
) -> None:
    async def fail(_: web.Request) -> web.Response:
        raise error

    with running(
        application(authorizer_of(tmp_path), (Endpoint(method="GET", path="/x", handler=fail, summary=""),))
    ) as url:
        answer = urllib3.request("GET", f"{url}/x", retries=False)
    assert (answer.status, answer.headers.get("Retry-After")) == (status, "5" if status == 503 else None)
    assert str(error) not in answer.data.decode()


def test_a_started_response_is_aborted_by_a_fault(tmp_path: Path) -> None:
    async def begin(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"the first part")
        raise StorageUnavailable

    endpoint = Endpoint(method="GET", path="/x", handler=begin, summary="")
    app = application(authorizer_of(tmp_path), (endpoint,))
    with running(app) as url, pytest.raises((http.client.IncompleteRead, ConnectionError)):
        ask(url.removeprefix("http://"), "GET", "/x")


def test_a_started_response_is_followed_by_no_second_one(tmp_path: Path) -> None:
    class Transport:
        is_cut = False

        def abort(self) -> None:
            self.is_cut = True

    async def fail(_: web.Request) -> web.Response:
        raise StorageUnavailable

    transport = Transport()
    request = SimpleNamespace(path="/x", writer=SimpleNamespace(output_size=9), transport=transport)
    with pytest.raises(ConnectionResetError):
        asyncio.run(_handle(cast("web.Request", request), fail))
    assert transport.is_cut


class Notes:
    """An audit that keeps its entries."""

    def __init__(self) -> None:
        self.statuses: list[int] = []

    def put(self, _: object, entry: Any) -> None:
        self.statuses.append(entry.status)


def with_a_dataset(home: Path, *, is_multi_tenant: bool = False) -> Authorizer:
    catalog = LocalCatalog(home)
    catalog.add(CatalogEntry(alias="info", dataset_id=a_dataset()))
    directory = Directory(AccessStore(home), is_multi_tenant=is_multi_tenant)
    return Authorizer(catalog=catalog, local_writers="loopback", directory=directory)


def answering(text: str) -> Any:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(text=text)

    return answer


@contextmanager
def serving(authorizer: Authorizer, *endpoints: Endpoint, audit: Notes | None = None) -> Iterator[str]:
    with running(application(authorizer, endpoints, audit=cast("Audit | None", audit))) as url:
        yield url.removeprefix("http://")


def get_text(base: str, path: str) -> tuple[int, str]:
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
    with serving(with_a_dataset(tmp_path), endpoint):
        assert ended == []
    assert len(ended) == 1


@pytest.mark.parametrize(("is_multi_tenant", "answer"), [(False, "records"), (True, "about read")])
def test_a_path_is_a_call_of_a_dataset_where_datasets_have_no_account(
    tmp_path: Path, is_multi_tenant: bool, answer: str
) -> None:
    about = Endpoint(method="GET", path="/info/{name}", handler=answering("about read"), summary="")
    read = Endpoint(method="GET", path="/read", handler=answering("records"), summary="", action=Action.READ)
    authorizer = with_a_dataset(tmp_path, is_multi_tenant=is_multi_tenant)
    with serving(authorizer, about, read) as base:
        assert get_text(base, "/info/read") == (200, answer)
        assert get_text(base, "/info/other") == (200, "about read")


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
    with serving(with_a_dataset(tmp_path), endpoint) as base, ThreadPoolExecutor(1) as pool:
        first = pool.submit(get_text, base, "/info")
        assert has_begun.wait(10)
        assert get_text(base, "/info")[0] == 503
        may_end.set()
        assert first.result() == (200, "hello")
        assert get_text(base, "/info") == (200, "hello")


def test_a_refusal_by_an_endpoint_without_dataset_is_recorded(tmp_path: Path) -> None:
    async def refuse(_: web.Request) -> web.Response:
        raise web.HTTPBadRequest(text="no")

    notes = Notes()
    endpoint = Endpoint(method="GET", path="/info", handler=refuse, summary="")
    with serving(with_a_dataset(tmp_path), endpoint, audit=notes) as base:
        assert get_text(base, "/info") == (400, "no")
    assert notes.statuses == [400]


def test_only_a_read_of_a_dataset_that_everyone_may_read_is_one_of_public_data(tmp_path: Path) -> None:
    async def say(request: web.Request) -> web.Response:
        return web.Response(text=str(reads_public_data(request)))

    authorizer = with_a_dataset(tmp_path)
    read, write = (
        Endpoint(method="GET", path=f"/{action}", handler=say, summary="", action=action)
        for action in (Action.READ, Action.WRITE)
    )
    with serving(authorizer, read, write) as base:
        assert get_text(base, "/info/read") == (200, "True")
        assert get_text(base, "/info/write") == (200, "False")
        (entry,) = LocalCatalog(tmp_path).entries()
        authorizer.directory.set_visibility(entry.incarnation, Visibility.PRIVATE)
        assert get_text(base, "/info/read") == (200, "False")


def test_limits_apply_per_account_or_else_per_address(tmp_path: Path) -> None:
    async def say(request: web.Request) -> web.Response:
        return web.Response(text=str(counted_caller(request)))

    authorizer = with_a_dataset(tmp_path)
    account = authorizer.directory.add_account(Name("ann"), None)
    token = authorizer.directory.create_token(Name("ann"), label="")[0].text()
    with serving(authorizer, Endpoint(method="GET", path="/info", handler=say, summary="")) as base:
        headers = {"Authorization": f"Bearer {token}"}
        assert urllib3.request("GET", f"http://{base}/info", headers=headers).data.decode() == str(account.id)
        assert get_text(base, "/info") == (200, counted_address("127.0.0.1"))


def test_json_has_no_charset_and_text_has_one(tmp_path: Path) -> None:
    async def say(request: web.Request) -> web.Response:
        return web.json_response({}) if request.path == "/json" else web.Response(text="hello")

    endpoints = [Endpoint(method="GET", path=path, handler=say, summary="") for path in ("/json", "/text")]
    with serving(with_a_dataset(tmp_path), *endpoints) as base:
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
    with serving(with_a_dataset(tmp_path), endpoint) as base:
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
