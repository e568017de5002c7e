"""Datasets are pulled from buckets, of which nothing is trusted."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pytest
from odf_testing.minioserver import ACCESS_KEY, SECRET_KEY, MinioServer, serving_s3
from odf_testing.webserver import Page, Request, serving_answers

from odf_common.adapters.s3.location import AWS, S3Access, S3Location
from odf_common.codec.signature import SIZE_LIMIT
from odf_common.errors import InvalidInput, NotFound, StorageUnavailable
from odf_common.hashing.multihash import physical_hash_of
from odf_common.ports.store import ObjectKind
from odf_common.service.connections import s3_access
from odf_common.service.settings import Settings
from odf_sync.access.remote_login import ObjectForbidden
from odf_sync.repositories import remote_dataset, s3
from odf_sync.repositories.s3 import S3Dataset

NO_SUCH_KEY = b"<Error><Code>NoSuchKey</Code></Error>"
DATA = bytes(range(256)) * 10_000
NAME = physical_hash_of(DATA)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MinioServer]:
    with serving_s3(tmp_path_factory.mktemp("minio")) as server:
        yield server


@pytest.fixture
def place(server: MinioServer) -> S3Location:
    location = server.new_bucket("datasets/cities")
    stored = server.bucket(location)
    stored.put("refs/head", str(NAME).encode())
    stored.put(f"blocks/{NAME}", b"a block")
    stored.put(f"data/{NAME}", DATA)
    return location


@pytest.fixture
def there(server: MinioServer, place: S3Location) -> S3Dataset:
    return S3Dataset(place, server.access)


def test_head_blocks_and_objects_are_read(there: S3Dataset) -> None:
    out = BytesIO()
    there.fetch(ObjectKind.DATA, NAME, out, len(DATA))
    assert (there.head(), there.block(NAME), out.getvalue()) == (NAME, b"a block", DATA)
    assert list(there.pack(NAME, None)) == []


@pytest.mark.parametrize("start", [0, 1, len(DATA) - 1, len(DATA)])
def test_an_interrupted_download_resumes(there: S3Dataset, start: int) -> None:
    out = BytesIO()
    out.write(DATA[:start])
    there.fetch(ObjectKind.DATA, NAME, out, len(DATA))
    assert out.getvalue() == DATA


def test_a_missing_object_is_named(server: MinioServer, place: S3Location) -> None:
    empty = S3Dataset(server.new_bucket(), server.access)
    for ask in (empty.head, lambda: empty.block(NAME)):
        with pytest.raises(
            NotFound, match=rf"{re.escape(empty.url)}/(refs/head|blocks/{NAME}) does not exist"
        ):
            ask()
    with pytest.raises(NotFound, match="checkpoints/f1620"):
        S3Dataset(place, server.access).fetch(ObjectKind.CHECKPOINT, NAME, BytesIO(), 1)


def test_a_block_may_be_as_long_as_is_allowed_and_not_longer(
    there: S3Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    length = len(b"a block")
    monkeypatch.setattr(s3, "BLOCK_LIMIT", length)
    assert there.block(NAME) == b"a block"
    monkeypatch.setattr(s3, "BLOCK_LIMIT", length - 1)
    with pytest.raises(InvalidInput, match=f"longer than {length - 1} bytes"):
        there.block(NAME)


def test_more_than_was_declared_is_refused(there: S3Dataset) -> None:
    with pytest.raises(InvalidInput, match=f"more than the declared {len(DATA) - 1} bytes"):
        there.fetch(ObjectKind.DATA, NAME, BytesIO(), len(DATA) - 1)


@pytest.mark.parametrize("head", [b"not a hash", b"\xff", b"x" * 5000], ids=["text", "bytes", "long"])
def test_a_head_that_is_not_a_hash_is_refused(server: MinioServer, head: bytes) -> None:
    location = server.new_bucket()
    server.bucket(location).put("refs/head", head)
    with pytest.raises(InvalidInput, match=r"refs/head: (not a hash|longer than 1024 bytes)"):
        S3Dataset(location, server.access).head()


def test_private_buckets_require_credentials(place: S3Location) -> None:
    with pytest.raises(StorageUnavailable, match="access is denied") as caught:
        S3Dataset(place, S3Access()).head()
    assert caught.value.advice().startswith(
        "none were sent: set ODF_S3_ACCESS_KEY, and ODF_S3_ENDPOINT=http://"
    )


def settings(home: Path, server: MinioServer) -> Settings:
    return Settings.from_env({
        "ODF_HOME": str(home), "ODF_S3_ENDPOINT": server.endpoint, "ODF_S3_ACCESS_KEY": ACCESS_KEY,
        "ODF_S3_SECRET_KEY": SECRET_KEY, "ODF_S3_SESSION_TOKEN": "token",
    })  # fmt: skip


def test_credentials_are_sent_to_configured_servers_only(server: MinioServer, tmp_path: Path) -> None:
    requests: list[Request] = []

    def answer(request: Request) -> Page:
        requests.append(request)
        return Page(status=404, body=NO_SUCH_KEY, headers={"Content-Type": "application/xml"})

    known = settings(tmp_path, server)
    with serving_answers(answer) as elsewhere, pytest.raises(NotFound):
        remote_dataset(f"s3+{elsewhere}/some-bucket", settings=known).head()
    assert requests
    assert all("Authorization" not in request.headers for request in requests)
    assert all("token" not in str(request) for request in requests)
    for endpoint in (None, server.endpoint):
        assert s3_access(known, S3Location(bucket="some-bucket", endpoint=endpoint)).access_key == ACCESS_KEY
    assert s3_access(known, S3Location(bucket="some-bucket", endpoint=AWS)).access_key is None


def test_the_credentials_of_a_store_elsewhere_are_not_sent_to_aws(
    server: MinioServer, tmp_path: Path
) -> None:
    store = S3Location(bucket="ours", endpoint=server.endpoint)
    known = replace(settings(tmp_path, server), s3_endpoint=AWS, store=store)
    assert s3_access(known, store).access_key == ACCESS_KEY
    assert s3_access(known, S3Location(bucket="public-bucket")).access_key is None
    at_aws = replace(known, store=S3Location(bucket="ours"))
    assert s3_access(at_aws, S3Location(bucket="other")).access_key == ACCESS_KEY


def test_a_url_that_names_no_bucket_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="is not the name of a bucket"):
        remote_dataset("s3://B/cities", settings=Settings(home=tmp_path))


@pytest.mark.parametrize(("more", "length"), [(0, SIZE_LIMIT), (1, SIZE_LIMIT + 1), (9, SIZE_LIMIT + 1)])
def test_a_signature_that_is_too_long_is_read_only_just_beyond_the_limit(
    server: MinioServer, place: S3Location, there: S3Dataset, more: int, length: int
) -> None:
    server.bucket(place).put(f"signatures/{NAME}", bytes(SIZE_LIMIT + more))
    (signature,) = there.signatures([NAME], None)
    assert len(signature) == length


def may_get(bucket: str) -> str:
    """Return a policy that lets everyone get a bucket's objects, and not list them."""
    statement = {
        "Effect": "Allow",
        "Principal": {"AWS": ["*"]},
        "Action": ["s3:GetObject"],
        "Resource": [f"arn:aws:s3:::{bucket}/*"],
    }
    return json.dumps({"Version": "2012-10-17", "Statement": [statement]})


@pytest.mark.parametrize("is_anonymous", [False, True])
def test_who_may_get_objects_and_not_list_them_reads_all_that_exist(
    server: MinioServer, place: S3Location, is_anonymous: bool
) -> None:
    if is_anonymous:
        server.client().set_bucket_policy(place.bucket, may_get(place.bucket))
        access = replace(server.access, access_key=None, secret_key=None)
    else:
        access = server.reader(place.bucket)
    there = S3Dataset(place, access)
    out = BytesIO()
    there.fetch(ObjectKind.DATA, NAME, out, len(DATA))
    assert (there.head(), there.block(NAME), out.getvalue()) == (NAME, b"a block", DATA)
    assert not any(there.signatures([NAME], None))
    missing = physical_hash_of(b"missing")
    for read in (
        lambda: there.fetch(ObjectKind.DATA, missing, BytesIO(), 10),
        lambda: there.fetch(ObjectKind.CHECKPOINT, missing, BytesIO(), 10),
        lambda: there.block(missing),
    ):
        # MinIO says that it does not exist, S3 that it may not be read: the next test.
        with pytest.raises(NotFound, match=f"/{missing} does not exist"):
            read()


def test_a_denied_object_of_a_readable_dataset_may_be_missing_with_a_key_too(place: S3Location) -> None:
    def answer(request: Request) -> Page:
        if request.path.endswith("/refs/head"):
            return Page(body=str(NAME).encode())
        headers = {"Content-Type": "application/xml"}
        return Page(status=403, body=b"<Error><Code>AccessDenied</Code></Error>", headers=headers)

    with serving_answers(answer) as base:
        access = S3Access(endpoint=base, region="r", access_key=ACCESS_KEY, secret_key=SECRET_KEY)
        there = S3Dataset(replace(place, endpoint=base), access)
        assert there.head() == NAME
        assert not any(there.signatures([NAME], None))
        with pytest.raises(ObjectForbidden, match="does not exist, or may not be read") as lost:
            there.fetch(ObjectKind.DATA, NAME, BytesIO(), 10)
        assert "s3:ListBucket" in lost.value.advice()
