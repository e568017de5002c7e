"""A dataset that a node serves by the Simple Transfer Protocol, or any server as static files (wire-facts §8.2)."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any, Final, Self

import urllib3

from odf_common.adapters.networks import CONNECT_SECONDS, PUBLIC, AddressForbidden, Networks, cause_of
from odf_common.codec.signature import SIZE_LIMIT
from odf_common.errors import InvalidInput, NotFound, Unavailable
from odf_common.hashing.multihash import Multihash
from odf_common.metadata.scalars import Timestamp
from odf_common.ports.store import MAX_REFERENCE_BYTES, ObjectKind
from odf_sync.access.remote_login import (
    AccessDenied,
    BucketForbidden,
    NothingVisible,
    ObjectForbidden,
    authorization,
    denial,
)
from odf_sync.repositories.node_client import MAX_RETRY_AFTER_SECONDS, NodeClient, TooSlow, discard
from odf_sync.repositories.remote_dataset import (
    BLOCK_LIMIT,
    CHUNK_BYTES,
    PACK_VERSION,
    PACKS_HEADER,
    Sink,
    blocks_in,
)
from odf_sync.smart import messages as msg
from odf_sync.smart.archive import BLOCKS_BYTES_LIMIT
from odf_sync.smart.connection import PULLED, NodeSession, connect, received_blocks
from odf_sync.smart.exchange import PULL

HEAD: Final = "refs/head"
READ_TIMEOUT: Final = urllib3.Timeout(connect=CONNECT_SECONDS, read=60)  # seconds
OK, PARTIAL, NOT_FOUND = 200, 206, 404
FORBIDDEN: Final = 403
DENIED: Final = (401, FORBIDDEN)
S3_HEADER: Final = "x-amz-request-id"  # of all answers of S3


class Retry(urllib3.Retry):
    """Retries of requests, except of those that timed out: the next attempt would probably wait as long."""

    def increment(self, *arguments: Any, **named: Any) -> Self:  # noqa: ANN401 - passed on
        """Return the remaining retries; raises the error of the last attempt if there are none, and after a timeout."""
        error = named.get("error")
        if isinstance(error, urllib3.exceptions.ReadTimeoutError):
            raise error
        return super().increment(*arguments, **named)


READ_RETRY: Final = Retry(
    total=4,
    backoff_factor=0.3,
    status_forcelist=(502, 503, 504),
    retry_after_max=MAX_RETRY_AFTER_SECONDS,
)


class UnexpectedStatus(Unavailable):
    """A server responded with an unexpected status, which is neither a success, nor 404, nor a denial of access."""

    status: int


UNUSABLE: Final = (AddressForbidden, AccessDenied, NotFound, UnexpectedStatus)


class UrlExpired(Unavailable):
    """A URL that a node gave for an object has expired; `what` is the URL without its signature."""

    MESSAGE = "{what} was valid until {expires_at}, and the transfer took longer"
    ADVICE = "run the same command again: what has arrived is not transferred again"

    expires_at: str
    """The time at which the URL expired, in RFC 3339."""


def by_url_or_place(
    location: msg.TransferUrl, by_url: Callable[[], None], by_place: Callable[[], None]
) -> None:
    """Transfer an object by the URL that the node gave for it, or else by its path below the dataset's URL.

    A node may use another host name for itself than the user does: kamu gives http://127.0.0.1:P/… to a client of
    http://localhost:P. Whether that is the same node cannot be found out without connecting to an address that the
    other node chose. So the URL is not used if its address is private. At another origin it gets no token, and may deny
    access. The URL of an object store may have expired. If both attempts fail, raises `UrlExpired` for an expired URL,
    else the error of the URL.
    """
    try:
        by_url()
    except UNUSABLE as unusable:
        try:
            by_place()
        except UNUSABLE as error:
            if location.expires_at is not None and _is_past(location.expires_at):
                what = location.url.partition("?")[0]
                raise UrlExpired(what=what, expires_at=location.expires_at) from unusable
            raise unusable from error


@contextmanager
def _files_may_be_missing() -> Iterator[None]:
    """Raise `ObjectForbidden` for status 403: the head was readable, so the file may be missing instead."""
    try:
        yield
    except AccessDenied as error:
        if error.status != FORBIDDEN:
            raise
        raise ObjectForbidden(what=error.what) from error


def _is_past(text: str) -> bool:
    """Return whether a timestamp is in the past; False if another node has written it in an unknown format."""
    try:
        return Timestamp.parse(text) < Timestamp.from_datetime(datetime.now(UTC))
    except InvalidInput:
        return False


class HttpDataset:
    """A remote dataset that is read over HTTP by the Simple Transfer Protocol."""

    def __init__(self, url: str, token: str | None = None, networks: Networks = PUBLIC) -> None:
        """Use the dataset at a URL, with a bearer token if one is given. No request is sent yet.

        Redirects to other origins must lead to public addresses or into `networks`.
        """
        self.url = url
        self._base = url.rstrip("/") + "/"
        self.sends_packs = False
        """Whether the server sends packs (many blocks in one response); known after the head was read."""
        self.gives_urls = False
        """Whether Smart exchanges with the server give URLs of a bucket for objects; known after the head was read."""
        self._sends_signatures = False
        self._networks = networks
        self._client = NodeClient(self._base, networks, timeout=READ_TIMEOUT, retries=READ_RETRY)
        self._headers = authorization(token)
        self.is_public: bool | None = None
        """Whether everyone may read the dataset; None before the head was read, or if the server does not say."""

    def head(self) -> Multihash:
        """Return the head; raises `NotFound` if the dataset does not exist or is not visible to this client."""
        with self._opened_head() as answer:
            text = self.content(answer, HEAD, MAX_REFERENCE_BYTES)
            return self._read_head(text, answer.headers)

    def head_by(self, session: NodeSession) -> Multihash | None:
        """Return the head, None if there is none, over a connection that the next exchange of `session` reuses."""
        document = session.document(self._base + HEAD, self._headers, MAX_REFERENCE_BYTES)
        if document is None:
            with suppress(NotFound):
                return self.head()
            return None
        content, headers = document
        return None if content is None else self._read_head(content, headers)

    def _read_head(self, text: bytes, headers: Mapping[str, str]) -> Multihash:
        """Store the capabilities that the server announces in the headers of the head, and return the head."""
        self.sends_packs = headers.get(PACKS_HEADER) == PACK_VERSION
        self.gives_urls = headers.get(msg.DIRECT_HEADER) == msg.YES
        said = headers.get(msg.EVERYONE_HEADER)
        self.is_public = None if said is None else said == msg.YES
        self._sends_signatures = headers.get(msg.SIGNATURES_HEADER) == msg.YES
        try:
            return Multihash.parse(text.decode())
        except (UnicodeDecodeError, InvalidInput) as error:
            raise InvalidInput(text=f"not a hash: {text[:80]!r}", where=f"{self._base}{HEAD}") from error

    def is_private(self) -> bool:
        """Return whether the dataset is private; if the server does not say, whether a token is used."""
        return bool(self._headers) if self.is_public is None else not self.is_public

    def is_read_by_everyone(self) -> bool:
        """Return whether everyone may read the dataset; the head must have been read.

        If the server did not say, the head is requested again without a token.
        """
        if self.is_public is not None or not self._headers:
            return self.is_public is not False
        try:
            HttpDataset(self.url, networks=self._networks).head()
        except (NotFound, AccessDenied, InvalidInput):  # or the page to log in at, after a redirect
            return False
        return True

    def _opened_head(self) -> urllib3.BaseHTTPResponse:
        try:
            return self.get(HEAD)
        except NotFound as error:
            is_logged_in = bool(self._headers)
            raise NothingVisible(
                what=f"dataset {self._base[:-1]}", url=self._base, is_logged_in=is_logged_in
            ) from error

    def block(self, name: Multihash) -> bytes:
        """Return the bytes of a block; raises `NotFound`, and `InvalidInput` if they exceed `BLOCK_LIMIT`."""
        path = f"{ObjectKind.BLOCK}/{name}"
        with _files_may_be_missing(), self.get(path) as answer:
            return self.content(answer, path, BLOCK_LIMIT)

    def pack(self, newest: Multihash, after: Multihash | None) -> Iterator[bytes]:
        """Yield blocks from one response, if the server has announced packs."""
        if self.sends_packs:
            yield from self._pack("packs", newest, after, BLOCK_LIMIT)

    def signatures(self, blocks: Sequence[Multihash], after: Multihash | None) -> Iterator[bytes]:
        """Yield signatures from one response, if the server has announced that it has signatures."""
        if self._sends_signatures:
            yield from self._pack("signature-packs", blocks[0], after, SIZE_LIMIT)

    def _pack(self, kind: str, newest: Multihash, after: Multihash | None, most: int) -> Iterator[bytes]:
        path = f"{kind}/{newest}" + ("" if after is None else f"?after={after}")
        try:
            answer = self.get(path)
        except NotFound:
            return
        try:
            yield from blocks_in(_chunks(answer, self._base + path), most=most)
        finally:
            answer.close()  # the connection too, unless all was read

    def stored_blocks(self, newest: Multihash, after: Multihash | None) -> Iterator[bytes]:
        """Yield blocks by the Smart protocol, if the server supports it.

        kamu re-encodes old blocks in the Simple protocol, which changes their hashes.
        """
        blocks: dict[Multihash, bytes] = {}
        with suppress(NotFound), connect(f"{self._base}pull", PULL, self._headers) as connection:
            # By force: if `after` is not in the chain there, all of it is sent.
            request = msg.PullRequest(begin_after=after, stop_at=newest, force_update_if_diverged=True)
            connection.send(request)
            plan = connection.expect(msg.PullAccepted).transfer_plan
            if plan.bytes_in_raw_blocks <= BLOCKS_BYTES_LIMIT:
                blocks = received_blocks(connection, plan)
            connection.close(PULLED)
        yield from reversed(blocks.values())

    def fetch(self, kind: ObjectKind, name: Multihash, out: Sink, limit: int) -> None:
        """Append the bytes of an object to `out`, from the position of `out` on."""
        with _files_may_be_missing():
            self.download(f"{self._base}{kind}/{name}", self._headers, out, limit)

    def download(self, url: str, headers: Mapping[str, str], out: Sink, limit: int) -> None:
        """Download a URL to `out`, from the position of `out` on; raises `InvalidInput` for more than `limit` bytes."""
        start = out.tell()
        with self._request(url, headers, start) as answer:
            skipped = 0 if answer.status == PARTIAL else start  # a server may ignore the range
            position = start - skipped
            for chunk in _chunks(answer, url):
                position += len(chunk)
                if position > limit:
                    raise InvalidInput(text=f"more than the declared {limit} bytes", where=url)
                out.write(chunk[skipped:])
                skipped = max(0, skipped - len(chunk))

    def content(self, answer: urllib3.BaseHTTPResponse, path: str, limit: int) -> bytes:
        """Return the body of a response; raises `InvalidInput` if it is longer than `limit` bytes."""
        content = bytearray()
        for chunk in _chunks(answer, self._base + path):
            content += chunk
            if len(content) > limit:
                raise InvalidInput(text=f"longer than {limit} bytes", where=self._base + path)
        return bytes(content)

    def get(self, path: str, start: int = 0) -> urllib3.BaseHTTPResponse:
        """Return the response for a path below the dataset's URL, from byte `start` on, with its body unread."""
        return self._request(self._base + path, self._headers, start)

    def document(self, path: str, limit: int) -> bytes:
        """Return the document at a path, of at most `limit` bytes; raises `NotFound`."""
        with self.get(path) as answer:
            return self.content(answer, path, limit)

    def _request(self, url: str, headers: Mapping[str, str], start: int) -> urllib3.BaseHTTPResponse:
        range_header = {"Range": f"bytes={start}-"} if start else {}
        try:
            answer = self._client.get(url, {**headers, **range_header})
        except urllib3.exceptions.HTTPError as error:
            raise Unavailable(what=url, why=_reason(error)) from error
        if answer.status == OK or (answer.status == PARTIAL and _starts_at(answer, start)):
            return answer
        discard(answer)
        if answer.status == NOT_FOUND:
            raise NotFound(what=url)
        if answer.status in DENIED:
            if S3_HEADER in answer.headers:
                why = f"the bucket denies access (status {answer.status})"
                raise BucketForbidden(what=url, why=why, status=answer.status)
            raise denial(url, answer.status, headers)
        raise UnexpectedStatus(what=url, why=f"status {answer.status}", status=answer.status)


def _chunks(answer: urllib3.BaseHTTPResponse, url: str) -> Iterator[bytes]:
    """Yield the body of a response as it arrives; raises `Unavailable` if the connection is lost."""
    is_empty = True
    while True:
        try:
            chunk = answer.read1(CHUNK_BYTES)
        except urllib3.exceptions.HTTPError as error:
            raise Unavailable(what=url, why=_reason(error)) from error
        if not chunk:
            break
        is_empty = False
        yield chunk
    if is_empty and {"Content-Length", "Transfer-Encoding"}.isdisjoint(answer.headers):
        # The connection was lost within the headers, which http.client takes for their end.
        raise Unavailable(what=url, why="the connection was interrupted")


def _starts_at(answer: urllib3.BaseHTTPResponse, start: int) -> bool:
    return answer.headers.get("Content-Range", "").startswith(f"bytes {start}-")


def _reason(error: Exception) -> str:
    reason = getattr(error, "reason", None) or error
    if isinstance(reason.__cause__, TooSlow):
        return str(reason.__cause__)
    return cause_of(reason)
