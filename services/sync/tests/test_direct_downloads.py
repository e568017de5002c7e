"""Pulls from a node whose bucket serves the objects itself, by presigned URLs."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import parse_qs, urlsplit
from urllib.request import urlopen

import pytest
from aiohttp.test_utils import make_mocked_request
from odf_testing.minioserver import ACCESS_KEY, SECRET_KEY, MinioServer, serving_s3
from odf_testing.sync_node import SyncNode

from odf_common.metadata.scalars import Timestamp
from odf_common.ports.store import ObjectKind
from odf_common.service.settings import Settings
from odf_sync.http.serve_pull import PullSource, _download, large_lists
from odf_sync.http.simple_protocol import ObjectDownloads
from odf_sync.repositories import smart_dataset
from odf_sync.smart.channel import PeerClosed
from odf_sync.smart.connection import Connection, connect
from odf_sync.smart.messages import DownloadsReply, Message, ObjectFile, ObjectType, TransferUrl


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MinioServer]:
    with serving_s3(tmp_path_factory.mktemp("minio")) as server:
        yield server


def node_in_bucket(home: Path, server: MinioServer, *, is_direct: bool) -> SyncNode:
    """Return a node with a dataset in a bucket."""
    place = server.new_bucket("team")
    environment = {
        "ODF_HOME": str(home),
        "ODF_STORE": f"s3+{server.endpoint}/{place.bucket}/{place.prefix}",
        "ODF_S3_ENDPOINT": server.endpoint,
        "ODF_S3_ACCESS_KEY": ACCESS_KEY,
        "ODF_S3_SECRET_KEY": SECRET_KEY,
        "ODF_S3_DIRECT_DOWNLOADS": "1" if is_direct else "0",
    }
    node = SyncNode(home, Settings.from_env(environment))
    node.add_cities(["Oslo", "Kyiv"], ["Lima"])
    return node


def puller(home: Path) -> SyncNode:
    """Return a node that connects to addresses of this machine, where the bucket is."""
    return SyncNode(home, Settings.from_env({"ODF_HOME": str(home), "ODF_FETCH_NETWORKS": "127.0.0.0/8"}))


@pytest.mark.parametrize("is_direct", [True, False])
def test_objects_come_from_the_bucket_by_an_exchange_if_it_is_so_configured(
    tmp_path: Path, server: MinioServer, monkeypatch: pytest.MonkeyPatch, is_direct: bool
) -> None:
    """Otherwise the pack and the objects of the Simple protocol take fewer round trips."""
    there, here = node_in_bucket(tmp_path / "there", server, is_direct=is_direct), puller(tmp_path / "here")
    served, opened = [], []
    answer = ObjectDownloads.answer

    async def noting(*arguments: object) -> object:
        served.append(arguments)
        return await answer(*arguments)  # type: ignore[arg-type]

    def connecting(*arguments: object) -> object:
        opened.append(arguments[0])
        return connect(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(ObjectDownloads, "answer", noting)
    monkeypatch.setattr(smart_dataset, "connect", connecting)
    with there.served() as base:
        *_, last = here.pull(f"odf+{base}/cities", "cities")

    assert last.state == "updated"
    assert opened == ([f"{base}/cities/pull"] if is_direct else [])
    assert here.content("cities") == there.content("cities")
    kinds = {arguments[3] for arguments in served}
    assert (ObjectKind.DATA in kinds) is not is_direct


def test_objects_are_read_without_the_exchange_if_it_has_ended(
    tmp_path: Path, server: MinioServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node may have ended it for another one, while it seemed idle."""
    there, here = node_in_bucket(tmp_path / "there", server, is_direct=True), puller(tmp_path / "here")
    expect = Connection.expect

    def ended(connection: Connection, kind: type[Message]) -> Message:
        if kind is DownloadsReply:
            raise PeerClosed(close_code=1013, reason="idle")
        return expect(connection, kind)

    monkeypatch.setattr(Connection, "expect", ended)
    with there.served() as base:
        *_, last = here.pull(f"odf+{base}/cities", "cities")
    assert last.state == "updated"
    assert here.content("cities") == there.content("cities")


def test_a_presigned_url_opens_one_object_of_a_private_bucket(tmp_path: Path, server: MinioServer) -> None:
    node = node_in_bucket(tmp_path, server, is_direct=True)
    entry = node.catalog.by_alias("cities")
    assert entry is not None
    first, second = node.blobs.names(entry.dataset_id, ObjectKind.DATA)
    given = node.blobs.download_url(entry.dataset_id, ObjectKind.DATA, first)
    assert given is not None
    url = given.url

    with urlopen(url) as answer:
        assert answer.read() == node.blobs.read(entry.dataset_id, ObjectKind.DATA, first)
    for other in (url.replace(str(first), str(second)), url.partition("?")[0]):
        with pytest.raises(HTTPError) as refused:
            urlopen(other)
        assert refused.value.code == 403
        refused.value.close()


def download_of(node: SyncNode) -> TransferUrl:
    """Return where a client with a token is told to fetch an object."""
    entry, head = node.catalog.by_alias("cities"), node.head("cities")
    assert entry is not None
    assert head is not None
    request = make_mocked_request("GET", "/cities/pull", headers={"Authorization": "Bearer secret"})
    source = PullSource(
        blobs=node.blobs,
        public_url=None,
        dataset=entry.dataset_id,
        head=head,
        lists=large_lists(),
    )
    (name, _) = node.blobs.names(entry.dataset_id, ObjectKind.DATA)
    size = node.blobs.size(entry.dataset_id, ObjectKind.DATA, name)
    file = ObjectFile(object_type=ObjectType.DATA_SLICE, physical_hash=name, size=size)
    download = _download(source, request, file)
    return download.download_from


def test_a_bucket_gets_no_token_of_the_client(tmp_path: Path, server: MinioServer) -> None:
    node = node_in_bucket(tmp_path, server, is_direct=True)
    download = download_of(node)
    assert download.url.startswith(server.endpoint)
    assert download.headers == ()


def test_the_time_at_which_a_url_of_a_bucket_expires_is_that_which_the_url_has(
    tmp_path: Path, server: MinioServer
) -> None:
    node = node_in_bucket(tmp_path, server, is_direct=True)
    download = download_of(node)
    signed = parse_qs(urlsplit(download.url).query)
    begin = datetime.strptime(signed["X-Amz-Date"][0], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    end = begin + timedelta(seconds=int(signed["X-Amz-Expires"][0]))
    assert end - begin == timedelta(hours=1)
    assert download.expires_at == str(Timestamp.from_datetime(end))
    assert begin <= datetime.now(UTC) < begin + timedelta(minutes=1)
