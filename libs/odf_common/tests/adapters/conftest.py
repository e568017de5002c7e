"""A MinIO server for the tests of the store on S3."""

from collections.abc import Iterator

import pytest
from odf_testing.minioserver import MinioServer, serving_s3

from odf_common.adapters.s3.location import S3Location


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MinioServer]:
    with serving_s3(tmp_path_factory.mktemp("minio")) as server:
        yield server


@pytest.fixture
def place(server: MinioServer) -> S3Location:
    return server.new_bucket("some/prefix")
