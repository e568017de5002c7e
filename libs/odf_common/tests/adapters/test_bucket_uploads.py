"""What a large upload asks the server, and what it returns, without a server."""

from io import BytesIO

import pytest

from odf_common.adapters.s3 import bucket as module
from odf_common.adapters.s3.bucket import Bucket
from odf_common.adapters.s3.location import S3Access, S3Location
from odf_common.errors import StorageUnavailable

CONTENT = b"content"


class Sizes:
    """Answers how long the object is: `before` and after the parts were sent."""

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
