"""Rejected rows of a polling source are read again by its present reader, and committed exactly once."""

from collections.abc import Callable
from dataclasses import replace
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from odf_testing.letters import StoredLetters
from odf_testing.mqttbroker import serving_mqtt
from odf_testing.webserver import Page, PageServer

from odf_common.chain.build_blocks import add_data_event
from odf_common.dataset.open_rejects import Numbers
from odf_common.errors import InvalidInput, NotFound
from odf_common.metadata.events import (
    MergeStrategyChangelogStream,
    MergeStrategyLedger,
    MergeStrategySnapshot,
    ReadStepCsv,
    ReadStepJson,
    ReadStepNdJson,
    ReadStepParquet,
)
from odf_common.metadata.fetching import (
    EventTimeSourceFromPath,
    FetchStepFilesGlob,
    FetchStepMqtt,
    FetchStepUrl,
    MqttQos,
    MqttTopicSubscription,
)
from odf_common.ports.bus import StoredLetter
from odf_ingest.commit.committer import BatchCommitter
from odf_ingest.control.rejected_messages import MessageLocation, RejectedMessages, Settled
from odf_ingest.control.retried_rows import RetriedRows
from odf_ingest.errors import CannotRetry, SourceGone
from odf_ingest.poll.polled_batch import position_of
from odf_ingest.poll.poller import PollSummary
from odf_ingest.source_settings import BadRecords, FinerTimes, SourceSettings, save_settings

DDL = ("id BIGINT NOT NULL", "day DATE")
GERMAN = "d.M.yyyy"
LINES = ReadStepNdJson(ddl_schema=DDL)
GERMAN_LINES = replace(LINES, date_format=GERMAN)
PAGE = '{"id":1,"day":"2024-01-01"}\n{"id":2,"day":"2.1.2024"}\n{"id":3,"day":"3.1.2024"}\nx\n'


class Retrying:
    """A dataset whose bad rows are rejected, and the object that retries them."""

    def __init__(self, bench: Any, poll: Callable[[Any], PollSummary]) -> None:
        bench.set(bad_records=BadRecords.DEAD_LETTER)
        self.bench = bench
        self._poll = poll
        self.letters = StoredLetters(bench.coordinator.letters)
        self.made: RejectedMessages = bench.rejected_messages(self.letters)

    def poll(self) -> PollSummary:
        return self._poll(self.bench)

    def read_as(self, **changed: Any) -> None:
        """Change the source."""
        self.bench.propose(replace(self.bench.state.polling_source, **changed))

    def retry(self, *numbers: int) -> Settled:
        return self.made.retry(self.bench.dataset, [place(number) for number in numbers])

    @property
    def open(self) -> list[int]:
        """Return the numbers of open rows."""
        return [one.offset for one in self.bench.open_letters(self.made)]

    @property
    def ids(self) -> list[object]:
        return [id_ for (id_,) in self.bench.values("id")]


def place(number: int) -> MessageLocation:
    return MessageLocation(source="", location=f"0/{number}")


@pytest.fixture
def retrying(make_polled: Any, poll: Any, web: PageServer) -> Any:
    """Return a function that adds a source of a page with bad rows, and polls it."""

    def make(body: str | bytes = PAGE, **more: Any) -> Retrying:
        made = Retrying(make_polled(FetchStepUrl(url=f"{web.url}/a"), **{"read": LINES} | more), poll)
        web.pages["/a"] = Page(body=body if isinstance(body, bytes) else body.encode(), etag='"1"')
        made.poll()
        return made

    return make


@pytest.mark.parametrize(
    ("read", "body"),
    [
        (LINES, PAGE.encode()),
        (
            ReadStepCsv(header=True, encoding="utf-16", separator=";", ddl_schema=DDL),
            "day;id\n2024-01-01;1\n2.1.2024;2\n3.1.2024;3\nx;4\n".encode("utf-16"),
        ),
        (
            ReadStepJson(sub_path="a", ddl_schema=DDL),
            b'{"a":[{"id":1,"day":"2024-01-01"},{"id":2,"day":"2.1.2024"},\n{"id":3,"day":"3.1.2024"},{}]}',
        ),
    ],
    ids=["lines", "csv", "array"],
)
def test_rows_that_fit_now_are_committed_and_the_rest_stays_open(
    retrying: Any, read: Any, body: bytes
) -> None:
    made = retrying(body, read=read)
    assert (made.open, made.ids) == ([0, 1, 2], [1])
    made.read_as(read=replace(read, date_format=GERMAN))
    settled = made.retry()
    assert (settled.count, settled.unfit, settled.open) == (2, 1, 1)
    assert settled.why
    assert (made.open, made.ids) == ([2], [1, 2, 3])
    assert made.bench.values("day")[1] == (date(2024, 1, 2),)
    head = made.bench.state.head
    with pytest.raises(CannotRetry, match="message 0/2 cannot be retried: ") as refused:
        made.retry()
    assert "odf rejected drop" in refused.value.advice()
    assert made.poll() == PollSummary()  # the state still has the condition of the next request
    assert made.bench.state.head == head


@pytest.mark.parametrize(
    "read",
    [ReadStepParquet(ddl_schema=("id BIGINT", "at TIMESTAMP(3)")), ReadStepParquet()],
    ids=["declared", "inferred"],
)
def test_rows_of_a_table_are_read_again(retrying: Any, web: PageServer, read: Any) -> None:
    def page(unit: str, *, first: int, times: list[int | str | None]) -> bytes:
        sink = pa.BufferOutputStream()
        at = pa.array(times, pa.string() if "x" in times else pa.timestamp(unit))
        pq.write_table(pa.table({"id": range(first, first + len(times)), "at": at}), sink)
        return bytes(sink.getvalue())

    made = retrying(page("ms", first=1, times=[1]), read=read)
    made.bench.set(bad_records=BadRecords.DEAD_LETTER, finer_times=FinerTimes.REFUSE)
    web.pages["/a"] = Page(body=page("us", first=2, times=[2000, 3001, 4001]), etag='"2"')
    made.poll()
    web.pages["/a"] = Page(body=page("", first=5, times=["1970-01-01T00:00:00.005Z", "x"]), etag='"3"')
    made.poll()
    assert (made.open, made.ids) == ([0, 1, 2], [1, 2, 5])
    with pytest.raises(CannotRetry, match="message 0/2 cannot be retried: column at: 'x' is not a value of "):
        made.retry(2)
    made.bench.set(bad_records=BadRecords.DEAD_LETTER, finer_times=FinerTimes.CUT)
    settled = made.retry()
    assert (settled.count, settled.unfit, settled.open) == (2, 1, 1)
    assert (made.open, made.ids) == ([2], [1, 2, 5, 3, 4])
    assert [at.microsecond for (at,) in made.bench.values("at")] == [1000, 2000, 5000, 3000, 4000]


def test_what_was_retried_is_known_to_the_chain(retrying: Any, web: PageServer) -> None:
    made = retrying()
    before = made.bench.state.head
    made.read_as(read=GERMAN_LINES)
    assert made.retry(1).count == 1
    assert made.made.drop(made.bench.dataset, [place(2)]).open == 1
    web.pages["/a"] = Page(body=b'y\n{"id":9}\n', etag='"2"')
    made.poll()
    assert (made.open, made.ids) == ([0, 3], [1, 3, 9])
    with pytest.raises(NotFound, match="open rejected message 0/1 does not exist"):
        made.retry(1)
    # A reset rolls the row back, and opens it again.
    made.bench.refs.compare_and_set(made.bench.dataset, expected=made.bench.state.head, new=before)
    assert (made.open, made.ids) == ([0, 1], [1])
    made.read_as(read=GERMAN_LINES)
    assert made.retry().count == 2
    assert (made.open, made.ids) == ([], [1, 2, 3])
    assert made.made.drop(made.bench.dataset, []) == Settled(count=0, open=0)
    assert made.open == []


def test_a_retry_leaves_out_what_another_process_has_committed_meanwhile(
    retrying: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = retrying()
    made.read_as(read=GERMAN_LINES)
    letters = list(made.made.open(made.bench.dataset))
    propose, overtaking = BatchCommitter._is_committed, [True]

    def overtaken(*given: Any) -> bool:
        if overtaking and overtaking.pop():
            state = made.bench.state
            position = replace(position_of(state, None), retried=Numbers.from_numbers([0]))
            made.bench.propose(
                add_data_event(
                    state, new_data=None, watermark=None, source_state=position.source_state("default")
                )
            )
            return False
        return propose(*given)

    first = RetriedRows(letters, made.bench.preparer)
    with monkeypatch.context() as patch:
        patch.setattr(BatchCommitter, "_is_committed", overtaken)
        outcome = made.bench.queues.commit(made.bench.dataset, first)
    assert (outcome.count, first.count, made.ids) == (1, 1, [1, 3])
    again = RetriedRows(letters[:2], made.bench.preparer)
    assert made.bench.queues.commit(made.bench.dataset, again).is_new is False
    assert (again.count, made.ids, made.open) == (0, [1, 3], [2])


def test_a_row_has_the_event_time_of_its_file(make_polled: Any, poll: Any, tmp_path: Path) -> None:
    for year in (1951, 2024):
        (tmp_path / f"{year}.json").write_text(PAGE)
    event_time = EventTimeSourceFromPath(pattern=r"(\d+)\.json", timestamp_format="yyyy")
    fetch = FetchStepFilesGlob(path=f"{tmp_path}/*.json", event_time=event_time)
    made = Retrying(make_polled(fetch, read=LINES), poll)
    assert made.poll() == PollSummary(blocks=2, records=2)
    made.read_as(read=GERMAN_LINES)
    assert made.retry().count == 4
    times = [(id_, time.year) for id_, time in made.bench.values("id", "event_time")]
    assert times == [(1, 1951), (1, 2024), (2, 1951), (3, 1951), (2, 2024), (3, 2024)]
    assert made.poll() == PollSummary()


def test_a_row_that_another_poll_has_committed_is_settled(retrying: Any, web: PageServer) -> None:
    made = retrying(merge=MergeStrategyLedger(primary_key=("id",)))
    web.pages["/a"] = Page(body=b'{"id":2,"day":"2024-01-02"}\n', etag='"2"')
    made.poll()
    made.read_as(read=GERMAN_LINES)
    assert made.retry(0).count == 1
    assert (made.open, made.ids) == ([1, 2], [1, 2])


def test_messages_of_a_broker_are_retried_as_messages(retrying: Any) -> None:
    made = retrying()
    made.read_as(
        read=GERMAN_LINES,
        fetch=FetchStepMqtt(host="h", port=1, topics=(MqttTopicSubscription(path="a"),)),
    )
    assert (made.retry().count, made.open, made.ids) == (2, [2], [1, 2, 3])
    made.read_as(merge=MergeStrategySnapshot(primary_key=("id",)))
    with pytest.raises(CannotRetry, match="takes only whole files or messages"):
        made.retry()


def parquet(ids: list[int | None], microseconds: list[int]) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"id": ids, "at": pa.array(microseconds, pa.timestamp("us"))}), sink)
    return bytes(sink.getvalue())


def test_messages_that_are_tables_are_retried_as_a_whole_or_row_by_row(
    make_polled: Any, poll: Any, tmp_path: Path
) -> None:
    read = ReadStepParquet(ddl_schema=("id BIGINT NOT NULL", "at TIMESTAMP(3)"))
    with serving_mqtt(tmp_path) as broker:
        topics = (MqttTopicSubscription(path="a", qos=MqttQos.AtLeastOnce),)
        fetch = FetchStepMqtt(host="127.0.0.1", port=broker.port, topics=topics)
        made = Retrying(make_polled(fetch, read=read), poll)
        finer = SourceSettings(finer_times=FinerTimes.REFUSE)
        save_settings(made.bench.blobs, made.bench.dataset, "default", finer)
        made.poll()
        no_row_fits, half_fits = parquet([2, 3], [2001, 3001]), parquet([6, None], [6001, 7001])
        messages = (no_row_fits, b"x", parquet([4, 5], [4000, 5001]), half_fits)
        broker.send(*(("a", message) for message in messages))
        while len(made.open) < len(messages):
            made.poll()
    assert (made.open, made.ids) == ([0, 1, 2, 3], [4])
    cut = replace(finer, finer_times=FinerTimes.CUT)
    save_settings(made.bench.blobs, made.bench.dataset, "default", cut)
    assert made.retry().count == 2
    assert (made.open, made.ids) == ([1, 3], [4, 2, 3, 5])
    with pytest.raises(CannotRetry, match="0/1 cannot be retried: is not a Parquet file"):
        made.retry(1)
    with pytest.raises(CannotRetry, match="0/3 cannot be retried: row 2: column id: null is not allowed"):
        made.retry(3)


def test_a_letter_that_lacks_something_stays_open(retrying: Any) -> None:
    made = retrying()
    made.read_as(read=GERMAN_LINES)
    made.letters.sizes[0] = 1000
    sent = made.letters.sent
    sent[1] = replace(sent[1], facts={"source": "default"})
    with pytest.raises(CannotRetry, match="0/1 cannot be retried: an earlier release rejected it"):
        made.retry(0, 1)
    assert made.retry(0) == Settled(count=0, open=3, cut=1)
    assert (made.open, made.ids) == ([0, 1, 2], [1])


def test_half_of_a_correction_stays_open_until_it_is_retried_with_the_other_half(retrying: Any) -> None:
    step = ReadStepNdJson(ddl_schema=("op INT", *DDL))
    merge = MergeStrategyChangelogStream(primary_key=("id",))
    halves = '{"op":2,"id":1,"day":"1.1.2024"}\n{"op":3,"id":1,"day":"2.1.2024"}\n'
    made = retrying('{"op":0,"id":1,"day":"2024-01-01"}\n' + halves, read=step, merge=merge)
    made.read_as(read=replace(step, date_format=GERMAN))
    with pytest.raises(InvalidInput, match=r"a -C without a \+C after it"):
        made.retry(0)
    assert (made.open, made.ids) == ([0, 1], [1])
    assert made.retry().count == 2
    assert (made.open, made.bench.values("op", "id")[1:]) == ([], [(2, 1), (3, 1)])


def test_rows_of_a_removed_source_are_not_committed(make_bench: Any) -> None:
    letter = SimpleNamespace(source="gone", offset=0, event_ms=0, input_format="", value=b"{}")
    rows = RetriedRows([cast("StoredLetter", letter)], cast("Any", None))
    with pytest.raises(SourceGone, match="push source gone"):
        rows.prepare(make_bench().state)
