"""Bad rows of pushed files become dead letters, are counted in the chain, and can be retried or dropped."""

import re
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from odf_testing.ingest_batches import EVENT_TIME, a_message_batch, commit_file
from odf_testing.letters import StoredLetters
from structlog.testing import capture_logs

from odf_common.adapters.grpc.server import status_of
from odf_common.dataset.open_rejects import source_progress
from odf_common.errors import InvalidInput, NotFound
from odf_common.metadata.events import (
    AddData,
    MergeStrategyAppend,
    MergeStrategyLedger,
    MergeStrategySnapshot,
    ReadStepCsv,
    ReadStepJson,
    ReadStepNdJson,
    ReadStepParquet,
    SetVocab,
)
from odf_ingest.commit.committer import Outcome, position_of
from odf_ingest.commit.position import SourcePosition, TopicPosition
from odf_ingest.control.rejected_messages import MessageLocation, RejectedMessages, Settled
from odf_ingest.errors import CannotRetry, TooManyRejected
from odf_ingest.prepare.bad_rows import MAX_BAD_ROWS
from odf_ingest.prepare.batch import BadRecord
from odf_ingest.read.input_format import InputFormat
from odf_ingest.source_settings import BadRecords, FinerTimes

DDL = ("id BIGINT NOT NULL", "day DATE")
LINES = ReadStepNdJson(ddl_schema=DDL)
PAGE = '{"id":1,"day":"2024-01-01"}\n{"id":2,"day":"2.1.2024"}\n{"id":3,"day":"3.1.2024"}\nx\n'
NO_DATE = "line 2: column day: '2.1.2024' is not a value of DATE; write it as 2026-01-31, or set dateFormat"


class Pushing:
    """A dataset to which files are pushed, and the object that retries their rejected rows."""

    def __init__(self, bench: Any, folder: Path) -> None:
        self.bench = bench
        self._file = folder / "pushed"
        self.letters = StoredLetters(bench.coordinator.letters)
        self.rejected: RejectedMessages = bench.rejected_messages(self.letters)

    def push(
        self,
        content: str | bytes,
        key: str = "key",
        *,
        source: str = "default",
        input_format: str = "",
        is_key_generated: bool = False,
    ) -> Outcome:
        return commit_file(
            self.bench,
            self._file,
            content,
            key,
            source=source,
            is_key_generated=is_key_generated,
            format=InputFormat.parse(input_format),
            label="orders.json",
        )

    def set(self, **settings: Any) -> None:
        self.bench.set(**settings)

    def retry(self, *locations: str) -> Settled:
        wanted = [MessageLocation(source="", location=one) for one in locations]
        return self.rejected.retry(self.bench.dataset, wanted)

    @property
    def open(self) -> list[str]:
        """Return the locations of open rows."""
        return [one.location for one in self.bench.open_letters(self.rejected)]

    @property
    def ids(self) -> list[object]:
        return [id_ for (id_,) in self.bench.values("id")]


@pytest.fixture
def pushing(make_bench: Any, tmp_path: Path) -> Any:
    """Return a factory of datasets with one push source."""
    return lambda merge=None, read=LINES: Pushing(make_bench(merge or MergeStrategyAppend(), read), tmp_path)


@pytest.fixture
def made(pushing: Any) -> Pushing:
    """Return a dataset to which lines are pushed."""
    found: Pushing = pushing()
    return found


@pytest.mark.parametrize(
    ("read", "content", "values", "reasons"),
    [
        (LINES, PAGE.encode(), [b'{"id":2,"day":"2.1.2024"}', b'{"id":3,"day":"3.1.2024"}', b"x"], NO_DATE),
        (
            ReadStepCsv(header=True, ddl_schema=DDL),
            b"day,id\n2024-01-01,1\n2.1.2024,2\n",
            [b"day,id\n2.1.2024,2"],
            "line 3: column day: '2.1.2024' is not a value of DATE; write it as 2026-01-31, or set dateFormat",
        ),
        (
            ReadStepJson(ddl_schema=DDL),
            b'[{"id":1},\n{"day":"2024-01-01"}]',
            [b'{"day":"2024-01-01"}'],
            "line 2, record 2: column id: null is not allowed; a value of BIGINT is required",
        ),
        (ReadStepNdJson(), b'{"id":1}\nhm\n', [b"hm"], "line 2: expected one JSON object"),
    ],
    ids=["lines", "csv", "array", "no-schema"],
)
def test_good_rows_are_committed_and_bad_ones_become_dead_letters(
    pushing: Any, read: Any, content: bytes, values: list[bytes], reasons: str
) -> None:
    made = pushing(read=read)
    outcome = made.push(content)
    assert (made.ids, outcome.count) == ([1], 1)
    assert [one.value for one in made.letters.sent] == values
    assert made.letters.sent[0].reason == f"orders.json, {reasons}"
    (first, *_) = made.rejected.open(made.bench.dataset)
    assert first.value[: first.header_bytes] == (b"day,id\n" if isinstance(read, ReadStepCsv) else b"")
    assert outcome.rejected[0].reason == reasons
    assert made.open == [f"row/{number}" for number in range(len(values))]
    assert source_progress(made.bench.state.source_states["default"]).rejected == len(values)


def test_rejected_rows_are_announced(made: Any) -> None:
    with capture_logs() as entries:
        made.push(PAGE)
    (progress,) = [one for _, one in made.bench.coordinator.sent if one.HasField("ingest_progress")]
    assert progress.ingest_progress.rejected == 3
    assert [one["messages"] for one in entries if one["event"] == "messages rejected"] == [3]


def test_the_push_of_a_row_is_found_past_blocks_of_others(made: Any) -> None:
    made.bench.propose(replace(made.bench.state.push_sources["default"], source_name="other"))
    made.push('{"id":1}\nfirst\n', "a")
    (first,) = made.letters.sent
    made.push('{"id":2}\n', "b", source="other")
    made.bench.propose(SetVocab(event_time_column="event_time"))
    made.letters.sent.append(replace(first, value=b"late", facts={**first.facts, "push": "c"}))
    assert [one.value for one in made.rejected.open(made.bench.dataset)] == [b"first"]


def test_a_file_is_refused_whose_source_stops_at_bad_records(made: Any) -> None:
    made.set(bad_records=BadRecords.STOP)
    with pytest.raises(InvalidInput, match=f"^{NO_DATE}"):
        made.push(PAGE)
    assert (made.ids, made.letters.sent) == ([], [])


def test_a_file_with_more_bad_rows_than_allowed_is_refused(made: Any) -> None:
    made.set(max_rejected_share=0.5)
    with pytest.raises(
        TooManyRejected, match=r"3 of 4 rows of orders.json are not records, more than"
    ) as refused:
        made.push(PAGE)
    # Any family but this one made `odf ingest` say that the file may have been committed.
    assert status_of(refused.value) is grpc.StatusCode.INVALID_ARGUMENT
    assert (made.ids, made.letters.sent) == ([], [])


def test_a_file_none_of_whose_rows_fits_is_refused(made: Any) -> None:
    with pytest.raises(InvalidInput, match=r"^line 1: expected one JSON object"):
        made.push("<html>\n</html>\n")
    assert made.letters.sent == []


@pytest.mark.parametrize("choice", BadRecords)
def test_a_snapshot_with_a_bad_row_is_refused_since_it_would_retract_the_row(
    pushing: Any, choice: BadRecords
) -> None:
    made = pushing(MergeStrategySnapshot(primary_key=("id",)))
    made.set(bad_records=choice)
    with pytest.raises(InvalidInput, match=f"^{NO_DATE}"):
        made.push(PAGE)
    assert made.letters.sent == []


TABLE = ReadStepParquet(ddl_schema=("id BIGINT NOT NULL", "day DATE", "at TIMESTAMP(3)"))
FINER = datetime(2024, 1, 1, 12, 0, 0, 1, tzinfo=UTC)
TOO_FINE = (
    "'2024-01-01 12:00:00.000001Z' has a finer fraction than its column, and the source has finerTimes=refuse; "
    "declare more digits, or STRING"
)
TIMES = {
    "id": [1, 2, None, 4],
    "day": ["2024-01-01", "soon", None, None],
    "at": pa.array([None, None, None, FINER], pa.timestamp("us", "UTC")),
}


def parquet(**columns: Any) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), sink)
    return bytes(sink.getvalue())


def arrow(**columns: Any) -> bytes:
    table, sink = pa.table(columns), pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


@pytest.mark.parametrize(
    ("read", "content", "input_format"),
    [
        (TABLE, parquet(**TIMES), ""),
        (ReadStepNdJson(ddl_schema=TABLE.ddl_schema), parquet(**TIMES), "parquet"),
        (TABLE, arrow(**TIMES), "application/vnd.apache.arrow.stream"),
    ],
    ids=["own", "parquet", "arrow"],
)
def test_bad_rows_of_a_table_are_dead_letters_that_are_read_again(
    pushing: Any, read: Any, content: bytes, input_format: str
) -> None:
    made = pushing(read=read)
    made.set(finer_times=FinerTimes.REFUSE)
    outcome = made.push(content, input_format=input_format)
    assert (made.ids, outcome.count) == ([1], 1)
    reasons = [
        "row 2: column day: 'soon' is not a value of DATE; write it as 2026-01-31, or set dateFormat",
        "row 3: column id: null is not allowed; a value of BIGINT is required",
        f"row 4: column at: {TOO_FINE}",
    ]
    assert [one.reason for one in outcome.rejected] == reasons
    assert [one.reason for one in made.letters.sent] == [f"orders.json, {reason}" for reason in reasons]
    rows = [pa.ipc.open_stream(one.value).read_all().to_pylist() for one in made.letters.sent]
    assert rows == [[row] for row in pa.table(TIMES).to_pylist()[1:]]
    assert made.open == ["row/0", "row/1", "row/2"]
    with pytest.raises(CannotRetry, match="row/0 cannot be retried: column day: 'soon' is not a value"):
        made.retry()
    made.set(finer_times=FinerTimes.CUT)
    settled = made.retry()
    assert (settled.count, settled.unfit, settled.open) == (1, 2, 2)
    assert made.open == ["row/0", "row/1"]
    assert made.bench.values("id", "at") == [(1, None), (4, FINER.replace(microsecond=0))]


def test_a_row_of_a_table_without_an_event_time_is_rejected_and_stays_so(pushing: Any) -> None:
    made = pushing(read=ReadStepParquet(ddl_schema=("id BIGINT", "event_time TIMESTAMP(3)")))
    times = pa.array([None, FINER, None], pa.timestamp("us", "UTC"))
    outcome = made.push(parquet(id=[1, 2, 3], event_time=times))
    why = "column event_time: null is not allowed; a value of TIMESTAMP(3) is required"
    assert (made.ids, [one.reason for one in outcome.rejected]) == ([2], [f"row 1: {why}", f"row 3: {why}"])
    with pytest.raises(CannotRetry, match=f"row/0 cannot be retried: {re.escape(why)}"):
        made.retry()
    assert made.open == ["row/0", "row/1"]


@pytest.mark.parametrize(
    ("columns", "more", "why"),
    [
        ({"id": [1, 2], "day": ["x", "y"]}, {}, r"^row 1: column day: 'x' is not a value of DATE"),
        ({"id": [1, None]}, {"bad_records": BadRecords.STOP}, r"^row 2: column id: null is not allowed"),
        ({"id": [None, None]}, {}, r"^row 1: column id: null is not allowed"),
        ({"id": [1, None], "day": ["x", None]}, {}, r"^row [12]: column "),
        ({"day": ["2024-01-01"]}, {}, r"^column id: is missing"),
        ({"day": ["2024-01-01"], "ID": [1]}, {}, r"^column id: is missing; it has ID: case matters"),
    ],
    ids=["all", "stop", "all-null", "each-another", "column", "case"],
)
def test_a_table_is_refused_with_its_first_bad_row(pushing: Any, columns: Any, more: Any, why: str) -> None:
    made = pushing(read=TABLE)
    made.set(**more)
    with pytest.raises(InvalidInput, match=why):
        made.push(parquet(**columns))
    assert (made.ids, made.letters.sent) == ([], [])


def test_a_key_in_another_case_is_named(pushing: Any) -> None:
    read = ReadStepParquet(ddl_schema=("id BIGINT", "day STRING"))
    made = pushing(read=read, merge=MergeStrategyLedger(primary_key=("id",)))
    with pytest.raises(InvalidInput, match=r"^column id: is missing; it has ID: case matters"):
        made.push(parquet(ID=[1], day=["x"]))


def test_a_table_with_too_many_bad_rows_is_refused(pushing: Any) -> None:
    made = pushing(read=TABLE)
    days = ["2024-01-01", *["x"] * MAX_BAD_ROWS]
    assert len(made.push(parquet(id=range(len(days)), day=days)).rejected) == MAX_BAD_ROWS
    made.letters.sent.clear()
    days.append("y")
    with pytest.raises(InvalidInput, match=r"^row 2: column day: 'x' .*; more than 10,000 rows do not fit"):
        made.push(parquet(id=range(len(days)), day=days), "other")
    assert made.letters.sent == []


def test_a_share_of_the_rows_of_a_table_may_be_bad(pushing: Any) -> None:
    made = pushing(read=TABLE)
    made.set(max_rejected_share=0.5)
    assert made.push(parquet(id=[1, None])).count == 1
    with pytest.raises(TooManyRejected, match=r"2 of 3 rows of orders.json are not records"):
        made.push(parquet(id=[1, None, None]), "other")


def test_a_repeated_push_rejects_nothing_again(made: Any) -> None:
    made.push(PAGE)
    again = made.push(PAGE)
    assert (again.is_new, again.rejected, len(made.letters.sent)) == (False, (), 3)
    assert len(made.open) == 3


def test_rows_are_rejected_once_if_another_commit_comes_first(made: Any) -> None:
    made.bench.coordinator.before = [lambda: made.bench.propose(SetVocab(event_time_column="event_time"))]
    assert len(made.push(PAGE).rejected) == 3
    assert len(made.letters.sent) == 3
    assert made.open == ["row/0", "row/1", "row/2"]


def test_rows_get_the_next_numbers_if_another_push_comes_first(made: Any) -> None:
    """Numbers belong to the push that is committed with them: dead letters of the overtaken draft do not count."""
    other = SourcePosition().with_rejected_rows(1).source_state("default")
    made.bench.coordinator.before = [lambda: made.bench.propose(AddData(new_source_state=other))]
    made.push(PAGE)
    assert source_progress(made.bench.state.source_states["default"]).rejected == 4
    assert [one.offset for one in made.letters.sent] == [0, 1, 2, 1, 2, 3]


def test_a_file_of_known_rows_is_committed_for_the_count_of_its_bad_one(pushing: Any) -> None:
    made = pushing(MergeStrategyLedger(primary_key=("id",)))
    made.push('{"id":1}\n', "a")
    head = made.bench.state.head
    outcome = made.push('{"id":1}\nx\n', "b", is_key_generated=True)
    assert (outcome.is_new, outcome.count, made.ids, made.open) == (True, 0, [1], ["row/0"])
    assert made.bench.state.head != head


def test_rows_that_fit_now_are_committed_once_and_the_rest_stays_open(made: Any) -> None:
    made.push(PAGE)
    made.bench.propose(
        replace(made.bench.state.push_sources["default"], read=replace(LINES, date_format="d.M.yyyy"))
    )
    settled = made.retry()
    assert (settled.count, settled.unfit, settled.open) == (2, 1, 1)
    assert (made.ids, made.open) == ([1, 2, 3], ["row/2"])
    assert made.bench.values("day", "event_time")[1] == (date(2024, 1, 2), EVENT_TIME.datetime())
    head = made.bench.state.head
    with pytest.raises(CannotRetry, match="message row/2 cannot be retried: ") as refused:
        made.retry()
    assert "push it again" in refused.value.advice()
    assert made.bench.state.head == head
    assert made.rejected.drop(made.bench.dataset, [MessageLocation(source="", location="row/2")]).open == 0


def test_a_row_is_read_in_its_own_format_rather_than_the_sources(made: Any) -> None:
    made.push("id,day\n1,2024-01-01\n2,2.1.2024\n", input_format="csv")
    with pytest.raises(
        CannotRetry,
        match=r"row/0 cannot be retried: .*'2.1.2024' is not a value of DATE; write it as 2026-01-31, or set dateFormat",
    ):
        made.retry()
    german = ReadStepCsv(ddl_schema=DDL, header=True, date_format="d.M.yyyy")
    made.bench.propose(replace(made.bench.state.push_sources["default"], read=german))
    assert (made.retry("row/0").count, made.ids, made.open) == (1, [1, 2], [])


def test_messages_and_rows_are_retried_together(made: Any) -> None:
    made.push('{"id":1}\n{"id":2,"day":"2.1.2024"}\n')
    state = made.bench.state
    batch = a_message_batch({0: [b"m"]}, topic="odf.push.a.default")
    bad = BadRecord(partition=0, offset=0, value=b"m", reason="no JSON")
    before = position_of(state, "default")
    made.bench.rejecting.write_dead_letters(made.bench.dataset, "default", batch, [bad], before)
    topic = TopicPosition(topic_id="one", next={0: 1})
    after = before.with_topic("odf.push.a.default", topic).with_rejected(1)
    made.bench.propose(
        AddData(prev_offset=0, new_watermark=EVENT_TIME, new_source_state=after.source_state("default"))
    )
    assert made.open == ["row/0", "0/0"]
    made.bench.propose(replace(state.push_sources["default"], read=replace(LINES, date_format="d.M.yyyy")))
    assert (made.retry().count, made.ids, made.open) == (2, [1, 2], [])
    assert [one.value for one in made.letters.again] == [b"m"]


def test_rows_of_several_sources_are_numbered_separately(made: Any) -> None:
    made.bench.propose(replace(made.bench.state.push_sources["default"], source_name="other"))
    made.push('{"id":1}\nx\n', "a")
    made.push('{"id":2}\ny\nz\n', "b", source="other")
    assert made.open == ["row/0", "row/0", "row/1"]
    wanted = [MessageLocation(source="other", location="row/0")]
    assert [one.value for one in made.rejected.open(made.bench.dataset, wanted)] == [b"y"]
    assert made.rejected.drop(made.bench.dataset, wanted).open == 2
    with pytest.raises(NotFound, match="open rejected message 0/0"):  # of a topic
        made.rejected.drop(made.bench.dataset, [MessageLocation(source="", location="0/0")])


@pytest.mark.parametrize("locations", [["row/0"], []], ids=["one", "all"])
def test_a_row_with_the_number_of_one_dropped_before_a_reset_is_open(made: Any, locations: list[str]) -> None:
    made.push('{"id":1}\nx\n', "a")
    wanted = [MessageLocation(source="", location=one) for one in locations]
    assert made.rejected.drop(made.bench.dataset, wanted).open == 0
    reset = SourcePosition().source_state("default")  # as a reset to before the push would leave it
    made.bench.propose(AddData(prev_offset=0, new_watermark=EVENT_TIME, new_source_state=reset))
    assert made.open == []
    made.push('{"id":2}\ny\n', "b")
    assert made.open == ["row/0"]
