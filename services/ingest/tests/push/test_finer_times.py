"""Times that are finer than their column, on their whole way: cut towards the past, or refused (`finerTimes`)."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from odf_testing.builders import a_query
from odf_testing.ingest_batches import commit_file, commit_messages

from odf_common.errors import InvalidInput
from odf_common.metadata.events import DatasetVocabulary
from odf_common.metadata.scalars import Timestamp
from odf_common.metadata.steps import MergeStrategyAppend, ReadStepCsv, ReadStepNdJson, Transform
from odf_common.ports.engine import IsWanted
from odf_ingest.history.align_columns import align_columns
from odf_ingest.prepare.preparer import Preparer
from odf_ingest.source_settings import FinerTimes, SourceSettings

from .test_message_columns import messages

DDL = ("id BIGINT", "event_time TIMESTAMP(3)", "registered TIMESTAMP(0)", "at TIME(0)")
BIRTHS = """id,event_time,registered,at
1,1969-12-31T23:59:59.9999Z,1969-07-20T20:17:39.5Z,23:59:59.9
2,1955-03-01T11:59:59.9999999Z,1955-03-01T23:59:59.999Z,00:00:00.999
3,1970-01-01T00:00:00Z,1979-07-20T20:17:39Z,12:00
"""
ROW = '{"id":1,"event_time":"2020-01-01T00:00:00Z"}'


class Microseconds:
    """Port `Preprocessor` whose output has times in microseconds, one before 1970 or as given."""

    def __init__(self, us: int) -> None:
        self._us = us

    def run(self, transform: Transform, records: pa.Table, is_wanted: IsWanted) -> pa.Table:
        del transform, is_wanted
        times = pa.array([self._us] * len(records)).cast(pa.timestamp("us", "UTC"))
        return pa.table({"id": records["id"], "event_time": times})


def push(bench: Any, folder: Path, content: str) -> Any:
    return commit_file(bench, folder / "pushed", content, event_time=Timestamp(0))


def refuse_finer(bench: Any) -> None:
    bench.set(finer_times=FinerTimes.REFUSE)


def test_times_before_1970_are_cut_towards_the_past(make_bench: Any, tmp_path: Path) -> None:
    bench = make_bench(MergeStrategyAppend(), ReadStepCsv(header=True, ddl_schema=DDL))
    push(bench, tmp_path, BIRTHS)
    rows = {
        row["id"]: [str(row[name]) for name in ("event_time", "registered", "at")] for row in bench.rows()
    }
    assert rows == {
        1: ["1969-12-31 23:59:59.999000+00:00", "1969-07-20 20:17:39+00:00", "23:59:59"],
        2: ["1955-03-01 11:59:59.999000+00:00", "1955-03-01 23:59:59+00:00", "00:00:00"],
        3: ["1970-01-01 00:00:00+00:00", "1979-07-20 20:17:39+00:00", "12:00:00"],
    }


def test_a_source_may_refuse_rows_with_finer_times(make_bench: Any, tmp_path: Path) -> None:
    bench = make_bench(MergeStrategyAppend(), ReadStepCsv(header=True, ddl_schema=DDL))
    refuse_finer(bench)
    outcome = push(bench, tmp_path, BIRTHS)
    assert [row["id"] for row in bench.rows()] == [3]
    assert [row.reason.partition(", and")[0] for row in outcome.rejected] == [
        "line 2: column event_time: '1969-12-31 23:59:59.999900Z' has a finer fraction than its column",
        "line 3: column event_time: '1955-03-01T11:59:59.9999999Z' has a finer fraction than its column",
    ]


def test_a_source_may_refuse_messages_with_finer_times(make_bench: Any) -> None:
    bench = make_bench(read=ReadStepNdJson(ddl_schema=("id BIGINT", "event_time TIMESTAMP(3)")))
    columns = SourceSettings(finer_times=FinerTimes.REFUSE).message_columns
    values: list[bytes | None] = [
        b'{"id":%d,"event_time":"2020-01-01T00:00:00.%sZ"}' % row for row in ((1, b"1230"), (2, b"1234"))
    ]
    commit_messages(bench, messages(values, columns))
    assert [row["id"] for row in bench.rows()] == [1]
    ((offset, reason),) = bench.reasons
    assert offset == 1
    assert reason.startswith("column event_time: '2020-01-01 00:00:00.123400Z' has a finer fraction")


@pytest.mark.parametrize(("us", "ms"), [(-1, -1), (-1001, -2), (1999, 1)])
def test_times_of_preprocess_are_cut_towards_the_past(
    make_bench: Any, tmp_path: Path, us: int, ms: int
) -> None:
    bench = make_bench(MergeStrategyAppend())
    bench.propose(replace(bench.state.push_sources["default"], preprocess=a_query()))
    bench.preparer = Preparer(Microseconds(us))  # type: ignore[arg-type]
    push(bench, tmp_path, ROW)
    assert [Timestamp.from_datetime(row["event_time"]).ms for row in bench.rows()] == [ms]


def test_finer_times_of_preprocess_may_be_refused(make_bench: Any, tmp_path: Path) -> None:
    bench = make_bench(MergeStrategyAppend())
    bench.propose(replace(bench.state.push_sources["default"], preprocess=a_query()))
    bench.preparer = Preparer(Microseconds(1999))  # type: ignore[arg-type]
    refuse_finer(bench)
    with pytest.raises(InvalidInput, match=r"column event_time: .* has a finer fraction"):
        push(bench, tmp_path, ROW)


def test_a_year_that_preprocess_returns_is_refused_by_row_and_column(make_bench: Any, tmp_path: Path) -> None:
    bench = make_bench(MergeStrategyAppend())
    bench.propose(replace(bench.state.push_sources["default"], preprocess=a_query()))
    bench.preparer = Preparer(Microseconds(253_402_300_800_000_000))  # type: ignore[arg-type]
    with pytest.raises(
        InvalidInput, match=r"record 1 of the query's output: column event_time: \+10000-01-01"
    ):
        push(bench, tmp_path, ROW)


def test_records_are_cut_to_the_unit_of_their_dataset_towards_the_past() -> None:
    vocab = DatasetVocabulary()
    us, ms = pa.timestamp("us", "UTC"), pa.timestamp("ms", "UTC")
    records = pa.table({"at": pa.array([-1, 1999]).cast(us), "s": [{"at": -1001}, {"at": 0}]})
    records = records.set_column(1, "s", records["s"].cast(pa.struct([("at", us)])))
    dataset = pa.schema([("at", ms), ("s", pa.struct([("at", ms)]))])
    found = align_columns(records, dataset, vocab)
    assert found["at"].cast(pa.int64()).to_pylist() == [-1, 1]
    assert pa.compute.struct_field(found["s"], "at").cast(pa.int64()).to_pylist() == [-2, 0]
