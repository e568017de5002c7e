"""Objects that clients send: `PUT data/<hash>` and `PUT checkpoints/<hash>` (wire-facts §8.2), and archives of blocks.

An object belongs to a dataset once a block refers to it; until then nothing leads to it but its hash. What has arrived
of an upload that was interrupted is kept: a client that knows it asks for its size, by an empty body with `Content-
Range:
bytes */SIZE`, and continues there, with `Content-Range: bytes FIRST-LAST/SIZE`.
"""

import asyncio
import hashlib
import re
from collections.abc import Callable, Hashable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from aiohttp import hdrs, web

from odf_common.hashing.multihash import Multihash
from odf_common.identity.did import DatasetId
from odf_common.ports.store import BlobStore, ObjectKind
from odf_sync.access.rate_limits import Pace, pace_of_body, shares_of_bodies
from odf_sync.http.open_pushes import OpenPushes
from odf_sync.transfer.partial_files import UPLOADED, PartialFile, own_partial_file, partial_file
from odf_sync.transfer.push.upload import OFFSET

CHUNK_BYTES: Final = 1024 * 1024
MAX_OBJECT_BYTES: Final = 5 * 1024**3  # of one object, as in object stores
IDENTITY: Final = "identity"
RETRY_AFTER: Final = {"Retry-After": "1"}
_RANGE: Final = re.compile(
    r"bytes (?:(?P<first>\d{1,15})-(?P<last>\d{1,15})|\*)/(?P<size>\d{1,15})", re.ASCII
)


def upload_file(home: Path, alias: str, name: Multihash) -> Path:
    """Return the folder of partly received objects: for each dataset apart, whose editors trust each other."""
    return home / UPLOADED / f"{_of_alias(alias)}{name}"


def _of_alias(alias: str) -> str:
    return f"{hashlib.sha3_256(alias.lower().encode()).hexdigest()[:32]}-"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedUpload:
    """The file of an upload until it is complete, and its receiver then."""

    file: Path
    name: Multihash
    has: Callable[[], bool]
    """Return whether an upload of this name was taken before."""
    take: Callable[[Path], None]
    most: int = MAX_OBJECT_BYTES
    note: Callable[[int], object] = int
    """Called with the number of bytes as they arrive."""

    @classmethod
    def of_object(
        cls, target: "UploadTarget", dataset: DatasetId, kind: ObjectKind, name: Multihash
    ) -> "ExpectedUpload":
        """Return the upload of an object, which is stored in a dataset."""
        blobs, pushes = target.blobs, target.pushes

        def take(file: Path) -> None:
            blobs.put_file(dataset, kind, name, file)
            pushes.note_object(dataset, kind, name)

        return cls(
            file=upload_file(target.home, target.alias, name),
            name=name,
            has=partial(blobs.has, dataset, kind, name),
            take=take,
            note=partial(pushes.note_received, target.alias),
        )

    async def store_if_complete(self, file: PartialFile) -> bool:
        """Store all bytes, or remove them; return whether they hash to the name."""
        if file.hash() != self.name:
            file.path.unlink()
            return False
        await asyncio.to_thread(self.take, file.path)
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadTarget:
    """The destination of objects that are sent to a name."""

    blobs: BlobStore
    home: Path
    pushes: OpenPushes
    alias: str


@dataclass(frozen=True, slots=True)
class _Part:
    """The byte range of a body; `first` is None if it has none, and asks for the number that has arrived."""

    first: int | None
    size: int

    @property
    def is_continued(self) -> bool:
        return self.first != 0


class ObjectUploads:
    """Receives objects: one is stored if its bytes hash to its name, and if so durably."""

    def __init__(self) -> None:
        self._received = shares_of_bodies()

    async def receive(self, request: web.Request, upload: ExpectedUpload, caller: Hashable) -> web.Response:
        """Take in the body of a request, or say how much of an earlier one has arrived."""
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
    """Return the byte range of the body; None if the headers contradict each other."""
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
    """Append the body to a file; return False if the client stopped sending, or is too slow."""
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
