"""Pushes over HTTP: `POST /<dataset>/ingest` (wire-facts §8.7), and `GET /<dataset>/ingest/<receipt>`.

The body is streamed into a staged file, whose name is passed to ingest. A body with a `Content-Encoding` (RFC 9110,
8.4) is decompressed in pieces, and refused if it is truncated. aiohttp's own decompression is turned off, because it
accepts a truncated gzip body.
"""

import asyncio
import uuid
import zlib
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from functools import partial
from typing import Final, TypeVar

import structlog
from aiohttp import ClientError, hdrs, web
from aiohttp.http_exceptions import HttpProcessingError

from odf_common.adapters.local.faults import waiting_helps
from odf_common.adapters.local.process_files import StagedFile, Staging
from odf_common.codec.times import time_message, time_of
from odf_common.errors import InvalidInput, OdfError, StorageUnavailable, nearest, with_advice
from odf_common.metadata.scalars import Timestamp
from odf_common.ports.store import CatalogEntry
from odf_common.proto.odf.node.v1 import push_pb2 as pb
from odf_sync.access.rate_limits import pace_of_body, shares_of_bodies
from odf_sync.access.rules import Action
from odf_sync.http.endpoints import (
    Endpoint,
    Handler,
    counted_caller,
    dataset_of,
    fault_of_node,
    is_still_allowed,
)
from odf_sync.http.ingest_client import (
    BUFFER_FULL,
    DISK_CODE,
    DISK_TEXT,
    INSUFFICIENT_STORAGE,
    REPEAT_HINT,
    SILENT_CODE,
    IngestClient,
    PushRefused,
    status_of,
)

DECODED_BYTES: Final = 1024 * 1024
GZIP_BITS: Final = 31
ZLIB_BITS: Final = 15
RAW_BITS: Final = -15
ZLIB_METHOD: Final = 8  # the low half of the first byte of a zlib header


class UnsupportedEncoding(InvalidInput):
    """The body has a `Content-Encoding` that this node does not support."""

    ADVICE = "send the body with Content-Encoding gzip or deflate, or without one"


class BodyCutOff(InvalidInput):
    """The body is truncated, or does not have the encoding that its headers declare."""

    ADVICE = "send the whole body again"


class BodyDecoder:
    """Decodes one body by its `Content-Encoding`.

    gzip (RFC 1952) may have several members. deflate is a zlib stream (RFC 1950), or a raw one, which some clients
    send.
    """

    def __init__(self, encoding: str) -> None:
        """Decode a body with this `Content-Encoding`; raises `UnsupportedEncoding`."""
        name = encoding.strip().lower()
        if name not in ("", "identity", "gzip", "x-gzip", "deflate"):
            raise UnsupportedEncoding(where="header Content-Encoding", text=f"{encoding!r} is not supported")
        self._name = name.removeprefix("x-")
        self._is_plain = name in ("", "identity")
        self._stream = zlib.decompressobj(GZIP_BITS)
        self._has_begun = False

    def decode(self, chunk: bytes) -> Iterator[bytes]:
        """Yield the decoded bytes of a chunk, in pieces of up to `DECODED_BYTES`; raises `BodyCutOff`."""
        if self._is_plain:
            yield chunk
            return
        while chunk:
            if not self._has_begun or self._stream.eof:
                self._begin(chunk[0])
            piece = self._piece(chunk)
            while piece:
                yield piece
                # Without input as well: zlib may hold back output beyond the limit.
                piece = self._piece(self._stream.unconsumed_tail)
            chunk = self._stream.unused_data

    def finish(self) -> None:
        """Raise `BodyCutOff` unless the encoded stream is complete; for an unencoded body HTTP ensures that."""
        if not self._is_plain and not self._stream.eof:
            raise self._refusal(f"ends before the end of its {self._name} stream")

    def _piece(self, data: bytes) -> bytes:
        try:
            return self._stream.decompress(data, DECODED_BYTES)
        except zlib.error as error:
            raise self._refusal(f"is not a {self._name} stream: {error}") from error

    def _begin(self, first: int) -> None:
        """Start the stream, or the next member of a gzip stream."""
        if self._has_begun and self._name != "gzip":
            raise self._refusal(f"continues after the end of its {self._name} stream")
        bits = GZIP_BITS
        if self._name == "deflate":
            bits = ZLIB_BITS if first & 0xF == ZLIB_METHOD else RAW_BITS
        self._stream = zlib.decompressobj(bits)
        self._has_begun = True

    def _refusal(self, why: str) -> BodyCutOff:
        return BodyCutOff(text=f"the body {why}; nothing was accepted")


log = structlog.stdlib.get_logger(__name__)

T = TypeVar("T")
CheckAgain = Callable[[web.Request, pb.PushRequest], Awaitable[None]]

PUSH_RETRY_AFTER_SECONDS: Final = 1
# Of pushes that are accepted and not committed yet: the status of the answer by the receipt's code.
DELAYS: Final = {DISK_CODE: INSUFFICIENT_STORAGE, SILENT_CODE: web.HTTPServiceUnavailable.status_code}
TRY_AGAIN: Final = frozenset(DELAYS.values())
ACCEPTED_TEXT: Final = "the push is accepted, and will be committed once that has changed"
WAIT_SECONDS: Final = 300.0  # for the commit; then the answer is the receipt as it is
WAIT_STEP_SECONDS: Final = 2.0  # of one call of ingest; a service that stops waits for it
PUSH_THREADS: Final = 128  # calls of ingest and writes at a time; likewise calls that wait for a commit
BUSY_CODE: Final = "Busy"  # the error of ingest if too many calls wait
EVENT_TIME: Final = "odf-event-time"
IDEMPOTENCY_KEY: Final = "Idempotency-Key"
QUERY_OF_PUSH: Final = {
    "sourceName": "name of the push source",
    "wait": (
        "no: answer 202 with the receipt once the push is accepted; commit: answer 200 with the receipt once it "
        "is committed; absent: once it is committed, 200, with the receipt only if rows were rejected. 202 with the "
        "receipt if that takes too long"
    ),
}
COMMITTED: Final = ("committed", "unchanged")
PERMISSION_ENDED: Final = (
    "while the body was received, the permission ended or the dataset was replaced; nothing was accepted"
)


class Wait(Enum):
    """The values of the query parameter `wait`."""

    COMMIT = "commit"
    NO = "no"


class IngestRoutes:
    """Handlers of pushes and their receipts."""

    def __init__(
        self, *, ingest: IngestClient, staging: Staging, max_bytes: int, public_url: str | None = None
    ) -> None:
        """Accept pushes of up to `max_bytes`, counted after decompression.

        URLs of receipts begin with `public_url`, by default with the origin of the request.
        """
        self._public_url = public_url
        self._ingest = ingest
        self._staging = staging
        self._max_bytes = max_bytes
        self._received = shares_of_bodies()
        # Of their own: a push takes no thread from those that are served objects, and one that waits for its commit
        # none from those that arrive.
        self._threads = ThreadPoolExecutor(PUSH_THREADS, thread_name_prefix="push")
        self._waiting = ThreadPoolExecutor(PUSH_THREADS, thread_name_prefix="push-wait")

    def endpoints(self) -> Iterator[Endpoint]:
        """Yield the endpoints."""
        yield Endpoint(
            method="POST",
            path="/ingest",
            handler=in_json(self._push),
            summary="Push records into a push source.",
            query=QUERY_OF_PUSH,
            body="application/x-ndjson",
            statuses=(200, 202, 408, 409, 413, 415, 507),
            action=Action.WRITE,
            is_explained=True,
            expect_handler=say_nothing_yet,
        )
        yield Endpoint(
            method="GET",
            path="/ingest/{receipt}",
            handler=in_json(self._show),
            summary="The state of a push.",
            query={"wait": "commit: answer once it is settled; no, or absent: at once"},
            statuses=(200, 507),
            action=Action.WRITE,
            is_explained=True,
        )

    async def _push(self, request: web.Request) -> web.Response:
        entry = dataset_of(request)
        wait = wait_of(request)
        push = push_request(request)
        push.ref = str(entry.dataset_id)
        decoder = BodyDecoder(request.headers.get(hdrs.CONTENT_ENCODING, ""))
        receipt = await self.accept(request, push, decoder, _require_still_allowed)
        if wait is not Wait.NO:
            receipt = await self._await_settled(request, receipt)
            # Without a key, a repeat would be another push.
            if receipt.state == "accepted" and receipt.code in DELAYS and not push.is_key_generated:
                raise PushRefused(
                    status=DELAYS[receipt.code],
                    error=receipt.code,
                    text=f"{_public_text(receipt)}; {ACCEPTED_TEXT}",
                    hint=REPEAT_HINT,
                )
            if receipt.state == "refused":
                raise PushRefused(
                    status=status_of(receipt.code), error=receipt.code, text=receipt.text, hint=receipt.advice
                )
        url = f"{self.url(request)}/{receipt.id}"
        is_committed = wait is not Wait.NO and receipt.state in COMMITTED
        # Clients of other implementations expect no body; but a loss of rows is not left to the receipt.
        if is_committed and wait is None and not receipt.rejected:
            return web.Response(headers={"Location": url})
        return web.json_response(
            _plain(receipt, entry, url), status=200 if is_committed else 202, headers={"Location": url}
        )

    async def accept(
        self, request: web.Request, push: pb.PushRequest, decoder: BodyDecoder, check_again: CheckAgain
    ) -> pb.PushReceipt:
        """Receive the body, and return the receipt of the accepted push; raises `PushRefused`.

        `check_again` raises it if the push is no longer allowed once its body has arrived, which may take hours.
        """
        await self._run(self._ingest.check, push)
        self._require_size(request.content_length or 0)
        with self._received.acquire(counted_caller(request)) as has_room:
            if not has_room:
                text = "too many pushes are being received; nothing was accepted"
                raise PushRefused(status=503, error="Busy", text=text, hint="repeat the push later")
            with self._staging.holding() as staged:
                await _send_continue(request)
                await self._receive(request, staged, decoder)
                push.staged = staged.name
                await check_again(request, push)
                return await self._run(self._ingest.accept, push)

    async def _show(self, request: web.Request) -> web.Response:
        entry = dataset_of(request)
        receipt = await self._run(self._ingest.show, str(entry.dataset_id), request.match_info["receipt"])
        if wait_of(request) is Wait.COMMIT:
            receipt = await self._await_settled(request, receipt)
        return web.json_response(_plain(receipt, entry, self.url(request)))

    def url(self, request: web.Request) -> str:
        """Return the public URL of a request."""
        return (self._public_url or f"{request.scheme}://{request.host}") + request.path

    async def _await_settled(self, request: web.Request, receipt: pb.PushReceipt) -> pb.PushReceipt:
        """Return the receipt once the push is settled or reports a delay, or its latest state after `WAIT_SECONDS`.

        The latest state is also returned if the client has disconnected or this service stops: without a response,
        clients would push again what has been accepted.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + WAIT_SECONDS
        ref = str(dataset_of(request).dataset_id)
        show = partial(self._ingest.show, ref, receipt.id, WAIT_STEP_SECONDS)
        while receipt.state == "accepted" and loop.time() < until and request.transport is not None:
            if self._ingest.is_stopping or receipt.code in DELAYS:
                return receipt
            try:
                receipt = await loop.run_in_executor(self._waiting, show)
            except PushRefused as error:
                if error.status not in TRY_AGAIN:
                    raise
                if error.error != BUSY_CODE:  # it is accepted, even if ingest has stopped since
                    receipt.code, receipt.text = SILENT_CODE, error.text
                    return receipt
                await asyncio.sleep(PUSH_RETRY_AFTER_SECONDS)
        return receipt

    async def _receive(self, request: web.Request, staged: StagedFile, decoder: BodyDecoder) -> None:
        """Write the decoded body to a staged file; raises `PushRefused` and `InvalidInput` if it is incomplete."""
        size, pace = 0, pace_of_body()
        while True:
            try:
                chunk = await pace.read(request.content.readany())
            except TimeoutError as error:
                text = f"{pace.too_slow()}; nothing was accepted"
                raise PushRefused(status=408, error="BodyTimeout", text=text) from error
            if not chunk:
                decoder.finish()
                return
            size = await self._run(self._write, staged, decoder.decode(chunk), size)

    def _write(self, staged: StagedFile, pieces: Iterator[bytes], before: int) -> int:
        """Append pieces to a staged file of `before` bytes, and return its size.

        Raises `PushRefused` if it is too large.
        """
        size = before
        for written in staged.write(pieces):
            size = before + written
            self._require_size(size)
        return size

    def _require_size(self, size: int) -> None:
        most = self._max_bytes
        if size > most:
            raise PushRefused(
                status=413,
                error="BodyTooLarge",
                text=f"the body has more than {most} bytes; nothing was accepted",
                hint="push it in parts, with `odf ingest`, or raise ODF_HTTP_INGEST_MAX_BYTES",
            )

    async def _run(self, function: Callable[..., T], *args: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *args)


def in_json(handler: Handler) -> Handler:
    """Return a handler that converts the errors of `handler` to JSON responses."""

    async def answer(request: web.Request) -> web.StreamResponse:
        try:
            with waiting_helps():
                return await handler(request)
        except PushRefused as error:
            return _error(error)
        except InvalidInput as error:
            status = 415 if isinstance(error, UnsupportedEncoding) else 400
            return _error(PushRefused(status=status, error=error.code, text=str(error), hint=error.advice()))
        except OdfError as error:
            log.warning("push failed", path=request.path, code=error.code, why=with_advice(error))
            status, text = fault_of_node(error)
            hint = ""
            if isinstance(error, StorageUnavailable):
                status, text, hint = INSUFFICIENT_STORAGE, DISK_TEXT, REPEAT_HINT
            return _error(PushRefused(status=status, error=error.code, text=text, hint=hint))
        except (ClientError, ConnectionError, web.RequestPayloadError, HttpProcessingError) as error:
            cut_off = BodyCutOff(text=f"the body ends before its own end; nothing was accepted ({error})")
            return _error(
                PushRefused(status=400, error=cut_off.code, text=str(cut_off), hint=cut_off.advice())
            )

    return answer


def _error(error: PushRefused) -> web.Response:
    plain = {"message": error.text, "code": error.error, "advice": error.hint}
    response = web.json_response({key: value for key, value in plain.items() if value}, status=error.status)
    if error.status in {*TRY_AGAIN, BUFFER_FULL}:
        response.headers["Retry-After"] = str(PUSH_RETRY_AFTER_SECONDS)
    if error.status in {408, 413}:
        response.force_close()  # the rest of the body is not read
    return response


async def say_nothing_yet(_: web.Request) -> None:
    """Delay the response to `Expect: 100-continue` until the headers have been checked."""


async def _send_continue(request: web.Request) -> None:
    """Send 100 Continue if the client expects it."""
    if request.headers.get("Expect", "").lower() == "100-continue" and request.transport is not None:
        request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")


async def _require_still_allowed(request: web.Request, _: pb.PushRequest) -> None:
    if not await is_still_allowed(request):
        raise PushRefused(status=403, error="PushForbidden", text=PERMISSION_ENDED)


def wait_of(request: web.Request) -> Wait | None:
    """Return the parameter `wait` of a request; raises `InvalidInput`."""
    wait = request.query.get("wait")
    try:
        return None if wait is None else Wait(wait)
    except ValueError as error:
        raise InvalidInput(where="parameter wait", text=f"expected commit or no, got {wait!r}") from error


def push_request(request: web.Request) -> pb.PushRequest:
    """Return the push with the parameters and headers of the request; raises `InvalidInput`."""
    if "uploadToken" in request.query:
        raise InvalidInput(
            where="parameter uploadToken", text="uploads are not supported: send the data as the body"
        )
    for name in set(request.query) - set(QUERY_OF_PUSH):
        meant = nearest(name, QUERY_OF_PUSH)
        if meant is not None:  # others are ignored, as by other implementations
            raise InvalidInput(where=f"parameter {name}", text=f"unknown; did you mean {meant}?")
    key = request.headers.get(IDEMPOTENCY_KEY)
    push = pb.PushRequest(
        source_name=request.query.get("sourceName", ""),
        idempotency_key=uuid.uuid4().hex if key is None else key,
        is_key_generated=key is None,
        input_format=request.headers.get("Content-Type", ""),
    )
    event_time = request.headers.get(EVENT_TIME)
    if event_time is not None:
        try:
            push.event_time.CopyFrom(time_message(Timestamp.parse(event_time)))
        except InvalidInput as error:
            raise InvalidInput(where=f"header {EVENT_TIME}", text=str(error)) from error
    return push


def _public_text(receipt: pb.PushReceipt) -> str:
    """Return the reason why a push was refused or delayed, without file names of this node."""
    return DISK_TEXT if receipt.code == DISK_CODE else receipt.text


def _plain(receipt: pb.PushReceipt, entry: CatalogEntry, url: str) -> dict[str, object]:
    error = {"message": _public_text(receipt), "code": receipt.code, "advice": receipt.advice}
    return {
        "receipt": receipt.id,
        "url": url,
        "dataset": entry.alias,
        "source": receipt.source_name,
        "state": receipt.state,
        "acceptedAt": str(time_of(receipt.accepted_at)),
        "size": receipt.size,
        "records": receipt.records if receipt.HasField("records") else None,
        "rejected": receipt.rejected,
        "rejectedReason": receipt.rejected_reason or None,
        "advice": f"`odf rejected list {entry.alias}` lists the rejected rows" if receipt.rejected else None,
        "head": receipt.head or None,
        "error": {key: value for key, value in error.items() if value} if receipt.code else None,
    }
