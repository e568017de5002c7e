"""Requests of a large upload and its result, without a server."""

import hashlib
from io import BytesIO
from types import SimpleNamespace

import pytest
from minio.datatypes import Part

from odf_common.adapters.s3 import bucket as module
from odf_common.adapters.s3.bucket import Bucket
from odf_common.adapters.s3.location import S3Access, S3Location
from odf_common.errors import StorageUnavailable

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
