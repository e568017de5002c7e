"""A row that does not fit refuses its file, or is rejected; it is named by file, line, column, value and expected type."""

import gzip
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from odf_testing.letters import StoredLetters
from odf_testing.webserver import Page, PageServer

from odf_common.dataset.open_rejects import open_rejects, rejecting_sources, source_progress
from odf_common.errors import InvalidInput, OdfError, Unavailable
from odf_common.metadata.events import (
    MergeStrategyChangelogStream,
    MergeStrategySnapshot,
    ReadStep,
    ReadStepCsv,
    ReadStepJson,
    ReadStepNdGeoJson,
    ReadStepNdJson,
    ReadStepParquet,
    SourceState,
)
from odf_common.metadata.fetching import (
    CompressionFormat,
    FetchStepFilesGlob,
    FetchStepMqtt,
    FetchStepUrl,
    MqttTopicSubscription,
    PrepStepDecompress,
)
from odf_common.metadata.scalars import Timestamp
from odf_ingest.commit.committer import BatchCommitter
from odf_ingest.control.rejected_messages import MessageLocation
from odf_ingest.errors import CannotRetry, TooManyRejected
from odf_ingest.poll.fetch import FetchedMessages
from odf_ingest.poll.polled_batch import PolledBatch, require_rejectable
from odf_ingest.poll.polled_source import PolledSource
from odf_ingest.poll.poller import PollSummary
from odf_ingest.poll.templates import Secrets
from odf_ingest.prepare import bad_rows
from odf_ingest.prepare.batch import BadRecord
from odf_ingest.prepare.plan import declared_schema
from odf_ingest.read import read_records
from odf_ingest.source_settings import BadRecords, SourceSettings

DDL = ("id BIGINT NOT NULL", "day DATE", "price DOUBLE")
CSV = ReadStepCsv(header=True, ddl_schema=DDL)
ARRAY = ReadStepJson(ddl_schema=DDL)
LINES = ReadStepNdJson(ddl_schema=DDL)
FEATURE = '{"type":"Feature","properties":{"id":%s},"geometry":null}\n'


@pytest.mark.parametrize(
    ("read", "content", "place"),
    [
        (
            CSV,
            "id,day,price\n1,2024-13-05,1.5\n",
            "line 2: column day: '2024-13-05' is not a value of DATE; write it as 2026-01-31, or set dateFormat",
        ),
        (CSV, "id,day,price\n1,2024\n", "line 2: has 2 values instead of 3 (id, day, price): 1,2024"),
        (
            LINES,
            '{"id":1}\n{"id":"x"}\n',
            "line 2: column id: 'x' is not a value of BIGINT; declare STRING, and convert it in preprocess",
        ),
        (
            LINES,
            '{"id":1}\n{"id":2,"price":"cheap"}\n',
            "line 2: column price: 'cheap' is not a value of DOUBLE; declare STRING, and convert it in preprocess",
        ),
        (
            ARRAY,
            '[{"id":1},\n{"id":2,"day":"soon"}]',
            "line 2, record 2: column day: 'soon' is not a value of DATE; write it as 2026-01-31, or set dateFormat",
        ),
    ],
    ids=["date", "width", "line-number", "line-type", "array"],
)
def test_a_row_that_does_not_fit_is_named(  # noqa: PLR0917
    make_polled: Any, poll: Any, tmp_path: Path, read: ReadStep, content: str, place: str
) -> None:
    (tmp_path / "a-1.txt").write_text(content)
    bench = make_polled(FetchStepFilesGlob(path=f"{tmp_path}/*.txt"), read=read)
    with pytest.raises(InvalidInput) as caught:
        poll(bench)
    assert str(caught.value) == f"a-1.txt, {place}"
    assert bench.rows() == []


def test_the_place_is_named_after_unpacking(make_polled: Any, poll: Any, web: PageServer) -> None:
    web.pages["/a.gz"] = Page(body=gzip.compress(b'{"id":1}\n{"id":"x"}\n'), etag='"1"')
    steps = (PrepStepDecompress(format=CompressionFormat.Gzip),)
    bench = make_polled(FetchStepUrl(url=f"{web.url}/a.gz"), read=LINES, prepare=steps)
    with pytest.raises(InvalidInput, match=r"/a.gz, line 2: column id: 'x' is not a value of BIGINT"):
        poll(bench)


def rejecting(bench: Any, **more: Any) -> Any:
    """Let a bench's source reject bad rows."""
    bench.set(bad_records=BadRecords.DEAD_LETTER, **more)
    return bench


@pytest.mark.parametrize(
    ("read", "content", "letter", "reason"),
    [
        (
            CSV,
            "id,day,price\n1,2024-01-05,1\n2,2024-01-05,cheap\n3,,\n",
            "id,day,price\n2,2024-01-05,cheap",
            "line 3: column price: 'cheap' is not a value of DOUBLE; write a number in its range, or declare STRING",
        ),
        (
            CSV,
            "price,id,day\n1,1,\n1,,2024-01-05\n2,3,\n",
            "price,id,day\n1,,2024-01-05",
            "line 3: column id: null is not allowed; a value of BIGINT is required",
        ),
        (LINES, '{"id":1}\nhm\n\n{"id":3}\n', "hm", "line 2: expected one JSON object"),
        (
            ReadStepJson(ddl_schema=DDL, sub_path="a.b"),
            '{"a":{"b":[{"id":1},\n{"day":\n"2024-01-05"},{"id":3}]}}',
            '{"a":{"b":{"day":\n"2024-01-05"}}}',
            "line 2, record 2: column id: null is not allowed; a value of BIGINT is required",
        ),
        (
            ReadStepNdGeoJson(),
            FEATURE % "1" + '{"type":"Other"}\n' + FEATURE % "3",
            '{"type":"Other"}',
            "line 2: its type is 'Other' instead of 'Feature'",
        ),
        (ReadStepNdJson(), '{"id":1}\nhm\n{"id":3}\n', "hm", "line 2: expected one JSON object"),
        (
            ReadStepNdGeoJson(ddl_schema=("id BIGINT NOT NULL", "geometry STRING")),
            FEATURE % "1" + '{"type":"Other"}\n' + FEATURE % "3",
            '{"type":"Other"}',
            "line 2: its type is 'Other' instead of 'Feature'",
        ),
    ],
    ids=["csv", "csv-null", "lines", "array", "open-features", "open-lines", "features"],
)
def test_a_bad_row_may_be_rejected_alone(  # noqa: PLR0917
    make_polled: Any, poll: Any, tmp_path: Path, read: ReadStep, content: str, letter: str, reason: str
) -> None:
    (tmp_path / "a-1.txt").write_text(content)
    bench = rejecting(make_polled(FetchStepFilesGlob(path=f"{tmp_path}/*.txt"), read=read))
    assert poll(bench) == PollSummary(blocks=1, records=2)
    assert bench.values("id") == [(1,), (3,)]
    (found,) = bench.coordinator.letters
    assert (found.value.decode(), found.reason) == (letter, f"a-1.txt, {reason}")
    # The content of a dead letter is a message for the source, which is rejected like the row.
    with pytest.raises(InvalidInput) if "null" not in reason else nullcontext():
        read_records(read, [found.value], declared_schema(read))
    assert source_progress(bench.state.source_states["default"]).rejected == 1
    assert poll(bench) == PollSummary()


@pytest.mark.parametrize("at_once", [2, 16_384])
def test_rows_that_fail_different_checks_are_each_named_and_all_others_kept(
    make_polled: Any, poll: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(bad_rows, "RECORDS_PER_READ", at_once)
    good, wrong = '{"id":%d,"u":"123e4567-e89b-12d3-a456-426614174000"}', '{"id":%d,"u":"no"}'
    lines = (
        good % 0,
        "x",
        wrong % 2,
        good % 3,
        '{"u":null}',
        good % 5,
        "y",
        wrong % 7,
        '{"u":null}',
        good % 9,
    )
    (tmp_path / "a.txt").write_text("\n".join((*lines, "")))
    read = ReadStepNdJson(ddl_schema=("id BIGINT NOT NULL", "u UUID"))
    bench = rejecting(make_polled(FetchStepFilesGlob(path=f"{tmp_path}/*.txt"), read=read))
    assert poll(bench) == PollSummary(blocks=1, records=4)
    assert bench.values("id") == [(0,), (3,), (5,), (9,)]
    found = [(one.value.decode(), one.reason.split(": ")[0]) for one in bench.coordinator.letters]
    assert found == [(lines[row], f"a.txt, line {row + 1}") for row in (1, 2, 4, 6, 7, 8)]


def test_a_batch_that_is_drafted_again_has_its_dead_letters_once(
    make_polled: Any, poll: Any, web: PageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    overtaken, propose = [True], BatchCommitter._is_committed
    monkeypatch.setattr(
        BatchCommitter,
        "_is_committed",
        lambda *given: not (overtaken and overtaken.pop()) and propose(*given),
    )
    bench = rejecting(make_polled(FetchStepUrl(url=f"{web.url}/a"), read=LINES))
    web.pages["/a"] = Page(body=b'{"id":1}\nx\n', etag='"1"')
    assert poll(bench) == PollSummary(blocks=1, records=1)
    assert [one.value for one in bench.coordinator.letters] == [b"x"]
    assert source_progress(bench.state.source_states["default"]).rejected == 1


def test_rows_are_counted_over_files_and_each_has_its_number(
    make_polled: Any, poll: Any, web: PageServer
) -> None:
    bench = rejecting(make_polled(FetchStepUrl(url=f"{web.url}/a"), read=LINES))
    for etag, body in (("one", b'{"id":1}\nx\ny\n'), ("two", b'{"id":2}\n'), ("three", b'{"id":3}\nz\n')):
        web.pages["/a"] = Page(body=body, etag=f'"{etag}"')
        assert poll(bench).records == 1
        assert poll(bench) == PollSummary()  # the state still has the condition of the next request
    assert [(one.offset, one.value) for one in bench.coordinator.letters] == [(0, b"x"), (1, b"y"), (2, b"z")]
    assert open_rejects(bench.blobs, bench.state, rejecting_sources(bench.state)).count == 3
    (*_, progress) = (
        one.ingest_progress for _, one in bench.coordinator.sent if one.HasField("ingest_progress")
    )
    assert (progress.rejected, progress.rejected_reason) == (3, bench.coordinator.letters[0].reason)


@pytest.mark.parametrize(
    ("read", "content", "more", "why"),
    [
        (LINES, b"x\ny\n", {}, "a.txt, line 1: expected one JSON object"),
        (CSV, b"id,name\n1,x\n", {}, "a.txt: the header has unknown columns 'name'"),
        (LINES, b'{"day":"2024-01-05"}\n', {}, "a.txt, line 1: column id: null is not allowed"),
        (
            LINES,
            b'{"ID":1,"day":"2024-01-05"}\n',
            {},
            "a.txt, line 1: column id: null is not allowed; a value of BIGINT is required; it has ID: case matters",
        ),
        (LINES, b'{"id":1}\nx\n', {"max_rejected_share": 0.4}, "1 of 2 rows of a.txt are not records"),
        (ReadStepParquet(), b"PAR1", {}, "a.txt: is not a Parquet file"),
    ],
    ids=["all", "header", "all-null", "case", "share", "parquet"],
)
def test_a_file_of_another_format_is_refused(  # noqa: PLR0917
    make_polled: Any, poll: Any, tmp_path: Path, read: ReadStep, content: bytes, more: Any, why: str
) -> None:
    (tmp_path / "a.txt").write_bytes(content)
    bench = rejecting(make_polled(FetchStepFilesGlob(path=f"{tmp_path}/*.txt"), read=read), **more)
    with pytest.raises(OdfError) as caught:
        poll(bench)
    assert str(caught.value).startswith(why)
    assert (bench.rows(), bench.coordinator.letters) == ([], [])


def test_bad_rows_of_a_table_are_rejected(make_polled: Any, poll: Any, tmp_path: Path) -> None:
    read = ReadStepParquet(ddl_schema=DDL)
    bench = make_polled(FetchStepFilesGlob(path=f"{tmp_path}/*.parquet"), read=read)
    table = pa.table({"id": [1, None, 3, 4], "price": ["1.5", "2", "cheap", None]})
    pq.write_table(table, tmp_path / "a.parquet")
    reasons = [
        "a.parquet, row 2: column id: null is not allowed; a value of BIGINT is required",
        "a.parquet, row 3: column price: 'cheap' is not a value of DOUBLE; write a number in its range, or declare STRING",
    ]
    with pytest.raises(InvalidInput) as caught:
        poll(bench)
    assert str(caught.value) == reasons[0]
    rejecting(bench)
    assert poll(bench) == PollSummary(blocks=1, records=2)
    assert bench.values("id", "price") == [(1, 1.5), (4, None)]
    letters = bench.coordinator.letters
    assert [one.reason for one in letters] == reasons
    assert [pa.ipc.open_stream(one.value).read_all().to_pylist() for one in letters] == [
        [{"id": None, "price": "2"}],
        [{"id": 3, "price": "cheap"}],
    ]
    assert poll(bench) == PollSummary()


def commit_message(bench: Any, **columns: Any) -> Sequence[BadRecord]:
    """Commit a polled message that is a table."""
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), sink)
    fetched = FetchedMessages(
        label="mqtt://h",
        values=(bytes(sink.getvalue()),),
        places=("topic a",),
        event_time=Timestamp.from_ms(0),
        before=None,
        state=SourceState(source_name="default", kind="odf/mqtt", value='{"v":1}'),
    )
    batch = PolledBatch(
        PolledSource(definition=bench.state.polling_source, fill=lambda step: (step, Secrets())),
        fetched,
        read_files=None,
        preparer=bench.preparer,
        rejecting=bench.rejecting,
        is_wanted=lambda: True,
    )
    bench.queues.commit(bench.dataset, batch)
    return batch.rejected


MQTT = FetchStepMqtt(host="h", port=1, topics=(MqttTopicSubscription(path="a"),))


def test_bad_rows_of_a_polled_message_that_is_a_table_are_rejected(make_polled: Any) -> None:
    bench = make_polled(MQTT, read=ReadStepParquet(ddl_schema=DDL))
    bench.set(bad_records=BadRecords.STOP)
    reason = "topic a: row 2: column id: null is not allowed; a value of BIGINT is required"
    with pytest.raises(InvalidInput, match=f"^{reason}$"):
        commit_message(bench, id=[1, None, 3])
    rejecting(bench, max_rejected_share=0.3)
    with pytest.raises(TooManyRejected, match=r"1 of 3 rows of mqtt://h are not records"):
        commit_message(bench, id=[1, None, 3])
    rejecting(bench)
    assert [one.reason for one in commit_message(bench, id=[1, None, 3])] == [reason]
    assert bench.values("id") == [(1,), (3,)]
    rejected = bench.rejected_messages(StoredLetters(bench.coordinator.letters))
    (letter,) = bench.open_letters(rejected)
    assert (letter.location, letter.reason) == ("0/0", f"mqtt://h, {reason}")
    with pytest.raises(CannotRetry, match="message 0/0 cannot be retried: column id: null is not allowed"):
        rejected.retry(bench.dataset, [])


def test_a_polled_message_whose_rows_do_not_fit_those_before_is_rejected_as_a_whole(make_polled: Any) -> None:
    merge = MergeStrategyChangelogStream(primary_key=("id",))
    bench = rejecting(make_polled(MQTT, merge, read=ReadStepParquet(ddl_schema=("op INT", *DDL))))
    (bad,) = commit_message(bench, op=[0, 0, 1], id=[1, None, 9])
    assert bench.rows() == []
    assert bad.reason.startswith("topic a: ")
    assert bad.value is not None
    assert bad.value.startswith(b"PAR1")


def test_rows_of_a_snapshot_are_never_rejected_alone(make_polled: Any, poll: Any, tmp_path: Path) -> None:
    """The merge would treat the rows left out as deleted."""
    (tmp_path / "a.txt").write_bytes(b'{"id":1}\nx\n')
    fetch = FetchStepFilesGlob(path=f"{tmp_path}/*.txt")
    bench = rejecting(make_polled(fetch, read=LINES, merge=MergeStrategySnapshot(primary_key=("id",))))
    with pytest.raises(InvalidInput, match=r"a.txt, line 2: expected one JSON object"):
        poll(bench)
    (tmp_path / "a.txt").write_bytes(b'{"id":1}\n{"id":2}\n{"id":1}\n')
    with pytest.raises(
        InvalidInput, match=r"^a.txt: the snapshot has the key id = 1 in 2 records: lines 1 and 3$"
    ):
        poll(bench)
    with pytest.raises(InvalidInput, match="badRecords: a snapshot without its bad rows would retract them"):
        require_rejectable(bench.state, SourceSettings(bad_records=BadRecords.DEAD_LETTER))


def test_of_a_killed_poll_and_the_next_one_only_what_was_committed_is_open(
    make_polled: Any, poll: Any, web: PageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = rejecting(make_polled(FetchStepUrl(url=f"{web.url}/a"), read=LINES))
    web.pages["/a"] = Page(body=b'{"id":1}\nold\n', etag='"1"')
    with monkeypatch.context() as patch:
        patch.setattr(PolledBatch, "before_proposal", raising(Unavailable(what="a", why="killed")))
        with pytest.raises(Unavailable):
            poll(bench)
    web.pages["/a"] = Page(body=b'{"id":1}\nnew\n', etag='"2"')
    poll(bench)
    letters = StoredLetters(bench.coordinator.letters)
    made = bench.rejected_messages(letters)
    assert [one.value for one in letters.sent] == [b"old", b"new"]
    assert [(one.offset, one.value) for one in made.open(bench.dataset)] == [(0, b"new")]
    assert made.drop(bench.dataset, [MessageLocation(source="", location="0/0")]).open == 0
    assert list(made.open(bench.dataset)) == []
    web.pages["/a"] = Page(body=b"third\n" + b'{"id":4}', etag='"3"')
    poll(bench)
    assert [(one.offset, one.value) for one in made.open(bench.dataset)] == [(1, b"third")]


def raising(error: Exception) -> Any:
    def run(*_: object) -> None:
        raise error

    return run
