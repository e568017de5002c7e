"""The Simple Transfer Protocol between our server and our client, over a real socket; repositories are not trusted."""

import hashlib
import http.client
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path

import pytest
from odf_testing.chains import flip
from odf_testing.http import proxied, running
from odf_testing.memory_store import in_files

from odf_common.adapters.local.exported_dataset import FolderDataset
from odf_common.chain.walk import ChainBroken
from odf_common.errors import InvalidInput, NotFound, Unavailable
from odf_common.hashing.multihash import Multihash
from odf_common.identity.dataset_refs import DatasetId
from odf_common.metadata.events import Seed
from odf_common.ports.store import CatalogEntry, ObjectKind
from odf_sync.http.authorization import Authorizer
from odf_sync.http.endpoints import application
from odf_sync.http.simple_protocol import SimpleProtocol
from odf_sync.repositories import HttpDataset, RemoteDataset, RemoteFolder, remote_dataset
from odf_sync.repositories import http_dataset as http_repository
from odf_sync.transfer.remote_chain import ChainsDiverged, admit_all, missing_blocks

VECTORS = Path(__file__).parents[3] / "tests" / "vectors" / "datasets"
CITIES, WEATHER = "cities.population", "polled.weather"


@pytest.fixture(scope="module")
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Our server over a home that holds both vector datasets."""
    home = tmp_path_factory.mktemp("home")
    datasets = in_files(home)
    for name in (CITIES, WEATHER):
        dataset = seed_of(VECTORS / name)
        shutil.copytree(VECTORS / name, home / "datasets" / dataset.folder)
        datasets.catalog.add(CatalogEntry(alias=name, dataset_id=dataset))
    authorizer = Authorizer(catalog=datasets.catalog, local_writers="loopback")
    with running(application(authorizer, SimpleProtocol(datasets, home).endpoints())) as base:
        yield base


@pytest.fixture(scope="module", params=[False, True], ids=["direct", "behind-a-proxy"])
def served(
    request: pytest.FixtureRequest, own_server: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("front") / "proxy"
    with proxied(folder, own_server) if request.param else nullcontext(own_server) as url:
        yield url


def seed_of(folder: Path) -> DatasetId:
    there = RemoteFolder(folder.as_uri())
    blocks = missing_blocks(there, there.head(), nothing_here, None).blocks
    event = next(iter(blocks)).decoded.block.event
    assert isinstance(event, Seed)
    return event.dataset_id


def nothing_here(name: Multihash) -> bytes:
    raise NotFound(what=str(name))


@contextmanager
def static(folder: Path) -> Iterator[str]:
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def ask(base: str, method: str, path: str) -> tuple[int, bytes, str | None]:
    status, content, headers = send(base, method, path)
    return status, content, headers.get("content-type")


def send(
    base: str, method: str, path: str, body: bytes | None = None, **headers: str
) -> tuple[int, bytes, dict[str, str]]:
    """Return status, body and headers of the answer, header names in lower case."""
    connection = http.client.HTTPConnection(base.removeprefix("http://"), timeout=10)
    try:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body, sent)
        answer = connection.getresponse()
        return answer.status, answer.read(), {name.lower(): value for name, value in answer.getheaders()}
    finally:
        connection.close()


def test_reference_is_the_bare_hash(served: str) -> None:
    head = (VECTORS / CITIES / "refs" / "head").read_bytes()
    assert ask(served, "GET", f"/{CITIES}/refs/head") == (200, head, "text/plain; charset=utf-8")
    assert ask(served, "GET", f"/{CITIES.upper()}/refs/head")[:2] == (200, head)


def test_stored_bytes_are_served_unchanged(served: str) -> None:
    for kind in ("blocks", "data"):
        for file in (VECTORS / CITIES / kind).iterdir():
            status, content, _ = ask(served, "GET", f"/{CITIES}/{kind}/{file.name}")
            assert (status, content) == (200, file.read_bytes())


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nobody/refs/head", 404),
        ("GET", f"/{CITIES}/refs/other", 404),
        ("GET", f"/{CITIES}/blocks/f1620{'0' * 64}", 404),
        ("GET", f"/{CITIES}/data/../refs/head", 404),
        ("GET", f"/{CITIES}/data/%2e%2e%2frefs%2fhead", 400),
        ("GET", f"/{CITIES}/blocks/nonsense", 400),
        ("GET", f"/{CITIES}/info/alias", 404),
        ("GET", f"/{CITIES}/", 404),
        ("PUT", f"/{CITIES}/refs/head", 405),
        ("DELETE", f"/{CITIES}/refs/head", 405),
    ],
)
def test_everything_else_is_refused(own_server: str, method: str, path: str, status: int) -> None:
    assert ask(own_server, method, path)[0] == status


def test_head_requests_have_no_body(served: str) -> None:
    assert ask(served, "HEAD", f"/{CITIES}/refs/head")[:2] == (200, b"")


def test_objects_are_cached_forever_and_references_are_revalidated(served: str) -> None:
    head = (VECTORS / CITIES / "refs" / "head").read_text()
    for kind in ("blocks", "data"):
        file = min((VECTORS / CITIES / kind).iterdir())
        _, _, headers = send(served, "GET", f"/{CITIES}/{kind}/{file.name}")
        assert headers["cache-control"] == "max-age=31536000, immutable"
    _, _, headers = send(served, "GET", f"/{CITIES}/refs/head")
    assert (headers["cache-control"], headers["etag"]) == ("no-cache", f'"{head}"')
    again = send(served, "GET", f"/{CITIES}/refs/head", If_None_Match=f'"{head}"')
    assert again[:2] == (304, b"")
    assert send(served, "GET", f"/{CITIES}/refs/head", If_None_Match='"another"')[0] == 200


def test_ranges_of_objects_are_served(served: str) -> None:
    file = min((VECTORS / CITIES / "data").iterdir())
    content, path = file.read_bytes(), f"/{CITIES}/data/{file.name}"
    assert send(served, "GET", path, Range="bytes=4-")[:2] == (206, content[4:])
    assert send(served, "GET", path, Range="bytes=-3")[:2] == (206, content[-3:])
    assert send(served, "GET", path, Range=f"bytes={len(content)}-")[0] == 416
    assert send(served, "GET", path, Range="bytes=4-2")[0] == 416
    for ignored in ("bytes=0-1,3-4", "bytes=0-1, -2", "items=0-1", "bytes"):
        assert send(served, "GET", path, Range=ignored)[:2] == (200, content)
    status, body, headers = send(served, "HEAD", path)
    assert (status, body, headers["content-length"]) == (200, b"", str(len(content)))


def test_an_object_is_put_only_under_its_own_hash_with_its_length(own_server: str) -> None:
    content = b"not in any block yet"
    name = Multihash.sha3(hashlib.sha3_256(content).digest())
    path = f"/{CITIES}/data/{name}"
    assert send(own_server, "PUT", path, content + b".")[0] == 400
    assert send(own_server, "PUT", path, content, Transfer_Encoding="chunked")[0] != 200
    assert send(own_server, "PUT", path, content, Content_Length=str(5 * 1024**3 + 1))[0] == 413
    assert send(own_server, "GET", path)[0] == 404
    for _ in range(2):
        assert send(own_server, "PUT", path, content)[:2] == (200, b"")
    assert send(own_server, "GET", path)[:2] == (200, content)
    assert send(own_server, "PUT", path, content, Via="1.1 proxy")[:2] == (403, b""), "from elsewhere"


@pytest.mark.parametrize("kind", ["node", "static", "folder"])
@pytest.mark.parametrize("name", [CITIES, WEATHER])
def test_whole_chain_is_read_from_any_repository(served: str, kind: str, name: str) -> None:
    with static(VECTORS) as base:
        urls = {"node": f"{served}/{name}", "static": f"{base}/{name}/", "folder": (VECTORS / name).as_uri()}
        there = remote_dataset(urls[kind])
        blocks = missing_blocks(there, there.head(), nothing_here, None).blocks
        state = admit_all(None, blocks)
        assert state.head == there.head()
        assert [block.decoded.block.sequence_number for block in blocks] == list(range(len(blocks.names)))
        out = BytesIO()
        assert state.last_offset is not None
        data = min((VECTORS / name / "data").iterdir())
        there.fetch(ObjectKind.DATA, Multihash.parse(data.name), out, data.stat().st_size)
        assert out.getvalue() == data.read_bytes()


def test_only_new_blocks_are_fetched() -> None:
    there = Counting(RemoteFolder((VECTORS / CITIES).as_uri()))
    whole = tuple(missing_blocks(there, there.head(), nothing_here, None).blocks)
    here = whole[-3].hash
    there.asked.clear()
    new = missing_blocks(there, there.head(), FolderStoreReader(VECTORS / CITIES), here).blocks
    assert [block.hash for block in new] == [block.hash for block in whole[-2:]]
    assert set(there.asked) == {block.hash for block in new}


def test_nothing_is_missing_when_the_local_chain_is_ahead() -> None:
    there = RemoteFolder((VECTORS / CITIES).as_uri())
    whole = tuple(missing_blocks(there, there.head(), nothing_here, None).blocks)
    read = FolderStoreReader(VECTORS / CITIES)
    missing = missing_blocks(there, whole[-2].hash, read, whole[-1].hash)
    assert (missing.common, len(missing.blocks.names), missing.ahead) == (whole[-2].hash, 0, 1)
    equal = missing_blocks(there, whole[-1].hash, read, whole[-1].hash)
    assert (len(equal.blocks.names), equal.ahead) == (0, 0)


def test_another_chain_is_refused_as_diverged() -> None:
    there = RemoteFolder((VECTORS / CITIES).as_uri())
    here = RemoteFolder((VECTORS / WEATHER).as_uri())
    with pytest.raises(ChainsDiverged) as caught:
        missing_blocks(there, there.head(), FolderStoreReader(VECTORS / WEATHER), here.head())
    assert caught.value.common_block is None
    assert caught.value.advice()


def test_a_false_block_is_named(tmp_path: Path) -> None:
    copy = tmp_path / CITIES
    shutil.copytree(VECTORS / CITIES, copy)
    victim = max((copy / "blocks").iterdir())
    flip(victim)
    there = RemoteFolder(copy.as_uri())
    with pytest.raises(ChainBroken) as caught:
        missing_blocks(there, there.head(), nothing_here, None)
    assert caught.value.block == victim.name


def test_more_bytes_than_declared_are_refused(served: str) -> None:
    data = min((VECTORS / CITIES / "data").iterdir())
    for there in (remote_dataset(f"{served}/{CITIES}"), remote_dataset((VECTORS / CITIES).as_uri())):
        with pytest.raises(InvalidInput, match="declared"):
            there.fetch(ObjectKind.DATA, Multihash.parse(data.name), BytesIO(), data.stat().st_size - 1)


def test_no_server_is_read_further_than_a_block_or_a_head_may_be_long(
    served: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = remote_dataset(f"{served}/{CITIES}")
    head = there.head()
    size, length = len(there.block(head)), len(str(head))
    monkeypatch.setattr(http_repository, "BLOCK_LIMIT", size)
    monkeypatch.setattr(http_repository, "MAX_REFERENCE_BYTES", length)
    assert len(there.block(there.head())) == size

    monkeypatch.setattr(http_repository, "BLOCK_LIMIT", size - 1)
    with pytest.raises(InvalidInput, match=f"longer than {size - 1} bytes"):
        there.block(head)
    monkeypatch.setattr(http_repository, "MAX_REFERENCE_BYTES", length - 1)
    with pytest.raises(InvalidInput, match=f"longer than {length - 1} bytes"):
        there.head()


def test_a_head_with_a_newline_is_refused(tmp_path: Path) -> None:
    copy = tmp_path / CITIES
    shutil.copytree(VECTORS / CITIES, copy)
    (copy / "refs" / "head").write_text((copy / "refs" / "head").read_text() + "\n")
    with static(tmp_path) as base:
        for url in (f"{base}/{CITIES}", copy.as_uri()):
            with pytest.raises(InvalidInput, match="not a hash"):
                remote_dataset(url).head()


def test_unknown_dataset_and_unreachable_server_are_distinguished(served: str) -> None:
    with pytest.raises(NotFound):
        remote_dataset(f"{served}/nobody").head()
    with pytest.raises(NotFound):
        remote_dataset("file:///nowhere/at/all")
    with pytest.raises(InvalidInput, match="gopher://"):
        remote_dataset("gopher://example.com/cities")


def test_an_address_without_a_server_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_repository, "READ_RETRY", 0)
    with pytest.raises(Unavailable):
        HttpDataset("http://127.0.0.1:9/cities").head()


class FolderStoreReader:
    """Reads blocks of a folder, as the local store would."""

    def __init__(self, folder: Path) -> None:
        self._store = FolderDataset(folder)

    def __call__(self, name: Multihash) -> bytes:
        return self._store.read_block(name)


class Counting:
    """A repository that records which blocks were requested."""

    def __init__(self, inner: RemoteDataset) -> None:
        self.url = inner.url
        self.asked: list[Multihash] = []
        self._inner = inner
        self.head = inner.head
        self.is_private = inner.is_private
        self.pack = inner.pack
        self.stored_blocks = inner.stored_blocks
        self.signatures = inner.signatures
        self.fetch = inner.fetch

    def block(self, name: Multihash) -> bytes:
        self.asked.append(name)
        return self._inner.block(name)
