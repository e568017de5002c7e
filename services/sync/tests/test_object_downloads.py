"""Objects over HTTP from a store that fetches them first: slow ones delay nothing else, and only bodies are fetched."""

import asyncio
import http.client
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import urllib3
from odf_testing.builders import a_hash
from odf_testing.sync_node import SyncNode

from odf_common.errors import NotFound
from odf_common.hashing.multihash import Multihash
from odf_common.hashing.physical import physical_hash_of
from odf_common.identity.did import DatasetId
from odf_common.ports.store import ObjectKind
from odf_sync.http.simple_protocol import MAX_FETCHED_OBJECTS, ObjectDownloads

OBJECT = b"0123456789"
NAME = physical_hash_of(OBJECT)
PATIENCE_SECONDS = 10


class Slow:
    """A node whose store has to fetch all objects but blocks and `copied`, which takes until it is `released`."""

    def __init__(self, home: Path) -> None:
        self.node = SyncNode(home)
        self.node.add_cities()
        entry = self.node.catalog.by_alias("cities")
        assert entry is not None
        self.dataset = entry.dataset_id
        self.node.blobs.put(self.dataset, ObjectKind.DATA, NAME, OBJECT)
        self.copied: list[Multihash] = []
        self.fetched: list[Multihash] = []
        self.released = threading.Event()
        self._path = self.node.blobs.local_path

    def local_copy(self, dataset: DatasetId, kind: ObjectKind, name: Multihash) -> Path | None:
        has_copy = kind is ObjectKind.BLOCK or name in self.copied
        return self._path(dataset, kind, name) if has_copy else None

    def local_path(self, dataset: DatasetId, kind: ObjectKind, name: Multihash) -> Path:
        if kind is not ObjectKind.BLOCK:
            self.fetched.append(name)
            assert self.released.wait(PATIENCE_SECONDS)
        return self._path(dataset, kind, name)

    def wait_for_fetches(self, number: int) -> None:
        until = time.monotonic() + PATIENCE_SECONDS
        while len(self.fetched) < number:
            assert time.monotonic() < until, self.fetched
            time.sleep(0.01)


@pytest.fixture
def slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Slow]:
    slow = Slow(tmp_path / "home")
    monkeypatch.setattr(slow.node.blobs, "local_path", slow.local_path)
    monkeypatch.setattr(slow.node.blobs, "local_copy", slow.local_copy)
    yield slow
    slow.released.set()


def ask(base: str, method: str, path: str, seconds: float = 20) -> tuple[int, bytes, str | None]:
    """Return status, body and announced length."""
    with closing(http.client.HTTPConnection(urlsplit(base).netloc, timeout=seconds)) as connection:
        connection.request(method, f"/cities/{path}")
        answer = connection.getresponse()
        return answer.status, answer.read(), answer.getheader("Content-Length")


def test_the_head_of_an_object_has_its_length_and_fetches_nothing(slow: Slow) -> None:
    with slow.node.served() as base:
        assert ask(base, "HEAD", f"data/{NAME}", 5) == (200, b"", str(len(OBJECT)))
        assert ask(base, "HEAD", f"data/{a_hash(1)}", 5)[0] == 404
        assert ask(base, "HEAD", f"checkpoints/{NAME}", 5)[0] == 404
    assert slow.fetched == []


def test_the_head_of_an_object_of_which_there_is_a_copy_is_that_of_its_body(slow: Slow) -> None:
    slow.copied.append(NAME)
    with slow.node.served() as base, closing(http.client.HTTPConnection(urlsplit(base).netloc)) as connection:

        def headers(method: str, **asked: str) -> tuple[int, dict[str, str]]:
            connection.request(method, f"/cities/data/{NAME}", headers=asked)
            answer = connection.getresponse()
            answer.read()
            return answer.status, {key.lower(): text for key, text in answer.getheaders() if key != "Date"}

        status, found = headers("HEAD")
        assert (status, found) == headers("GET")
        assert status == 200
        assert found["etag"] == f'"{NAME}"'
        assert found["accept-ranges"] == "bytes"
        assert headers("HEAD", Range="bytes=2-4") == headers("GET", Range="bytes=2-4")
        assert headers("HEAD", Range="bytes=2-4")[0] == 206
        unchanged = {"If-None-Match": found["etag"]}
        assert headers("HEAD", **unchanged)[0] == headers("GET", **unchanged)[0] == 304
    assert slow.fetched == []


def test_the_etag_of_an_object_is_its_hash_whenever_its_copy_was_used(slow: Slow) -> None:
    slow.copied.append(NAME)
    copy, tag = slow.local_copy(slow.dataset, ObjectKind.DATA, NAME), f'"{NAME}"'
    assert copy is not None
    other = '"' + str(a_hash(1)) + '"'
    with slow.node.served() as base:
        url = f"{base}/cities/data/{NAME}"
        for used in (0, time.time(), time.time() + 86400):
            os.utime(copy, (used, used))
            answer = urllib3.request("GET", url)
            assert (answer.status, answer.data, answer.headers["ETag"]) == (200, OBJECT, tag)
            assert "Last-Modified" not in answer.headers
            for known in (tag, f"W/{tag}", "*", f"{other}, {tag}"):
                same = urllib3.request("GET", url, headers={"If-None-Match": known})
                assert (same.status, same.data, same.headers["ETag"]) == (304, b"", tag)
            assert urllib3.request("GET", url, headers={"If-None-Match": other}).status == 200
            since = {"If-Modified-Since": "Fri, 31 Dec 2100 00:00:00 GMT"}
            assert urllib3.request("GET", url, headers=since).status == 200
            for wanted, status in ((tag, 200), ("*", 200), (other, 412), (f"W/{tag}", 412)):
                assert urllib3.request("GET", url, headers={"If-Match": wanted}).status == status
            assert partial(url, tag) == (206, OBJECT[4:])
            for outdated in (other, f"W/{tag}", "Fri, 31 Dec 2100 00:00:00 GMT"):
                assert partial(url, outdated) == (200, OBJECT)


def partial(url: str, condition: str) -> tuple[int, bytes]:
    answer = urllib3.request("GET", url, headers={"Range": "bytes=4-", "If-Range": condition})
    return answer.status, answer.data


def test_an_object_that_a_client_has_is_not_fetched(slow: Slow) -> None:
    with slow.node.served() as base:
        for method in ("GET", "HEAD"):
            known = {"If-None-Match": f'"{NAME}"'}
            answer = urllib3.request(method, f"{base}/cities/data/{NAME}", headers=known)
            assert (answer.status, answer.headers["ETag"]) == (304, f'"{NAME}"')
            missing = a_hash(1)
            known = {"If-None-Match": f'"{missing}"'}
            assert urllib3.request(method, f"{base}/cities/data/{missing}", headers=known).status == 404
        assert urllib3.request("HEAD", f"{base}/cities/data/{NAME}").headers["ETag"] == f'"{NAME}"'
    assert slow.fetched == []


def test_objects_that_are_fetched_slowly_delay_neither_references_nor_blocks_nor_copies(slow: Slow) -> None:
    head, copied = slow.node.head("cities"), physical_hash_of(b"copied")
    slow.node.blobs.put(slow.dataset, ObjectKind.DATA, copied, b"copied")
    slow.copied.append(copied)
    with slow.node.served() as base, ThreadPoolExecutor(64) as clients:
        names = [NAME, *map(a_hash, range(63))]
        objects = [clients.submit(ask, base, "GET", f"data/{name}") for name in names]
        slow.wait_for_fetches(MAX_FETCHED_OBJECTS)
        assert ask(base, "GET", "refs/head", 5)[:2] == (200, str(head).encode())
        assert ask(base, "GET", f"blocks/{head}", 5)[0] == 200
        assert ask(base, "GET", f"data/{copied}", 5)[:2] == (200, b"copied")
        assert ask(base, "HEAD", f"data/{NAME}", 5)[0] == 200
        assert len(slow.fetched) == MAX_FETCHED_OBJECTS
        slow.released.set()
        assert [one.result()[0] for one in objects] == [200, *[404] * 63]
    assert sorted(slow.fetched, key=str) == sorted(names, key=str)


def test_requests_for_one_object_share_its_fetch(slow: Slow) -> None:
    downloads = ObjectDownloads(slow.node.datasets.blobs)

    async def run() -> tuple[Path, ...]:
        requests = [
            asyncio.create_task(downloads.local_path(slow.dataset, ObjectKind.DATA, NAME)) for _ in range(20)
        ]
        await asyncio.to_thread(slow.wait_for_fetches, 1)
        requests.pop().cancel()  # its client has gone; the others still wait for it
        slow.released.set()
        return tuple(await asyncio.gather(*requests))

    paths = asyncio.run(run())
    assert [path.read_bytes() for path in paths] == [OBJECT] * 19
    assert slow.fetched == [NAME]


def test_an_object_is_requested_again_after_a_fetch_has_ended(slow: Slow) -> None:
    downloads, missing = ObjectDownloads(slow.node.datasets.blobs), a_hash(1)
    slow.released.set()

    async def run() -> None:
        for _ in range(2):
            with pytest.raises(NotFound):
                await downloads.local_path(slow.dataset, ObjectKind.DATA, missing)
        for kind in (ObjectKind.DATA, ObjectKind.CHECKPOINT):
            slow.node.blobs.put(slow.dataset, kind, missing, b"later")
            path = await downloads.local_path(slow.dataset, kind, missing)
            assert (path.parent.name, path.read_bytes()) == (kind.value, b"later")

    asyncio.run(run())
    assert slow.fetched == [missing] * 4
