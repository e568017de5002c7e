"""Transfers to and from a bucket that are cut off: they resume, and send at most 2 % of all bytes twice.

S3 keeps nothing of a PUT that was cut off, so what a cut inevitably loses is one object, or a part of 16 MiB of a larger
one. It is less than 2 % of the dataset here, as of every dataset of a hundred slices of similar size. Cuts are drawn anew
in each run: few in the usual one, 25 in `make soak`.
"""

import os
import random
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest
from odf_testing.cutting_proxy import CuttingProxy, cutting_proxy, drawn_cut
from odf_testing.minioserver import ACCESS_KEY, SECRET_KEY, MinioServer, serving_s3
from odf_testing.sync_node import SyncNode

from odf_common.adapters.s3 import bucket as bucket_module
from odf_common.adapters.s3.bucket import Bucket
from odf_common.adapters.s3.location import S3Location
from odf_common.errors import OdfError, StorageUnavailable, Unavailable
from odf_common.metadata.events import SetInfo
from odf_common.ports.clock import Backoff
from odf_common.service.settings import Settings
from odf_coordinator.commit.committer import require_committed

OBJECTS, OBJECT_BYTES, BLOCKS, BLOCK_BYTES = 72, 150_000, 100, 700
RECORD_BYTES: Final = 5_000
USUAL, SOAK = 1, 25  # parts of the stream, each with a cut of its own
EARLY_AND_LATE: Final = ((0, 100), (199, 200))  # before the first object, and among the blocks
PARTS: Final = [
    *EARLY_AND_LATE,
    *((part, USUAL) for part in range(USUAL)),
    *(pytest.param((part, SOAK), marks=pytest.mark.soak) for part in range(SOAK)),
]
in_parts = pytest.mark.parametrize("part", PARTS, ids=lambda part: f"{part[0]} of {part[1]}")
TWICE: Final = 0.02  # of all bytes, may be sent twice
LEAST_PART_BYTES: Final = 5 << 20  # that S3 allows, but for the last one
QUESTION: Final = 1000  # bytes of a request without a body, and of its answer
SOURCE: Final = random.Random(15)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_module, "REQUEST_BACKOFF", Backoff(first=0.001, most=0.001))
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MinioServer]:
    with serving_s3(tmp_path_factory.mktemp("minio")) as server:
        yield server


@pytest.fixture(scope="module")
def proxy(server: MinioServer) -> Iterator[CuttingProxy]:
    with cutting_proxy(server.endpoint) as proxy:
        yield proxy


@pytest.fixture
def place(server: MinioServer) -> S3Location:
    return server.new_bucket("shared/cities")


def node_at(home: Path, proxy: CuttingProxy) -> SyncNode:
    """Return a node that reaches buckets through the proxy."""
    environment = {"ODF_HOME": str(home), "ODF_S3_ENDPOINT": proxy.url, "ODF_S3_REGION": "us-east-1"}
    keys = {"ODF_S3_ACCESS_KEY": ACCESS_KEY, "ODF_S3_SECRET_KEY": SECRET_KEY}
    return SyncNode(home, Settings.from_env(environment | keys))


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory, proxy: CuttingProxy) -> SyncNode:
    """A node with a dataset that cannot be compressed."""
    node = node_at(tmp_path_factory.mktemp("here"), proxy)
    node.add_cities()
    for minute in range(OBJECTS):
        cities = (SOURCE.randbytes(RECORD_BYTES).hex() for _ in range(OBJECT_BYTES // RECORD_BYTES // 2))
        node.coordinator.push("cities", *cities, minute=minute)
    known = node.coordinator.find("cities")
    infos = [SetInfo(description=SOURCE.randbytes(BLOCK_BYTES // 2).hex()) for _ in range(BLOCKS)]
    require_committed(known.id, node.coordinator.propose(known, infos))
    return node


def url(place: S3Location) -> str:
    return f"s3://{place.bucket}/{place.prefix}"


def pushed(here: SyncNode, place: S3Location, proxy: CuttingProxy, cut: int | None) -> tuple[int, int]:
    """Push until all is stored, with a cut after a number of bytes; return the bytes sent, and in both directions."""
    sent, total = proxy.to_server, proxy.total
    if cut is not None:
        proxy.cut_after(cut)
        with suppress(Unavailable):
            here.push("cities", url(place))
        proxy.restore()
    here.push("cities", url(place))
    return proxy.to_server - sent, proxy.total - total


@pytest.fixture(scope="module")
def whole(here: SyncNode, server: MinioServer, proxy: CuttingProxy) -> tuple[S3Location, int, int]:
    """A bucket that an undisturbed push wrote, the bytes that it sent, and those in both directions."""
    place = server.new_bucket("shared/cities")
    return place, *pushed(here, place, proxy, None)


@in_parts
def test_an_interrupted_push_resumes(  # noqa: PLR0917 - the fixtures
    here: SyncNode,
    place: S3Location,
    server: MinioServer,
    proxy: CuttingProxy,
    whole: tuple[S3Location, int, int],
    part: tuple[int, int],
) -> None:
    reference, length, total = whole
    sent, _ = pushed(here, place, proxy, drawn_cut(*part, total))
    assert sent <= length * (1 + TWICE)
    assert server.objects(place) == server.objects(reference)


@pytest.fixture(scope="module")
def pulled(
    proxy: CuttingProxy, whole: tuple[S3Location, int, int], tmp_path_factory: pytest.TempPathFactory
) -> int:
    """Return the bytes that an undisturbed pull receives."""
    before = proxy.to_client
    node_at(tmp_path_factory.mktemp("undisturbed"), proxy).pull(url(whole[0]), "cities")
    return proxy.to_client - before


@in_parts
def test_an_interrupted_pull_resumes(  # noqa: PLR0917 - the fixtures
    here: SyncNode,
    proxy: CuttingProxy,
    whole: tuple[S3Location, int, int],
    pulled: int,
    tmp_path: Path,
    part: tuple[int, int],
) -> None:
    reference, *_ = whole
    there, before = node_at(tmp_path / "there", proxy), proxy.to_client
    proxy.cut_after(drawn_cut(*part, pulled))
    with suppress(OdfError):
        there.pull(url(reference), "cities")
        raise AssertionError("it was not cut")
    proxy.restore()
    there.pull(url(reference), "cities")
    assert proxy.to_client - before <= pulled * (1 + TWICE)
    assert there.content("cities") == here.content("cities")


def test_a_large_object_resumes_with_the_interrupted_part(
    server: MinioServer,
    proxy: CuttingProxy,
    place: S3Location,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bucket_module, "PART_BYTES", LEAST_PART_BYTES)
    file, large = tmp_path / "large", SOURCE.randbytes(LEAST_PART_BYTES + 15)
    file.write_bytes(large)
    through = S3Location(bucket=place.bucket, prefix=place.prefix, endpoint=proxy.url)
    before = proxy.total
    assert Bucket(through, server.access).upload("whole", file)
    proxy.cut_after(proxy.total - before - 3 * QUESTION)  # after the first part
    with pytest.raises(StorageUnavailable):
        Bucket(through, server.access).upload("one", file)
    proxy.restore()
    before = proxy.to_server
    assert Bucket(through, server.access).upload("one", file)
    assert proxy.to_server - before < 5 * QUESTION
    assert not Bucket(through, server.access).upload("one", file)
    assert server.objects(place) == {"one": large, "whole": large}
