"""URLs that are valid for a while, as object stores give them: lists are short, and an error says what has expired."""

from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import pytest
from aiohttp import web
from odf_testing.builders import a_dataset, a_hash
from odf_testing.http import running
from odf_testing.memory_store import MemoryBlobStore, MemoryRefStore
from odf_testing.sync_node import SyncNode

from odf_common.adapters.networks import Networks
from odf_common.errors import OdfError
from odf_common.hashing.physical import physical_hash_of
from odf_common.identity.did import DatasetId
from odf_common.ports.store import ObjectKind
from odf_sync.access.remote_login import AccessDenied
from odf_sync.http.serve_push import PushTarget
from odf_sync.repositories.http_dataset import UnexpectedStatus, UrlExpired
from odf_sync.repositories.smart_dataset import SmartDataset
from odf_sync.smart import connection as smart_connection
from odf_sync.smart.messages import (
    ObjectFile,
    ObjectType,
    PushStrategy,
    TransferUrl,
    Upload,
    UploadsReply,
)
from odf_sync.transfer import push_to_node
from odf_sync.transfer.push_source import Uploader

LOOPBACK = Networks.parse(("127.0.0.0/8",))
PAST, FUTURE = "2020-01-01T12:00:00.123456789Z", "2999-01-01T12:00:00+02:00"
OBJECT = b"object"
NAME = physical_hash_of(OBJECT)


@pytest.mark.parametrize("limit", [("EXPIRING_LISTED", 1), ("EXPIRING_BYTES", 1)])
@pytest.mark.parametrize(("continues", "lists"), [("1", 1), ("no node does", 3)])
def test_a_node_of_another_kind_is_sent_short_lists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: tuple[str, int], continues: str, lists: int
) -> None:
    monkeypatch.setattr(push_to_node, *limit)
    monkeypatch.setattr(smart_connection, "CONTINUES", continues)
    here, there = SyncNode(tmp_path / "here"), SyncNode(tmp_path / "there")
    here.add_cities(["Kyiv", "Osaka"], ["Quito"], ["Accra", "Turin", "Lima"])
    asked: list[int] = []
    uploads = PushTarget.uploads

    def noted(
        target: PushTarget, request: web.Request, dataset: DatasetId, files: tuple[ObjectFile, ...]
    ) -> UploadsReply:
        asked.append(len(files))
        return uploads(target, request, dataset, files)

    monkeypatch.setattr(PushTarget, "uploads", noted)
    with there.served() as base:
        *_, last = here.push("cities", f"odf+{base}/cities")
    assert (last.state, there.content("cities")) == ("updated", here.content("cities"))
    assert len(asked) == lists
    assert sum(asked) == 3


def test_a_list_has_so_many_objects_and_bytes() -> None:
    def sizes_in(*sizes: int) -> list[list[int]]:
        files = [
            ObjectFile(object_type=ObjectType.DATA_SLICE, physical_hash=a_hash(str(size)), size=size)
            for size in sizes
        ]
        return [[file.size for file in part] for part in push_to_node._lists(files, may_expire=True)]

    most, half = push_to_node.EXPIRING_BYTES, push_to_node.EXPIRING_BYTES // 2
    assert sizes_in() == [[]]
    assert sizes_in(half, half, 1) == [[half, half], [1]]
    assert sizes_in(most + 1, 1, most) == [[most + 1], [1], [most]]
    assert [len(part) for part in sizes_in(*[1] * 2001)] == [1000, 1000, 1]


def refusing() -> web.Application:
    async def refuse(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(status=403)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", refuse)
    return app


def pull(url: str, given: TransferUrl) -> None:
    there = SmartDataset(f"odf+{url}/cities", None, LOOPBACK)
    there._urls[ObjectKind.DATA, NAME] = given
    there.fetch(ObjectKind.DATA, NAME, BytesIO(), 100)


def push(url: str, given: TransferUrl) -> None:
    blobs, dataset = MemoryBlobStore(MemoryRefStore()), a_dataset()
    blobs.put(dataset, ObjectKind.DATA, NAME, OBJECT)
    file = ObjectFile(object_type=ObjectType.DATA_SLICE, physical_hash=NAME, size=len(OBJECT))
    upload = Upload(object_file=file, push_strategy=PushStrategy.HTTP_UPLOAD, upload_to=given)
    Uploader(blobs, dataset, f"{url}/cities", LOOPBACK).send(upload)


@pytest.mark.parametrize(
    ("transfer", "expires_at", "error"),
    [
        (pull, PAST, UrlExpired),
        (push, PAST, UrlExpired),
        (pull, FUTURE, AccessDenied),
        (push, FUTURE, UnexpectedStatus),
        (pull, None, AccessDenied),
        (push, "next week", UnexpectedStatus),
    ],
)
def test_an_object_whose_url_has_expired_says_so_if_the_node_does_not_take_or_send_it(
    transfer: Callable[[str, TransferUrl], None], expires_at: str | None, error: type[OdfError]
) -> None:
    with running(refusing()) as url, running(refusing()) as store, pytest.raises(error) as refused:
        transfer(url, TransferUrl(url=f"{store}/object?signature=secret", expires_at=expires_at))
    if error is UrlExpired:
        assert str(refused.value) == f"{store}/object was valid until {PAST}, and the transfer took longer"
        assert "again" in refused.value.advice()
