"""Editors get schemas of resources by the end of their `$id`, without a login, and may cache them."""

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from odf_testing.http import running
from odf_testing.memory_store import in_files

from odf_common.resources.resource_schemas import schemas_by_name
from odf_sync.access.access_store import AccessStore
from odf_sync.access.directory import Directory
from odf_sync.http.authorization import Authorizer
from odf_sync.http.endpoints import application
from odf_sync.http.schema_routes import SchemaRoutes


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    home: Path = tmp_path_factory.mktemp("home")
    directory = Directory(AccessStore(home), is_multi_tenant=True)
    authorizer = Authorizer(catalog=in_files(home).catalog, local_writers="off", directory=directory)
    with running(application(authorizer, SchemaRoutes().endpoints())) as base:
        yield base


@pytest.mark.parametrize("suffix", ["", ".json"])
def test_a_schema_is_served_by_its_name_and_may_be_cached(node: str, suffix: str) -> None:
    with urlopen(f"{node}/schemas/source/v1alpha1/Source{suffix}", timeout=10) as answer:
        assert json.load(answer) == schemas_by_name()["source/v1alpha1/Source"]
        assert answer.headers["Content-Type"] == "application/schema+json"
        assert answer.headers["Cache-Control"] == "public, max-age=3600"


def test_every_reference_can_be_followed(node: str) -> None:
    for name in schemas_by_name():
        with urlopen(f"{node}/schemas/{name}", timeout=10) as answer:
            assert json.load(answer)["$id"].endswith(f"/schemas/{name}")


def test_a_schema_that_the_client_has_is_not_sent_again(node: str) -> None:
    address = f"{node}/schemas/source/v1alpha1/Source"
    with urlopen(address, timeout=10) as answer:
        etag = answer.headers["ETag"]
    with pytest.raises(HTTPError) as caught:
        urlopen(Request(address, headers={"If-None-Match": etag}), timeout=10)
    assert caught.value.code == 304


@pytest.mark.parametrize(
    "path", ["source/v1alpha1/Nope", "source/v1/Source", "source/v1alpha1/Source.jsonx", "..%2f/v1/x"]
)
def test_an_unknown_schema_is_not_found(node: str, path: str) -> None:
    with pytest.raises(HTTPError) as caught:
        urlopen(f"{node}/schemas/{path}", timeout=10)
    assert caught.value.code == 404
