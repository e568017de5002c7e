"""A prefix in an S3 bucket. Only this module calls the SDK, and only it retries requests.

The SDK's own retries are off: they would hide that a conditional PUT which was refused may have succeeded before.
"""

import contextlib
import hashlib
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from itertools import islice
from pathlib import Path
from time import monotonic, sleep
from typing import Any, BinaryIO, Final, TypeVar
from uuid import uuid4
from xml.etree.ElementTree import ParseError

import structlog
import urllib3
from minio import Minio
from minio.credentials.providers import AWSConfigProvider, Provider, StaticProvider
from minio.datatypes import Object, Part
from minio.deleteobjects import DeleteError, DeleteObject
from minio.error import InvalidResponseError, MinioException, S3Error, ServerError

from odf_common.adapters.networks import Pools
from odf_common.adapters.s3.location import S3Access, S3Location
from odf_common.errors import StorageUnavailable
from odf_common.metadata.scalars import Timestamp
from odf_common.ports.clock import Backoff
from odf_common.ports.store import DownloadUrl

PART_BYTES: Final = 16 << 20  # files above this size are uploaded in parts
MAX_KEYS_PER_REQUEST: Final = 1000  # S3 lists and deletes at most this many keys at once
CHUNK_BYTES: Final = 1 << 20
MAX_REQUEST_ATTEMPTS: Final = 5
RETRY_SECONDS: Final = 10.0  # from the first attempt on; a server that is silent is not asked five times
REQUEST_BACKOFF: Final = Backoff(first=0.1, most=2.0)
READ_SECONDS: Final = 8.0  # between two packets
TIMEOUT: Final = urllib3.Timeout(connect=5.0, read=READ_SECONDS)
MAX_CONNECTIONS: Final = 32  # kept open for each process
PRESIGNED_FOR: Final = timedelta(hours=1)
ANSWER_BYTES: Final = 8 << 20  # all but objects; a page of the longest keys has half of it
NAMES_LIMIT: Final = 1_000_000  # at the top of a prefix

_ABSENT: Final = frozenset({"NoSuchKey"})
_UNMET: Final = frozenset({"PreconditionFailed"})
_REFUSED: Final = frozenset(
    {"AccessDenied", "ExpiredToken", "InvalidAccessKeyId", "InvalidToken", "SignatureDoesNotMatch"}
)
# Not carried out, but a later attempt may be. In addition to all answers of status 429 and from 500 on.
_PASSING: Final = frozenset(
    {
        "BadDigest",
        "ConditionalRequestConflict",
        "NoSuchUpload",
        "OperationAborted",
        "RequestTimeout",
        "SlowDown",
    }
)
_ERRORS: Final = (MinioException, urllib3.exceptions.HTTPError, ParseError, ValueError)

log = structlog.stdlib.get_logger(__name__)
T = TypeVar("T")

_NO_LISTING: Final = frozenset({"AccessDenied", "NotImplemented"})  # then uploads are started again


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredObject:
    """The bytes of an object, and the ETag of the version that was read."""

    content: bytes
    etag: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedObject:
    """An object in a listing: its key relative to the prefix, and its size in bytes."""

    name: str
    size: int


class ObjectDenied(StorageUnavailable):
    """Access is denied, or the object does not exist: a server says so only to clients that may list the bucket."""


class _Absent(Exception):
    """The object does not exist."""


class _Unmet(Exception):
    """The condition of a conditional PUT was not met."""

    def __init__(self, *, is_certain: bool) -> None:
        super().__init__()
        self.is_certain = is_certain  # False: an earlier attempt may have been carried out


class _TooLong(ValueError):
    """A server's response is longer than any valid response of its kind."""


class _Connections(Pools):
    """Connections to an untrusted server: they limit the length of responses, which the SDK would read to the end."""

    def urlopen(  # type: ignore[override]
        self, method: str, url: str, *, preload_content: bool = True, **options: Any
    ) -> urllib3.BaseHTTPResponse:
        """Return a response whose body is read, unless it is an object to be streamed; raises `_TooLong`."""
        response = super().urlopen(method, url, preload_content=False, **options)
        if not preload_content and response.status < HTTPStatus.MULTIPLE_CHOICES:
            return response
        content = response.read(ANSWER_BYTES + 1)
        if len(content) > ANSWER_BYTES:
            response.close()
            raise _TooLong(f"its answer has more than {ANSWER_BYTES:,} bytes")
        response.release_conn()
        return urllib3.HTTPResponse(content, headers=response.headers, status=response.status)


class _Client(Minio):
    """The client of the SDK, with a conditional PUT, which its public methods lack."""

    def put_if(self, bucket: str, key: str, content: bytes, condition: Mapping[str, str]) -> None:
        """Store an object in one request if `condition` is met; the server verifies the digest that the SDK adds."""
        self._put_object(bucket, key, content, {"Content-Type": "application/octet-stream", **condition})

    def put_parts(self, bucket: str, key: str, content: BinaryIO) -> None:
        """Store an object by multipart upload; parts of an interrupted upload are not sent again."""
        upload, stored = self._interrupted_upload(bucket, key)
        upload = upload or self._create_multipart_upload(bucket, key, {})
        parts: list[Part] = []
        while part := content.read(PART_BYTES):
            number = len(parts) + 1
            tag = hashlib.md5(part, usedforsecurity=False).hexdigest()  # with encryption, tags are others
            previous = stored.get(number)
            if previous is None or (previous.etag, previous.size) != (tag, len(part)):
                tag = self._upload_part(bucket, key, part, None, upload, number)
            parts.append(Part(number, tag))
        self._complete_multipart_upload(bucket, key, upload, parts)

    def _interrupted_upload(self, bucket: str, key: str) -> tuple[str | None, Mapping[int, Part]]:
        """Return the last incomplete upload of an object and its parts; none if they may not be listed."""
        try:
            uploads = self._list_multipart_uploads(bucket, prefix=key).uploads
            upload = next(
                (upload.upload_id for upload in reversed(uploads) if upload.object_name == key), None
            )
            parts = () if upload is None else self._list_parts(bucket, key, upload).parts
        except S3Error as error:
            if error.code not in _NO_LISTING:
                raise
            return None, {}
        return upload, {part.part_number: part for part in parts}


class Bucket:
    """The objects below one prefix of a bucket; thread-safe.

    Methods raise `StorageUnavailable` when a request fails and no retry is left; they raise no errors of the SDK.
    """

    def __init__(self, location: S3Location, access: S3Access) -> None:
        """Use an existing bucket; nothing is sent before the first call."""
        self.location = location
        self._endpoint = location.endpoint or access.endpoint
        self.is_anonymous = access.access_key is None and access.credentials_file is None
        self._client = _client(location, access)

    def read(self, name: str, *, limit: int | None = None) -> StoredObject | None:
        """Return an object, or its first `limit` bytes; None if it does not exist."""

        def get() -> StoredObject:
            with self._open(name) as response:
                content = response.read(limit)
                return StoredObject(content=content, etag=response.headers.get("etag", "").strip('"'))

        with contextlib.suppress(_Absent):
            return self._retry(get, name)
        return None

    def size(self, name: str) -> int | None:
        """Return the size of an object in bytes; None if the object does not exist."""
        with contextlib.suppress(_Absent):
            stat = self._retry(
                lambda: self._client.stat_object(self.location.bucket, self.location.key(name)), name
            )
            return stat.size
        return None

    def presign(self, name: str) -> DownloadUrl:
        """Return a presigned URL with which anyone can read the object for an hour, even in a private bucket."""

        def sign() -> DownloadUrl:
            bucket, key = self.location.bucket, self.location.key(name)
            now = datetime.now(UTC).replace(microsecond=0)  # as the URL has it
            url = self._client.presigned_get_object(bucket, key, PRESIGNED_FOR, request_date=now)
            return DownloadUrl(url=str(url), expires_at=Timestamp.from_datetime(now + PRESIGNED_FOR))

        return self._retry(sign, name)

    def chunks(self, name: str, start: int = 0) -> Iterator[bytes] | None:
        """Return the bytes of an object from position `start` on, in chunks as they arrive; None if it does not exist.

        If the connection breaks, `StorageUnavailable` is raised after all bytes that arrived; the caller
        may continue there.
        """
        key = self.location.key(name)
        with contextlib.suppress(_Absent):
            response = self._retry(
                lambda: self._client.get_object(self.location.bucket, key, offset=start), name
            )
            return self._pieces(response, name)
        return None

    def _pieces(self, response: urllib3.BaseHTTPResponse, name: str) -> Iterator[bytes]:
        try:
            while chunk := response.read1(CHUNK_BYTES):  # what has arrived before the connection breaks, too
                yield chunk
        except urllib3.exceptions.HTTPError as error:
            raise self._fault(name, error) from error
        finally:
            response.close()
            response.release_conn()

    def download(self, name: str, file: Path) -> bool:
        """Write an object to a local file, which is not synced; return whether the object exists."""

        def get() -> None:
            with self._open(name, target.tell()) as response:
                for chunk in response.stream(CHUNK_BYTES):  # raises if it is shorter than announced
                    target.write(chunk)

        with contextlib.suppress(_Absent), file.open("wb") as target:
            self._retry(get, name, progress=target.tell)
            return True
        return False

    def put(self, name: str, content: bytes, *, replacing: str | None = None) -> bool:
        """Store an object if its ETag is `replacing` (None: if it does not exist); return whether it was stored.

        If the response to an attempt was lost, the stored content is compared to find out.
        """
        condition = {"If-None-Match": "*"} if replacing is None else {"If-Match": f'"{replacing}"'}
        bucket, key = self.location.bucket, self.location.key(name)
        try:
            self._retry(lambda: self._client.put_if(bucket, key, content, condition), name)
        except _Absent:  # with If-Match
            return False
        except _Unmet as error:
            if error.is_certain:
                return False
            stored = self.read(name)
            return stored is not None and stored.content == content
        return True

    def upload(self, name: str, file: Path) -> bool:
        """Store a file unless the object exists; return whether it was stored.

        A large file is sent in parts, which become visible together when all of them are uploaded.
        """
        with file.open("rb") as content:
            return self.upload_from(name, content, file.stat().st_size)

    def upload_from(self, name: str, content: BinaryIO, size: int) -> bool:
        """Store the first `size` bytes of `content`, which must be seekable, in the same way as `upload`."""
        content.seek(0)
        if size <= PART_BYTES:
            return self.put(name, content.read(size))
        if self.size(name) is not None:
            return False

        is_first = True

        def put() -> None:
            nonlocal is_first
            if not is_first and self.size(name) == size:  # only the answer to its completion was lost
                return
            is_first = False
            content.seek(0)
            self._client.put_parts(self.location.bucket, self.location.key(name), content)

        self._retry(put, name, progress=content.tell)
        stored = self.size(name)
        if stored != size:
            raise self._unavailable(name, f"{size} bytes were sent and {stored} are stored")
        return True

    def objects(self, prefix: str) -> Iterator[ListedObject]:
        """Yield all objects whose names start with `prefix`, ascending by name."""
        start = len(self.location.key(""))
        after: str | None = None
        while True:
            page = self._page(prefix, after)
            for obj in page:
                yield ListedObject(name=str(obj.object_name)[start:], size=obj.size or 0)
            if len(page) < MAX_KEYS_PER_REQUEST:
                return
            last = str(page[-1].object_name)
            if after is not None and last <= after:
                raise self._unavailable(prefix, "the pages of its list do not continue each other")
            after = last

    def _page(self, prefix: str, after: str | None) -> list[Object]:
        bucket, key = self.location.bucket, self.location.key(prefix)

        def ask() -> list[Object]:
            objects = self._client.list_objects(bucket, key, recursive=True, start_after=after)
            return list(islice(objects, MAX_KEYS_PER_REQUEST))  # one request

        return self._retry(ask, prefix)

    def has_any(self, prefix: str) -> bool:
        """Return whether any object's name starts with `prefix`; False if listing is not allowed."""
        bucket, key = self.location.bucket, self.location.key(prefix)

        def ask() -> bool:
            try:
                return any(self._client.list_objects(bucket, key, recursive=True))
            except S3Error as error:
                if error.code not in _NO_LISTING:
                    raise
                return False

        return self._retry(ask, prefix)

    def folders(self) -> Iterator[str]:
        """Yield the first path segments of all names with more than one segment."""
        start = self.location.key("")

        def ask() -> list[str]:
            names = []
            for number, obj in enumerate(self._client.list_objects(self.location.bucket, start)):
                if number == NAMES_LIMIT:
                    raise _TooLong(f"it lists more than {NAMES_LIMIT:,} names")
                if obj.is_dir:
                    names.append(str(obj.object_name)[len(start) :].removesuffix("/"))
            return names

        yield from self._retry(ask, "")

    def remove(self, names: Iterable[str]) -> None:
        """Remove objects; names that do not exist are ignored."""
        keys = [self.location.key(name) for name in names]
        for first in range(0, len(keys), MAX_KEYS_PER_REQUEST):
            self._remove_page(keys[first : first + MAX_KEYS_PER_REQUEST])

    def _remove_page(self, keys: Sequence[str]) -> None:
        def ask() -> list[DeleteError]:
            return list(self._client.remove_objects(self.location.bucket, map(DeleteObject, keys)))

        for fault in self._retry(ask, ""):
            raise self._unavailable(str(fault.name), f"it was not removed: {fault.code} {fault.message}")

    def require_usable(self) -> None:
        """Raise `StorageUnavailable` unless the bucket can be listed and written, and supports conditional PUTs."""
        self._page("", None)
        probe = f"probe-{uuid4().hex}"
        try:
            is_obeyed = self._obeys_conditions(probe)
        finally:
            self.remove([probe])
        if not is_obeyed:
            why = "the server does not obey the conditions of a PUT (If-Match, If-None-Match)"
            raise self._unavailable(
                "", why, "use a server that supports them: without them, commits would be lost"
            )

    def _obeys_conditions(self, probe: str) -> bool:
        stored = self.read(probe) if self.put(probe, b"1") else None
        if stored is None or not self.put(probe, b"2", replacing=stored.etag):
            return False  # a proxy may weaken tags (W/"…"), which then match nothing
        return not self.put(probe, b"3") and not self.put(probe, b"3", replacing=stored.etag)

    @contextlib.contextmanager
    def _open(self, name: str, start: int = 0) -> Iterator[urllib3.BaseHTTPResponse]:
        response = self._client.get_object(self.location.bucket, self.location.key(name), offset=start)
        try:
            yield response
        finally:
            response.close()
            response.release_conn()

    def _retry(self, action: Callable[[], T], name: str, *, progress: Callable[[], int] = lambda: 0) -> T:
        """Return the result of the first attempt of `action` that succeeds.

        The number of attempts and their time are limited, and counted again whenever `progress` (bytes) reaches
        a new maximum.
        """
        is_certain = True
        attempt, reached, give_up_at = 0, progress(), monotonic() + RETRY_SECONDS
        while True:
            attempt += 1
            try:
                return action()
            except _ERRORS as error:
                code = error.code if isinstance(error, S3Error) else None
                if code in _ABSENT:
                    raise _Absent from error
                if code in _UNMET:
                    raise _Unmet(is_certain=is_certain) from error
                if progress() > reached:
                    attempt, reached, give_up_at = 1, progress(), monotonic() + RETRY_SECONDS
                if attempt == MAX_REQUEST_ATTEMPTS or monotonic() > give_up_at or not _is_passing(error):
                    raise self._fault(name, error) from error
                is_certain = is_certain and code in _PASSING
                log.debug("retrying a request to the bucket", key=name, attempt=attempt, why=str(error))
            sleep(REQUEST_BACKOFF.pause(attempt))

    def _fault(self, name: str, error: Exception) -> StorageUnavailable:
        match error:
            case S3Error(code="NoSuchBucket"):
                return self._unavailable(name, "the bucket does not exist", "create it, or correct ODF_STORE")
            case S3Error(code=code) if code in _REFUSED:
                remedy = "check the credentials (ODF_S3_…) and what the bucket's policy allows them"
                if self.is_anonymous:
                    remedy = f"none were sent: set ODF_S3_ACCESS_KEY, and ODF_S3_ENDPOINT={self._endpoint}"
                fault = self._unavailable(name, f"access is denied ({code})", remedy)
                is_denied = code == "AccessDenied"
                return ObjectDenied(file=fault.file, why=fault.why, remedy=remedy) if is_denied else fault
            case S3Error(code="RequestTimeTooSkewed"):
                return self._unavailable(name, "this machine's clock is wrong", "set the clock")
            case S3Error(code=code, message=message):
                return self._unavailable(name, f"{code}: {message}")
            case urllib3.exceptions.SSLError() if _is_distrust(error):
                remedy = f"let SSL_CERT_FILE name the CA certificates that {self._endpoint} has its certificate from"
                return self._unavailable(name, f"the S3 server is not trusted ({_cause(error)})", remedy)
            case urllib3.exceptions.NewConnectionError():
                return self._unavailable(name, f"the S3 server cannot be reached ({_cause(error)})")
            case urllib3.exceptions.TimeoutError():
                return self._unavailable(name, "the S3 server does not answer")
            case urllib3.exceptions.HTTPError():
                return self._unavailable(name, f"the connection to the S3 server broke ({_cause(error)})")
            case _:
                return self._unavailable(name, str(error))

    def _unavailable(self, name: str, why: str, remedy: str | None = None) -> StorageUnavailable:
        remedy = remedy or f"check that {self._endpoint} is an S3 server that runs and can be reached"
        return StorageUnavailable(file=name or str(self.location), why=why, remedy=remedy)


def _is_passing(error: Exception) -> bool:
    """Return whether a retry may succeed."""
    match error:
        case S3Error(code=code, response=response):
            return code in _PASSING or response.status == 429 or response.status >= 500
        case ServerError():
            return error.status_code >= 500
        case urllib3.exceptions.SSLError() if _is_distrust(error):
            return False
        case InvalidResponseError() | urllib3.exceptions.HTTPError() | ParseError():
            return True  # an answer of a proxy, or a broken connection
        case _:
            return False


def _is_distrust(error: Exception) -> bool:
    """Return whether the server's certificate was rejected."""
    return isinstance(error.__cause__ or error.__context__, ssl.SSLCertVerificationError)


def _cause(error: Exception) -> str:
    """Return the operating system's message for the cause of a connection error, if there is one."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = cause.__cause__ or cause.__context__
    return str(error)


def _client(location: S3Location, access: S3Access) -> _Client:
    scheme, _, host = (location.endpoint or access.endpoint).partition("://")
    client = _Client(
        host,
        secure=scheme == "https",
        region=access.region,
        credentials=_provider(access),
        http_client=_Connections(timeout=TIMEOUT, maxsize=MAX_CONNECTIONS, retries=False),
    )
    if access.addressing == "path":
        client.disable_virtual_style_endpoint()  # type: ignore[no-untyped-call]
    elif access.addressing == "virtual":
        client.enable_virtual_style_endpoint()  # type: ignore[no-untyped-call]
    return client


def _provider(access: S3Access) -> Provider | None:
    if access.access_key is not None:
        return StaticProvider(access.access_key, access.secret_key or "", access.session_token)
    if access.credentials_file is not None:
        return AWSConfigProvider(str(access.credentials_file), "default")
    return None  # anonymous
