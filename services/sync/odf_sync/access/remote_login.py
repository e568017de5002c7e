"""Tokens for other nodes: logs in to them, sends the tokens, and reports where a login is needed (wire-facts §8.7).

A token is only sent to the origin that issued it, never to another one after a redirect. Over an unencrypted connection
a token is only requested if the other node is on this machine, or if the user allows it.
"""

import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

import urllib3

from odf_common.adapters.networks import DEFAULT_PORTS, Pools, cause_of
from odf_common.adapters.repository_urls import SMART_PREFIX
from odf_common.errors import InvalidInput, NotFound, Refused, Unavailable
from odf_common.service.protection import is_loopback
from odf_sync.access.access_store import AccessStore

UNAUTHENTICATED: Final = 401
AUTHORIZATION: Final = "authorization"

TokenFor = Callable[[str], str | None]
"""Returns the token to send to a URL, or None."""


def no_token(_: str) -> str | None:
    """Return None: a `TokenFor` for anonymous requests."""
    return None


def authorization(token: str | None) -> dict[str, str]:
    """Return the headers for a token; empty without one."""
    return {} if token is None else {"Authorization": f"Bearer {token}"}


class AccessDenied(Unavailable):
    """A repository denied a request; `what` is the URL, and `status` the HTTP status of the response."""

    MESSAGE = "{what}: {why}"

    status: int = 0


class LoginRequired(AccessDenied):
    """A repository requires a login, or the stored token is not valid; `what` is the URL."""

    def advice(self) -> str:
        """Return the advice with the command that logs in."""
        return f"log in with `{_login_at(self.what)}`; a login that is stored may have expired"


class AccessForbidden(AccessDenied):
    """The account of the token does not have the permission; `what` is the URL."""

    is_write: bool = False

    def advice(self) -> str:
        """Return the advice to ask for a role, and for a write the rules for new datasets."""
        advice = "ask its owner for a role: `odf access grant`, on that node"
        if not self.is_write:
            return advice
        return (
            f"{advice}; an account creates datasets under its own name only, by a token with the scope write"
        )


class BucketForbidden(AccessDenied):
    """An S3 bucket denied a request over HTTP without credentials; `what` is the URL."""

    ADVICE = "a private bucket is read from s3://BUCKET/PATH, with the credentials of ODF_S3_…"


class ObjectForbidden(NotFound):
    """A file of a dataset is missing or access to it is denied, although the head was readable; `what` is its URL."""

    MESSAGE = "{what} does not exist, or may not be read (the server denies access)"
    ADVICE = (
        "S3 answers so for a missing file, unless the reader may list the bucket (s3:ListBucket); ask "
        "who published the dataset whether the file exists and may be read"
    )


class NothingVisible(NotFound):
    """A server has no dataset at a URL, or hides it from this client."""

    url: str
    is_logged_in: bool = False

    def __str__(self) -> str:
        """Return a sentence that says that the dataset was not found."""
        return NotFound.__str__(self)

    def advice(self) -> str:
        """Return advice on the possible causes: a wrong name, or missing access."""
        name = "check its name, which is ACCOUNT/DATASET on a node with accounts"
        access = "ask its owner for a role" if self.is_logged_in else f"`{_login_at(self.url)}`"
        return f"{name}; or you have no access to it: {access}"


def denial(url: str, status: int, headers: Mapping[str, str], *, is_write: bool = False) -> AccessDenied:
    """Return the error for a response of status 401 or 403 to a request with these headers."""
    if status == UNAUTHENTICATED or not any(name.lower() == AUTHORIZATION for name in headers):
        return LoginRequired(what=url, why=f"the server requires a login (status {status})", status=status)
    action = "write" if is_write else "read"
    why = f"you may not {action} it (status {status})"
    return AccessForbidden(what=url, why=why, status=status, is_write=is_write)


def _login_at(text: str) -> str:
    url = urlsplit(text.removeprefix(SMART_PREFIX))
    return f"odf login {url.scheme}://{url.netloc}"


CLIENT: Final = "kamu"  # the id that other implementations expect
GRANT: Final = "urn:ietf:params:oauth:grant-type:device_code"
LOGIN_TIMEOUT: Final = urllib3.Timeout(connect=10, read=30)  # seconds
MAX_REPLY_BYTES: Final = 64 * 1024
OK, BAD_REQUEST, UNAUTHORIZED = 200, 400, 401
SHORTEST_INTERVAL_SECONDS, LONGEST_INTERVAL_SECONDS = 1.0, 60.0
LONGEST_LOGIN_SECONDS: Final = 3600.0
PENDING: Final = frozenset({"authorization_pending", "slow_down"})


class LoginFailed(Refused):
    """The other node did not accept the login."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceLogin:
    """A pending login that the user completes in a browser."""

    open: str
    """The URL of the page to open."""
    code: str
    expires_seconds: float
    interval_seconds: float


def origin_of(url: str) -> str:
    """Return scheme, host and port of a URL, without the scheme's default port; raises `InvalidInput`."""
    try:
        parts = urlsplit(url.removeprefix(SMART_PREFIX))
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise InvalidInput(text=f"{url!r} is not a URL: {error}") from error
    if parts.scheme not in DEFAULT_PORTS or not host:
        raise InvalidInput(text=f"expected http://HOST or https://HOST, got {url!r}")
    shown = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{shown}" + ("" if port in (None, DEFAULT_PORTS[parts.scheme]) else f":{port}")


def require_encrypted(origin: str) -> None:
    """Raise `InvalidInput` unless connections to an origin are encrypted or stay on this machine."""
    parts = urlsplit(origin)
    if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
        text = f"{origin} is not encrypted, so others on the network could read password and token"
        raise InvalidInput(text=f"{text}; use https://, or give --insecure")


class RemoteLogins:
    """Obtains and stores the tokens for other nodes; thread-safe."""

    def __init__(self, store: AccessStore) -> None:
        self._store = store
        retries = urllib3.Retry(total=2, read=0, backoff_factor=0.3)  # who says nothing is not asked again
        self._pool = Pools(num_pools=2, timeout=LOGIN_TIMEOUT, retries=retries)

    def token(self, url: str) -> str | None:
        """Return the stored token for the origin of a URL, or None."""
        try:
            origin = origin_of(url)
        except InvalidInput:
            return None
        return self._store.origin_token(origin)

    def keep(self, origin: str, token: str) -> str:
        """Store a token after the other node has accepted it, and return its account's name; raises `LoginFailed`."""
        status, reply = self._call(
            "GET", f"{origin}/accounts/me", headers={"Authorization": f"Bearer {token}"}
        )
        if status in (UNAUTHORIZED, BAD_REQUEST):
            raise LoginFailed(text=f"the token is not valid at {origin}")
        if status != OK:
            raise Unavailable(what=origin, why=f"status {status}")
        self._store.set_origin_token(origin, token)
        return str(reply.get("accountName", ""))

    def forget(self, origin: str) -> None:
        """Delete the token for an origin; raises `NotFound`."""
        if not self._store.set_origin_token(origin, None):
            raise NotFound(what=f"a login at {origin}")

    def with_password(self, origin: str, login: str, password: str) -> str:
        """Log in with a password, and return the token; raises `LoginFailed`."""
        credentials = json.dumps({"login": login, "password": password})
        body = json.dumps({"loginMethod": "password", "loginCredentialsJson": credentials}).encode()
        headers = {"Content-Type": "application/json"}
        status, reply = self._call("POST", f"{origin}/platform/login", body=body, headers=headers)
        if status == UNAUTHORIZED:
            raise LoginFailed(text=f"{origin} did not accept the login: wrong account or password")
        return _text(origin, status, reply, "accessToken")

    def api_of(self, origin: str) -> str:
        """Return the origin of the API that a web frontend refers to; of a server that names none, its own origin."""
        status, reply = self._call("GET", f"{origin}/assets/runtime-config.json")
        named = reply.get("apiServerHttpUrl") if status == OK else None
        return origin if named is None else origin_of(str(named))

    def begin(self, origin: str) -> DeviceLogin:
        """Start a login that the user completes in a browser; raises `LoginFailed`."""
        url = f"{origin}/platform/token/device/authorization"
        status, reply = self._call("POST", url, **_form({"client_id": CLIENT}))
        code = _text(origin, status, reply, "device_code")
        page = _text(origin, status, reply, "verification_uri")
        if urlsplit(page).scheme not in DEFAULT_PORTS or not page.isprintable():
            raise LoginFailed(text=f"{origin} did not name a web page to log in on")
        return DeviceLogin(
            open=f"{page}{'&' if urlsplit(page).query else '?'}deviceCode={code}",
            code=code,
            expires_seconds=_seconds(reply, "expires_in", 300.0, most=LONGEST_LOGIN_SECONDS),
            interval_seconds=_seconds(reply, "interval", 5.0, most=LONGEST_INTERVAL_SECONDS),
        )

    def wait(self, origin: str, login: DeviceLogin, is_wanted: Callable[[], bool]) -> str:
        """Wait until the user has logged in, and return the token.

        Raises `LoginFailed` if the login is refused or not completed in time, or once `is_wanted` returns False.
        """
        until, interval = time.monotonic() + login.expires_seconds, login.interval_seconds
        form = _form({"client_id": CLIENT, "device_code": login.code, "grant_type": GRANT})
        pause = threading.Event()
        while time.monotonic() < until and is_wanted():
            status, reply = self._call("POST", f"{origin}/platform/token/device", **form)
            message = reply.get("message")
            if status == OK:
                return _text(origin, status, reply, "access_token")
            if status != BAD_REQUEST or message not in PENDING:
                raise LoginFailed(
                    text=f"{origin} refused the login: {str(message)[:100]!r} (status {status})"
                )
            interval += 5.0 if message == "slow_down" else 0.0
            pause.wait(interval)
        raise LoginFailed(text="no user logged in on the page in time")

    def _call(
        self,
        method: str,
        url: str,
        *,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, dict[str, Any]]:
        """Return the status and the JSON object of a response, which is empty if the body is not a JSON object."""
        try:
            with self._pool.request(
                method, url, body=body, headers=headers, preload_content=False, redirect=False
            ) as answer:
                content = answer.read(MAX_REPLY_BYTES)
        except urllib3.exceptions.HTTPError as error:
            raise Unavailable(what=url, why=cause_of(error)) from error
        try:
            plain = json.loads(content)
        except (ValueError, RecursionError):
            plain = {}
        return answer.status, plain if isinstance(plain, dict) else {}


def _form(fields: Mapping[str, str]) -> Mapping[str, Any]:
    """Return the arguments of `_call` that send a form."""
    content_type = "application/x-www-form-urlencoded"
    return {"body": urlencode(fields).encode(), "headers": {"Content-Type": content_type}}


def _text(origin: str, status: int, reply: Mapping[str, Any], field: str) -> str:
    value = reply.get(field)
    if status != OK or not isinstance(value, str) or not value:
        raise Unavailable(what=f"a login at {origin}", why=f"status {status}")
    return value


def _seconds(reply: Mapping[str, Any], field: str, default: float, *, most: float) -> float:
    value = reply.get(field)
    seconds = float(value) if isinstance(value, int | float) else default
    return min(max(SHORTEST_INTERVAL_SECONDS, seconds), most)  # in this order even for NaN
