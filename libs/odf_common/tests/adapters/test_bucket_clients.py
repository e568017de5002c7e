"""Addresses, credentials and error names of a bucket's server, without a server."""

import hashlib
import ssl
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast

import pytest
import urllib3
from minio.datatypes import Part
from minio.deleteobjects import DeleteError
from minio.error import S3Error, ServerError
from odf_testing.builders import a_dataset, a_hash
from odf_testing.memory_store import MemoryBlobStore

from odf_common.adapters.s3 import bucket as module
from odf_common.adapters.s3.bucket import Bucket, StoredObject
from odf_common.adapters.s3.bucket_stores import S3BlobStore
from odf_common.adapters.s3.cache import ObjectCache
from odf_common.adapters.s3.location import S3Access, S3Location
from odf_common.errors import StorageUnavailable
from odf_common.hashing.multihash import physical_hash_of
from odf_common.ports.clock import Backoff
from odf_common.ports.store import ObjectKind

PLACE: Final = S3Location.parse("s3://bucket/prefix")
AWS, OTHER = "https://s3.amazonaws.com", "http://minio.example"


@pytest.mark.parametrize(
    ("addressing", "endpoint", "url"),
    [
        ("auto", AWS, "https://bucket.s3.eu-west-1.amazonaws.com/prefix/one"),
        ("path", AWS, "https://s3.eu-west-1.amazonaws.com/bucket/prefix/one"),
        ("virtual", AWS, "https://bucket.s3.eu-west-1.amazonaws.com/prefix/one"),
        ("auto", OTHER, "http://minio.example/bucket/prefix/one"),
        ("path", OTHER, "http://minio.example/bucket/prefix/one"),
        ("virtual", OTHER, "http://bucket.minio.example/prefix/one"),
    ],
)
def test_a_bucket_is_a_part_of_the_path_or_of_the_host(addressing: str, endpoint: str, url: str) -> None:
    access = S3Access(
        endpoint=endpoint, addressing=addressing, region="eu-west-1", access_key="key", secret_key="secret"
    )
    signed = Bucket(PLACE, access)._client.presigned_get_object("bucket", PLACE.key("one"))
    assert signed.partition("?")[0] == url


def test_credentials_come_from_the_default_profile_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "credentials"
    file.write_text(
        "[other]\naws_access_key_id = no\naws_secret_access_key = no\n"
        "[default]\naws_access_key_id = key\naws_secret_access_key = secret\n"
    )
    provider = module._provider(S3Access(credentials_file=file))
    assert provider is not None
    found = provider.retrieve()
    assert (found.access_key, found.secret_key) == ("key", "secret")
    assert module._provider(S3Access()) is None, "anonymous"


def refusal(code: str, status: int = 403) -> S3Error:
    return S3Error(urllib3.HTTPResponse(status=status), code, None, None, None, None)


def distrust() -> urllib3.exceptions.SSLError:
    error = urllib3.exceptions.SSLError("handshake failed")
    error.__cause__ = ssl.SSLCertVerificationError(1, "certificate verify failed")
    return error


@pytest.mark.parametrize(
    ("error", "attempts", "why", "advice"),
    [
        (refusal("RequestTimeTooSkewed"), 1, "this machine's clock is wrong", "set the clock"),
        (distrust(), 1, "the S3 server is not trusted", "SSL_CERT_FILE"),
        (urllib3.exceptions.SSLError("cut off"), 3, "the connection to the S3 server broke", "check that"),
        (ServerError("busy", 500), 3, "busy", "check that"),
        (ServerError("odd", 499), 1, "odd", "check that"),
        (ValueError("odd header"), 1, "odd header", "check that"),
    ],
    ids=lambda one: type(one).__name__ if isinstance(one, Exception) else None,
)
def test_each_fault_has_its_message_and_is_retried_only_if_transient(
    monkeypatch: pytest.MonkeyPatch, error: Exception, attempts: int, why: str, advice: str
) -> None:
    monkeypatch.setattr(module, "REQUEST_BACKOFF", Backoff(first=0.0, most=0.0))
    monkeypatch.setattr(module, "MAX_REQUEST_ATTEMPTS", 3)
    asked: list[str] = []

    def fail(_: object, bucket: str, name: str) -> None:
        asked.append(f"{bucket}/{name}")
        raise error

    monkeypatch.setattr(module._Client, "stat_object", fail)
    with pytest.raises(StorageUnavailable, match=why) as refused:
        Bucket(PLACE, S3Access()).size("one")
    assert advice in refused.value.advice()
    assert asked == ["bucket/prefix/one"] * attempts


def test_an_object_that_cannot_be_removed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    fault = DeleteError("AccessDenied", "it is locked", "prefix/one", None)
    monkeypatch.setattr(module._Client, "remove_objects", lambda *_: iter([fault]))
    with pytest.raises(StorageUnavailable, match="it was not removed: AccessDenied it is locked") as refused:
        Bucket(PLACE, S3Access()).remove(["one"])
    assert refused.value.file == "prefix/one"


def test_a_missing_object_is_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    conditions: list[object] = []

    def absent(_: object, __: str, ___: str, ____: bytes, condition: object) -> None:
        conditions.append(condition)
        raise refusal("NoSuchKey", 404)

    monkeypatch.setattr(module._Client, "put_if", absent)
    assert not Bucket(PLACE, S3Access()).put("one", b"content", replacing="tag")
    assert conditions == [{"If-Match": '"tag"'}]


LOST = urllib3.exceptions.ProtocolError("the answer was lost")


@pytest.mark.parametrize(
    ("answers", "stored", "is_stored"),
    [
        ([refusal("SlowDown", 503)], b"content", False),
        ([LOST], b"content", True),
        ([LOST, refusal("SlowDown", 503)], b"content", True),
        ([LOST, refusal("SlowDown", 503)], b"of another writer", False),
        ([LOST], None, False),
    ],
)
def test_after_a_lost_response_the_stored_object_decides(
    monkeypatch: pytest.MonkeyPatch, answers: list[Exception], stored: bytes | None, *, is_stored: bool
) -> None:
    waiting = iter([*answers, refusal("PreconditionFailed", 412)])

    def fail(*_: object) -> None:
        raise next(waiting)

    found = None if stored is None else StoredObject(content=stored, etag="tag")
    monkeypatch.setattr(module, "REQUEST_BACKOFF", Backoff(first=0.0, most=0.0))
    monkeypatch.setattr(module._Client, "put_if", fail)
    monkeypatch.setattr(Bucket, "read", lambda *_: found)
    assert Bucket(PLACE, S3Access()).put("one", b"content") == is_stored


def test_an_upload_is_not_begun_while_it_is_unknown_whether_there_is_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise refusal("NoSuchBucket", 404)

    monkeypatch.setattr(module._Client, "_list_multipart_uploads", fail)
    client = Bucket(PLACE, S3Access())._client
    (tmp_path / "file").write_bytes(b"content")
    with (tmp_path / "file").open("rb") as content, pytest.raises(S3Error, match="NoSuchBucket"):
        client.put_parts("bucket", "prefix/one", content)


def test_a_connection_that_breaks_within_an_object_is_unavailable_after_what_has_arrived() -> None:
    class Broken:
        def __init__(self) -> None:
            self.pieces = [b"first"]
            self.closed: list[str] = []

        def read1(self, _: int) -> bytes:
            if self.pieces:
                return self.pieces.pop()
            raise urllib3.exceptions.ProtocolError("cut off")

        def close(self) -> None:
            self.closed.append("close")

        def release_conn(self) -> None:
            self.closed.append("release")

    response = Broken()
    pieces = Bucket(PLACE, S3Access())._pieces(cast("Any", response), "one")
    assert next(pieces) == b"first"
    with pytest.raises(StorageUnavailable, match="the connection to the S3 server broke"):
        next(pieces)
    assert response.closed == ["close", "release"]


class Swept:
    def __init__(self) -> None:
        self.times: list[float] = []

    def sweep(self, untouched_since: float) -> None:
        self.times.append(untouched_since)


def test_unfinished_files_are_swept_in_the_home_and_in_the_cache() -> None:
    local, cache = Swept(), Swept()
    S3BlobStore(cast("Any", None), local=cast("Any", local), cache=cast("Any", cache)).sweep(7.0)
    assert (local.times, cache.times) == ([7.0], [7.0])


def test_indexes_are_in_the_home(tmp_path: Path) -> None:
    local = SimpleNamespace(index_folder=lambda dataset: tmp_path / dataset.folder)
    store = S3BlobStore(cast("Any", None), local=cast("Any", local), cache=cast("Any", None))
    assert store.index_folder(a_dataset()) == tmp_path / a_dataset().folder


def test_a_copy_that_is_removed_before_it_is_opened_is_fetched_again(tmp_path: Path) -> None:
    content = b"content"
    name = physical_hash_of(content)

    class Forgetful(ObjectCache):
        is_forgetful = True

        def find(self, name: str) -> Path | None:
            found = super().find(name)
            if self.is_forgetful:
                self.is_forgetful = False
                return tmp_path / "removed"
            return found

    def download(key: str, file: Path) -> bool:
        file.write_bytes(content)
        return key == f"{a_dataset().folder}/data/{name}"

    stored = SimpleNamespace(download=download)
    cache = Forgetful(tmp_path / "cache", 1000)
    store = S3BlobStore(cast("Any", stored), local=MemoryBlobStore(), cache=cache)
    with store.open(a_dataset(), ObjectKind.DATA, name) as file:
        assert file.read() == content
    assert not store.local_copy(a_dataset(), ObjectKind.DATA, a_hash("other"))


def test_an_object_that_was_fetched_meanwhile_is_not_fetched_again(tmp_path: Path) -> None:
    name = physical_hash_of(b"content")

    class Late(ObjectCache):
        is_late = True

        def find(self, name: str) -> Path | None:
            if self.is_late:
                self.is_late = False
                return None
            return super().find(name)

    stored = SimpleNamespace(download=lambda *_: pytest.fail("it is fetched"))
    cache = Late(tmp_path / "cache", 1000)
    copy = cache.put(f"{a_dataset().folder}/data/{name}", b"content")
    store = S3BlobStore(cast("Any", stored), local=MemoryBlobStore(), cache=cache)
    assert store.local_path(a_dataset(), ObjectKind.DATA, name) == copy


def test_an_object_that_is_read_while_it_is_removed_leaves_no_copy(tmp_path: Path) -> None:
    name = physical_hash_of(b"content")
    key = f"{a_dataset().folder}/data/{name}"
    cache = ObjectCache(tmp_path / "cache", 1000)
    stored = SimpleNamespace(remove=lambda keys: [cache.put(key, b"content") for key in keys])
    S3BlobStore(cast("Any", stored), local=MemoryBlobStore(), cache=cache).remove(
        a_dataset(), ObjectKind.DATA, [name]
    )
    assert cache.find(key) is None


CONTENT = b"content"


class Sizes:
    """Reports the length of the object: `before` and after the parts were sent."""

    def __init__(self, before: int | None, after: int | None) -> None:
        self._answers = [before, after]
        self.sent: list[bytes] = []

    def size(self, name: str) -> int | None:
        assert name == "data/x"
        return self._answers.pop(0)

    def put_parts(self, bucket: str, key: str, content: BytesIO) -> None:
        assert (bucket, key) == ("bucket", "prefix/data/x")
        self.sent.append(content.read())


def uploaded(sizes: Sizes, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(module, "PART_BYTES", 1)
    monkeypatch.setattr(Bucket, "size", lambda _, name: sizes.size(name))
    monkeypatch.setattr(module._Client, "put_parts", lambda _, *one: sizes.put_parts(*one))
    content = BytesIO(CONTENT)
    content.read(3)  # it is sent from its start
    return Bucket(S3Location.parse("s3://bucket/prefix"), S3Access()).upload_from(
        "data/x", content, len(CONTENT)
    )


def test_a_large_object_is_sent_unless_it_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    new = Sizes(None, len(CONTENT))
    assert uploaded(new, monkeypatch)
    assert new.sent == [CONTENT]
    for size in (0, len(CONTENT)):
        known = Sizes(size, None)
        assert not uploaded(known, monkeypatch)
        assert known.sent == []


@pytest.mark.parametrize("after", [None, len(CONTENT) - 1])
def test_an_object_that_is_not_stored_whole_is_an_error(
    monkeypatch: pytest.MonkeyPatch, after: int | None
) -> None:
    with pytest.raises(StorageUnavailable, match=f"7 bytes were sent and {after} are stored"):
        uploaded(Sizes(None, after), monkeypatch)


def test_a_small_object_is_sent_from_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[bytes] = []
    monkeypatch.setattr(module._Client, "put_if", lambda *one: sent.append(one[3]))
    content = BytesIO(CONTENT)
    content.read(3)
    assert Bucket(S3Location.parse("s3://bucket/prefix"), S3Access()).upload_from("x", content, len(CONTENT))
    assert sent == [CONTENT]


class Uploads:
    """Uploads with some parts already stored; records what is sent, and of which parts an object is completed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *uploads: tuple[str, str, list[Part]]) -> None:
        self._uploads = uploads
        self.sent: list[tuple[str, int, bytes]] = []
        self.completed: tuple[str, list[tuple[int, str]]] | None = None
        for name in ("list_multipart_uploads", "list_parts", "create_multipart_upload"):
            monkeypatch.setattr(module._Client, f"_{name}", getattr(self, f"_{name}"))
        monkeypatch.setattr(module._Client, "_upload_part", self._upload_part)
        monkeypatch.setattr(module._Client, "_complete_multipart_upload", self._complete)
        monkeypatch.setattr(module, "PART_BYTES", 3)

    def _list_multipart_uploads(self, bucket: str, *, prefix: str) -> object:
        found = [SimpleNamespace(upload_id=name, object_name=key) for name, key, _ in self._uploads]
        return SimpleNamespace(uploads=[one for one in found if one.object_name.startswith(prefix)])

    def _list_parts(self, bucket: str, key: str, upload: str) -> object:
        return SimpleNamespace(parts=next(parts for name, _, parts in self._uploads if name == upload))

    def _create_multipart_upload(self, *_: object) -> str:
        return "new"

    def _upload_part(self, _: str, __: str, part: bytes, ___: object, upload: str, number: int) -> str:
        self.sent.append((upload, number, part))
        return tag(part)

    def _complete(self, _: str, __: str, upload: str, parts: list[Part]) -> None:
        self.completed = upload, [(part.part_number, part.etag) for part in parts]


def tag(part: bytes) -> str:
    return hashlib.md5(part, usedforsecurity=False).hexdigest()


def put_parts() -> None:
    Bucket(S3Location.parse("s3://bucket"), S3Access())._client.put_parts(
        "bucket", "data/x", BytesIO(CONTENT)
    )


PARTS = [b"con", b"ten", b"t"]
COMPLETE = [(number, tag(part)) for number, part in enumerate(PARTS, 1)]


def test_parts_that_have_arrived_whole_are_not_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    arrived = [Part(1, tag(b"con"), size=3), Part(2, tag(b"TEN"), size=3)]
    uploads = Uploads(
        monkeypatch, ("first", "data/x", []), ("last", "data/x", arrived), ("other", "data/xy", [])
    )
    put_parts()
    assert uploads.sent == [("last", 2, b"ten"), ("last", 3, b"t")]
    assert uploads.completed == ("last", COMPLETE)


def test_an_upload_of_another_object_is_not_continued(monkeypatch: pytest.MonkeyPatch) -> None:
    arrived = [Part(1, tag(b"con"), size=3)]
    uploads = Uploads(monkeypatch, ("other", "data/xy", arrived))
    put_parts()
    assert uploads.sent == [("new", number, part) for number, part in enumerate(PARTS, 1)]
    assert uploads.completed == ("new", COMPLETE)
