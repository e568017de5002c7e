"""Endpoints to log in and to identify the caller (wire-facts §8.7).

A program can start a login that its user completes in a browser (OAuth 2.0 Device Authorization Grant). Pending logins
are kept in memory: after a restart of sync, they must be started again.
"""

import asyncio
import json
import math
import threading
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Final
from urllib.parse import parse_qsl

from aiohttp import hdrs, web

from odf_common.adapters.system_clock import SYSTEM_CLOCK
from odf_common.errors import InvalidInput
from odf_common.identity.dataset_refs import DatasetId, parse_alias
from odf_common.ports.clock import Clock
from odf_common.ports.store import Catalog
from odf_common.resources.passwords import PARALLEL_HASHES
from odf_sync.access.access_store import Token
from odf_sync.access.directory import LOGIN_SECONDS, LoginRefused
from odf_sync.access.rate_limits import FailedLogins, counted_address
from odf_sync.http.authorization import INVALID_TOKEN, Authorizer
from odf_sync.http.connections import RETRY_AFTER_SECONDS
from odf_sync.http.endpoints import Endpoint, caller_of, note_login

EXPIRES_SECONDS: Final = 300
INTERVAL_SECONDS: Final = 5
REMEMBERED_SECONDS: Final = 300  # after that, so that a client that still polls learns why
REPEATED_SECONDS: Final = 30  # in which the token is given again
MAX_LOGINS: Final = 1000  # logins at a time, with those remembered


@dataclass(slots=True, kw_only=True)
class _Login:
    address: str
    expires_ms: int
    token: str | None = None


class DeviceLogins:
    """Pending logins in a browser, in bounded memory; thread-safe."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._logins: dict[str, _Login] = {}

    def begin(self, address: str) -> str:
        """Start a login from a client address, and return its code.

        If there are too many logins, it replaces one that has expired, or else the oldest of the address with the most
        logins, so that one client cannot block others.
        """
        now = self._clock.now().ms
        with self._lock:
            since = now - REMEMBERED_SECONDS * 1000
            self._logins = {code: login for code, login in self._logins.items() if login.expires_ms > since}
            if len(self._logins) >= MAX_LOGINS:
                del self._logins[self._least_missed(now)]
            code = str(uuid.uuid4())  # 122 bits of the system's randomness
            self._logins[code] = _Login(address=address, expires_ms=now + EXPIRES_SECONDS * 1000)
            return code

    def _least_missed(self, now: int) -> str:
        oldest = next(iter(self._logins))
        if self._logins[oldest].expires_ms <= now:
            return oldest
        logins = Counter(login.address for login in self._logins.values())
        return max(self._logins, key=lambda code: logins[self._logins[code].address])  # the oldest is first

    def is_pending(self, code: str) -> bool:
        """Return whether a login can still be completed."""
        with self._lock:
            return self._pending(code) is not None

    def complete(self, code: str, token: str) -> bool:
        """Complete a login with the user's token; returns False if the login is not pending."""
        with self._lock:
            login = self._pending(code)
            if login is None:
                return False
            login.token = token
            return True

    def _pending(self, code: str) -> _Login | None:
        login = self._logins.get(code)
        is_over = login is None or login.expires_ms <= self._clock.now().ms or login.token is not None
        return None if is_over else login

    def poll(self, code: str) -> str | None:
        """Return the token of a login, or None until the user has logged in.

        A client that has lost the response polls again, so the token is returned for `REPEATED_SECONDS`. Raises
        `KeyError` for an unknown code, and `TimeoutError` for an expired one.
        """
        with self._lock:
            login, now = self._logins[code], self._clock.now().ms
            if login.expires_ms <= now:
                raise TimeoutError
            if login.token is not None:
                login.expires_ms = min(login.expires_ms, now + REPEATED_SECONDS * 1000)
            return login.token


PASSWORD: Final = "password"  # noqa: S105 - a method of login
DEVICE_CODE: Final = "urn:ietf:params:oauth:grant-type:device_code"
LOGIN_FIELDS: Final = ("loginMethod", "loginCredentialsJson")
POLL_FIELDS: Final = ("grant_type", "client_id", "device_code")
MAX_LOGIN_CHARACTERS: Final = 256  # characters by which failures are counted
MAX_BODY_BYTES: Final = 64 * 1024
BODY_SECONDS: Final = 10.0  # for all of it
MAX_PENDING_LOGINS: Final = 200  # whose passwords are hashed, or wait for it: some three seconds
HTML: Final = "text/html"
FORM_TYPE: Final = "application/x-www-form-urlencoded"
LOGIN_PAGE: Final = "/v/login"
FAILURES_OF_ACCOUNT, FAILURES_OF_ADDRESS = 10, 100  # per minute


class AccountRoutes:
    """Handlers of the endpoints for logins, the caller's account, and names of datasets by id."""

    def __init__(self, authorizer: Authorizer, catalog: Catalog, *, public_url: str | None = None) -> None:
        """Serve the accounts of a node.

        URLs for clients begin with `public_url`, by default with the origin of the request.
        """
        self._public_url = public_url
        self._authorizer = authorizer
        self._catalog = catalog
        self._directory = authorizer.directory
        self._devices = DeviceLogins()
        self._failures_of_account = FailedLogins(FAILURES_OF_ACCOUNT)
        self._failures_of_address = FailedLogins(FAILURES_OF_ADDRESS)
        # Of their own: logins that wait for others take no thread from those that read.
        self._hashing = ThreadPoolExecutor(PARALLEL_HASHES, thread_name_prefix="login")
        self._logins = 0  # in progress

    def endpoints(self) -> Iterator[Endpoint]:
        """Yield the endpoints."""
        yield from self._identity_endpoints()
        yield from self._login_endpoints()
        yield from self._login_page_endpoints()

    def _identity_endpoints(self) -> Iterator[Endpoint]:
        get = partial(Endpoint, method="GET")
        yield get(path="/info", handler=self._info, summary="Whether dataset names have an account.")
        yield get(
            path="/assets/runtime-config.json",
            handler=self._runtime_config,
            summary="The addresses of the API.",
        )
        yield get(path="/accounts/me", handler=self._me, summary="The caller's account.", statuses=(200, 401))
        yield get(
            path="/datasets/{id}",
            handler=self._dataset,
            summary="Name and owner of a dataset, by its id.",
            statuses=(200, 401, 404),
        )
        yield get(
            path="/platform/token/validate",
            handler=self._validate,
            summary="Check whether the token is valid.",
            statuses=(200, 401),
            media_type="",
        )

    def _login_endpoints(self) -> Iterator[Endpoint]:
        form = partial(Endpoint, method="POST", body=FORM_TYPE)
        yield Endpoint(
            method="POST",
            path="/platform/login",
            handler=self._log_in,
            summary="Exchange a password for a token.",
            body="application/json",
            fields=LOGIN_FIELDS,
            statuses=(200, 401, 408, 413, 415, 422, 429),
        )
        yield form(
            path="/platform/token/device/authorization",
            handler=self._begin,
            summary="Begin a login in a browser.",
            fields=("client_id",),
            statuses=(200, 408, 413, 422),
        )
        yield form(
            path="/platform/token/device",
            handler=self._poll,
            summary="Fetch the token of a login in a browser.",
            fields=POLL_FIELDS,
            statuses=(200, 408, 413, 422),
        )

    def _login_page_endpoints(self) -> Iterator[Endpoint]:
        page = partial(Endpoint, path=LOGIN_PAGE, media_type=HTML, refusal_media_types=(HTML, "text/plain"))
        yield page(
            method="GET",
            handler=self._login_page,
            summary="The page on which a user logs in.",
            statuses=(200, 410),
        )
        yield page(
            method="POST",
            handler=self._log_in_on_page,
            summary="Complete a login in a browser.",
            body=FORM_TYPE,
            fields=("login", "password"),
            statuses=(200, 401, 408, 410, 413, 422, 429),
        )

    async def _info(self, _: web.Request) -> web.Response:
        return web.json_response({"isMultiTenant": self._directory.is_multi_tenant})

    async def _runtime_config(self, request: web.Request) -> web.Response:
        return web.json_response({"apiServerHttpUrl": self._origin(request)})

    async def _me(self, request: web.Request) -> web.Response:
        account = caller_of(request).account
        if account is None:
            return _message(401, "Unauthenticated")
        return web.json_response({"id": str(account.id), "accountName": str(account.name)})

    async def _dataset(self, request: web.Request) -> web.Response:
        caller, text = caller_of(request), request.match_info["id"]
        if caller.has_invalid_token:
            return web.Response(status=401, text=INVALID_TOKEN)
        try:
            dataset = DatasetId.parse(text)
        except InvalidInput:
            return web.Response(status=400, text=f"Invalid URL: Value {text!r} is not a valid did:odf")
        entry = await asyncio.to_thread(self._catalog.by_id, dataset)
        if entry is None or not await asyncio.to_thread(self._authorizer.may_find, caller, entry):
            return _message(404, "Not Found")
        alias = parse_alias(entry.alias)
        if alias.account is not None and not self._directory.is_multi_tenant:
            return _message(404, "Not Found")  # clients would look for it without the account
        owner = await asyncio.to_thread(self._directory.owner, alias)
        return web.json_response(
            {
                "id": str(dataset),
                "owner": {"accountName": str(owner.name), "accountId": str(owner.id)},
                "datasetName": str(alias.dataset),
            }
        )

    async def _validate(self, request: web.Request) -> web.Response:
        caller = caller_of(request)
        if caller.has_invalid_token:
            return _message(401, INVALID_TOKEN)
        if caller.account is None:
            return _message(401, "No authentication token provided")
        return web.Response()

    async def _log_in(self, request: web.Request) -> web.Response:
        if request.content_type != "application/json":
            return web.Response(status=415, text="Expected request with `Content-Type: application/json`")
        try:
            body = json.loads(await _body(request))
        except (ValueError, RecursionError):
            return web.Response(status=400, text="Failed to parse the request body as JSON")
        body = body if isinstance(body, dict) else {}
        for field in LOGIN_FIELDS:
            if not isinstance(body.get(field), str):
                text = f"Failed to deserialize the JSON body into the target type: missing field `{field}`"
                return web.Response(status=422, text=text)
        if body["loginMethod"] != PASSWORD:
            return _message(400, f"Unsupported login method '{body['loginMethod'][:100]}'")
        credentials = _credentials(body["loginCredentialsJson"])
        if credentials is None:
            return _message(401, "Invalid credentials")
        token = await self._token(request, *credentials)
        if token is None:
            return _message(401, "Rejected credentials: invalid login or password")
        code = body.get("deviceCode")
        if isinstance(code, str):  # the client of that login gets the token too
            self._devices.complete(code, token.text())
        return web.json_response({"accessToken": token.text()})

    async def _token(self, request: web.Request, login: str, password: str) -> Token | None:
        """Return a new token, or None for a wrong password.

        Raises `HTTPTooManyRequests` after too many failed attempts, and `HTTPServiceUnavailable` while too many logins
        run.
        """
        note_login(request, login)
        address = counted_address(request.remote)
        counts = (
            (self._failures_of_account, (address, login.lower()[:MAX_LOGIN_CHARACTERS])),
            (self._failures_of_address, address),
        )
        wait = max(failures.wait_seconds(key) for failures, key in counts)
        if wait:
            raise web.HTTPTooManyRequests(text="", headers={"Retry-After": str(math.ceil(wait))})
        if self._logins >= MAX_PENDING_LOGINS:
            raise web.HTTPServiceUnavailable(text="", headers={"Retry-After": str(RETRY_AFTER_SECONDS)})
        for failures, key in counts:  # before it is known, so that no guesses at the same time are free
            failures.note(key)
        self._logins += 1
        try:
            log_in = partial(self._directory.log_in, login, password)
            token = await asyncio.get_running_loop().run_in_executor(self._hashing, log_in)
        except LoginRefused:
            return None
        finally:
            self._logins -= 1
        for failures, key in counts:
            failures.forget_one(key)
        return token

    async def _begin(self, request: web.Request) -> web.Response:
        form = await _form(request)
        if "client_id" not in form:
            return _missing("client_id")
        code = self._devices.begin(counted_address(request.remote))
        return web.json_response(
            {
                "device_code": code,
                "user_code": "",
                "verification_uri": self._origin(request) + LOGIN_PAGE,
                "verification_uri_complete": None,
                "expires_in": EXPIRES_SECONDS,
                "interval": INTERVAL_SECONDS,
            }
        )

    async def _poll(self, request: web.Request) -> web.Response:
        form = await _form(request)
        for field in POLL_FIELDS:
            if field not in form:
                return _missing(field)
        if form["grant_type"] != DEVICE_CODE:
            return _message(400, "invalid_grant")
        try:
            token = self._devices.poll(form["device_code"])
        except KeyError:
            return _message(400, "access_denied")
        except TimeoutError:
            return _message(400, "expired_token")
        if token is None:
            return _message(400, "authorization_pending")
        return web.json_response(
            {
                "access_token": token,
                "token_type": "Bearer",
                "expires_in": LOGIN_SECONDS,
                "refresh_token": None,
                "score": None,
            }
        )

    async def _login_page(self, request: web.Request) -> web.Response:
        is_pending = self._devices.is_pending(request.query.get("deviceCode", ""))
        return _page("Log in", FORM) if is_pending else _page(OVER, OVER_TEXT, status=410)

    async def _log_in_on_page(self, request: web.Request) -> web.Response:
        form = await _form(request)
        code = request.query.get("deviceCode", "")
        if not self._devices.is_pending(code):  # no client would get the token
            return _page(OVER, OVER_TEXT, status=410)
        token = await self._token(request, form.get("login", ""), form.get("password", ""))
        if token is None:
            return _page("Wrong login or password", FORM, status=401)
        if not self._devices.complete(code, token.text()):  # it has just expired
            await asyncio.to_thread(self._directory.store.revoke, token.id)
            return _page(OVER, OVER_TEXT, status=410)
        return _page("Logged in", "<p>You may close this window and return to the terminal.</p>")

    def _origin(self, request: web.Request) -> str:
        return self._public_url or f"{request.scheme}://{request.host}"


FORM: Final = """\
<p>A program asks to act for you on this node. Continue only if you have just started it yourself.</p>
<form method="post">
<p><label>Account <input name="login" autocomplete="username" required></label></p>
<p><label>Password <input name="password" type="password" autocomplete="current-password" required></label></p>
<p><button>Log in</button></p>
</form>"""
OVER: Final = "This login is over"
OVER_TEXT: Final = (
    "<p>It has expired or was completed before. Start it again in the terminal, and open the new address.</p>"
)
PAGE: Final = """\
<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><h1>{title}</h1>
{body}</html>"""
PAGE_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; form-action 'self'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
}


def _page(title: str, body: str, *, status: int = 200) -> web.Response:
    text = PAGE.format(title=title, body=body)
    return web.Response(status=status, text=text, content_type=HTML, headers=PAGE_HEADERS)


def _credentials(text: str) -> tuple[str, str] | None:
    """Return the login and the password in a JSON object, or None if they are missing or not strings."""
    try:
        plain = json.loads(text)
        login, password = plain["login"], plain["password"]
    except (ValueError, RecursionError, KeyError, TypeError):
        return None
    return (login, password) if isinstance(login, str) and isinstance(password, str) else None


async def _body(request: web.Request) -> str:
    if request.headers.get(hdrs.CONTENT_ENCODING, "identity").lower() != "identity":
        raise web.HTTPUnsupportedMediaType(text=f"{hdrs.CONTENT_ENCODING} is not supported")
    content = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            while len(content) <= MAX_BODY_BYTES and (more := await request.content.readany()):
                content += more
    except TimeoutError as error:
        late = web.HTTPRequestTimeout(text=f"the body took longer than {BODY_SECONDS:g} s")
        late.force_close()  # the rest of the body is not read
        raise late from error
    if len(content) > MAX_BODY_BYTES:
        raise web.HTTPRequestEntityTooLarge(MAX_BODY_BYTES, len(content))
    return content.decode(errors="replace")


async def _form(request: web.Request) -> Mapping[str, str]:
    try:
        return dict(parse_qsl(await _body(request), keep_blank_values=True, max_num_fields=20))
    except ValueError as error:
        raise web.HTTPUnprocessableEntity(text="Failed to deserialize form body") from error


def _missing(field: str) -> web.Response:
    return web.Response(status=422, text=f"Failed to deserialize form body: missing field `{field}`")


def _message(status: int, text: str) -> web.Response:
    return web.json_response({"message": text}, status=status)
