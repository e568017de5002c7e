"""The routes `pull` and `push` of the Smart Transfer Protocol, upgraded to WebSocket (wire-facts §8.3–8.6)."""

import asyncio
import re
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from functools import partial
from types import MappingProxyType
from typing import Final

import structlog
from aiohttp import WSCloseCode, hdrs, web

from odf_common.dataset.node_datasets import NodeDatasets
from odf_common.errors import Damaged, OdfError, Unavailable
from odf_common.identity.dataset_refs import DatasetId
from odf_common.ports.store import CatalogEntry
from odf_common.service.request_reply import Replies
from odf_common.service.settings import Settings
from odf_sync.access import rules as access_rules
from odf_sync.access.rate_limits import Shares
from odf_sync.access.rules import Action, Caller
from odf_sync.http.authorization import Authorizer
from odf_sync.http.authorization import HttpRefusal as NotAllowed
from odf_sync.http.connections import RETRY_AFTER_SECONDS, connection_of
from odf_sync.http.endpoints import (
    Endpoint,
    caller_of,
    counted_caller,
    dataset_of,
    fault_of_node,
    is_allowed,
    name_in_path,
    require_still_allowed,
)
from odf_sync.http.object_uploads import OpenPushes
from odf_sync.http.serve_pull import PULL_MESSAGE_BYTES, PullSource, large_lists, serve_pull
from odf_sync.http.serve_push import PushTarget, held_blocks, serve_push
from odf_sync.smart import messages as msg
from odf_sync.smart.channel import MAX_MESSAGE_BYTES, SMALL_BYTES, Channel, LargeMessages, PeerClosed
from odf_sync.smart.exchange import (
    CLOSE_FAULT,
    CLOSE_OK,
    PULL,
    PUSH,
    End,
    ExchangeState,
    Side,
    Table,
    TransferRefused,
    close_reason,
)

log = structlog.stdlib.get_logger(__name__)

EXCHANGES: Final = 64  # pulls at a time, and as many pushes: readers leave room for those who may write
EXCHANGES_OF_CALLER: Final = 16  # of each
FAULT_SECONDS: Final = 10.0  # for a client to close after a refusal, or the confirmation
TOO_MANY_TRANSFERS: Final = "too many transfers at a time"
MAY_NO_LONGER_PUSH: Final = "the caller may no longer push to this dataset"
INT32: Final = range(-(2**31), 2**31)
_INTEGER: Final = re.compile(r"([+-]?)0*([0-9]{1,10})")

Serve = Callable[[Channel], Awaitable[None]]


class SmartProtocol:
    """Handlers of the Smart Transfer Protocol's routes. Each exchange ends with a close frame, even after an error."""

    def __init__(
        self,
        datasets: NodeDatasets,
        settings: Settings,
        replies: Replies,
        authorizer: Authorizer,
        pushes: OpenPushes,
    ) -> None:
        """Serve the datasets of a node; `authorizer` decides on the visibility of new datasets."""
        self._datasets = datasets
        self._settings = settings
        self._replies = replies
        self._authorizer = authorizer
        self._pushes = pushes
        self._large = LargeMessages()
        self._held = held_blocks()
        self._decoding = threading.Lock()
        self._lists = large_lists()
        self._open: set[web.WebSocketResponse] = set()
        self._pull_shares = Shares(most=EXCHANGES, of_caller=EXCHANGES_OF_CALLER)
        self._push_shares = Shares(most=EXCHANGES, of_caller=EXCHANGES_OF_CALLER)

    def endpoints(self) -> Iterator[Endpoint]:
        """Yield the endpoints."""
        yield Endpoint(
            method="GET",
            path="/pull",
            handler=self._pull,
            summary="Pull the dataset by the Smart Transfer Protocol (WebSocket).",
            action=Action.READ,
            statuses=(101,),
            on_shutdown=self._close,
        )
        yield Endpoint(
            method="GET",
            path="/push",
            handler=self._push,
            summary="Push the dataset by the Smart Transfer Protocol (WebSocket).",
            action=Action.CREATE,
            statuses=(101,),
        )

    async def _close(self, _: web.Application) -> None:
        """Close all exchanges, because the node stops."""
        going = [
            socket.close(code=WSCloseCode.GOING_AWAY, message=b"the node stops") for socket in self._open
        ]
        await asyncio.gather(*going, return_exceptions=True)

    async def _pull(self, request: web.Request) -> web.StreamResponse:
        dataset = dataset_of(request).dataset_id
        head = await asyncio.to_thread(self._datasets.refs.head, dataset)
        if head is None:
            raise web.HTTPNotFound(text="")
        source = PullSource(
            blobs=self._datasets.blobs,
            public_url=self._settings.public_url,
            dataset=dataset,
            head=head,
            lists=self._lists,
        )
        serve = partial(serve_pull, source=source, request=request)
        return await self._upgrade(request, PULL, serve, PULL_MESSAGE_BYTES)

    async def _push(self, request: web.Request) -> web.StreamResponse:
        try:
            entry: CatalogEntry | None = dataset_of(request)
        except KeyError:
            entry = None
        head = None if entry is None else await asyncio.to_thread(self._datasets.refs.head, entry.dataset_id)
        target = PushTarget(
            datasets=self._datasets,
            home=self._settings.home,
            public_url=self._settings.public_url,
            replies=self._replies,
            alias=name_in_path(request) if entry is None else entry.alias,
            entry=entry,
            head=head,
            pushes=self._pushes,
            large=self._large,
            held=self._held,
            decoding=self._decoding,
            creating=partial(self._creating, request),
            may_replace=partial(is_allowed, request, Action.MANAGE),
            may_find=partial(self._authorizer.may_find, caller_of(request)),
            require_allowed=partial(_require_allowed, request),
        )
        serve = partial(serve_push, target=target, request=request)
        offered = self._offer_headers(caller_of(request))
        return await self._upgrade(request, PUSH, serve, MAX_MESSAGE_BYTES, offered)

    def _offer_headers(self, caller: Caller) -> dict[str, str]:
        """Return the headers that announce what this node supports in a push."""
        offered = {msg.CONTINUES_HEADER: msg.YES, msg.SIGNATURES_HEADER: msg.YES}
        if self._authorizer.keeps_private(caller):
            offered[msg.CHOSEN_HEADER] = msg.YES
        return offered

    def _creating(
        self, request: web.Request, dataset: DatasetId, visibility: msg.DatasetVisibility
    ) -> AbstractContextManager[str]:
        wanted = access_rules.Visibility(visibility.value.lower())
        is_kept = self._authorizer.keeps_private(caller_of(request))
        is_chosen = is_kept and request.headers.get(msg.CHOSEN_HEADER) == msg.YES
        return self._authorizer.creating(dataset, wanted, is_chosen=is_chosen)

    async def _upgrade(
        self,
        request: web.Request,
        table: Table,
        serve: Serve,
        max_bytes: int,
        offered: Mapping[str, str] = MappingProxyType({}),
    ) -> web.StreamResponse:
        """Upgrade the request to WebSocket, and run an exchange; `offered` are headers of the response.

        Requests without a valid upgrade and protocol version are refused.
        """
        refusal = _unfit(request)
        if refusal is not None:
            return refusal
        shares = self._push_shares if table is PUSH else self._pull_shares
        with shares.acquire(counted_caller(request)) as has_room:
            if not has_room:
                headers = {"Retry-After": str(RETRY_AFTER_SECONDS)}
                return web.json_response({"message": TOO_MANY_TRANSFERS}, status=503, headers=headers)
            socket = web.WebSocketResponse(autoclose=False, compress=False, max_msg_size=max_bytes)
            socket.headers.update(offered)
            self._open.add(socket)
            if table is PUSH:  # until it says how much comes
                connection_of(request).limit(SMALL_BYTES)
            try:
                await socket.prepare(request)
                await _run(Channel(socket, End(side=Side.SERVER, table=table)), request, serve)
            finally:
                self._open.discard(socket)
            return socket


def _require_allowed(request: web.Request, action: Action) -> None:
    """Raise `TransferRefused` unless the token of the request allows an action now."""
    try:
        require_still_allowed(request, action)
    except NotAllowed as error:
        fault = msg.Internal(phase=msg.Phase.PUSH_COMPLETE, error_message=MAY_NO_LONGER_PUSH)
        raise TransferRefused(fault=fault) from error


def _unfit(request: web.Request) -> web.Response | None:
    """Return the refusal of a request that is no WebSocket upgrade or has an unsupported version, else None."""
    if request.method != hdrs.METH_GET:  # HEAD, which other routes have together with GET
        return web.Response(status=405, headers={hdrs.ALLOW: hdrs.METH_GET})
    if "upgrade" not in request.headers.get("Connection", "").lower():
        return web.Response(status=400, text="Connection header did not include 'upgrade'")
    if request.headers.get("Upgrade", "").lower() != "websocket":
        return web.Response(status=400, text="`Upgrade` header did not include 'websocket'")
    if not request.headers.get(hdrs.SEC_WEBSOCKET_KEY, "").isascii():  # aiohttp fails for it
        return web.Response(status=400, text=f"`{hdrs.SEC_WEBSOCKET_KEY}` is not base64")
    version = request.headers.get(msg.VERSION_HEADER)
    if version is None:
        return web.Response(status=400, text=f"Header of type `{msg.VERSION_HEADER}` was missing")
    match = _INTEGER.fullmatch(version)
    if match is None or (number := int("".join(match.groups()))) not in INT32:
        return web.Response(status=400, text=f"invalid HTTP header ({msg.VERSION_HEADER})")
    if number != msg.VERSION:
        body = b'{"message":"Incompatible client version"}'
        return web.Response(status=400, body=body, content_type="application/json")
    return None


async def _closed_after_refusal(channel: Channel) -> None:
    """Wait for the client to close after a refusal; raises `PeerClosed`, `ProtocolViolated` or `TimeoutError`."""
    try:
        await channel.receive(FAULT_SECONDS)
    except TimeoutError as error:
        raise TimeoutError(f"no close after the refusal {channel.end.refused}") from error


async def _run(channel: Channel, request: web.Request, serve: Serve) -> None:
    """Run an exchange to its end; the reason of a failure is sent in the close frame."""
    facts = {"path": request.path}
    try:
        await serve(channel)
        if channel.end.state is not ExchangeState.DONE:
            await _closed_after_refusal(channel)
        with suppress(TimeoutError):
            await channel.await_close(FAULT_SECONDS)
        log.debug("transfer ended", close_code=CLOSE_OK, why="confirmed", **facts)
        await channel.close(CLOSE_OK, b"")
    except PeerClosed as closed:
        log.debug("transfer ended", close_code=closed.close_code, why=closed.reason, **facts)
        await channel.close(closed.close_code, closed.reason.encode())
    except TransferRefused as refused:
        log.info("transfer refused", why=str(refused), **facts)
        await channel.close(CLOSE_FAULT, close_reason(msg.Refusal(fault=refused.fault)))
    except (OdfError, TimeoutError) as error:
        text = str(error) or "no message in time"
        log.info("transfer failed", why=text, phase=channel.end.phase, **facts)
        if type(error) is Unavailable:
            text = f"{error.what} cannot be reached; try again"  # not why: that may name addresses
        elif isinstance(error, Unavailable | Damaged):
            _, text = fault_of_node(error)
        await _close_with_fault(channel, text)
    except Exception:
        log.exception("transfer failed", phase=channel.end.phase, **facts)
        await _close_with_fault(channel, "Internal error")


async def _close_with_fault(channel: Channel, text: str) -> None:
    fault = msg.Internal(phase=channel.end.phase, error_message=text)
    await channel.close(CLOSE_FAULT, close_reason(msg.Refusal(fault=fault)))
