"""A coordinator, manifests for it, and the command that speaks to it over gRPC."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from odf_testing.coordinator import Coordinator
from odf_testing.postgres import PostgresServer, serving_postgres
from structlog.testing import capture_logs

from odf_cli import main as cli
from odf_common.adapters.grpc.server import serve
from odf_coordinator.api.grpc_servicer import register
from odf_coordinator.resources.sql_store import SqlResourceStore

Odf = Callable[..., int]


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    with serving_postgres() as server:
        yield server


@pytest.fixture
def postgres_url(postgres: PostgresServer) -> Iterator[str]:
    with postgres.database() as url:
        yield url


@pytest.fixture
def node(tmp_path: Path) -> Coordinator:
    return Coordinator(home=tmp_path)


@pytest.fixture
def root() -> str:
    return """
kind: DatasetSnapshot
version: 1
content:
  name: cities
  kind: Root
  metadata:
    - kind: AddPushSource
      sourceName: default
      read: {kind: NdJson, ddlSchema: [event_time TIMESTAMP, city STRING]}
      merge: {kind: Append}
"""


@pytest.fixture
def derivative() -> str:
    return """
kind: DatasetSnapshot
version: 1
content:
  name: cities.copy
  kind: Derivative
  metadata:
    - kind: SetTransform
      inputs: [{datasetRef: Cities}]
      transform:
        kind: Sql
        engine: spark
        query: SELECT event_time, city FROM cities
"""


@pytest.fixture
def pair(node: Coordinator, root: str, derivative: str) -> Coordinator:
    """A root with a slice, and a derivative that has read it."""
    node.add(root, derivative)
    node.push("cities", "Oslo")
    node.work()
    return node


@pytest.fixture
def second(derivative: str) -> str:
    """Return a derivative of the derivative."""
    named = derivative.replace("name: cities.copy", "name: copy.copy")
    return named.replace("datasetRef: Cities", "datasetRef: cities.copy")


@pytest.fixture
def odf(
    node: Coordinator, root: str, derivative: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Odf]:
    """Run `odf` with two datasets, in a separate folder."""
    node.add(root, derivative)
    parts = node.parts
    server = serve("127.0.0.1:0", partial(register, parts=parts))
    monkeypatch.setenv("ODF_HOME", str(tmp_path))
    monkeypatch.setenv("ODF_COORDINATOR_GRPC", f"127.0.0.1:{server.port}")
    monkeypatch.chdir(tmp_path)
    with capture_logs():
        yield lambda *arguments: cli.main(arguments)
    server.stop(0)


@pytest.fixture(params=["memory", "file", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SqlResourceStore]:
    match request.param:
        case "memory":
            opened = SqlResourceStore.open(None)
        case "file":
            opened = SqlResourceStore.open(tmp_path)
        case _:
            opened = SqlResourceStore.open(tmp_path, request.getfixturevalue("postgres_url"))
    yield opened
    opened.close()
