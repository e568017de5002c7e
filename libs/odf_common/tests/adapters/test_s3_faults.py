"""No error of the SDK escapes from a bucket, and a lost response neither loses nor repeats a write."""

import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from io import BytesIO
from itertools import chain, repeat
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, urlsplit

import pytest
import urllib3
from minio.error import S3Error
from odf_testing.contracts import CONTENT, NAME, a_dataset, a_hash
from odf_testing.minioserver import LARGE, SECRET_KEY, MinioServer
from odf_testing.webserver import Page, Request, serving_answers

from odf_common.adapters.s3 import bucket, bucket_stores
from odf_common.adapters.s3.bucket import Bucket
from odf_common.adapters.s3.bucket_stores import S3RefStore
from odf_common.adapters.s3.location import S3Access, S3Location
from odf_common.errors import HeadMoved, OdfError, StorageUnavailable, explain
from odf_common.hashing.multihash import physical_hash_of
from odf_common.ports.clock import Backoff
from odf_common.ports.store import ObjectKind

pytestmark = pytest.mark.waits


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry without pauses."""
    monkeypatch.setattr(bucket, "REQUEST_BACKOFF", Backoff(first=0.001, most=0.001))


def a_large_file(folder: Path) -> Path:
    file = folder / "large"
    file.write_bytes(LARGE)
    return file


def calls(stored: Bucket, folder: Path) -> dict[str, Callable[[], object]]:
    return {
        "read": lambda: stored.read("one"),
        "chunks": lambda: b"".join(stored.chunks("one") or ()),
        "size": lambda: stored.size("one"),
        "download": lambda: stored.download("one", folder / "target"),
        "put": lambda: stored.put("one", CONTENT),
        "upload": lambda: stored.upload("large", a_large_file(folder)),
        "upload_from": lambda: stored.upload_from("one", BytesIO(CONTENT), len(CONTENT)),
        "objects": lambda: list(stored.objects("one")),
        "has_any": lambda: stored.has_any("one"),
        "folders": lambda: list(stored.folders()),
        "remove": lambda: stored.remove(["one"]),
        "require_usable": stored.require_usable,
    }


METHODS = tuple(calls(Bucket(S3Location(bucket="none"), S3Access()), Path()))


def test_every_public_method_is_covered() -> None:
    functions = inspect.getmembers(Bucket, inspect.isfunction)
    # `presigned` asks the bucket nothing.
    assert {name for name, _ in functions if not name.startswith("_")} - {"presign"} == set(METHODS)


def error_of(action: Callable[[], object]) -> OdfError:
    with pytest.raises(OdfError) as caught:
        action()
    assert SECRET_KEY not in explain(caught.value)
    assert "continues" not in explain(caught.value), "a command has to be repeated"
    return caught.value


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("method", METHODS)
def test_no_error_of_the_sdk_leaves_a_bucket_whose_server_cannot_be_reached(
    server: MinioServer, place: S3Location, tmp_path: Path, method: str
) -> None:
    nowhere = S3Location(bucket=place.bucket, endpoint="http://127.0.0.1:9")
    error = error_of(calls(Bucket(nowhere, server.access), tmp_path)[method])
    assert isinstance(error, StorageUnavailable)
    assert str(error).startswith("the S3 server cannot be reached (Connection refused)")
    assert error.advice().startswith("check that http://127.0.0.1:9 is an S3 server that runs")


@pytest.mark.parametrize("method", METHODS)
def test_wrong_credentials_are_named_at_once(
    server: MinioServer, place: S3Location, tmp_path: Path, method: str
) -> None:
    stranger = replace(server.access, secret_key="another-secret")
    error = error_of(calls(Bucket(place, stranger), tmp_path)[method])
    assert "access is denied" in str(error)
    assert error.advice().startswith("check the credentials (ODF_S3_")


@pytest.mark.parametrize("method", [each for each in METHODS if each not in {"size", "upload"}])
def test_a_missing_bucket_is_named(server: MinioServer, tmp_path: Path, method: str) -> None:
    nowhere = S3Location(bucket="no-such-bucket", endpoint=server.endpoint)
    error = error_of(calls(Bucket(nowhere, server.access), tmp_path)[method])
    assert "the bucket does not exist" in str(error)


ODD_ANSWERS = {
    "html": Page(body=b"<html>not S3", headers={"Content-Type": "text/html"}, status=502),
    "broken XML": Page(body=b"<Error><Code>", headers={"Content-Type": "application/xml"}, status=400),
    "no UTF-8": Page(body=b"<Error>\xff", headers={"Content-Type": "application/xml"}, status=400),
    "another page": Page(body=b"hello", headers={"Content-Type": "text/plain"}, status=200),
    "conflict": Page(status=409),
    "redirect": Page(status=307, headers={"Location": "http://127.0.0.1:9/"}),
    "too many": Page(status=429, body=b"<Error><Code>SlowDown</Code></Error>"),
}


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("answer", ODD_ANSWERS)
@pytest.mark.parametrize("method", METHODS)
def test_no_error_of_the_sdk_leaves_a_bucket_whose_server_answers_oddly(
    server: MinioServer, tmp_path: Path, method: str, answer: str
) -> None:
    with serving_answers(lambda _: ODD_ANSWERS[answer]) as endpoint:
        stored = Bucket(S3Location(bucket="some-bucket", endpoint=endpoint), server.access)
        with suppress(StorageUnavailable):
            calls(stored, tmp_path)[method]()


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("status", "code", "is_passing"),
    [
        *[(503, "SlowDown", True), (503, "Unknown", True), (500, "InternalError", True)],
        *[(429, "Unknown", True), (400, "RequestTimeout", True), (409, "OperationAborted", True)],
        *[(400, "InvalidRequest", False), (403, "AccessDenied", False), (404, "NoSuchBucket", False)],
        *[(499, "Unknown", False), (501, "NotImplemented", True), (400, "", True)],
    ],
)
def test_a_request_is_repeated_only_if_another_attempt_may_succeed(
    server: MinioServer, status: int, code: str, is_passing: bool
) -> None:
    requests: list[Request] = []
    text = f"<Error><Code>{code}</Code></Error>" if code else "a proxy says"

    def answer(request: Request) -> Page:
        requests.append(request)
        return Page(status=status, body=text.encode(), headers={"Content-Type": "application/xml"})

    with serving_answers(answer) as endpoint:
        location = S3Location(bucket="some-bucket", endpoint=endpoint)
        error_of(lambda: Bucket(location, server.access).read("one"))
    assert len(requests) == (bucket.MAX_REQUEST_ATTEMPTS if is_passing else 1)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(("status", "is_passing"), [(499, False), (500, True), (502, True)])
def test_a_refusal_that_is_only_a_status_is_judged_by_it(
    server: MinioServer, status: int, is_passing: bool
) -> None:
    requests: list[Request] = []

    def answer(request: Request) -> Page:
        requests.append(request)
        return Page(status=status)

    with serving_answers(answer) as endpoint:
        location = S3Location(bucket="some-bucket", endpoint=endpoint)
        error_of(lambda: Bucket(location, server.access).size("one"))
    assert {request.method for request in requests} == {"HEAD"}
    assert len(requests) == (bucket.MAX_REQUEST_ATTEMPTS if is_passing else 1)


def test_a_server_that_is_overloaded_has_a_pause_before_each_further_request(
    server: MinioServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(bucket, "sleep", pauses.append)
    with serving_answers(lambda _: ODD_ANSWERS["too many"]) as endpoint:
        location = S3Location(bucket="some-bucket", endpoint=endpoint)
        error_of(lambda: Bucket(location, server.access).read("one"))
    assert pauses == [
        bucket.REQUEST_BACKOFF.pause(attempt) for attempt in range(1, bucket.MAX_REQUEST_ATTEMPTS)
    ]


def test_attempts_are_counted_again_after_one_that_got_further(
    server: MinioServer, place: S3Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(bucket, "sleep", pauses.append)
    arrived = chain([0, 10, 10, 20, 20], repeat(20))  # requested once before, and twice if it is larger

    def breaking() -> None:
        raise urllib3.exceptions.ProtocolError("the connection broke")

    fault = error_of(lambda: server.bucket(place)._retry(breaking, "one", progress=lambda: next(arrived)))
    assert isinstance(fault, StorageUnavailable)
    pause = bucket.REQUEST_BACKOFF.pause
    assert pauses == [
        pause(1),
        pause(1),
        *(pause(attempt) for attempt in range(2, bucket.MAX_REQUEST_ATTEMPTS)),
    ]


def forwarded(server: MinioServer, request: Request) -> Page:
    """Return the server's own answer; the signature stays valid, since it covers the sent host name."""
    response = urllib3.request(
        request.method,
        server.endpoint + request.path,
        body=request.body,
        headers=dict(request.headers),
        retries=False,
    )
    headers = {name: value for name, value in response.headers.items() if name.lower() != "content-length"}
    if request.method == "HEAD":
        headers["Content-Length"] = response.headers["Content-Length"]
    return Page(status=response.status, body=response.data, headers=headers)


@pytest.fixture
def losing(server: MinioServer) -> Iterator[tuple[str, list[str]]]:
    """A server that executes the next requests of these methods, and loses the responses."""
    lost: list[str] = []

    def answer(request: Request) -> Page | None:
        page = forwarded(server, request)
        if request.method in lost:
            lost.remove(request.method)
            return None
        return page

    with serving_answers(answer) as endpoint:
        yield endpoint, lost


@pytest.mark.usefixtures("quick")
def test_a_move_whose_answer_was_lost_succeeds_if_it_was_carried_out(
    server: MinioServer, place: S3Location, losing: tuple[str, list[str]]
) -> None:
    endpoint, lost = losing
    refs = S3RefStore(Bucket(replace(place, endpoint=endpoint), server.access))
    for expected, new in ((None, a_hash(1)), (a_hash(1), a_hash(2))):
        lost.append("PUT")
        refs.compare_and_set(a_dataset(), expected=expected, new=new)
        assert (lost, refs.head(a_dataset())) == ([], new)


@pytest.mark.usefixtures("quick")
def test_a_move_whose_answer_was_lost_fails_if_another_came_first(
    server: MinioServer, place: S3Location
) -> None:
    refs = S3RefStore(server.bucket(place))
    broken: list[str] = ["PUT"]

    def answer(request: Request) -> Page | None:
        if request.method in broken:
            broken.remove(request.method)
            refs.compare_and_set(a_dataset(), expected=None, new=a_hash(2))
            return None
        return forwarded(server, request)

    with serving_answers(answer) as endpoint:
        late = S3RefStore(Bucket(replace(place, endpoint=endpoint), server.access))
        with pytest.raises(HeadMoved) as caught:
            late.compare_and_set(a_dataset(), expected=None, new=a_hash(1))
    assert caught.value.actual == str(a_hash(2))
    assert refs.head(a_dataset()) == a_hash(2)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("method", ["GET", "PUT", "HEAD", "POST", "DELETE"])
def test_requests_whose_responses_were_lost_are_repeated(
    server: MinioServer, place: S3Location, losing: tuple[str, list[str]], method: str, tmp_path: Path
) -> None:
    endpoint, lost = losing
    blobs = server.store(replace(place, endpoint=endpoint), tmp_path)
    file = a_large_file(tmp_path)
    lost.append(method)
    blobs.put(a_dataset(), ObjectKind.SIGNATURE, NAME, CONTENT)
    assert blobs.read(a_dataset(), ObjectKind.SIGNATURE, NAME) == CONTENT
    blobs.put_file(a_dataset(), ObjectKind.DATA, physical_hash_of(LARGE), file)
    assert blobs.size(a_dataset(), ObjectKind.DATA, physical_hash_of(LARGE)) == len(LARGE)
    S3RefStore(server.bucket(place)).remove(a_dataset(), "head", expected=None)
    blobs.delete_dataset(a_dataset())
    assert not blobs.has(a_dataset(), ObjectKind.SIGNATURE, NAME)
    assert set(lost) <= {"DELETE"}  # objects are removed by POST


@pytest.mark.usefixtures("quick")
def test_an_interrupted_download_resumes_where_it_was_cut(
    server: MinioServer, place: S3Location, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket, "CHUNK_BYTES", 2)
    server.store(place, tmp_path / "writer").put(a_dataset(), ObjectKind.DATA, NAME, CONTENT)
    cuts, asked = [3, 0], list[str | None]()

    def answer(request: Request) -> Page:
        page = forwarded(server, request)
        if request.method == "GET":
            asked.append(request.headers.get("Range"))
        if cuts and request.method == "GET":
            page.headers.update({"Content-Length": str(len(page.body)), "Connection": "close"})
            page.body = page.body[: cuts.pop()]
        return page

    with serving_answers(answer) as endpoint:
        reader = server.store(replace(place, endpoint=endpoint), tmp_path / "reader")
        assert reader.local_path(a_dataset(), ObjectKind.DATA, NAME).read_bytes() == CONTENT
    assert asked == [None, None, "bytes=2-"]


@pytest.mark.usefixtures("quick")
def test_a_large_object_that_is_stored_incompletely_is_not_regarded_as_stored(
    server: MinioServer, place: S3Location, tmp_path: Path
) -> None:
    def answer(request: Request) -> Page:
        page = forwarded(server, request)
        if request.method == "HEAD" and page.status == 200:
            page.headers["Content-Length"] = str(len(LARGE) - 1)
        return page

    with serving_answers(answer) as endpoint:
        stored = Bucket(replace(place, endpoint=endpoint), server.access)
        error = error_of(lambda: stored.upload("large", a_large_file(tmp_path)))
    assert isinstance(error, StorageUnavailable)
    assert str(error).startswith(f"{len(LARGE)} bytes were sent and {len(LARGE) - 1} are stored")


@pytest.mark.parametrize("code", ["AccessDenied", "NotImplemented"])
def test_a_large_object_is_stored_where_uploads_cannot_be_listed(
    server: MinioServer, place: S3Location, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise S3Error(urllib3.HTTPResponse(), code, None, None, None, None)

    monkeypatch.setattr(bucket._Client, "_list_multipart_uploads", refused)
    stored = Bucket(place, server.access)
    stored.upload("large", a_large_file(tmp_path))
    assert b"".join(stored.chunks("large") or ()) == LARGE


def test_a_prefix_has_objects_or_not(server: MinioServer, place: S3Location) -> None:
    stored = Bucket(place, server.access)
    stored.put("signatures/one", b"1")
    assert stored.has_any("signatures/")
    assert not stored.has_any("signature/")


@pytest.mark.parametrize("code", ["AccessDenied", "NotImplemented"])
def test_a_prefix_that_cannot_be_listed_has_no_objects(
    server: MinioServer, place: S3Location, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise S3Error(urllib3.HTTPResponse(), code, None, None, None, None)

    stored = Bucket(place, server.access)
    stored.put("signatures/one", b"1")
    monkeypatch.setattr(bucket._Client, "list_objects", refused)
    assert not stored.has_any("signatures/")


def test_a_usable_bucket_is_left_unchanged(server: MinioServer, place: S3Location) -> None:
    server.bucket(place).require_usable()
    assert server.objects(place) == {}


@pytest.mark.parametrize("ignored", ["If-None-Match", "If-Match"])
def test_a_server_that_ignores_conditions_is_refused(
    server: MinioServer, place: S3Location, ignored: str
) -> None:
    def answer(request: Request) -> Page:
        if request.method == "PUT" and ignored in request.headers:
            server.client().put_object(
                place.bucket,
                request.path.removeprefix(f"/{place.bucket}/"),
                BytesIO(request.body),
                len(request.body),
            )
            return Page(status=200)
        return forwarded(server, request)

    with serving_answers(answer) as endpoint:
        careless = Bucket(replace(place, endpoint=endpoint), server.access)
        with pytest.raises(StorageUnavailable, match="does not obey the conditions of a PUT") as caught:
            careless.require_usable()
    assert caught.value.advice().startswith("use a server that supports them")
    assert server.objects(place) == {}


def weak(page: Page) -> Page:
    """Return a response as a compressing proxy forwards it."""
    tags = {name: f"W/{value}" for name, value in page.headers.items() if name.lower() == "etag"}
    return replace(page, headers={**page.headers, **tags})


def test_a_server_whose_tags_match_nothing_is_refused_and_moving_a_head_is_not_retried_forever(
    server: MinioServer, place: S3Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_stores, "WRITE_BACKOFF", Backoff(first=0.001, most=0.001))
    with serving_answers(lambda request: weak(forwarded(server, request))) as endpoint:
        weakened = Bucket(replace(place, endpoint=endpoint), server.access)
        with pytest.raises(StorageUnavailable, match="does not obey the conditions of a PUT"):
            weakened.require_usable()
        refs = S3RefStore(weakened)
        refs.compare_and_set(a_dataset(), expected=None, new=a_hash(1))
        with pytest.raises(StorageUnavailable, match="10 conditional PUTs failed") as caught:
            refs.compare_and_set(a_dataset(), expected=a_hash(1), new=a_hash(2))
    assert "ETag" in caught.value.advice()
    assert S3RefStore(server.bucket(place)).head(a_dataset()) == a_hash(1)


@pytest.mark.usefixtures("quick")
def test_an_upload_that_makes_progress_does_not_time_out(
    server: MinioServer, place: S3Location, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(bucket, "RETRY_SECONDS", 0.05)  # less than the time for a part
    refused: set[str] = set()

    def answer(request: Request) -> Page:
        part = parse_qs(urlsplit(request.path).query).get("partNumber", [""])[0]
        if part and part not in refused:
            refused.add(part)
            return Page(status=503)
        return forwarded(server, request)

    with serving_answers(answer) as endpoint:
        slow = Bucket(replace(place, endpoint=endpoint), server.access)
        assert slow.upload("large", a_large_file(tmp_path))
    assert len(refused) > 1
    assert b"".join(server.bucket(place).chunks("large") or ()) == LARGE


@pytest.mark.usefixtures("quick")
def test_an_upload_of_which_only_the_last_answer_was_lost_is_not_sent_again(
    server: MinioServer, place: S3Location, tmp_path: Path
) -> None:
    asked: list[str] = []

    def answer(request: Request) -> Page:
        query = parse_qs(urlsplit(request.path).query, keep_blank_values=True)
        asked.append(f"{request.method} {' '.join(sorted(query))}")
        page = forwarded(server, request)
        is_complete = request.method == "POST" and "uploadId" in query
        return Page(status=503) if is_complete else page

    with serving_answers(answer) as endpoint:
        assert Bucket(replace(place, endpoint=endpoint), server.access).upload(
            "large", a_large_file(tmp_path)
        )
    assert asked.count("POST uploads") == 1
    assert asked.count("POST uploadId") == 1


@pytest.mark.usefixtures("quick")
def test_a_request_to_a_silent_server_is_abandoned_after_one_attempt(
    server: MinioServer, place: S3Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket, "RETRY_SECONDS", 0)
    monkeypatch.setattr(bucket, "TIMEOUT", urllib3.Timeout(0.05))
    with (
        server.paused(),
        pytest.raises(StorageUnavailable, match="the S3 server does not answer: one cannot"),
    ):
        server.bucket(place).read("one")
    assert server.bucket(place).read("one") is None


def a_list(names: Iterable[str], *, is_truncated: bool = False) -> Page:
    """Return a page of a bucket's list."""
    entries = "".join(f"<Contents><Key>{name}</Key><Size>1</Size></Contents>" for name in names)
    rest = f"<IsTruncated>{str(is_truncated).lower()}</IsTruncated><NextContinuationToken>t</NextContinuationToken>"
    body = f"<ListBucketResult><Name>{BUCKET}</Name>{entries}{rest}</ListBucketResult>"
    return Page(body=body.encode(), headers={"Content-Type": "application/xml"})


BUCKET: Final = "theirs"


def at(url: str) -> Bucket:
    return Bucket(S3Location(bucket=BUCKET, endpoint=url), S3Access())


@pytest.mark.parametrize("status", [200, 500])
def test_an_answer_that_is_too_long_is_not_read_to_its_end(
    monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    monkeypatch.setattr(bucket, "ANSWER_BYTES", 10_000)
    with serving_answers(lambda _: Page(body=b" " * 10_001, status=status)) as url:
        assert "its answer has more than 10,000 bytes" in str(error_of(lambda: list(at(url).objects(""))))


def test_a_list_without_an_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    page = a_list([f"{number:04}" for number in range(bucket.MAX_KEYS_PER_REQUEST)], is_truncated=True)
    with serving_answers(lambda _: page) as url:
        assert "do not continue each other" in str(error_of(lambda: list(at(url).objects(""))))
    monkeypatch.setattr(bucket, "NAMES_LIMIT", 7)
    with serving_answers(lambda _: a_list(["a", "b"], is_truncated=True)) as url:
        assert "more than 7 names" in str(error_of(lambda: list(at(url).folders())))
