"""One warm session for all tests."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from odf_testing.engine import FLIGHTS, VOCAB, WEATHER, Block, Chain, Derivative, Executes, Make

from odf_common.adapters.grpc.engine_client import EngineClient
from odf_common.adapters.grpc.server import serve
from odf_common.metadata.events import TransformSql
from odf_engine_spark.server.grpc_servicer import register
from odf_engine_spark.spark.jvm import Java, Spark
from odf_engine_spark.spark.session import start
from odf_engine_spark.transform.execute_transform import Transforms

ANALYSIS = "org.apache.spark.sql.catalyst.analysis"


@pytest.fixture(scope="session")
def spark() -> Iterator[Spark]:
    session = start("local[12]")
    yield session
    session.session.stop()


@pytest.fixture(scope="session")
def transforms(spark: Spark) -> Transforms:
    return Transforms(spark, is_signed=False)


@pytest.fixture
def derive(transforms: Transforms, tmp_path: Path) -> Make:
    """Make a derivative of chains given as name=blocks."""

    def make(transform: TransformSql, via: Executes | None = None, **inputs: Sequence[Block]) -> Derivative:
        chains = []
        for name, blocks in inputs.items():
            chain = Chain(
                name=name, schema=WEATHER if name == "weather" else FLIGHTS, vocab=VOCAB, folder=tmp_path
            )
            for block in blocks:
                chain.add(block)
            chains.append(chain)
        folder = tmp_path / f"out-{len(list(tmp_path.glob('out-*')))}"
        folder.mkdir()
        return Derivative(transforms=via or transforms, transform=transform, chains=chains, folder=folder)

    return make


@pytest.fixture(scope="session")
def engine(spark: Spark) -> Iterator[EngineClient]:
    """End to end: client, wire, server."""
    server = serve("127.0.0.1:0", register(spark, is_signed=False))
    client = EngineClient(f"127.0.0.1:{server.port}")
    yield client
    client.close()
    server.stop(0)


@pytest.fixture(scope="session")
def all_functions(spark: Spark) -> Mapping[str, Java]:
    """Spark's description of each function that it can register, also of those that were removed."""
    found: dict[str, Java] = {}
    for registry, table in (("FunctionRegistry", "expressions"), ("TableFunctionRegistry", "logicalPlans")):
        entries = getattr(spark.singleton(f"{ANALYSIS}.{registry}"), table)()
        for name in str(entries.keys().mkString("\n")).splitlines():
            found[name] = entries.apply(name)._1()
    return found
