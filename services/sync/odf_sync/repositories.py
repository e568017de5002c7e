"""Sources of copies: a node or static server over HTTP, or a folder (wire-facts §6.1, §8.2).

Repositories are not trusted: reads are limited in size here, and hashed by the caller.
"""

import shutil
from pathlib import Path
from typing import BinaryIO, Final, Protocol
from urllib.parse import unquote, urlparse

import urllib3

from odf_common.adapters.local.exported_dataset import FolderDataset
from odf_common.errors import InvalidInput, NotFound, Unavailable
from odf_common.hashing.multihash import Multihash
from odf_common.ports.store import ObjectKind

BLOCK_LIMIT: Final = 64 * 1024 * 1024  # bytes; blocks may hold attachments
REF_LIMIT: Final = 1024  # bytes
CHUNK_BYTES: Final = 1024 * 1024
TIMEOUT: Final = urllib3.Timeout(connect=10, read=60)  # seconds
RETRY: Final = urllib3.Retry(total=4, backoff_factor=0.3, status_forcelist=(502, 503, 504), redirect=3)
OK, NOT_FOUND, UNAUTHENTICATED, UNAUTHORIZED = 200, 404, 401, 403


class Repository(Protocol):
    """One dataset in another place."""

    url: str

    def head(self) -> Multihash:
        """Return the head; raises `NotFound` if the dataset does not exist."""

    def block(self, name: Multihash) -> bytes:
        """Return a block's bytes, unchecked; raises `NotFound`."""

    def fetch(self, kind: ObjectKind, name: Multihash, out: BinaryIO, limit: int) -> None:
        """Write an object's bytes, unchecked, to `out`; raises `InvalidInput` beyond `limit` bytes, and `NotFound`."""


def repository(url: str) -> Repository:
    """Return the repository at a URL; raises `InvalidInput` unless its scheme is http, https or file."""
    scheme = urlparse(url).scheme
    if scheme in ("http", "https"):
        return HttpRepository(url)
    if scheme == "file":
        return FolderRepository(url)
    raise InvalidInput(text=f"expected http://, https:// or file://, got {url!r}")


class FolderRepository:
    """A folder in the common layout."""

    def __init__(self, url: str) -> None:
        """Open the folder; raises `NotFound` if it does not exist."""
        self.url = url
        self._store = FolderDataset(Path(unquote(urlparse(url).path)))

    def head(self) -> Multihash:
        """Return the head; raises `NotFound`."""
        found = self._store.head()
        if found is None:
            raise NotFound(what=f"{self.url} (it has no refs/head)")
        return found

    def block(self, name: Multihash) -> bytes:
        """Return a block's bytes."""
        if self._store.size(ObjectKind.BLOCK, name) > BLOCK_LIMIT:
            raise InvalidInput(text=f"longer than {BLOCK_LIMIT} bytes", where=f"block {name}")
        return self._store.read_block(name)

    def fetch(self, kind: ObjectKind, name: Multihash, out: BinaryIO, limit: int) -> None:
        """Copy an object."""
        size = self._store.size(kind, name)
        if size > limit:
            raise InvalidInput(text=f"{size} bytes, but declared {limit}", where=f"{kind}/{name}")
        with self._store.open(kind, name) as file:
            shutil.copyfileobj(file, out, CHUNK_BYTES)


class HttpRepository:
    """A node's Simple Transfer Protocol, or any server of static files."""

    def __init__(self, url: str) -> None:
        """Use the repository at a URL; sends no request yet."""
        self.url = url
        self._base = url.rstrip("/") + "/"
        self._pool = urllib3.PoolManager(num_pools=2, maxsize=10, timeout=TIMEOUT, retries=RETRY)

    def head(self) -> Multihash:
        """Return the head; raises `NotFound`."""
        text = self._read("refs/head", REF_LIMIT)
        try:
            return Multihash.parse(text.decode())
        except (UnicodeDecodeError, InvalidInput) as error:
            raise InvalidInput(text=f"not a hash: {text[:80]!r}", where=f"{self._base}refs/head") from error

    def block(self, name: Multihash) -> bytes:
        """Return a block's bytes."""
        return self._read(f"{ObjectKind.BLOCK}/{name}", BLOCK_LIMIT)

    def fetch(self, kind: ObjectKind, name: Multihash, out: BinaryIO, limit: int) -> None:
        """Download an object."""
        path = f"{kind}/{name}"
        taken = 0
        with self._get(path) as answer:
            for chunk in self._chunks(answer, path):
                taken += len(chunk)
                if taken > limit:
                    raise InvalidInput(text=f"more than the declared {limit} bytes", where=self._base + path)
                out.write(chunk)

    def _read(self, path: str, limit: int) -> bytes:
        content = bytearray()
        with self._get(path) as answer:
            for chunk in self._chunks(answer, path):
                content += chunk
                if len(content) > limit:
                    raise InvalidInput(text=f"longer than {limit} bytes", where=self._base + path)
        return bytes(content)

    def _get(self, path: str) -> urllib3.BaseHTTPResponse:
        url = self._base + path
        try:
            answer = self._pool.request("GET", url, preload_content=False)
        except urllib3.exceptions.HTTPError as error:
            raise Unavailable(what=url, why=_reason(error)) from error
        if answer.status == OK:
            return answer
        answer.release_conn()
        if answer.status == NOT_FOUND:
            raise NotFound(what=url)
        if answer.status in (UNAUTHENTICATED, UNAUTHORIZED):
            raise Unavailable(what=url, why=f"the server requires a login (status {answer.status})")
        raise Unavailable(what=url, why=f"status {answer.status}")

    def _chunks(self, answer: urllib3.BaseHTTPResponse, path: str) -> "_Chunks":
        return _Chunks(answer, self._base + path)


class _Chunks:
    """The body of a response in chunks; a lost connection raises `Unavailable`."""

    def __init__(self, answer: urllib3.BaseHTTPResponse, url: str) -> None:
        self._pieces = answer.stream(CHUNK_BYTES)
        self._url = url

    def __iter__(self) -> "_Chunks":
        return self

    def __next__(self) -> bytes:
        try:
            return next(self._pieces)
        except urllib3.exceptions.HTTPError as error:
            raise Unavailable(what=self._url, why=_reason(error)) from error


def _reason(error: Exception) -> str:
    cause = getattr(error, "reason", None) or error
    return str(cause).rpartition(": ")[2]
