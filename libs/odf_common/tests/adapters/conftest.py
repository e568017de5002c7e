"""A MinIO server for the tests of the store on S3, and a disk that is full for those of the local one."""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from odf_testing.minioserver import MinioServer, serving_s3

from odf_common.adapters.local import durable
from odf_common.adapters.s3.location import S3Location


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MinioServer]:
    with serving_s3(tmp_path_factory.mktemp("minio")) as server:
        yield server


@pytest.fixture
def place(server: MinioServer) -> S3Location:
    return server.new_bucket("some/prefix")


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], AbstractContextManager[None]]:
    """Return a factory of disks with room for this number of small files."""

    @contextmanager
    def after(count: int) -> Iterator[None]:
        left, usual = count, durable.write

        def write(target: Path, content: bytes) -> None:
            nonlocal left
            if left == 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))
            left -= 1
            usual(target, content)

        with monkeypatch.context() as patch:
            patch.setattr(durable, "write", write)
            yield

    return after
