"""Endpoints of the HTTP server, one per operation, and the application that authorizes each request to one.

An endpoint states its action on the dataset in its path, and the middleware calls the `Authorizer` before the handler
runs, so no handler can forget to. A handler gets the result from `dataset_of` and `caller_of`, and calls `is_allowed`
for further checks. Decisions are recorded in the audit, except for reads of public data.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Final, TypeVar

import structlog
from aiohttp import HttpVersion11, hdrs, web
from aiohttp.typedefs import Middleware

from odf_common.adapters.local.faults import waiting_helps
from odf_common.adapters.networks import PUBLIC, Networks
from odf_common.errors import NotFound, OdfError, Unavailable
from odf_common.ports.store import CatalogEntry
from odf_common.service.audit import Audit
from odf_sync.access.rate_limits import RequestRate, counted_address, forwarded_address, is_proxy
from odf_sync.access.rules import Action, Caller, Question, decision
from odf_sync.http.authorization import IS_PROXIED, NO_ACCOUNT, NO_ROUTE, Authorizer, HttpRefusal
from odf_sync.http.connections import RETRY_AFTER_SECONDS, in_flight

T = TypeVar("T")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

log = structlog.stdlib.get_logger(__name__)

ANY_METHOD: Final = "*"
JSON: Final = "application/json"
LAST_VARIABLE: Final = re.compile(r"\{(\w+)\}$")
VARIABLE: Final = re.compile(r"\{(\w+)\}")
ANY_SEGMENT: Final = "[^{}/]+"
UNAVAILABLE: Final = "the node cannot reach its store; try again"
FAILED: Final = "the node cannot use what it has stored"
CLIENT_GONE: Final = 499  # a status that no client sees
PARALLEL_DECISIONS: Final = 8  # at a time
MAX_REQUESTS: Final = 2000  # in flight, with streams; more are asked to come back
FORWARDED_FOR: Final = "X-Forwarded-For"
SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
_DATASET: Final = web.RequestKey("dataset", CatalogEntry)
_IS_PUBLIC: Final = web.RequestKey("is_public", bool)
_CALLER: Final = web.RequestKey("caller", Caller)
_QUESTION: Final = web.RequestKey("question", Question)


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One operation of the server."""

    method: str
    path: str
    """From the root; below the dataset's own path if there is an action."""
    handler: Handler
    summary: str
    action: Action | None = None
    """Its action on the dataset in its path; None without one."""
    is_explained: bool = False
    """Whether refusals give a reason on a single-tenant node. Other implementations send and expect an empty body."""
    patterns: Mapping[str, str] = field(default_factory=dict)
    """Regular expressions of variables in the path; other variables match any segment."""
    query: Mapping[str, str] = field(default_factory=dict)
    """Names of the query's parameters, and what they mean."""
    body: str = ""
    """Media type of the request's body; empty if it has none."""
    fields: tuple[str, ...] = ()
    """Names of the strings that a body of fields must have; empty for a body of bytes."""
    statuses: tuple[int, ...] = (200,)
    """Its possible statuses, apart from refusals."""
    other_bodies: tuple[str, ...] = ()
    """Other media types that the body may have."""
    media_type: str = "application/json"
    """The media type of its answers; empty if they have no body."""
    other_media_types: tuple[str, ...] = ()
    """Media types that clients may ask for by `Accept` instead."""
    refusal_media_types: tuple[str, ...] = ("application/json", "text/plain")
    """The media type of refusals that have a body."""
    expect_handler: Callable[[web.Request], Awaitable[None]] | None = None
    """The answer to `Expect: 100-continue`; None asks for the body at once."""
    on_shutdown: Callable[[web.Application], Awaitable[None]] | None = None
    """The function that ends its open requests when the server stops."""

    def full_paths(self, authorizer: Authorizer) -> tuple[str, ...]:
        """Return the paths from the root."""
        bases = ("",) if self.action is None else authorizer.dataset_paths
        return tuple(base + self.path for base in bases)


def dataset_of(request: web.Request) -> CatalogEntry:
    """Return the dataset in the path of an authorized request; raises `KeyError` if it does not exist yet."""
    return request[_DATASET]


def reads_public_data(request: web.Request) -> bool:
    """Return whether an authorized request reads a dataset that everyone may read."""
    return request[_IS_PUBLIC]


def caller_of(request: web.Request) -> Caller:
    """Return the caller of a request."""
    return request[_CALLER]


def counted_caller(request: web.Request) -> Hashable:
    """Return the key under which limits count a request: the caller's account, or else its address."""
    account = caller_of(request).account
    return counted_address(request.remote) if account is None else account.id


async def is_allowed(request: web.Request, action: Action) -> bool:
    """Return whether the caller of an authorized request may also do this to its dataset."""
    judge = request.app[_JUDGE]
    try:
        await judge.in_thread(judge.require, request, replace(request[_QUESTION], action=action))
    except HttpRefusal:
        return False
    return True


async def is_still_allowed(request: web.Request) -> bool:
    """Return whether a request would be authorized now, for the same dataset: receiving its body may take hours."""
    judge = request.app[_JUDGE]
    try:
        await judge.in_thread(judge.require_again, request, Action(request[_QUESTION].action))
    except HttpRefusal:
        return False
    return True


def require_still_allowed(request: web.Request, action: Action) -> None:
    """Raise `HttpRefusal`, which is recorded, unless the caller may do this now to the dataset of a request.

    It may be called in any thread but that of the event loop, which it would hold up.
    """
    request.app[_JUDGE].require_again(request, action)


def note_login(request: web.Request, login: str) -> None:
    """Note for the audit which account a request tries to log in to."""
    request[_QUESTION] = replace(request[_QUESTION], login=login)


def application(
    authorizer: Authorizer,
    endpoints: Iterable[Endpoint],
    *,
    audit: Audit | None = None,
    rate: RequestRate | None = None,
    proxies: Networks = PUBLIC,
) -> web.Application:
    """Return an application that serves the endpoints to the callers that `authorizer` allows.

    Without `audit`, decisions are not recorded; without `rate`, callers may send any number of requests. Of requests
    through `proxies`, the address is that of the client.
    """
    served: dict[web.AbstractRoute, Endpoint] = {}
    judge = _Judge(authorizer, audit or Audit(), rate or RequestRate(0))
    app = web.Application(middlewares=[_forwarding(proxies), _authorizing(judge, served)])
    app[_JUDGE] = judge
    app.on_response_prepare.append(_without_charset)
    resources: dict[str, web.Resource] = {}
    endpoints = tuple(endpoints)
    calls = _calls_of_datasets(authorizer, endpoints)
    for endpoint in endpoints:
        if endpoint.on_shutdown is not None:
            app.on_shutdown.append(endpoint.on_shutdown)
        for path in endpoint.full_paths(authorizer):
            if path not in resources:
                resources[path] = app.router.add_resource(_route_pattern(endpoint, path, calls))
            resource = resources[path]
            methods = ("GET", "HEAD") if endpoint.method == "GET" else (endpoint.method,)
            for method in methods:
                expect_handler = endpoint.expect_handler or _say_continue
                route = resource.add_route(method, endpoint.handler, expect_handler=expect_handler)
                served[route] = endpoint
    for resource in resources.values():
        _refuse_other_methods(resource, served)
    app.router.add_route(ANY_METHOD, "/{path:.*}", _no_route, expect_handler=_say_continue)
    return app


def _calls_of_datasets(authorizer: Authorizer, endpoints: Iterable[Endpoint]) -> tuple[str, ...]:
    """Return the last segments of calls whose paths others may cover: those of datasets without an account."""
    if NO_ACCOUNT not in authorizer.dataset_paths:
        return ()
    fixed = (
        endpoint.path for endpoint in endpoints if endpoint.action is not None and "{" not in endpoint.path
    )
    return tuple(sorted({path.removeprefix("/") for path in fixed}))


def _route_pattern(endpoint: Endpoint, path: str, calls: tuple[str, ...]) -> str:
    if not endpoint.patterns:
        return _without(calls, path)
    return VARIABLE.sub(lambda found: f"{{{found[1]}:{endpoint.patterns.get(found[1], ANY_SEGMENT)}}}", path)


def _without(calls: tuple[str, ...], path: str) -> str:
    """Return the pattern of a path that does not end as certain calls do.

    Otherwise `/datasets/{id}` would cover the call `pull` of a dataset named `datasets`, and `/{dataset}/refs/{ref}`
    that of `ann/refs`.
    """
    names = "|".join(map(re.escape, calls))
    return LAST_VARIABLE.sub(rf"{{\1:(?!(?:{names})$){ANY_SEGMENT}}}", path) if names else path


async def _without_charset(_: web.Request, response: web.StreamResponse) -> None:
    """Leave out what aiohttp adds to the media type of JSON, which has no charset (RFC 8259, 11)."""
    if response.content_type == JSON and response.charset is not None:
        response.charset = None


def _refuse_other_methods(resource: web.Resource, served: dict[web.AbstractRoute, Endpoint]) -> None:
    """Answer 405 to other methods, but only to callers who may use such a method (wire-facts §8.2)."""
    endpoints = {route.method: served[route] for route in resource}
    any_of_them = next(iter(endpoints.values()))

    async def refuse(request: web.Request) -> web.Response:
        raise web.HTTPMethodNotAllowed(request.method, endpoints, text="")

    route = resource.add_route(ANY_METHOD, refuse, expect_handler=_say_continue)
    served[route] = Endpoint(
        method=ANY_METHOD,
        path=any_of_them.path,
        handler=refuse,
        summary="Not allowed.",
        action=any_of_them.action and Action.WRITE,
    )


async def _say_continue(request: web.Request) -> None:
    """Ask for the body, if the client waits for that; aiohttp's own handler fails for a header that is no text."""
    expected = request.headers.get(hdrs.EXPECT, "").lower()
    if expected != "100-continue":
        raise web.HTTPExpectationFailed(text="only 100-continue can be expected")
    if request.version == HttpVersion11:
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # as the answer has not begun


async def _no_route(_: web.Request) -> web.StreamResponse:
    raise web.HTTPNotFound(text=NO_ROUTE)


def _forwarding(proxies: Networks) -> Middleware:
    @web.middleware
    async def forward(request: web.Request, handler: Handler) -> web.StreamResponse:
        peer = request.remote or ""
        request[IS_PROXIED] = is_proxy(proxies, peer)
        client = forwarded_address(proxies, peer, request.headers.getall(FORWARDED_FOR, ()))
        return await handler(request if client == peer else request.clone(remote=client))

    return forward


def _authorizing(judge: "_Judge", served: Mapping[web.AbstractRoute, Endpoint]) -> Middleware:
    count = 0

    @web.middleware
    async def authorize(request: web.Request, handler: Handler) -> web.StreamResponse:
        nonlocal count
        endpoint = served.get(request.match_info.route)
        if count >= MAX_REQUESTS:
            return web.Response(status=503, headers={"Retry-After": str(RETRY_AFTER_SECONDS)})
        count += 1
        try:
            with in_flight(request), _gone_clients(request):
                return await answer(request, endpoint, handler)
            return web.Response(status=CLIENT_GONE)
        finally:
            count -= 1

    async def answer(request: web.Request, endpoint: Endpoint | None, handler: Handler) -> web.StreamResponse:
        try:
            await judge.in_thread(judge.admit, request, endpoint)
        except HttpRefusal as error:
            return error.response(is_explained=endpoint is not None and endpoint.is_explained)
        except OdfError as error:
            log.warning("cannot decide on a request", code=error.code, why=str(error), advice=error.advice())
            return web.Response(status=503, headers={"Retry-After": str(RETRY_AFTER_SECONDS)})
        if endpoint is None:
            return await _no_route(request)
        odd = _header_that_is_no_text(request)
        if odd is not None:
            return _bad_header(odd, endpoint)
        if endpoint.action is not None:
            return await _handle(request, handler)
        try:
            response = await _handle(request, handler)
        except web.HTTPException as error:
            judge.note_answer(request, error.status)
            raise
        judge.note_answer(request, response.status)
        return response

    return authorize


def _header_that_is_no_text(request: web.Request) -> str | None:
    """Return the name of a header whose bytes are not UTF-8; None without one.

    aiohttp keeps such bytes as lone surrogates, which no message, log or database takes. Those of a query and a path
    stay escaped.
    """
    for name, value in request.headers.items():
        try:
            value.encode()
        except UnicodeEncodeError:
            return name
    return None


def _bad_header(name: str, endpoint: Endpoint) -> web.Response:
    text = f"header {name}: it is not UTF-8"
    # Clients of other implementations read the reason of a refused upgrade as text.
    is_text = 101 in endpoint.statuses or JSON not in endpoint.refusal_media_types
    return (
        web.Response(status=400, text=text) if is_text else web.json_response({"message": text}, status=400)
    )


async def _handle(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Return the handler's response; while the store is unavailable, ask the client to come back.

    A client that has received a part of the response learns from the closed connection that it is not complete.
    """
    try:
        with waiting_helps():
            return await handler(request)
    except OdfError as error:
        log.warning(
            "cannot answer a request",
            path=request.path,
            code=error.code,
            why=str(error),
            advice=error.advice(),
        )
        if request.writer.output_size and request.transport is not None:
            request.transport.abort()
            raise ConnectionResetError from error
        return _failure_response(error)


def _failure_response(error: OdfError) -> web.Response:
    """Return the response to a request that failed for a reason of ours; the reason is in the log."""
    if isinstance(error, NotFound):  # it was deleted meanwhile
        return web.Response(status=404)
    status, text = fault_of_node(error)
    headers = {"Retry-After": str(RETRY_AFTER_SECONDS)} if status == 503 else None
    return web.json_response({"message": text}, status=status, headers=headers)


def fault_of_node(error: OdfError) -> tuple[int, str]:
    """Return the status and text for clients of an error that may name files, addresses and buckets of this node."""
    return (503, UNAVAILABLE) if isinstance(error, Unavailable) else (500, FAILED)


@contextmanager
def _gone_clients(request: web.Request) -> Iterator[None]:
    """End the block if the client has closed its connection, which is not an error of the server."""
    try:
        yield
    except ConnectionError:
        if request.transport is not None and not request.transport.is_closing():
            raise
        log.debug("the client closed its connection", path=request.path)


class _Judge:
    """Authorizes requests, and records the decisions."""

    def __init__(self, authorizer: Authorizer, audit: Audit, rate: RequestRate) -> None:
        self._authorizer = authorizer
        self._audit = audit
        self._rate = rate
        # Of its own: while requests wait for a store that is silent, others are still decided.
        self._threads = ThreadPoolExecutor(PARALLEL_DECISIONS, thread_name_prefix="decide")

    async def in_thread(self, decide: Callable[..., T], *args: object) -> T:
        """Call `admit`, `require` or `require_again` without holding up the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, decide, *args)

    def admit(self, request: web.Request, endpoint: Endpoint | None) -> None:
        """Note caller and dataset; raises `HttpRefusal`, and other errors if that cannot be decided now."""
        request[_QUESTION] = question = _question(request, endpoint)
        try:
            request[_CALLER] = caller = self._authorizer.caller(request)
        except OdfError:
            self._limit(question)  # by the address, before anything is recorded
            with self._noting_refusals(question):
                raise
        request[_QUESTION] = question = replace(question, caller=caller)
        self._limit(question)
        if endpoint is not None and endpoint.action is not None:
            self.require(request, question, is_served=endpoint.method != ANY_METHOD)

    def require_again(self, request: web.Request, action: Action) -> None:
        """Return if an admitted request may do this now, to the same dataset as before; raises as `admit` does.

        The dataset may have been renamed or deleted since.
        """
        question, before = replace(request[_QUESTION], action=action), request.get(_DATASET)
        with self._noting_refusals(question):
            caller = self._authorizer.caller(request)
            now = self._authorizer.require(caller, question.dataset, action)
            if (now and now.incarnation) != (before and before.incarnation):
                raise HttpRefusal(status=HTTPStatus.NOT_FOUND)

    def require(self, request: web.Request, question: Question, *, is_served: bool = True) -> None:
        """Note the dataset, and the decision unless it is a read of public data; raises as `admit` does."""
        action = Action(question.action)
        with self._noting_refusals(question), self._authorizer.directory.one_moment():
            dataset = self._authorizer.require(question.caller, question.dataset, action)
            is_plain = action is Action.READ and dataset is not None and self._authorizer.is_public(dataset)
        request[_IS_PUBLIC] = is_plain
        if dataset is not None:
            request[_DATASET] = dataset
        if is_plain and is_served:
            return
        status = 0 if is_served else HTTPStatus.METHOD_NOT_ALLOWED
        entry = decision(question, is_allowed=is_served, status=status)
        self._audit.put(None if dataset is None else dataset.dataset_id, entry)

    def note_answer(self, request: web.Request, status: int) -> None:
        """Note how a request about no dataset was answered, unless it is anonymous and only reads."""
        question, is_allowed = request[_QUESTION], status < HTTPStatus.BAD_REQUEST
        is_anonymous = question.caller.account is None
        if not (is_anonymous and is_allowed and question.method in SAFE_METHODS):
            self._audit.put(None, decision(question, is_allowed=is_allowed, status=status))

    def _limit(self, question: Question) -> None:
        """Raise `HttpRefusal` if a caller sends too many requests."""
        account = question.caller.account
        wait = self._rate.wait_seconds(counted_address(question.address) if account is None else account.id)
        if wait:
            headers = {"Retry-After": str(wait)}
            raise HttpRefusal(status=HTTPStatus.TOO_MANY_REQUESTS, body="", headers=headers)

    @contextmanager
    def _noting_refusals(self, question: Question) -> Iterator[None]:
        try:
            yield
        except HttpRefusal as error:
            self._audit.put(None, decision(question, is_allowed=False, status=error.status))
            raise
        except OdfError:
            self._audit.put(None, decision(question, is_allowed=False, status=HTTPStatus.SERVICE_UNAVAILABLE))
            raise


_JUDGE: Final = web.AppKey("judge", _Judge)


def _question(request: web.Request, endpoint: Endpoint | None) -> Question:
    """Return the action of a request; its caller is not known yet."""
    resource = request.match_info.route.resource
    has_dataset = endpoint is not None and endpoint.action is not None
    return Question(
        caller=Caller(),
        address=request.remote or "",
        forwarded_for=request.headers.get(FORWARDED_FOR, ""),
        method=request.method,
        route="" if endpoint is None or resource is None else resource.canonical,
        action=_action(endpoint, request) if endpoint is not None and has_dataset else "",
        dataset=name_in_path(request) if has_dataset else "",
    )


def name_in_path(request: web.Request) -> str:
    """Return the name of the dataset in the path of a request."""
    account, dataset = request.match_info.get("account"), request.match_info["dataset"]
    return f"{account}/{dataset}" if account else dataset


def _action(endpoint: Endpoint, request: web.Request) -> Action:
    assert endpoint.action is not None
    is_safe = endpoint.method == ANY_METHOD and request.method in SAFE_METHODS
    return Action.READ if is_safe else endpoint.action
