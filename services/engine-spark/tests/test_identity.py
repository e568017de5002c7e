"""Which engine it is, and that transforms get the one they ask for."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

import odf_engine_spark
from odf_common.adapters.grpc_engine import EngineClient
from odf_common.errors import InvalidQuery
from odf_common.metadata.steps import TransformSql
from odf_common.metadata.vocabulary import DatasetVocabulary
from odf_common.ports.engine import EngineNotAvailable
from odf_engine_spark.identity import EDGES, digest, identity_of, meaning, sources
from odf_engine_spark.jvm import Spark
from odf_engine_spark.testing import LATE, Block, Make, flight, sql

SOURCE = '"""A module."""\n\n\ndef double(number: int) -> int:\n    """Return twice the number."""\n    return number * 2\n'


@pytest.mark.parametrize(
    "other",
    [
        SOURCE.replace("A module.", "Another text."),
        SOURCE.replace("twice the number", "it twice"),
        SOURCE.replace("number * 2", "(number\n        * 2)  # why"),
    ],
)
def test_words_and_layout_do_not_count(other: str) -> None:
    assert meaning(other) == meaning(SOURCE)


@pytest.mark.parametrize("other", [SOURCE.replace("* 2", "* 3"), SOURCE.replace("double", "twice")])
def test_what_code_does_counts(other: str) -> None:
    assert digest({}, [meaning(other)]) != digest({}, [meaning(SOURCE)])


def test_releases_count() -> None:
    assert digest({"pyarrow": "1"}, ()) != digest({"pyarrow": "2"}, ())


def test_what_computes_counts_and_edges_do_not() -> None:
    names = {file.stem for file in sources() if file.parent == Path(odf_engine_spark.__path__[0])}
    assert {"transform", "state", "session", "types", "windows"} <= names
    assert not names & EDGES
    assert {"data/columns.py", "data/slices.py"} <= {f"{file.parent.name}/{file.name}" for file in sources()}


def test_edges_are_modules_that_are_there() -> None:
    assert {f"{name}.py" for name in EDGES} <= {
        file.name for file in Path(odf_engine_spark.__path__[0]).glob("*.py")
    }


@pytest.fixture(scope="session")
def told(engine: EngineClient) -> str:
    """The engine's version, as it tells it."""
    return str(engine.validate(sql(LATE), {}, {}, DatasetVocabulary()).version)


def test_the_engine_tells_its_version(told: str) -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+\+spark4\.\d+\.\d+\.[0-9a-f]{12}", told)


def test_every_session_of_the_same_sources_has_the_same(
    spark: Spark, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("odf_engine_spark.identity.sources", lambda: (Path(__file__),))
    assert identity_of(spark) == identity_of(spark.isolated())


def test_a_transform_that_asks_for_this_version_gets_it(
    derive: Make, engine: EngineClient, told: str, tmp_path: Path
) -> None:
    transform = replace(sql(LATE), version=told)
    late = derive(transform, flights=[Block(rows=[flight(5, 70.0)])])
    answer = engine.execute_transform(late.request([0], [1], tmp_path / "data", tmp_path / "checkpoint"))
    assert answer.new_offset_interval is not None


@pytest.mark.parametrize(
    "transform",
    [replace(sql(LATE), version="0.0.9+spark3.5.0.000000000000"), replace(sql(LATE), engine="datafusion")],
)
def test_a_transform_that_asks_for_another_engine_is_told_both(
    derive: Make, engine: EngineClient, told: str, tmp_path: Path, transform: TransformSql
) -> None:
    late = derive(transform, flights=[Block(rows=[flight(5, 70.0)])])
    with pytest.raises(EngineNotAvailable) as caught:
        engine.execute_transform(late.request([0], [1], tmp_path / "data", tmp_path / "checkpoint"))
    assert str(transform.version or transform.engine) in str(caught.value)
    assert told in str(caught.value)
    assert "commit the SetTransform again" in str(caught.value)
    assert not (tmp_path / "data").exists()


def test_another_version_is_not_admitted(engine: EngineClient) -> None:
    with pytest.raises(EngineNotAvailable):
        engine.validate(replace(sql(LATE), version="1"), {}, {}, DatasetVocabulary())
    with pytest.raises(InvalidQuery, match="this engine is spark"):
        engine.validate(replace(sql(LATE), engine="datafusion"), {}, {}, DatasetVocabulary())
