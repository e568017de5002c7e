"""The gRPC methods behind `odf account`, `token`, `access` and `login`: a real server, which logs in to a real node."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import grpc
import pytest
import urllib3
from aiohttp import web
from odf_testing.builders import a_dataset
from odf_testing.http import running
from odf_testing.webserver import Page, Request, serving_answers

from odf_common.adapters.grpc.client import calling, channel
from odf_common.adapters.grpc.server import serve
from odf_common.adapters.local.catalog import LocalCatalog
from odf_common.adapters.local.repositories import LocalRepositories
from odf_common.errors import AlreadyExists, InvalidInput, NotFound, OdfError, Unavailable
from odf_common.identity.dataset_refs import Name
from odf_common.ports.store import CatalogEntry, DatasetUnknown, incarnation
from odf_common.proto.odf.node.v1 import access_pb2 as pb
from odf_common.proto.odf.node.v1.access_pb2_grpc import AccessStub, add_AccessServicer_to_server
from odf_common.service.settings import Settings
from odf_sync.access import remote_login
from odf_sync.access.access_servicer import NAME, AccessServicer
from odf_sync.access.access_store import AccessStore
from odf_sync.access.directory import Directory
from odf_sync.access.remote_login import (
    AccessForbidden,
    BucketForbidden,
    DeviceLogin,
    LoginFailed,
    LoginRequired,
    NothingVisible,
    RemoteLogins,
    origin_of,
    require_encrypted,
)
from odf_sync.access.rules import Action, Role
from odf_sync.http import account_routes
from odf_sync.http.account_routes import AccountRoutes
from odf_sync.http.authorization import Authorizer
from odf_sync.http.endpoints import Endpoint, application
from odf_sync.repositories import remote_dataset
from odf_sync.repositories.locate import locate

pytestmark = pytest.mark.waits

PASSWORD: Final = "long enough"
HEAD: Final = "f1620" + "0" * 64


class Here:
    """A node's servicer, over gRPC; and another node, over HTTP."""

    def __init__(self, home: Path, there: str, theirs: Directory) -> None:
        self.catalog = LocalCatalog(home)
        self.directory = Directory(AccessStore(home), is_multi_tenant=True)
        self.logins = RemoteLogins(self.directory.store)
        self.there = there
        self.theirs = theirs
        self.server = serve("127.0.0.1:0", self.register)
        self.stub = AccessStub(channel(f"127.0.0.1:{self.server.port}"))

    def register(self, server: grpc.Server) -> tuple[str, ...]:
        add_AccessServicer_to_server(AccessServicer(self.directory, self.logins, self.catalog), server)
        return (NAME,)

    def log_in(self, **how: Any) -> list[pb.LogInProgress]:
        with calling("sync"):
            return list(
                self.stub.LogIn(pb.LogInRequest(**{"url": f"odf+{self.there}/ann/x", **how}), timeout=20)
            )


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Here]:
    async def head(_: web.Request) -> web.Response:
        return web.Response(text=HEAD)

    home = tmp_path_factory.mktemp("there")
    theirs = Directory(AccessStore(home), is_multi_tenant=True)
    theirs.add_account(Name("ann"), PASSWORD)
    catalog = LocalCatalog(home)
    catalog.add(CatalogEntry(alias="ann/secret", dataset_id=a_dataset("secret")))
    authorizer = Authorizer(catalog=catalog, local_writers="off", directory=theirs)
    refs = Endpoint(method="GET", path="/refs/{ref}", handler=head, summary="", action=Action.READ)
    with running(application(authorizer, (*AccountRoutes(authorizer, catalog).endpoints(), refs))) as there:
        here = Here(tmp_path_factory.mktemp("here"), there, theirs)
        yield here
        here.server.stop(0)


def test_a_login_by_password_is_stored_and_grants_access_to_private_datasets(here: Here) -> None:
    with pytest.raises(NotFound):
        remote_dataset(f"{here.there}/ann/secret", here.logins.token).head()
    (progress,) = here.log_in(password=pb.LogInRequest.Password(login="ann", password=PASSWORD))
    assert (progress.done.origin, progress.done.account) == (here.there, "ann")
    assert list(here.stub.ListLogIns(pb.ListLogInsRequest()).origins) == [here.there]
    assert str(remote_dataset(f"{here.there}/ann/secret", here.logins.token).head()) == HEAD
    here.stub.LogOut(pb.LogOutRequest(url=here.there))
    with pytest.raises(NotFound):
        remote_dataset(f"{here.there}/ann/secret", here.logins.token).head()
    with pytest.raises(NotFound), calling("sync"):
        here.stub.LogOut(pb.LogOutRequest(url=here.there))


def test_a_login_in_a_browser_waits_for_the_user(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(account_routes, "INTERVAL_SECONDS", 1)
    import urllib.parse
    import urllib.request

    account = ""
    for progress in here.stub.LogIn(pb.LogInRequest(url=here.there), timeout=20):
        if progress.open:
            form = urllib.parse.urlencode({"login": "ann", "password": PASSWORD}).encode()
            with urllib.request.urlopen(progress.open, form) as page:
                assert b"return to the terminal" in page.read()
        account = progress.done.account
    assert account == "ann"
    assert here.directory.store.origin_token(here.there) is not None


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"password": pb.LogInRequest.Password(login="ann", password="wrong")}, "wrong account or password"),
        ({"token": "odf_x"}, "not valid at"),
        ({"url": "http://node.example"}, "not encrypted"),
        ({"url": "ftp://node.example"}, "expected http://HOST"),
        ({"url": "http://[::1"}, "not a URL"),
        ({"url": "http://127.0.0.1:1", "token": "t"}, "cannot be reached"),
    ],
)
def test_a_failed_login_reports_why_and_stores_nothing(here: Here, how: dict[str, Any], words: str) -> None:
    before = here.directory.store.origins()
    with pytest.raises(OdfError, match=words):
        here.log_in(**how)
    assert here.directory.store.origins() == before


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("https://Node.Example:443/ann/x?y#z", "https://node.example"),
        ("odf+https://node.example:8443", "https://node.example:8443"),
        ("http://user:secret@[::1]:80/", "http://[::1]"),
    ],
)
def test_logins_are_by_origin(url: str, origin: str) -> None:
    assert origin_of(url) == origin


def test_a_web_frontend_names_the_node_to_log_in_at(here: Here) -> None:
    config = {"apiServerHttpUrl": f"{here.there}/"}

    async def answer(_: web.Request) -> web.Response:
        return web.json_response(config)

    app = web.Application()
    app.router.add_get("/assets/runtime-config.json", answer)
    with running(app) as frontend:
        with calling("sync"):
            first = next(iter(here.stub.LogIn(pb.LogInRequest(url=frontend), timeout=20)))
        assert first.open.startswith(f"{here.there}/v/login?deviceCode=")
        for odd, words in (("http://192.0.2.1", "not encrypted"), ("file:///etc/passwd", "expected http")):
            config["apiServerHttpUrl"] = odd
            with pytest.raises(InvalidInput, match=words), calling("sync"):
                list(here.stub.LogIn(pb.LogInRequest(url=frontend), timeout=20))


def test_a_server_without_tls_is_named(here: Here) -> None:
    url, why = here.there.replace("http://", "https://"), "the server does not speak TLS at this port"
    with pytest.raises(Unavailable) as caught:
        here.logins.with_password(url, "ann", PASSWORD)
    assert str(caught.value).endswith(f"cannot be reached: {why}; http:// instead of https://?")
    with pytest.raises(Unavailable, match=why):
        remote_dataset(f"{url}/ann/x").head()


def test_only_this_machine_is_trusted_without_encryption() -> None:
    for origin in ("http://localhost:1", "http://127.0.0.1", "http://[::1]", "https://node.example"):
        require_encrypted(origin)
    with pytest.raises(InvalidInput, match="is not encrypted"):
        require_encrypted("http://localhost.example")


def test_a_token_does_not_follow_a_redirect_to_another_origin(tmp_path: Path) -> None:
    seen = []

    async def take(request: web.Request) -> web.Response:
        seen.append(request.headers.get("Authorization"))
        return web.Response(text=HEAD)

    async def send_on(_: web.Request) -> web.Response:
        raise web.HTTPFound(f"{other}/x/refs/head".replace("127.0.0.1", "localhost"))

    allowing = Settings(home=tmp_path, fetch_networks=("127.0.0.0/8", "::1/128"))
    taker, sender = web.Application(), web.Application()
    taker.router.add_get("/x/refs/head", take)
    sender.router.add_get("/x/refs/head", send_on)
    with running(taker) as other, running(sender) as base:
        for url in (base, other):
            remote_dataset(f"{url}/x", lambda _: "secret", settings=allowing).head()
    assert seen == [None, "Bearer secret"]


def test_a_repository_that_wants_another_token_says_how_to_log_in(here: Here) -> None:
    with pytest.raises(LoginRequired) as caught:
        remote_dataset(f"{here.there}/ann/secret", lambda _: "odf_expired").head()
    assert str(caught.value) == f"{here.there}/ann/secret/refs/head: the server requires a login (status 401)"
    assert f"`odf login {here.there}`" in caught.value.advice()


CHECK_NAME: Final = "check its name, which is ACCOUNT/DATASET on a node with accounts"


@pytest.mark.parametrize(
    ("status", "token", "is_bucket", "error", "advice"),
    [
        (401, None, False, LoginRequired, "log in with `odf login {base}`; a login that is stored may have expired"),
        (401, "t", False, LoginRequired, "log in with `odf login {base}`; a login that is stored may have expired"),
        (403, None, False, LoginRequired, "log in with `odf login {base}`; a login that is stored may have expired"),
        (403, "t", False, AccessForbidden, "ask its owner for a role: `odf access grant`, on that node"),
        (403, None, True, BucketForbidden, "a private bucket is read from s3://BUCKET/PATH, with the credentials"),
        (404, None, False, NothingVisible, f"{CHECK_NAME}; or you have no access to it: `odf login {{base}}`"),
        (404, "t", False, NothingVisible, f"{CHECK_NAME}; or you have no access to it: ask its owner for a role"),
    ],
)  # fmt: skip
def test_a_refusal_says_who_can_help(
    status: int, token: str | None, is_bucket: bool, error: type[OdfError], advice: str
) -> None:
    headers = {"x-amz-request-id": "1"} if is_bucket else {}
    with serving_answers(lambda _: Page(status=status, headers=headers)) as base:
        with pytest.raises(error) as caught:
            remote_dataset(f"{base}/ann/secret", lambda _: token).head()
        assert type(caught.value) is error
        assert caught.value.advice().startswith(advice.format(base=base))


def test_an_id_that_is_not_visible_may_need_a_login(tmp_path: Path) -> None:
    known, wanted = LocalRepositories(tmp_path), f"node/{a_dataset('secret')}"
    with serving_answers(lambda _: Page(status=404)) as base:
        known.add(Name("node"), base)
        with pytest.raises(NothingVisible, match="does not exist") as caught:
            locate(known, wanted)
        assert f"`odf login {base}`" in caught.value.advice()
        with pytest.raises(NotFound) as plain:
            locate(known, wanted, lambda _: "token")
    assert plain.value.advice() == ""


def test_accounts_tokens_and_roles_are_managed(here: Here) -> None:
    stub = here.stub
    here.catalog.add(CatalogEntry(alias="bob/notes", dataset_id=a_dataset("notes")))
    for name in ("bob", "eve"):
        stub.AddAccount(pb.AddAccountRequest(name=name))
    listed = stub.ListAccounts(pb.ListAccountsRequest())
    assert ([item.name for item in listed.accounts], listed.is_multi_tenant) == (["bob", "eve"], True)
    stub.SetPassword(pb.SetPasswordRequest(name="bob", password=PASSWORD))
    created = stub.CreateToken(
        pb.CreateTokenRequest(account="bob", label="l", dataset="bob/notes", seconds=60)
    )
    assert created.item.dataset == str(a_dataset("notes"))
    assert list(stub.ListTokens(pb.ListTokensRequest()).tokens) == [created.item]
    assert here.directory.caller(created.token).name == "bob"
    stub.RevokeToken(pb.RevokeTokenRequest(id=created.item.id))
    assert here.directory.caller(created.token).has_invalid_token
    changed = stub.ChangeAccess(
        pb.ChangeAccessRequest(ref="bob/notes", visibility="public", account="eve", role="editor")
    )
    assert changed == stub.ShowAccess(pb.ShowAccessRequest(ref=str(a_dataset("notes"))))
    assert changed.visibility == "public"
    assert [(role.account, role.role) for role in changed.roles] == [("bob", "owner"), ("eve", "editor")]
    bob = here.directory.store.account(Name("bob"))
    here.directory.store.set_role(incarnation(a_dataset("notes"), ""), bob, Role.READER)  # before a rename
    assert changed == stub.ShowAccess(pb.ShowAccessRequest(ref="bob/notes"))
    revoked = pb.ChangeAccessRequest(ref="bob/notes", account="eve")
    assert [role.account for role in stub.ChangeAccess(revoked).roles] == ["bob"]
    with pytest.raises(NotFound, match="a role of eve on bob/notes"), calling("sync"):
        stub.ChangeAccess(revoked)
    stub.ChangeAccess(pb.ChangeAccessRequest(ref="bob/notes", account="eve", role="reader"))
    stub.RemoveAccount(pb.RemoveAccountRequest(name="eve"))
    assert len(stub.ShowAccess(pb.ShowAccessRequest(ref="bob/notes")).roles) == 1


@pytest.mark.parametrize(
    ("method", "request_", "error", "words"),
    [
        ("AddAccount", pb.AddAccountRequest(name="ann/x"), InvalidInput, "ann/x"),
        ("AddAccount", pb.AddAccountRequest(name="x", password="short"), InvalidInput, "8 to 1024"),
        ("SetPassword", pb.SetPasswordRequest(name="nobody"), NotFound, "account nobody"),
        ("RemoveAccount", pb.RemoveAccountRequest(name="nobody"), NotFound, "account nobody"),
        ("RemoveAccount", pb.RemoveAccountRequest(name="owner"), OdfError, "owner/data"),
        ("AddAccount", pb.AddAccountRequest(name="OWNER"), AlreadyExists, "account OWNER"),
        (
            "CreateToken",
            pb.CreateTokenRequest(account="owner", scope="all"),
            InvalidInput,
            "read, write, manage",
        ),
        (
            "CreateToken",
            pb.CreateTokenRequest(account="owner", dataset="none"),
            DatasetUnknown,
            "dataset none",
        ),
        ("RevokeToken", pb.RevokeTokenRequest(id="x"), NotFound, "token x"),
        ("ShowAccess", pb.ShowAccessRequest(ref="none"), DatasetUnknown, "dataset none"),
        ("ChangeAccess", pb.ChangeAccessRequest(ref="owner/data", visibility="x"), InvalidInput, "public"),
        (
            "ChangeAccess",
            pb.ChangeAccessRequest(ref="owner/data", account="Owner", role="reader"),
            OdfError,
            "owner owns owner/data",
        ),
        (
            "ChangeAccess",
            pb.ChangeAccessRequest(ref="owner/data", account="owner", role="owner"),
            InvalidInput,
            "reader, editor, maintainer",
        ),
    ],
)
def test_an_impossible_request_is_refused_with_the_reason(
    here: Here, method: str, request_: Any, error: type[OdfError], words: str
) -> None:
    if here.catalog.by_alias("owner/data") is None:
        here.directory.add_account(Name("owner"), None)
        here.catalog.add(CatalogEntry(alias="owner/data", dataset_id=a_dataset("owner/data")))
    with pytest.raises(OdfError, match=words) as caught, calling("sync"):
        getattr(here.stub, method)(request_)
    assert error is OdfError or caught.value.code == error.__name__
    assert "short" not in json.dumps(str(caught.value))


@pytest.mark.parametrize(
    ("status", "message"),
    [(400, "access_denied"), (400, "expired_token"), (401, "authorization_pending"), (500, "slow_down")],
)
def test_a_login_in_a_browser_that_is_refused_ends_at_once(tmp_path: Path, status: int, message: str) -> None:
    calls: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        calls.append(request.path)
        return web.json_response(
            {"message": "authorization_pending" if len(calls) == 1 else message},
            status=400 if len(calls) == 1 else status,
        )

    app = web.Application()
    app.router.add_post("/platform/token/device", answer)
    logins = RemoteLogins(AccessStore(tmp_path))
    login = DeviceLogin(open="", code="c", expires_seconds=20.0, interval_seconds=0.0)
    with running(app) as origin, pytest.raises(LoginFailed, match=rf"refused the login: '{message}'"):
        logins.wait(origin, login, lambda: True)
    assert len(calls) == 2


ORDER: Final = ("slow_down", "authorization_pending", "slow_down")


def test_a_login_polls_less_often_on_request_of_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = [Page(status=400, body=json.dumps({"message": one}).encode()) for one in ORDER]
    answers.append(Page(body=b'{"access_token": "token"}'))
    waits: list[float] = []
    pause = SimpleNamespace(wait=waits.append)
    monkeypatch.setattr(remote_login, "threading", SimpleNamespace(Event=lambda: pause))
    login = DeviceLogin(open="", code="c", expires_seconds=20.0, interval_seconds=1.0)
    with serving_answers(lambda _: answers.pop(0)) as origin:
        assert RemoteLogins(AccessStore(tmp_path)).wait(origin, login, lambda: True) == "token"
    assert waits == [6.0, 6.0, 11.0]


def test_a_login_in_a_browser_ends_when_the_command_has_ended(tmp_path: Path) -> None:
    login = DeviceLogin(open="", code="c", expires_seconds=20.0, interval_seconds=0.0)
    with pytest.raises(LoginFailed, match="in time"):
        RemoteLogins(AccessStore(tmp_path)).wait("http://127.0.0.1:9", login, lambda: False)


def test_a_token_is_not_sent_to_the_target_of_a_redirect(tmp_path: Path) -> None:
    asked: list[str] = []

    def redirect(request: Request) -> Page:
        asked.append(request.path)
        return Page(status=307, headers={"Location": "/elsewhere"})

    with serving_answers(redirect) as endpoint, pytest.raises(Unavailable):
        RemoteLogins(AccessStore(tmp_path)).keep(endpoint, "secret")
    assert asked == ["/accounts/me"]


@pytest.mark.parametrize(
    ("answer", "error", "why"),
    [
        ({"device_code": "c", "verification_uri": "javascript:x"}, LoginFailed, "did not name a web page"),
        ({"device_code": "c", "verification_uri": "http://x/\u0007"}, LoginFailed, "did not name a web page"),
        ({"device_code": "c"}, Unavailable, "status 200"),
        ({"device_code": "", "verification_uri": "http://x/"}, Unavailable, "status 200"),
        ({"device_code": 7, "verification_uri": "http://x/"}, Unavailable, "status 200"),
        (["device_code"], Unavailable, "status 200"),
    ],
)
def test_a_login_in_a_browser_needs_a_page_and_a_code(
    tmp_path: Path, answer: object, error: type[OdfError], why: str
) -> None:
    def begun(_: Request) -> Page:
        return Page(body=json.dumps(answer).encode())

    with serving_answers(begun) as origin, pytest.raises(error, match=why):
        RemoteLogins(AccessStore(tmp_path)).begin(origin)


@pytest.mark.parametrize(
    ("interval", "expires", "found"),
    [
        (2, 60, (2.0, 60.0)),
        (0, -1, (1.0, 1.0)),
        (1e9, 1e9, (60.0, 3600.0)),
        (float("nan"), float("nan"), (1.0, 1.0)),
        (float("inf"), float("-inf"), (60.0, 1.0)),
        ("2", None, (5.0, 300.0)),
    ],
)
def test_a_login_waits_as_long_as_the_node_requests_within_limits(
    tmp_path: Path, interval: object, expires: object, found: tuple[float, float]
) -> None:
    answer = {
        "device_code": "c",
        "verification_uri": "http://x/",
        "interval": interval,
        "expires_in": expires,
    }
    with serving_answers(lambda _: Page(body=json.dumps(answer).encode())) as origin:
        login = RemoteLogins(AccessStore(tmp_path)).begin(origin)
    assert (login.interval_seconds, login.expires_seconds) == found


def test_a_node_that_starts_no_login_is_unavailable_with_its_status(tmp_path: Path) -> None:
    answer = Page(status=500, body=b'{"device_code": "c", "verification_uri": "http://x/"}')
    with serving_answers(lambda _: answer) as origin, pytest.raises(Unavailable, match="status 500"):
        RemoteLogins(AccessStore(tmp_path)).begin(origin)


def test_a_silent_node_is_not_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_login, "LOGIN_TIMEOUT", urllib3.Timeout(connect=10, read=0.3))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        origin = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(Unavailable, match="Read timed out"):
            RemoteLogins(AccessStore(tmp_path)).keep(origin, "secret")
        silent.accept()[0].close()
        silent.settimeout(0.01)
        with pytest.raises(TimeoutError):  # no other client has connected
            silent.accept()
