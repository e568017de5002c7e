"""The engine's identity, and that transforms run only on the version they ask for."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from odf_testing.engine import LATE, Block, Make, flight, sql

from odf_common.adapters.grpc.engine_client import EngineClient
from odf_common.errors import InvalidQuery
from odf_common.metadata.events import DatasetVocabulary, TransformSql
from odf_common.ports.engine import EngineNotAvailable
from odf_engine_spark.server.identity import FORMER, Identity, digest


def test_the_version_depends_on_the_releases() -> None:
    assert digest({"pyarrow": "1"}) != digest({"pyarrow": "2"})


@pytest.mark.parametrize("former", FORMER)
def test_a_transform_of_an_engine_whose_version_hashed_its_sources_is_accepted(
    former: str, engine_version: str
) -> None:
    Identity(version=engine_version).require(replace(sql(LATE), version=former))
    with pytest.raises(EngineNotAvailable):
        Identity(version=engine_version + "0").require(replace(sql(LATE), version=former))


@pytest.fixture(scope="session")
def engine_version(engine: EngineClient) -> str:
    """The engine's version, as it reports it."""
    return str(engine.validate(sql(LATE), {}, {}, DatasetVocabulary()).version)


def test_the_engine_reports_its_version(engine_version: str) -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+\+spark4\.\d+\.\d+\.s\d+\.[0-9a-f]{12}", engine_version)


def test_a_transform_that_asks_for_this_version_gets_it(
    derive: Make, engine: EngineClient, engine_version: str, tmp_path: Path
) -> None:
    transform = replace(sql(LATE), version=engine_version)
    late = derive(transform, flights=[Block(rows=[flight(5, 70.0)])])
    answer = engine.execute_transform(late.request([0], [1], tmp_path / "data", tmp_path / "checkpoint"))
    assert answer.new_offset_interval is not None


@pytest.mark.parametrize(
    "transform",
    [replace(sql(LATE), version="0.0.9+spark3.5.0.000000000000"), replace(sql(LATE), engine="datafusion")],
)
def test_a_transform_that_asks_for_another_engine_gets_an_error_with_both_versions(
    derive: Make, engine: EngineClient, engine_version: str, tmp_path: Path, transform: TransformSql
) -> None:
    late = derive(transform, flights=[Block(rows=[flight(5, 70.0)])])
    with pytest.raises(EngineNotAvailable) as caught:
        engine.execute_transform(late.request([0], [1], tmp_path / "data", tmp_path / "checkpoint"))
    assert str(transform.version or transform.engine) in str(caught.value)
    assert engine_version in str(caught.value)
    assert "odf engine upgrade DATASET" in str(caught.value)
    assert not (tmp_path / "data").exists()


def test_another_version_is_refused(engine: EngineClient) -> None:
    with pytest.raises(EngineNotAvailable):
        engine.validate(replace(sql(LATE), version="1"), {}, {}, DatasetVocabulary())
    with pytest.raises(InvalidQuery, match="this engine is spark"):
        engine.validate(replace(sql(LATE), engine="datafusion"), {}, {}, DatasetVocabulary())
