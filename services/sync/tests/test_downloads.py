"""Objects over connections that are cut, from servers with and without ranges, over several attempts."""

import hashlib
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

import pytest
from aiohttp import web
from odf_testing.actors import VirtualTime
from odf_testing.builders import a_dataset, a_hash
from odf_testing.http import running
from odf_testing.memory_store import MemoryBlobStore
from urllib3 import Retry

from odf_common.errors import InvalidInput, NotFound, OdfError, Unavailable
from odf_common.hashing.multihash import Multihash
from odf_common.ports.store import ObjectKind
from odf_sync.repositories import http_dataset, remote_dataset
from odf_sync.repositories.remote_dataset import RemoteDataset, Sink
from odf_sync.transfer.objects import CopiedObjects, ObjectDiffers, RemoteObject, fetch
from odf_sync.transfer.partial_files import own_partial_file, partial_file

CONTENT = bytes(range(256)) * 4096
NAME = Multihash.sha3(hashlib.sha3_256(CONTENT).digest())
ONE = RemoteObject(
    kind=ObjectKind.CHECKPOINT, name=NAME, size=len(CONTENT), block=a_hash("block"), sequence_number=3
)


@dataclass(slots=True)
class Server:
    """Serves one object."""

    url: str = ""
    content: bytes = CONTENT
    has_ranges: bool = True
    shift: int = 0
    """Added to where each range is said to start."""
    cuts: list[int] = field(default_factory=list)
    """For each of the next requests: bytes of the body after which the connection is cut."""
    asked: list[str | None] = field(default_factory=list)
    """The range of each request."""
    sent: int = 0
    """Bytes of all bodies."""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer a request."""
        asked = request.headers.get("Range")
        self.asked.append(asked)
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and self.has_ranges else 0
        body = self.content[start:]
        response = web.StreamResponse(status=206 if start else 200)
        if start:
            response.headers["Content-Range"] = (
                f"bytes {start + self.shift}-{len(self.content) - 1}/{len(self.content)}"
            )
        response.content_length = len(body)
        await response.prepare(request)
        if self.cuts:
            body = body[: self.cuts.pop(0)]
            self.sent += len(body)
            await response.write(body)
            assert request.transport is not None
            request.transport.close()
            return response
        self.sent += len(body)
        await response.write(body)
        return response


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(http_dataset, "READ_RETRY", Retry(0, redirect=0))
    served = Server()
    app = web.Application()
    app.router.add_get("/{path:.*}", served.answer)
    with running(app) as served.url:
        yield served


@pytest.fixture
def blobs() -> MemoryBlobStore:
    return MemoryBlobStore()


def take(blobs: MemoryBlobStore, url: str, folder: Path) -> None:
    fetch(blobs, remote_dataset(url), a_dataset(), (ONE,), folder)


def stored(blobs: MemoryBlobStore) -> bytes:
    return blobs.read(a_dataset(), ObjectKind.CHECKPOINT, NAME)


@pytest.mark.parametrize("has_ranges", [True, False], ids=["ranges", "no ranges"])
def test_a_download_resumes_where_its_connection_was_cut(
    server: Server, blobs: MemoryBlobStore, tmp_path: Path, *, has_ranges: bool
) -> None:
    server.has_ranges, server.cuts = has_ranges, [1, 70_000, 500_000]
    take(blobs, server.url, tmp_path)
    assert stored(blobs) == CONTENT
    assert server.asked[0] is None
    assert all(server.asked[1:])
    if has_ranges:
        assert server.sent == len(CONTENT), "no byte is sent twice"


def test_the_next_attempt_resumes_the_partial_file_of_the_last_one(
    server: Server, blobs: MemoryBlobStore, tmp_path: Path
) -> None:
    server.cuts = [300_000, 0, 0, 0]
    with pytest.raises(Unavailable):
        take(blobs, server.url, tmp_path)
    server.asked.clear()
    server.cuts.clear()
    take(blobs, server.url, tmp_path)
    assert stored(blobs) == CONTENT
    assert server.asked == ["bytes=300000-"]
    assert list(tmp_path.iterdir()) == []


def test_a_part_that_starts_elsewhere_is_not_appended(
    server: Server, blobs: MemoryBlobStore, tmp_path: Path
) -> None:
    server.shift = 1
    begun = CONTENT[:300_000]
    (tmp_path / str(NAME)).write_bytes(begun)
    with pytest.raises(Unavailable, match="status 206"):
        take(blobs, server.url, tmp_path)
    assert (tmp_path / str(NAME)).read_bytes() == begun


def test_a_file_that_was_begun_with_other_bytes_is_fetched_again(
    server: Server, blobs: MemoryBlobStore, tmp_path: Path
) -> None:
    for begun in (b"other bytes", CONTENT + b"and more"):
        (tmp_path / str(NAME)).write_bytes(begun)
        take(blobs, server.url, tmp_path)
        assert stored(blobs) == CONTENT
        blobs.remove(a_dataset(), ObjectKind.CHECKPOINT, [NAME])


def test_a_complete_file_that_was_not_stored_is_not_requested(
    server: Server, blobs: MemoryBlobStore, tmp_path: Path
) -> None:
    (tmp_path / str(NAME)).write_bytes(CONTENT)
    take(blobs, server.url, tmp_path)
    assert (stored(blobs), server.asked) == (CONTENT, [])


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (CONTENT[:-1] + b".", ObjectDiffers),
        (CONTENT[:-1], ObjectDiffers),
        (CONTENT + b".", InvalidInput),
        (b"", ObjectDiffers),
    ],
    ids=["other bytes", "too short", "too long", "empty"],
)
def test_other_bytes_are_refused_and_not_kept(
    server: Server, blobs: MemoryBlobStore, tmp_path: Path, content: bytes, error: type[OdfError]
) -> None:
    server.content = content
    with pytest.raises(error):
        take(blobs, server.url, tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert not blobs.has(a_dataset(), ObjectKind.CHECKPOINT, NAME)


def test_two_downloads_of_one_object_write_two_files(tmp_path: Path) -> None:
    with partial_file(tmp_path, NAME) as one, partial_file(tmp_path, NAME) as other:
        assert one.path != other.path
        one.write(b"one")
        assert (other.tell(), one.tell()) == (0, 3)


def test_a_partial_file_has_one_writer_and_is_continued(tmp_path: Path) -> None:
    folder = tmp_path / "not" / "there"
    with own_partial_file(folder, NAME) as one:
        assert one is not None
        one.write(b"one")
        with own_partial_file(folder, NAME) as other:
            assert other is None
    with own_partial_file(folder, NAME) as again:
        assert again is not None
        assert (again.path, again.tell()) == (folder / str(NAME), 3)


def test_a_missing_object_leaves_nothing(tmp_path: Path, blobs: MemoryBlobStore) -> None:
    folder = tmp_path / "cities"
    folder.mkdir()
    with pytest.raises(NotFound):
        take(blobs, folder.as_uri(), tmp_path / "downloads")
    assert list((tmp_path / "downloads").iterdir()) == []


def test_a_server_that_cannot_be_reached_is_an_error_with_the_cause_alone() -> None:
    with pytest.raises(Unavailable) as caught:
        remote_dataset("http://127.0.0.1:9/cities").head()
    assert caught.value.why == "[Errno 111] Connection refused"


@dataclass(slots=True)
class Stuttering:
    """A repository whose connections break after these `amounts` of bytes."""

    amounts: list[int]
    url: str = "http://node.example/cities"

    def fetch(self, kind: ObjectKind, name: Multihash, out: Sink, limit: int) -> None:
        start = out.tell()
        out.write(CONTENT[start : start + self.amounts.pop(0)])
        if out.tell() < limit:
            raise Unavailable(what=self.url, why="the connection was lost")


@pytest.mark.parametrize(
    ("amounts", "is_complete", "left"),
    [
        ([1, 0, 1, 0, 1, 0, ONE.size], True, 0),
        ([0, 1, 0, 1, ONE.size], True, 0),
        ([0, 0, ONE.size], False, 1),
        ([1, 0, 0, ONE.size], False, 1),
    ],
)
def test_a_download_is_abandoned_after_two_attempts_in_a_row_without_a_byte(
    tmp_path: Path, blobs: MemoryBlobStore, amounts: list[int], is_complete: bool, left: int
) -> None:
    there = Stuttering(list(amounts))
    with nullcontext() if is_complete else pytest.raises(Unavailable, match="connection was lost"):
        fetch(blobs, cast("RemoteDataset", there), a_dataset(), [ONE], tmp_path)
    assert blobs.has(a_dataset(), ObjectKind.CHECKPOINT, NAME) is is_complete
    assert len(there.amounts) == left


@pytest.mark.parametrize(("seconds", "is_complete"), [(10.0, True), (11.0, False)])
def test_a_download_is_abandoned_if_its_attempts_are_too_slow(
    tmp_path: Path, blobs: MemoryBlobStore, monkeypatch: pytest.MonkeyPatch, seconds: float, is_complete: bool
) -> None:
    clock = VirtualTime(monkeypatch)

    class Slow(Stuttering):
        def fetch(self, kind: ObjectKind, name: Multihash, out: Sink, limit: int) -> None:
            clock.now += seconds
            super().fetch(kind, name, out, limit)

    there = Slow([1, 1, 1, ONE.size])
    with nullcontext() if is_complete else pytest.raises(Unavailable, match="connection was lost"):
        fetch(blobs, cast("RemoteDataset", there), a_dataset(), [ONE], tmp_path)
    assert blobs.has(a_dataset(), ObjectKind.CHECKPOINT, NAME) is is_complete


class Failing:
    """A repository that sends nothing."""

    url = "file:///srv/x"

    def __init__(self) -> None:
        self.asked = 0

    def fetch(self, _: ObjectKind, name: Multihash, *__: object) -> None:
        self.asked += 1
        raise NotFound(what=str(name))


def test_after_an_error_no_more_objects_are_requested(tmp_path: Path) -> None:
    there, count = Failing(), 5000
    objects = [replace(ONE, name=a_hash(str(number))) for number in range(count)]
    wanted = CopiedObjects(MemoryBlobStore(), tmp_path, a_dataset(), objects, may_lack=False)
    with pytest.raises(NotFound):
        list(wanted.fetch(cast("RemoteDataset", there), at_once=1))
    assert there.asked < count


def test_a_partial_file_that_was_removed_meanwhile_hides_no_error(tmp_path: Path) -> None:
    class Removing(Failing):
        def fetch(self, kind: ObjectKind, name: Multihash, *to: object) -> None:
            for file in tmp_path.iterdir():
                file.unlink()
            super().fetch(kind, name, *to)

    with pytest.raises(NotFound, match=f"^{NAME} "):
        fetch(MemoryBlobStore(), cast("RemoteDataset", Removing()), a_dataset(), (ONE,), tmp_path)
