"""Which pushes are in progress, and which uploads are accepted for them, before a byte of these is read."""

import asyncio
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp import web
from odf_testing.builders import a_dataset, a_hash

from odf_common.ports.store import ObjectKind
from odf_sync.access import rate_limits
from odf_sync.http.connections import RETRY_AFTER_SECONDS, SentFile
from odf_sync.http.object_uploads import LINGERING_SECONDS, ExpectedUpload, ObjectUploads, OpenPushes
from odf_sync.transfer.partial_files import partial_file

ONE, OTHER = a_dataset("one"), a_dataset("other")


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def pushes(clock: Clock) -> OpenPushes:
    return OpenPushes(clock)


def test_a_name_is_reserved_for_the_dataset_that_is_pushed_to_it_and_a_while_longer(
    pushes: OpenPushes, clock: Clock
) -> None:
    assert pushes.dataset("cities") is None
    with pushes.pushing("Cities", ONE):
        clock.now += 10 * LINGERING_SECONDS
        assert pushes.dataset("CITIES") == ONE
        assert pushes.dataset("towns") is None
    clock.now += LINGERING_SECONDS - 1
    assert pushes.dataset("cities") == ONE
    clock.now += 1
    assert pushes.dataset("cities") is None


def test_of_several_pushes_the_newest_is_used_and_ended_ones_only_after_them(
    pushes: OpenPushes, clock: Clock
) -> None:
    with ExitStack() as first:
        first.enter_context(pushes.pushing("cities", ONE))
        with pushes.pushing("cities", OTHER):
            assert pushes.dataset("cities") == OTHER
        assert pushes.dataset("cities") == ONE
    assert pushes.dataset("cities") == ONE
    with pushes.pushing("towns", OTHER):
        clock.now += LINGERING_SECONDS
    assert (pushes.dataset("cities"), pushes.dataset("towns")) == (None, OTHER)


def test_bytes_are_counted_while_a_name_is_pushed_to(pushes: OpenPushes) -> None:
    pushes.note_received("cities", 5)
    with pushes.pushing("Cities", ONE):
        pushes.note_received("cities", 7)
        pushes.note_received("towns", 9)
        assert (pushes.bytes_received("CITIES"), pushes.bytes_received("towns")) == (7, 0)
        with pushes.pushing("cities", ONE):
            pushes.note_received("Cities", 1)
        assert pushes.bytes_received("cities") == 8
    assert pushes.bytes_received("cities") == 0


def test_a_name_is_pushed_to_by_one_dataset(pushes: OpenPushes) -> None:
    assert not pushes.are_of_others("cities", ONE)
    with pushes.pushing("Cities", ONE):
        assert not pushes.are_of_others("cities", ONE)
        assert pushes.are_of_others("CITIES", OTHER)
        assert not pushes.are_of_others("towns", OTHER)
    assert not pushes.are_of_others("cities", OTHER)


def test_the_archives_of_a_name_are_those_of_its_exchanges(pushes: OpenPushes) -> None:
    with pushes.exchanging("Cities"), pushes.exchanging("cities"), pushes.exchanging("towns"):
        assert pushes.archives("cities") == ()
        assert pushes.archive_limit("cities", a_hash("x"))
        assert pushes.archive_limit("cities", a_hash("y"))
        assert pushes.archives("CITIES") == (a_hash("x"), a_hash("y"))
        assert pushes.archives("towns") == pushes.archives("nowhere") == ()


def test_listeners_of_a_dataset_are_notified_of_its_stored_objects(pushes: OpenPushes) -> None:
    heard: list[tuple[str, object]] = []
    name = a_hash("x")

    def note(who: str) -> None:
        pushes.note_object(ONE, ObjectKind.DATA, name)
        heard.append((who, None))

    with pushes.listening(ONE, lambda *one: heard.append(("first", one))):
        with (
            pushes.listening(ONE, lambda *one: heard.append(("second", one))),
            pushes.listening(OTHER, lambda *one: heard.append(("other", one))),
        ):
            note("both")
        note("one")
    note("none")
    object_ = (ObjectKind.DATA, name)
    assert heard == [
        ("first", object_),
        ("second", object_),
        ("both", None),
        ("first", object_),
        ("one", None),
        ("none", None),
    ]


def test_each_exchange_takes_one_archive_and_lingers_only_if_it_had_one(
    pushes: OpenPushes, clock: Clock
) -> None:
    a, b, c = (a_hash(name) for name in "abc")
    assert pushes.archive_limit("cities", a) is None
    with pushes.exchanging("cities"):
        assert [pushes.archive_limit("CITIES", one) is not None for one in (a, a, b)] == [True, True, False]
        with pushes.exchanging("Cities"):
            assert [pushes.archive_limit("cities", one) is not None for one in (b, a, c)] == [
                True,
                True,
                False,
            ]
    with pushes.exchanging("towns"):
        pass
    assert pushes.archive_limit("towns", a) is None
    clock.now += LINGERING_SECONDS - 1
    assert [pushes.archive_limit("cities", one) is not None for one in (a, b, c)] == [True, True, False]
    clock.now += 1
    assert pushes.archive_limit("cities", a) is None
    with pushes.exchanging("towns"):
        assert pushes.archives("cities") == ()
    with pushes.exchanging("cities"):
        assert pushes.archive_limit("cities", c)


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
