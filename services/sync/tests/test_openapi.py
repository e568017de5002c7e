"""`/openapi.json` describes what is served, and hostile requests to all of it get only documented responses."""

import http.client
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, cast

import grpc
import pytest
from odf_testing.http import running
from odf_testing.memory_store import in_files
from odf_testing.resource_server import serve_resources

from odf_common.adapters.grpc.server import serve
from odf_common.errors import InvalidInput
from odf_common.identity.dataset_refs import DatasetId, Name
from odf_common.ports.store import CatalogEntry
from odf_common.proto.odf.node.v1 import push_pb2_grpc
from odf_common.service.settings import Settings
from odf_sync.access.access_store import AccessStore
from odf_sync.access.directory import Directory
from odf_sync.http import endpoints as http_endpoints
from odf_sync.http.authorization import Authorizer
from odf_sync.http.endpoints import application
from odf_sync.http.head_events import HeadWatch
from odf_sync.http.ingest_client import IngestClient
from odf_sync.http.resource_client import ResourceClient
from odf_sync.http.server import Peers, endpoints

CITIES: Final = Path(__file__).parents[3] / "tests" / "vectors" / "datasets" / "cities.population"
DATASET: Final = "did:odf:fed0126cf085a18635f5d066ab74bb0284a35a86393fa950d8a91b48f88e4b6408100"
VARIABLES: Final = (
    b'{"$schema": "VariableSet", "headers": {"name": "head"}, "spec": {"variables": {"a": "1"}}}'
)


class Refusing(push_pb2_grpc.PushServicer):
    def Check(self, request: Any, context: Any) -> Any:  # noqa: N802
        raise InvalidInput(text="no such source")

    def Show(self, request: Any, context: Any) -> Any:  # noqa: N802
        raise InvalidInput(text="no such receipt")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The server's address, and a token of the account that owns the one dataset."""

    def register(server: grpc.Server) -> tuple[str, ...]:
        push_pb2_grpc.add_PushServicer_to_server(Refusing(), server)
        return ("odf.node.v1.Push", *serve_resources(server))

    home = tmp_path_factory.mktemp("home")
    dataset = DatasetId.parse(DATASET)
    shutil.copytree(CITIES, home / "datasets" / dataset.folder)
    datasets = in_files(home)
    datasets.catalog.add(CatalogEntry(alias="ann/cities.population", dataset_id=dataset))
    directory = Directory(AccessStore(home), is_multi_tenant=True)
    directory.add_account(Name("ann"), None)
    token = directory.create_token(Name("ann"), label="")[0].text()
    authorizer = Authorizer(catalog=datasets.catalog, local_writers="loopback", directory=directory)
    server = serve("127.0.0.1:0", register)
    settings = Settings(home=home, ingest_grpc=f"127.0.0.1:{server.port}")
    heads = HeadWatch()
    heads.is_closed = True  # event streams end at once
    ingest = IngestClient(settings.required("ingest_grpc"))
    peers = Peers(ingest=ingest, resources=ResourceClient(settings.required("ingest_grpc")))
    every = endpoints(datasets, settings, authorizer, cast("Any", None), heads, peers=peers)
    with running(application(authorizer, every)) as base:
        address = base.removeprefix("http://")
        path = "/config/v1alpha1/variableset/head"  # the name that hostile requests ask for
        sent = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        assert ask(address, "PUT", path, VARIABLES, **sent)[0] == 201
        yield address, token
    server.stop(0)


def ask(base: str, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(base, timeout=10)
    try:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


@pytest.fixture(scope="module")
def description(node: tuple[str, str]) -> Any:
    return json.loads(ask(node[0], "GET", "/openapi.json")[1])


def test_the_description_names_every_path_and_how_to_authenticate(description: Any) -> None:
    assert description["openapi"] == "3.1.0"
    assert description["components"]["securitySchemes"]["token"] == {"type": "http", "scheme": "bearer"}
    assert {"/info", "/openapi.json", "/{account}/{dataset}/refs/{ref}"} <= description["paths"].keys()
    push = description["paths"]["/{account}/{dataset}/ingest"]["post"]
    assert [one["name"] for one in push["parameters"]] == ["account", "dataset", "sourceName", "wait"]
    assert push["requestBody"]["content"].keys() == {"application/x-ndjson"}
    assert push["responses"]["200"]["content"].keys() == {"application/json"}


OF_ALL: Final = {400, 429, 503}
OF_DATASETS: Final = {*OF_ALL, 401, 403, 404}
OF_RESOURCES: Final = {401, 403, 404}
OF_CHANGES: Final = {*OF_RESOURCES, 408, 409, 412, 413, 415, 422}
TYPE: Final = "/{context}/{version}/{type}"
ONE: Final = TYPE + "/{ref}"
RESPONSES: Final = (  # by method and paths, which are below that of a dataset without a slash
    ("get", ("/info", "/assets/runtime-config.json", "/openapi.json", "/.well-known/odf-jwks.json"), {200}),
    ("get", ("/schemas/{context}/{version}/{name}",), {200, 304, 404}),
    ("get", ("/accounts/me", "/platform/token/validate"), {200, 401}),
    ("get", ("/datasets",), {200, 401}),
    ("get", ("/datasets/{id}",), {200, 401, 404}),
    ("get", ("/v/login",), {200, 410}),
    ("get", ("/query",), {501}),
    ("get", ("refs/{ref}",), {200, 304}),
    ("get", ("blocks/{name}", "data/{name}", "checkpoints/{name}"), {200, 206, 304, 412, 416}),
    ("get", ("packs/{name}", "signatures/{name}", "signature-packs/{name}"), {200}),
    ("get", ("pull", "push"), {101}),
    ("get", ("events", "metadata", "tail"), {200}),
    ("get", ("ingest/{receipt}",), {200, 507}),
    ("post", ("/platform/login",), {200, 401, 408, 413, 415, 422}),
    ("post", ("/platform/token/device", "/platform/token/device/authorization"), {200, 408, 413, 422}),
    ("post", ("/v/login",), {200, 401, 408, 410, 413, 422}),
    ("post", ("/query", "/verify"), {501}),
    ("post", ("ingest",), {200, 202, 408, 409, 413, 415, 507}),
    ("post", ("/resource/v1alpha1/apply",), {*OF_CHANGES, 200, 202}),
    ("get", ("/resource/v1alpha1/types",), {*OF_RESOURCES, 200}),
    ("post", ("/resource/v1alpha1/types",), {*OF_CHANGES, 201}),
    ("post", ("/flow/v1alpha1/flow/{ref}/runs",), {*OF_RESOURCES, 202, 409}),
    ("get", ("/flow/v1alpha1/flow/{ref}/runs",), {*OF_RESOURCES, 200}),
    (
        "post",
        ("/source/v1alpha1/source/{ref}/ingest",),
        {*OF_RESOURCES, 202, 408, 409, 410, 413, 415, 507},
    ),
    ("post", ("/graphql",), {200, 413, 415}),
    ("get", ("/graphql/schema",), {200}),
    ("get", (TYPE,), {*OF_RESOURCES, 200, 410}),
    ("post", (TYPE,), {*OF_CHANGES, 201}),
    ("get", (ONE,), {*OF_RESOURCES, 200, 304}),
    ("put", (ONE,), {*OF_CHANGES, 200, 201}),
    ("patch", (ONE,), {*OF_CHANGES, 200}),
    ("delete", (ONE,), {*OF_RESOURCES, 202, 204, 409, 412}),
    (
        "get",
        (ONE + "/status", ONE + "/history", ONE + "/references", ONE + "/dependents"),
        {*OF_RESOURCES, 200},
    ),
    ("post", (ONE + "/reconcile",), {*OF_RESOURCES, 202, 409}),
    ("put", ("data/{name}", "checkpoints/{name}", "archives/{name}"), {200, 204, 408, 409, 411, 413, 415}),
)


def test_the_description_names_every_response_of_every_operation(description: Any) -> None:
    expected = {
        (method, path if path.startswith("/") else f"/{{account}}/{{dataset}}/{path}"): statuses
        | (OF_ALL if path.startswith("/") else OF_DATASETS)
        for method, paths, statuses in RESPONSES
        for path in paths
    }
    assert expected == {
        (method, path): {int(status) for status in operation["responses"]}
        for path, operations in description["paths"].items()
        for method, operation in operations.items()
    }


def test_hostile_requests_get_only_documented_answers(node: tuple[str, str], description: Any) -> None:
    from odf_testing.hostile_requests import try_all

    base, token = node
    try_all(f"http://{base}", token, description)


def test_too_many_requests_at_a_time_get_retry_after(
    node: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_endpoints, "MAX_REQUESTS", 0)
    assert ask(node[0], "GET", "/info") == (503, b"")


def test_a_password_can_be_tried_ten_times_a_minute(node: tuple[str, str]) -> None:
    credentials = json.dumps({"login": "bea", "password": "x"})
    body = json.dumps({"loginMethod": "password", "loginCredentialsJson": credentials}).encode()
    headers = {"Content-Type": "application/json"}
    found = [ask(node[0], "POST", "/platform/login", body, **headers)[0] for _ in range(11)]
    assert found == [401] * 10 + [429]
