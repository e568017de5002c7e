"""Uploads of objects, `PUT data/<hash>` and `PUT checkpoints/<hash>` (wire-facts §8.2), and of archives of blocks.

An object belongs to a dataset once a block refers to it. Objects are even accepted for a dataset that is being pushed
and has no name yet. An archive of blocks belongs to no dataset before it is read. It is accepted for a name only while
a push to that name may refer to it, so that nothing else can fill the disk.

The bytes of an interrupted upload are kept. A client that supports it asks for their number, by an empty body with
`Content-Range: bytes */SIZE`, and continues there, with `Content-Range: bytes FIRST-LAST/SIZE`.
"""

import asyncio
import hashlib
import re
import time
from collections import Counter as Tally
from collections.abc import Callable, Hashable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Final

from aiohttp import hdrs, web

from odf_common.hashing.multihash import Multihash
from odf_common.identity.dataset_refs import DatasetId
from odf_common.ports.store import ObjectKind
from odf_sync.access.rate_limits import Pace, pace_of_body, shares_of_bodies
from odf_sync.smart.archive import ARCHIVE_BYTES_LIMIT
from odf_sync.transfer.partial_files import UPLOADED, PartialFile, own_partial_file, partial_file
from odf_sync.transfer.push_source import OFFSET

Listener = Callable[[ObjectKind, Multihash], None]

# An exchange that was interrupted takes uploads for this long: its client does not send them again.
LINGERING_SECONDS: Final = 60.0


@dataclass(eq=False, slots=True)
class _Exchange:
    archive_bytes: int
    """The maximum size of the archive in bytes."""
    archive: Multihash | None = None
    """The hash of the archive that the client uploads, None before its upload begins."""
    until: float = inf
    """The time of expiry: after the end of the exchange, interrupted uploads may still be continued for a while."""


class OpenPushes:
    """The pushes in progress, by the dataset name that they push to."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._datasets: dict[str, list[DatasetId]] = {}
        self._ended: dict[str, tuple[DatasetId, float]] = {}
        self._exchanges: dict[str, list[_Exchange]] = {}
        self._received: Tally[str] = Tally()
        self._listeners: dict[DatasetId, list[Listener]] = {}

    def dataset(self, alias: str) -> DatasetId | None:
        """Return the dataset that is being pushed to a name, or was within `LINGERING_SECONDS`, else None."""
        reserved = self._datasets.get(alias.lower())
        if reserved:
            return reserved[-1]
        dataset, until = self._ended.get(alias.lower(), (None, 0.0))
        return dataset if self._clock() < until else None

    def are_of_others(self, alias: str, dataset: DatasetId) -> bool:
        """Return whether another dataset is being pushed to this name."""
        return any(other != dataset for other in self._datasets.get(alias.lower(), ()))

    def bytes_received(self, alias: str) -> int:
        """Return the number of bytes of objects that were received for the pushes to a name."""
        return self._received[alias.lower()]

    def note_received(self, alias: str, count: int) -> None:
        """Add to the number of received bytes, if a push to the name is in progress."""
        if alias.lower() in self._datasets:
            self._received[alias.lower()] += count

    @contextmanager
    def exchanging(self, alias: str, archive_bytes: int = ARCHIVE_BYTES_LIMIT) -> Iterator[None]:
        """Accept the upload of one archive for a name, of at most `archive_bytes`, during the `with` block.

        If the upload has begun, it can be continued for `LINGERING_SECONDS` after that.
        """
        now = self._clock()
        remaining = {
            name: [exchange for exchange in exchanges if now < exchange.until]
            for name, exchanges in self._exchanges.items()
        }
        self._exchanges = {name: exchanges for name, exchanges in remaining.items() if exchanges}
        exchange = _Exchange(archive_bytes=min(archive_bytes, ARCHIVE_BYTES_LIMIT))
        self._exchanges.setdefault(alias.lower(), []).append(exchange)
        try:
            yield
        finally:
            exchange.until = self._clock() + (0 if exchange.archive is None else LINGERING_SECONDS)

    def archive_limit(self, alias: str, name: Multihash) -> int | None:
        """Return the maximum size in bytes of an archive uploaded for a name, None if it is not accepted.

        The first call for a hash assigns it to an exchange, which accepts no other archive.
        """
        now = self._clock()
        exchanges = [exchange for exchange in self._exchanges.get(alias.lower(), ()) if now < exchange.until]
        for wanted in (name, None):
            for exchange in exchanges:
                if exchange.archive == wanted:
                    exchange.archive = name
                    return exchange.archive_bytes
        return None

    def archives(self, alias: str) -> tuple[Multihash, ...]:
        """Return the hashes of the archives that are accepted for a name and may have been uploaded."""
        exchanges = self._exchanges.get(alias.lower(), ())
        return tuple(exchange.archive for exchange in exchanges if exchange.archive is not None)

    def note_object(self, dataset: DatasetId, kind: ObjectKind, name: Multihash) -> None:
        """Notify the listeners of a dataset that an object has been stored."""
        for listener in tuple(self._listeners.get(dataset, ())):
            listener(kind, name)

    @contextmanager
    def listening(self, dataset: DatasetId, listener: Listener) -> Iterator[None]:
        """Call `listener` for each object of a dataset that is stored during the `with` block; from any thread."""
        listeners = self._listeners.setdefault(dataset, [])
        listeners.append(listener)
        try:
            yield
        finally:
            listeners.remove(listener)
            if not listeners:
                del self._listeners[dataset]

    @contextmanager
    def pushing(self, alias: str, dataset: DatasetId) -> Iterator[None]:
        """Accept objects of a dataset that is pushed to a name during the `with` block, and for a while after it."""
        alias = alias.lower()
        datasets = self._datasets.setdefault(alias, [])
        datasets.append(dataset)
        try:
            yield
        finally:
            datasets.remove(dataset)
            if not datasets:
                del self._datasets[alias]
                del self._received[alias]
            now = self._clock()
            self._ended = {name: ended for name, ended in self._ended.items() if now < ended[1]}
            self._ended[alias] = (dataset, now + LINGERING_SECONDS)


CHUNK_BYTES: Final = 1024 * 1024
MAX_OBJECT_BYTES: Final = 5 * 1024**3  # of one object, as in object stores
IDENTITY: Final = "identity"
RETRY_AFTER: Final = {"Retry-After": "1"}
_RANGE: Final = re.compile(
    r"bytes (?:(?P<first>\d{1,15})-(?P<last>\d{1,15})|\*)/(?P<size>\d{1,15})", re.ASCII
)


def upload_file(home: Path, alias: str, name: Multihash) -> Path:
    """Return the file for a partial upload. Each dataset has its own files, as its editors trust each other."""
    return home / UPLOADED / f"{hashlib.sha3_256(alias.lower().encode()).hexdigest()[:32]}-{name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedUpload:
    """The file that an upload is written to, and the functions that check for and store the complete object."""

    file: Path
    name: Multihash
    has: Callable[[], bool]
    """Returns whether the object has been stored already."""
    take: Callable[[Path], None]
    most: int = MAX_OBJECT_BYTES
    note: Callable[[int], object] = int
    """Called with the number of bytes whenever some arrive."""

    async def store_if_complete(self, file: PartialFile) -> bool:
        """Store the file if its content has the expected hash, else delete it; returns whether it was stored."""
        if file.hash() != self.name:
            file.path.unlink()
            return False
        await asyncio.to_thread(self.take, file.path)
        return True


@dataclass(frozen=True, slots=True)
class _Part:
    """The byte range of a body. `first` is None for a request without bytes, which asks how many have arrived."""

    first: int | None
    size: int

    @property
    def is_continued(self) -> bool:
        return self.first != 0


class ObjectUploads:
    """Receives uploads: objects are stored durably if their bytes have the expected hash."""

    def __init__(self) -> None:
        self._received = shares_of_bodies()

    async def receive(self, request: web.Request, upload: ExpectedUpload, caller: Hashable) -> web.Response:
        """Receive the body of a request, or respond with the number of bytes that an earlier request has brought."""
        length = request.content_length
        if length is None:
            return _refusal(411, "Content-Length is required")
        if request.headers.get(hdrs.CONTENT_ENCODING, IDENTITY).lower() != IDENTITY:
            return _refusal(415, f"{hdrs.CONTENT_ENCODING} is not supported")
        part = _part(request, length)
        if part is None:
            return _refusal(400, f"{hdrs.CONTENT_RANGE} does not match Content-Length")
        if part.size > upload.most:
            return _refusal(413, f"it may have {upload.most} bytes, not {part.size}")
        with self._received.acquire(caller) as has_room:
            if not has_room:
                return _refusal(503, "too many objects are being received; try again", RETRY_AFTER)
            if part.first is None and await asyncio.to_thread(upload.has):
                return web.Response()
            return await _receive(request, upload, part)


async def _receive(request: web.Request, upload: ExpectedUpload, part: _Part) -> web.Response:
    opened = own_partial_file if part.is_continued else partial_file
    with ExitStack() as stack:
        file = await asyncio.to_thread(stack.enter_context, opened(upload.file.parent, upload.file.name))
        if file is None:
            return _refusal(503, "it is being received from another client", RETRY_AFTER)
        if part.first is None and file.tell() < part.size:
            return web.Response(status=204, headers={OFFSET: str(file.tell())})
        if part.first == 0:
            file.clear()
        elif part.first is not None and part.first != file.tell():
            return _refusal(409, f"{file.tell()} bytes have arrived", {OFFSET: str(file.tell())})
        pace = pace_of_body()
        if not await _write(request, file, pace, upload.note):
            return _refusal(408, pace.too_slow())
        if not await upload.store_if_complete(file):
            return _refusal(400, f"the body hashes to {file.hash()}, not to {upload.name}")
    return web.Response()


def _part(request: web.Request, length: int) -> _Part | None:
    """Return the byte range of the body, or None if the headers contradict each other."""
    text = request.headers.get(hdrs.CONTENT_RANGE)
    if text is None:
        return _Part(0, length)
    match = _RANGE.fullmatch(text)
    if match is None:
        return None
    size = int(match["size"])
    if match["first"] is None:
        return None if length else _Part(None, size)
    first, last = int(match["first"]), int(match["last"])
    return _Part(first, size) if last + 1 == size == first + length else None


async def _write(request: web.Request, file: PartialFile, pace: Pace, note: Callable[[int], object]) -> bool:
    """Append the body to a file; returns False if the client sends nothing for too long, or too slowly."""
    try:
        while chunk := await pace.read(request.content.read(CHUNK_BYTES)):
            note(len(chunk))
            await asyncio.to_thread(file.write, chunk)
    except TimeoutError:
        return False
    except ConnectionError:
        request.content.set_exception(None)  # type: ignore[arg-type] # else it hides what has arrived
        file.write(request.content.read_nowait())
        raise
    return True


def _refusal(status: int, text: str, headers: dict[str, str] | None = None) -> web.Response:
    return web.json_response({"message": text}, status=status, headers=headers)
