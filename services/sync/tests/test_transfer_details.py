"""Rare cases of transfers: missing data, an odd URL, an unexpected response."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import urllib3
from aiohttp import web
from odf_testing.builders import a_dataset, a_hash
from odf_testing.http import running
from odf_testing.memory_store import MemoryBlobStore, MemoryRefStore
from odf_testing.sync_node import SyncNode
from odf_testing.webserver import Page, PageServer, serving_pages

from odf_common.adapters.local.repositories import LocalRepositories
from odf_common.adapters.networks import PUBLIC, Networks
from odf_common.chain.compare_chains import Ahead, Behind, Equal
from odf_common.dataset.dataset_notes import complete_until, dropped_blocks, note_drop
from odf_common.errors import HeadMoved, InvalidInput, NotFound, OdfError, Unavailable
from odf_common.hashing.multihash import physical_hash_of
from odf_common.identity.dataset_refs import Name
from odf_common.metadata.events import SetInfo
from odf_common.ports.store import CatalogEntry, ObjectKind
from odf_sync.repositories.locate import name_in_repository
from odf_sync.repositories.node_client import NodeClient
from odf_sync.repositories.remote_dataset import blocks_in, frame_block
from odf_sync.repositories.smart_dataset import SmartDataset
from odf_sync.smart import messages as msg
from odf_sync.transfer.objects import ObjectDiffers, RecordsRefused
from odf_sync.transfer.pull_dataset import compare
from odf_sync.transfer.push_source import (
    INCOMPLETE,
    OFFSET,
    WRONG_BYTES,
    File,
    PushDiverged,
    RemoteAhead,
    Uploader,
)
from odf_sync.transfer.remote_chain import ChainsDiverged

LOOPBACK = Networks.parse(("127.0.0.0/8",))
ID = a_dataset()


@pytest.mark.parametrize("size", [1, 3, 4, 6, 8])
def test_a_pack_that_ends_within_a_block_is_refused_after_the_complete_blocks(size: int) -> None:
    found = blocks_in([frame_block(b"first") + frame_block(b"second")[:size]], most=10)
    assert next(found) == b"first"
    with pytest.raises(InvalidInput, match="ends within an entry"):
        next(found)


def test_a_block_of_a_pack_may_be_as_long_as_is_allowed() -> None:
    assert list(blocks_in([frame_block(b"x" * 10), frame_block(b"")], most=10)) == [b"x" * 10, b""]
    assert list(blocks_in([], most=10)) == []


@pytest.fixture
def pair(tmp_path: Path) -> tuple[SyncNode, SyncNode]:
    """A node with a copy, and one whose chain is one block longer."""
    here, there = SyncNode(tmp_path / "here"), SyncNode(tmp_path / "there")
    there.add_cities()
    there.coordinator.push("cities", "Oslo")
    with there.served() as base:
        here.pull(f"{base}/cities", "cities")
        there.add_block("cities", SetInfo(description="more"))
    return here, there


def test_two_chains_are_compared_from_the_local_one_and_missing_ones_are_not(
    pair: tuple[SyncNode, SyncNode],
) -> None:
    here, there = pair
    with there.served() as base:
        relation, common = compare(here.datasets, here.settings, "cities", f"{base}/cities")
        assert isinstance(relation, Behind)
        assert (relation.blocks, common) == (1, here.head("cities"))
        with pytest.raises(NotFound, match="dataset towns"):
            compare(here.datasets, here.settings, "towns", f"{base}/cities")
        with pytest.raises(NotFound, match="reference old of cities"):
            compare(here.datasets, here.settings, "cities@old", f"{base}/cities")
    with here.served() as base:
        relation, common = compare(there.datasets, there.settings, "cities", f"{base}/cities")
        assert isinstance(relation, Ahead)
        assert (relation.blocks, common) == (1, here.head("cities"))
        relation, _ = compare(here.datasets, here.settings, "cities", f"{base}/cities")
        assert isinstance(relation, Equal)


def test_a_copy_that_has_all_objects_again_is_no_longer_marked_as_dropped(
    pair: tuple[SyncNode, SyncNode],
) -> None:
    here, _ = pair
    (entry,) = here.catalog.entries()
    head = here.head("cities")
    assert head is not None
    note_drop(here.blobs, entry.dataset_id, head)
    with here.served() as base:
        assert here.pull(f"{base}/cities", "cities")[-1].state == "up-to-date"
    assert dropped_blocks(here.blobs, entry.dataset_id) is None
    assert complete_until(here.blobs, entry.dataset_id) == head


def test_of_a_reference_behind_the_head_all_objects_imply_nothing_for_later_blocks(
    pair: tuple[SyncNode, SyncNode],
) -> None:
    shorter, longer = pair
    (entry,) = longer.catalog.entries()
    head = longer.head("cities")
    assert head is not None
    with shorter.served() as base:
        longer.pull(f"{base}/cities", "cities@theirs")
        note_drop(longer.blobs, entry.dataset_id, head)
        assert longer.pull(f"{base}/cities", "cities@theirs")[-1].state == "up-to-date"
    assert dropped_blocks(longer.blobs, entry.dataset_id) is not None
    assert complete_until(longer.blobs, entry.dataset_id) is None


def test_a_dataset_that_does_not_exist_is_not_pushed(pair: tuple[SyncNode, SyncNode], tmp_path: Path) -> None:
    here, _ = pair
    with pytest.raises(NotFound, match="dataset towns"):
        here.push("towns", (tmp_path / "folder").as_uri())
    here.catalog.add(CatalogEntry(alias="towns", dataset_id=ID))  # its first block is still to come
    with pytest.raises(NotFound, match="dataset towns"):
        here.push("towns", (tmp_path / "folder").as_uri())
    with pytest.raises(InvalidInput, match="has no push alias"):
        here.push("cities", "")


@pytest.fixture
def server() -> Iterator[PageServer]:
    with serving_pages() as pages:
        yield pages


def named(home: Path, url: str) -> str:
    known = LocalRepositories(home)
    known.add(Name("shop"), url)
    found = name_in_repository(known, Name("shop"), ID, Name("cities"), lambda _: "token")
    return str(found)


def test_a_new_dataset_gets_its_local_name_in_a_folder_and_at_a_node(
    tmp_path: Path, server: PageServer
) -> None:
    assert named(tmp_path / "a", "file:///srv/data") == "shop/cities"
    server.pages["/info"] = Page(body=b'{"isMultiTenant": false}')
    assert named(tmp_path / "b", server.url) == "shop/cities"


def test_on_a_node_with_accounts_the_name_has_that_of_the_token_or_the_owner(
    tmp_path: Path, server: PageServer
) -> None:
    server.pages["/info"] = Page(body=b'{"isMultiTenant": true}')
    server.pages["/accounts/me"] = Page(body=b'{"accountName": "alice"}')
    assert named(tmp_path / "a", f"odf+{server.url}") == "shop/alice/cities"
    owned = {"owner": {"accountName": "bob"}, "datasetName": "towns"}
    server.pages[f"/datasets/{ID}"] = Page(body=json.dumps(owned).encode())
    assert named(tmp_path / "b", server.url) == "shop/bob/towns"
    server.pages["/info"] = Page(body=b"{}")
    assert named(tmp_path / "c", server.url) == "shop/towns"
    server.pages["/info"] = Page(body=b'{"isMultiTenant": true}')
    server.pages["/accounts/me"] = Page(body=b'{"accountName": 1}')
    with pytest.raises(InvalidInput, match="not the name of an account"):
        named(tmp_path / "d", server.url)
    for body, why in ((b"[]", "not an object"), (b"[", "not JSON")):
        server.pages["/info"] = Page(body=body)
        with pytest.raises(InvalidInput, match=why):
            named(tmp_path / why, server.url)


@pytest.mark.parametrize("url", ["http://[::1", "ftp://example.org", "http:///path", "http://host:port/"])
def test_a_url_other_than_http_is_not_requested(url: str) -> None:
    with pytest.raises(InvalidInput, match=r"expected a URL of http or https|not a URL"):
        NodeClient(url, PUBLIC, timeout=urllib3.Timeout(1), retries=urllib3.Retry(0))


@pytest.mark.parametrize(
    ("one", "other", "is_own"),
    [
        ("http://a/x", "http://a:80/y", True),
        ("https://a", "https://a:443", True),
        ("http://a:0/", "http://a/", False),
        ("http://a", "https://a", False),
        ("http://a", "http://b", False),
        ("http://A", "http://a", True),
    ],
)
def test_an_origin_is_scheme_host_and_port(one: str, other: str, is_own: bool) -> None:
    client = NodeClient(one, PUBLIC, timeout=urllib3.Timeout(1), retries=urllib3.Retry(0))
    assert client.is_own(other) == is_own


class Uploads:
    """Responds to PUTs with `answers`, and records range and body."""

    def __init__(self, *answers: web.Response) -> None:
        self._answers = list(answers)
        self.came: list[tuple[str | None, bytes]] = []
        self.app = web.Application()
        self.app.router.add_put("/{path:.*}", self._take)

    async def _take(self, request: web.Request) -> web.Response:
        body = await asyncio.wait_for(request.read(), 20)
        self.came.append((request.headers.get("Content-Range"), body))
        return self._answers.pop(0)


def uploader(url: str, *, may_continue: bool = True, content: bytes | None = None) -> Uploader:
    blobs = MemoryBlobStore(MemoryRefStore())
    if content is not None:
        blobs.put(ID, ObjectKind.DATA, physical_hash_of(content), content)
    return Uploader(blobs, ID, url, LOOPBACK, may_continue=may_continue)


def upload_of(content: bytes, place: msg.TransferUrl | None) -> msg.Upload:
    file = msg.ObjectFile(
        object_type=msg.ObjectType.DATA_SLICE, physical_hash=physical_hash_of(content), size=len(content)
    )
    return msg.Upload(object_file=file, push_strategy=msg.PushStrategy.HTTP_UPLOAD, upload_to=place)


def test_an_object_is_sent_only_to_the_url_of_the_other_node_and_only_if_it_exists() -> None:
    with pytest.raises(InvalidInput, match="returned no URL to upload it to"):
        uploader("http://localhost", content=b"object").send(upload_of(b"object", None))
    with pytest.raises(NotFound, match="which the chain declares"):
        uploader("http://localhost").send(upload_of(b"object", msg.TransferUrl(url="http://localhost/x")))


@pytest.mark.parametrize("status", [300, 404, 507])
def test_an_object_that_is_not_accepted_is_unavailable_with_the_response(status: int) -> None:
    there = Uploads(web.Response(status=status, text="no room"))
    with running(there.app) as url:
        upload = upload_of(b"object", msg.TransferUrl(url=f"{url}/x"))
        with pytest.raises(Unavailable, match=f"status {status}: no room"):
            uploader(url, may_continue=False, content=b"object").send(upload)


@pytest.mark.parametrize("status", [200, 201, 299])
def test_every_2xx_status_is_a_success(status: int) -> None:
    there = Uploads(web.Response(status=status))
    with running(there.app) as url:
        uploader(url, may_continue=False, content=b"object").send(
            upload_of(b"object", msg.TransferUrl(url=f"{url}/x"))
        )
    assert there.came == [(None, b"object")]


def test_bytes_that_the_other_node_has_are_not_sent_and_wrong_ones_are_replaced() -> None:
    there = Uploads(
        web.Response(status=WRONG_BYTES, text="other bytes"),
        web.Response(status=200),
    )
    with running(there.app) as url:
        file = File(url=f"{url}/x", headers={}, content=BytesIO(b"0123456789"), size=10)
        uploader(url).complete(file, 4)
    assert there.came == [("bytes 4-9/10", b"456789"), (None, b"0123456789")]


def test_bytes_that_are_wrong_from_the_first_on_are_not_sent_again() -> None:
    there = Uploads(web.Response(status=WRONG_BYTES, text="other bytes"))
    with running(there.app) as url, pytest.raises(Unavailable, match="other bytes"):
        uploader(url).complete(File(url=f"{url}/x", headers={}, content=BytesIO(b"01"), size=2), 0)
    assert len(there.came) == 1


@pytest.mark.parametrize(
    ("arrived", "start"), [("4", 4), ("10", 0), ("11", 0), ("x", 0), ("-1", 0), ("", 0), ("9", 9)]
)
def test_only_an_offset_within_the_file_is_trusted(arrived: str, start: int) -> None:
    there = Uploads(web.Response(status=INCOMPLETE, headers={OFFSET: arrived}), web.Response(status=200))
    with running(there.app) as url:
        file = File(url=f"{url}/x", headers={}, content=BytesIO(b"0123456789"), size=10)
        uploader(url).complete(file)
    assert [body for _, body in there.came] == [b"", b"0123456789"[start:]]


@pytest.mark.parametrize(("offset", "sent"), [("4", b"456789"), ("x", b"0123456789"), (None, b"0123456789")])
def test_an_upload_resumes_at_the_offset_that_the_url_reports(offset: str | None, sent: bytes) -> None:
    content = b"0123456789"
    there = Uploads(web.Response(status=200))
    with running(there.app) as url:
        upload = upload_of(content, msg.TransferUrl(url=f"{url}/x"))
        place = upload.upload_to
        assert place is not None
        headers = () if offset is None else (msg.HttpHeader(name=OFFSET, value=offset),)
        given = replace(place, headers=headers)
        uploader(url, content=content).send(replace(upload, upload_to=given))
    assert [body for _, body in there.came] == [sent]


@pytest.mark.parametrize("is_own", [True, False])
def test_an_upload_resumes_only_at_the_node_itself_and_only_if_supported(*, is_own: bool) -> None:
    content = b"0123456789"
    there = Uploads(web.Response(status=200))
    with running(there.app) as url:
        place = url if is_own else url.replace("127.0.0.1", "localhost")
        offset = msg.HttpHeader(name=OFFSET, value="4")
        upload = upload_of(content, msg.TransferUrl(url=f"{place}/x", headers=(offset,)))
        uploader(url, may_continue=not is_own, content=content).send(upload)
    assert there.came == [(None, content)]


@pytest.mark.parametrize("status", [200, 404])
def test_an_object_is_closed_whether_or_not_it_is_accepted(
    status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, blobs = BytesIO(b"object"), MemoryBlobStore(MemoryRefStore())
    monkeypatch.setattr(blobs, "open", lambda *_: opened)
    there = Uploads(web.Response(status=status))
    with running(there.app) as url, suppress(Unavailable):
        Uploader(blobs, ID, url, LOOPBACK).send(upload_of(b"object", msg.TransferUrl(url=f"{url}/x")))
    assert opened.closed


def test_without_an_exchange_nothing_is_requested_and_the_node_itself_is_read(server: PageServer) -> None:
    there = SmartDataset(f"odf+{server.url}/cities", None, LOOPBACK)
    name = a_hash("block")
    there.request([(ObjectKind.DATA, name, 1)])
    with pytest.raises(NotFound):
        there.block(name)
    server.pages[f"/cities/blocks/{name}"] = Page(body=b"raw")
    assert there.block(name) == b"raw"
    assert list(there.pack(name, None)) == []
    with pytest.raises(InvalidInput, match=r"expected odf\+http"):
        SmartDataset(server.url)


def test_the_blocks_of_an_exchange_are_returned_once_newest_first(server: PageServer) -> None:
    there = SmartDataset(f"odf+{server.url}/cities", None, LOOPBACK)
    first, last = a_hash("first"), a_hash("last")
    there._blocks = {first: b"1", last: b"2"}
    assert list(there.pack(a_hash("other"), None)) == []
    assert (there.block(first), list(there.pack(last, None))) == (b"1", [b"2", b"1"])
    assert list(there.pack(last, None)) == [], "the caller keeps them"


DIVERGED: dict[str, Any] = {
    "repository": "file:///srv/x",
    "common_block": "f16",
    "blocks_here": 1,
    "blocks_there": 2,
}
OBJECT: dict[str, Any] = {
    "object": "data/f1620",
    "block": "f16",
    "sequence_number": 3,
    "repository": "file:///srv/x",
}
FOLLOW = "{}: 2 blocks there and 1 block here follow the last common block f16"
HEAD: dict[str, Any] = {"dataset": "cities", "expected": "f1", "actual": None}


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (
            ChainsDiverged(**DIVERGED),
            FOLLOW.format("the chain at file:///srv/x and the local one have diverged"),
        ),
        (
            PushDiverged(**{**DIVERGED, "common_block": None}),
            "the chain at file:///srv/x has no block in common with the local one: 2 blocks there, 1 block here",
        ),
        (
            RemoteAhead(url="odf+http://h/x", blocks=1),
            "the chain at odf+http://h/x is ahead: it has 1 block more than the local one",
        ),
        (HeadMoved(**HEAD), "the head of cities has moved in the meantime: expected f1, found none"),
        (
            HeadMoved(**HEAD, ref="a"),
            "reference a of cities has moved in the meantime: expected f1, found none",
        ),
        (
            ObjectDiffers(**OBJECT, actual="7 bytes"),
            "data/f1620 at file:///srv/x is not what block 3 (f16) declares, but 7 bytes",
        ),
        (
            RecordsRefused(**OBJECT, why="no column `op`"),
            "data/f1620 at file:///srv/x, which block 3 (f16) declares, has wrong records: no column `op`",
        ),
    ],
)
def test_errors_of_transfers_are_sentences(error: OdfError, text: str) -> None:
    assert str(error) == text
