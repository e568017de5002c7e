"""Uploads that are refused before a byte of them is read, and files that cannot be opened: without a server."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp import web
from odf_testing.builders import a_hash

from odf_sync.access import rate_limits
from odf_sync.http.connections import RETRY_AFTER_SECONDS, SentFile
from odf_sync.http.object_uploads import ExpectedUpload, ObjectUploads
from odf_sync.transfer.partial_files import partial_file

SIZE = 10


def request_of(length: int | None, **headers: str) -> web.Request:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return cast("web.Request", SimpleNamespace(content_length=length, headers=named))


def upload_of(tmp_path: Path, *, most: int = SIZE, has: bool = True) -> ExpectedUpload:
    file = tmp_path / "uploads" / "file"
    return ExpectedUpload(file=file, name=a_hash("x"), has=lambda: has, take=cast("Any", None), most=most)


def answer(tmp_path: Path, request: web.Request, **options: Any) -> web.Response:
    async def ask() -> web.Response:
        return await ObjectUploads().receive(request, upload_of(tmp_path, **options), "ann")

    return asyncio.run(ask())


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (request_of(None), 411),
        (request_of(3, Content_Encoding="gzip"), 415),
        (request_of(SIZE + 1), 413),
        (request_of(0, Content_Range=f"bytes */{SIZE + 1}"), 413),
        (request_of(1, Content_Range=f"bytes */{SIZE}"), 400),
        (request_of(3, Content_Range="bytes 7-9/11"), 400),
        (request_of(3, Content_Range="nonsense"), 400),
        (request_of(0, Content_Range=f"bytes */{SIZE}"), 200),
        (request_of(0, Content_Range=f"bytes */{SIZE}", Content_Encoding="Identity"), 200),
    ],
)
def test_the_headers_of_an_upload_decide_before_its_body(
    tmp_path: Path, request_: web.Request, status: int
) -> None:
    assert answer(tmp_path, request_).status == status
    assert list(tmp_path.iterdir()) == []


def test_a_status_request_returns_the_received_bytes(tmp_path: Path) -> None:
    question = request_of(0, Content_Range=f"bytes */{SIZE}")
    assert answer(tmp_path, question, has=False).headers["Upload-Offset"] == "0"
    with partial_file(tmp_path / "uploads", "file") as file:
        file.write(b"begun")
    found = answer(tmp_path, question, has=False)
    assert (found.status, found.headers["Upload-Offset"]) == (204, "5")
    later = answer(tmp_path, request_of(3, Content_Range=f"bytes 7-9/{SIZE}"), has=False)
    assert (later.status, later.headers["Upload-Offset"]) == (409, "5")
    with partial_file(tmp_path / "uploads", "file"):
        busy = answer(tmp_path, question, has=False)
    assert (busy.status, busy.headers["Retry-After"]) == (503, "1")


def test_while_too_many_uploads_are_received_others_get_retry_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rate_limits, "MAX_BODIES", 2)
    monkeypatch.setattr(rate_limits, "MAX_BODIES_OF_CALLER", 1)
    question = request_of(0, Content_Range=f"bytes */{SIZE}")

    async def ask() -> tuple[int, ...]:
        uploads = ObjectUploads()
        with uploads._received.acquire("ann"):
            of_ann = await uploads.receive(question, upload_of(tmp_path), "ann")
            of_bob = await uploads.receive(question, upload_of(tmp_path), "bob")
            with uploads._received.acquire("carl"):
                of_dan = await uploads.receive(question, upload_of(tmp_path), "dan")
        free = await uploads.receive(question, upload_of(tmp_path), "ann")
        again = await uploads.receive(question, upload_of(tmp_path), "ann")
        return of_ann.status, of_bob.status, of_dan.status, free.status, again.status

    assert asyncio.run(ask()) == (503, 200, 503, 200, 200)


@pytest.mark.parametrize(("status", "said"), [(403, 500), (404, 503), (200, 200), (206, 206), (416, 416)])
def test_a_file_that_cannot_be_opened_is_a_server_error_that_is_not_cached(
    tmp_path: Path, status: int, said: int
) -> None:
    response = SentFile(tmp_path / "file", headers={"Cache-Control": "immutable"})
    response.set_status(status, "reason")
    assert response.status == said
    is_kept = status == said
    assert ("Cache-Control" in response.headers) == is_kept
    assert response.headers.get("Retry-After") == (None if is_kept else str(RETRY_AFTER_SECONDS))
    assert (response.reason == "reason") == is_kept
