"""Requests to the engine with records of a source, and the use of its output."""

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from odf_common.errors import InvalidInput, InvalidQuery
from odf_common.metadata.engine_messages import RawQueryRequest, RawQueryResponseSuccess
from odf_common.metadata.steps import TransformSql
from odf_common.ports.engine import IsWanted, always
from odf_ingest.prepare.preprocess import EngineOutputUnreadable, Preprocessor

QUERY = TransformSql(engine="spark", query="SELECT * FROM input")
RECORDS = pa.table({"id": [1, 2], "city": ["Oslo", "Rome"]})


class Engine:
    """Answers a query with the output of `answer`, and records its requests."""

    def __init__(self, answer: Callable[[pa.Table, Path], int]) -> None:
        self._answer = answer
        self.asked: list[tuple[RawQueryRequest, IsWanted]] = []

    def execute_raw_query(self, request: RawQueryRequest, is_wanted: IsWanted) -> RawQueryResponseSuccess:
        self.asked.append((request, is_wanted))
        (before,) = request.input_data_paths
        count = self._answer(pq.read_table(before), Path(request.output_data_path))
        return RawQueryResponseSuccess(num_records=count)


def run(tmp_path: Path, engine: Engine, records: pa.Table = RECORDS) -> pa.Table | None:
    def scratch() -> Path:
        folder = tmp_path / "scratch"
        folder.mkdir()
        return folder

    try:
        return Preprocessor(cast("Any", engine), scratch).run(QUERY, records, always)
    finally:
        assert list(tmp_path.iterdir()) == [], "what was exchanged is removed"


def passing(records: pa.Table, after: Path) -> int:
    pq.write_table(records.replace_schema_metadata({"a": "b"}), after)
    return len(records)


def test_records_are_sent_to_the_engine_and_its_output_is_returned(tmp_path: Path) -> None:
    engine = Engine(passing)
    found = run(tmp_path, engine)
    assert found is not None
    assert found.equals(RECORDS)
    assert found.schema.metadata is None
    ((request, is_wanted),) = engine.asked
    assert (request.transform, is_wanted) == (QUERY, always)


def test_an_output_without_records_is_none_and_may_be_missing(tmp_path: Path) -> None:
    assert run(tmp_path, Engine(lambda *_: 0)) is None


@pytest.mark.parametrize("content", [None, b"", b"no Parquet file"])
def test_an_output_that_cannot_be_read_is_the_engines_fault(tmp_path: Path, content: bytes | None) -> None:
    def answer(_: pa.Table, after: Path) -> int:
        if content is not None:
            after.write_bytes(content)
        return 1

    with pytest.raises(EngineOutputUnreadable):
        run(tmp_path, Engine(answer))


def test_records_that_no_file_can_have_are_refused_and_errors_of_the_engine_are_passed_on(
    tmp_path: Path,
) -> None:
    odd = pa.table({"a": pa.array([{}], pa.struct([]))})
    with pytest.raises(InvalidInput, match="cannot be passed to the engine"):
        run(tmp_path, Engine(passing), odd)

    def refuse(*_: object) -> int:
        raise InvalidQuery(text="syntax error")

    with pytest.raises(InvalidQuery, match="syntax error"):
        run(tmp_path, Engine(refuse))


def test_output_that_cannot_be_opened_now_is_an_error_of_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(records: pa.Table, after: Path) -> int:
        monkeypatch.setattr(pq, "read_table", fail)
        return passing(records, after)

    def fail(file: Path, **_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files", str(file))

    with pytest.raises(OSError, match="Too many open files"):
        run(tmp_path, Engine(answer))
