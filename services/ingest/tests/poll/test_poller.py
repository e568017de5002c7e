"""Polls of a source: its settings and event times, and its position in the chain, also as other versions wrote it."""

import json
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import urllib3
from odf_testing.webserver import Page, PageServer

from odf_common.dataset.open_rejects import POLLED, Numbers
from odf_common.errors import InvalidInput, NotFound, StorageUnavailable
from odf_common.metadata.events import (
    AddData,
    DisablePollingSource,
    MergeStrategyLedger,
    MergeStrategySnapshot,
    ReadStepNdJson,
    SetInfo,
    SetPollingSource,
    SourceState,
)
from odf_common.metadata.fetching import (
    EventTimeSourceFromMetadata,
    EventTimeSourceFromPath,
    EventTimeSourceFromSystemTime,
    FetchStep,
    FetchStepContainer,
    FetchStepEthereumLogs,
    FetchStepFilesGlob,
    FetchStepUrl,
)
from odf_common.metadata.scalars import Timestamp
from odf_common.ports.store import CatalogEntry, block_reader
from odf_ingest.control.source_control import SourceControl, SourceView
from odf_ingest.poll import poller as poller_module
from odf_ingest.poll.event_time_source import event_time
from odf_ingest.poll.fetch.mqtt import MqttProgress
from odf_ingest.poll.fetch.url import _reason
from odf_ingest.poll.poll_errors import FetchUnsupported, NotPolled, PollCancelled, SourceRedefined
from odf_ingest.poll.polled_position import (
    ETAG,
    FILE,
    MQTT,
    PollPosition,
    ReadFile,
    last_content,
    state_of,
    without_count,
)
from odf_ingest.poll.poller import PollSummary
from odf_ingest.poll.schedule import PollSchedule, PollState, PollView
from odf_ingest.poll.unpack import prepare_fetched
from odf_ingest.prepare.batch import as_batch

LINE = b'{"id":1,"v":"a"}\n'


def test_one_poll_of_a_dataset_runs_at_a_time_and_the_other_polls_again(
    make_polled: Any, make_poller: Any, web: PageServer
) -> None:
    web.pages["/a"] = Page(body=LINE, etag='"1"', pause=0.3)
    bench = make_polled(FetchStepUrl(url=f"{web.url}/a"))
    poller = make_poller(bench)
    results: list[PollSummary] = []
    reports: list[str] = []

    def poll() -> None:
        results.append(poller.poll(bench.dataset, reports.append, lambda: True))

    threads = [threading.Thread(target=poll, daemon=True) for _ in range(3)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert sorted(one.records for one in results) == [0, 0, 1]
    assert [one.get("if-none-match") for one in web.requests] == [None, '"1"', '"1"']
    assert "waiting for another poll" in reports


def test_a_poll_that_no_caller_wants_ends_unpacks_no_more_and_keeps_what_was_committed(
    make_polled: Any, make_poller: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unpacked: list[object] = []

    def noted(*given: Any) -> Any:
        unpacked.append(given)
        return prepare_fetched(*given)

    monkeypatch.setattr(poller_module, "prepare_fetched", noted)
    for number in range(3):
        (tmp_path / f"{number}.json").write_bytes(LINE)
    bench = make_polled(FetchStepFilesGlob(path=f"{tmp_path}/*.json"))
    with pytest.raises(PollCancelled):
        make_poller(bench).poll(bench.dataset, lambda _: None, lambda: len(bench.rows()) < 2)
    assert len(bench.rows()) == len(unpacked) == 2
    assert make_poller(bench).poll(bench.dataset, lambda _: None, lambda: True).blocks == 1


def test_a_poll_that_no_caller_wants_once_its_slice_is_written_commits_nothing(
    make_polled: Any, make_poller: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.json").write_bytes(LINE)
    bench = make_polled(FetchStepFilesGlob(path=f"{tmp_path}/*.json"))
    put, written = bench.blobs.put_file, []

    def put_file(*given: Any) -> Any:
        written.append(given)
        return put(*given)

    monkeypatch.setattr(bench.blobs, "put_file", put_file)
    with pytest.raises(PollCancelled):
        make_poller(bench).poll(bench.dataset, lambda _: None, lambda: not written)
    assert bench.rows() == []


def test_a_caller_who_leaves_does_not_wait_for_another_poll(
    make_polled: Any, make_poller: Any, web: PageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(poller_module, "WAIT_SECONDS", 0.01)
    web.pages["/a"] = Page(body=LINE, pause=2)
    bench = make_polled(FetchStepUrl(url=f"{web.url}/a"))
    poller = make_poller(bench)
    first = threading.Thread(
        target=poller.poll, args=(bench.dataset, lambda _: None, lambda: True), daemon=True
    )
    first.start()
    while not web.requests:
        time.sleep(0.01)
    reports: list[str] = []
    with pytest.raises(PollCancelled):
        poller.poll(bench.dataset, reports.append, lambda: len(reports) < 2)
    assert first.is_alive()
    assert reports == ["waiting for another poll"] * 2
    first.join()


def test_a_dataset_without_a_polling_source_is_refused(make_polled: Any, poll: Any) -> None:
    bench = make_polled(FetchStepUrl(url="http://example.org"))
    bench.propose(DisablePollingSource())
    with pytest.raises(NotPolled):
        poll(bench)


def test_a_source_that_is_redefined_meanwhile_is_not_committed_under_the_old_definition(
    make_polled: Any, poll: Any, web: PageServer
) -> None:
    web.pages["/a"] = Page(body=LINE)
    bench = make_polled(FetchStepUrl(url=f"{web.url}/a"))
    old = bench.state.polling_source
    new = SetPollingSource(fetch=old.fetch, read=old.read, merge=MergeStrategyLedger(primary_key=("id",)))
    bench.coordinator.before = [lambda: bench.propose(new)]
    with pytest.raises(SourceRedefined):
        poll(bench)
    read, file = [], bench.preparer.file

    def counted(*given: Any) -> Any:
        read.append(given)
        return file(*given)

    bench.preparer.file = counted
    bench.coordinator.before = [lambda: bench.propose(SetInfo(description="x"))]
    assert poll(bench).records == 1  # another change does not matter
    assert len(read) == 1


def test_kinds_that_are_not_fetched_say_so(make_polled: Any, poll: Any) -> None:
    with pytest.raises(FetchUnsupported, match="EthereumLogs"):
        poll(make_polled(FetchStepEthereumLogs(chain_id=1)))


def test_failures_in_a_row_are_counted_since_the_first_and_a_cancelled_poll_is_not_one(
    make_polled: Any, make_poller: Any
) -> None:
    bench = make_polled(FetchStepEthereumLogs(chain_id=1))
    poller = make_poller(bench)
    ended = []
    for failures in (1, 2, 3):
        with pytest.raises(FetchUnsupported):
            poller.poll(bench.dataset, lambda _: None, lambda: True)
        attempt = poller.last_attempt(bench.dataset)
        ended.append(attempt.ended)
        assert (attempt.failures, attempt.failing_since) == (failures, ended[0])
        bench.clock.ms += 1

    def cancelled(*_: Any, **_options: Any) -> PollSummary:
        raise PollCancelled

    last = poller.last_attempt(bench.dataset)
    poller._poll = cancelled
    with pytest.raises(PollCancelled):
        poller.poll(bench.dataset, lambda _: None, lambda: True)
    assert poller.last_attempt(bench.dataset) == last

    poller._poll = lambda *_, **_options: PollSummary()
    poller.poll(bench.dataset, lambda _: None, lambda: True)
    done = poller.last_attempt(bench.dataset)
    assert (done.error, done.failures, done.failing_since) == (None, 0, None)


LAST = state_of(ETAG, "one")


def test_a_state_has_a_count_only_once_something_was_rejected() -> None:
    assert PollPosition(last=LAST).source_state("default") == LAST
    counted = PollPosition(last=LAST, rejected=2, retried=Numbers.from_numbers([1])).source_state("default")
    assert counted.kind == POLLED
    assert counted.value == '{"kind":"odf/etag","rejected":2,"retried":[[1,2]],"v":1,"value":"one"}'
    assert without_count(counted) == LAST
    assert without_count(None) is None


@pytest.mark.parametrize(
    "value",
    [
        "{",
        '{"kind":"odf/etag","rejected":2,"v":2,"value":"one"}',
        '{"kind":"odf/etag","rejected":"x","v":1,"value":"one"}',
        '{"kind":"odf/etag","rejected":2,"retried":[[2,1]],"v":1,"value":"one"}',
        '{"kind":"odf/etag","v":1,"value":"one"}',
    ],
)
def test_an_unreadable_count_does_not_restart_at_zero(value: str) -> None:
    with pytest.raises(InvalidInput, match="source state"):
        without_count(state_of(POLLED, value))


def test_the_state_of_a_file_has_its_name_as_it_is() -> None:
    read = ReadFile(name="März/a.csv", size=3, modified=4, digest="d")
    assert read.state().value == '{"digest":"d","file":"März/a.csv","modified":4,"size":3,"v":1}'
    assert ReadFile.parse(read.state().value) == read


def last_of(bench: Any, step: FetchStep) -> SourceState | None:
    return last_content(bench.state, block_reader(bench.blobs, bench.dataset), step)


def test_the_validator_of_an_url_counts_for_that_url_however_often_the_source_was_defined(
    make_polled: Any,
) -> None:
    one, other = (FetchStepUrl(url=f"http://example.org/{name}") for name in ("one", "other"))
    bench = make_polled(one)
    source = bench.state.polling_source
    assert last_of(bench, one) is None
    bench.propose(SetInfo(description="x"))
    bench.propose(AddData(new_source_state=LAST))
    bench.propose(SetInfo(description="y"))
    assert last_of(bench, one) == LAST
    for again in (replace(source, fetch=other), DisablePollingSource(), source):
        bench.propose(again)
        assert (last_of(bench, one), last_of(bench, other)) == (LAST, None)
    bench.propose(AddData(new_source_state=state_of(FILE, ReadFile(name="a").state().value)))
    assert last_of(bench, one) is None


@pytest.mark.parametrize(
    ("image", "other", "is_same"),
    [
        ("a/b:1", "a/b:2", True),
        ("a/b", "a/b:1", True),
        ("host:5000/a", "host:5000/a:1", True),
        ("a:1", "a@sha256:0f", True),
        ("host:5000/a:1@sha256:0f", "host:5000/a", True),
        ("a", "b", False),
        ("host:5000/a", "host:6000/a", False),
        ("host:5000/a", "host:5000/b", False),
    ],
)
def test_the_validator_of_an_image_counts_for_its_other_versions(
    make_polled: Any, image: str, other: str, *, is_same: bool
) -> None:
    bench = make_polled(FetchStepContainer(image=image))
    bench.propose(AddData(new_source_state=LAST))
    bench.propose(replace(bench.state.polling_source, fetch=FetchStepContainer(image=other)))
    assert last_of(bench, FetchStepContainer(image=other)) == (LAST if is_same else None)


READ = ReadStepNdJson(ddl_schema=("id BIGINT", "event_time TIMESTAMP"))
TIMED_LINE = '{"id":%d,"v":"a","event_time":"2020-01-01T%02d:00:00Z"}\n'


def test_a_polling_source_is_configured_and_shown_like_others(
    make_polled: Any, make_poller: Any, tmp_path: Path
) -> None:
    bench = make_polled(FetchStepFilesGlob(path=f"{tmp_path}/*.json"), read=READ)
    unused = cast("Any", SimpleNamespace())
    poller = make_poller(bench)
    schedule = PollSchedule(
        poller=poller, catalog=unused, blobs=bench.blobs, current=unused, is_ours=unused, pool=unused
    )
    control = SourceControl(
        queues=bench.queues,
        topics=unused,
        owned=unused,
        blobs=bench.blobs,
        request=unused,
        schedule=schedule,
    )
    entry = cast("CatalogEntry", SimpleNamespace(dataset_id=bench.dataset, push_topics={}, alias="a"))
    assert control.change(entry, "", {"watermarkDelay": "2h"}) == "default"
    for number, hour in enumerate((9, 3, 8)):
        (tmp_path / f"{number}.json").write_text(TIMED_LINE % (number, hour))
    poller.poll(bench.dataset, lambda _: None, lambda: True)
    assert bench.state.watermark == Timestamp.parse("2020-01-01T07:00:00Z")
    (shown,) = control.show(entry)
    assert (shown.name, shown.state, shown.settings.watermark_delay) == ("default", "idle", 7_200_000)
    assert (shown.late.count, shown.late.most) == (1, 4 * 3_600_000)
    assert control.change(entry, "", {"badRecords": "dead-letter"}) == "default"
    bench.propose(replace(bench.state.polling_source, merge=MergeStrategySnapshot(primary_key=("id",))))
    with pytest.raises(InvalidInput, match="badRecords: a snapshot without its bad rows would retract them"):
        control.change(entry, "", {"watermarkDelay": "0"})
    control.change(entry, "", {"badRecords": "auto"})
    with pytest.raises(NotFound):
        control.change(entry, "other", {"watermarkDelay": "0"})
    for setting, value in (("schemaRegistry", "http://registry"), ("topics", "shop"), ("keyColumns", "key")):
        with pytest.raises(InvalidInput, match=f"{setting}: a has no push source"):
            control.change(entry, "", {setting: value})
    for setting in ("partitions", "retention"):
        with pytest.raises(InvalidInput, match=f"{setting}: source default of a has no topic of its own"):
            control.change(entry, "", {setting: "7" if setting == "partitions" else "7d"})
    assert control.change(entry, "", {"schemaRegistry": ""}) == "default"


def test_a_polling_source_is_shown_with_its_last_error_and_next_poll(
    make_polled: Any, tmp_path: Path
) -> None:
    bench = make_polled(FetchStepFilesGlob(path=f"{tmp_path}/*.json"))
    last, following = (Timestamp.parse(f"2020-01-01T0{hour}:00:00Z") for hour in (1, 2))
    gone = StorageUnavailable(what="the folder", why="is not mounted")
    unused = cast("Any", SimpleNamespace())

    def shown(**known: Any) -> SourceView:
        view = PollView(dataset=bench.dataset, interval=60, **known)
        schedule = cast("Any", SimpleNamespace(view=lambda *_: view))
        control = SourceControl(
            queues=bench.queues,
            topics=unused,
            owned=unused,
            blobs=bench.blobs,
            request=unused,
            schedule=schedule,
        )
        (found,) = control.show(cast("CatalogEntry", SimpleNamespace(dataset_id=bench.dataset)))
        return found

    found = shown(state=PollState.FAILED, last=last, next=following, error=gone)
    assert (found.state, found.since, found.next_poll) == ("failed", str(last), str(following))
    assert (found.why, found.advice) == (str(gone), f"{gone.advice()}; work then continues automatically")
    found = shown(state=PollState.IDLE)
    assert (found.since, found.next_poll, found.why, found.advice) == ("", "", "", "")


FILE_STATE = {"v": 1, "file": "a.csv", "size": 3, "modified": 5, "digest": "d"}
BATCH = {"v": 1, "client": "c", "number": 2, "ids": [1, 2], "digest": "d"}


def file_of(text: str) -> object:
    return ReadFile.parse(text)


def batch_of(text: str) -> object:
    return MqttProgress.parse(state_of(MQTT, text))


def test_a_written_state_is_read_back() -> None:
    file = ReadFile(name="a.csv", size=3, modified=5, digest="d")
    assert file_of(json.dumps(FILE_STATE)) == ReadFile.parse(file.state().value) == file
    batch = MqttProgress(client="c", number=2, ids=(1, 2), digest="d")
    assert batch_of(json.dumps(BATCH)) == MqttProgress.parse(batch.state()) == batch
    without = {key: value for key, value in BATCH.items() if key != "ids"}
    assert batch_of(json.dumps(without)) == MqttProgress(client="c", number=2, digest="d")


@pytest.mark.parametrize("state", [None, state_of(ETAG, json.dumps(BATCH))])
def test_a_state_of_another_kind_is_ignored(state: SourceState | None) -> None:
    assert MqttProgress.parse(state) == MqttProgress()


@pytest.mark.parametrize(("parse", "sound"), [(file_of, FILE_STATE), (batch_of, BATCH)])
def test_a_state_that_cannot_be_read_is_refused(
    parse: Callable[[str], object], sound: dict[str, Any]
) -> None:
    with pytest.raises(InvalidInput, match="unknown version 2"):
        parse(json.dumps({**sound, "v": 2}))
    required = sound.keys() - {"ids"}
    odd = [{key: value for key, value in sound.items() if key != missing} for missing in required]
    for plain in ("{", "[]", "7", *map(json.dumps, odd)):
        with pytest.raises(InvalidInput, match="cannot be read"):
            parse(plain)


NOW = Timestamp.parse("2024-06-01T00:00:00Z")
MODIFIED = Timestamp.parse("2024-05-01T00:00:00.123456789Z")
PATH = "/data/2024/01/orders-20240105T0930.csv"


def test_from_metadata_and_the_clock() -> None:
    assert event_time(EventTimeSourceFromMetadata(), PATH, MODIFIED, NOW) == MODIFIED
    assert event_time(EventTimeSourceFromSystemTime(), PATH, MODIFIED, NOW) == NOW
    with pytest.raises(InvalidInput, match="has no time of last modification"):
        event_time(EventTimeSourceFromMetadata(), PATH, None, NOW)


@pytest.mark.parametrize(
    ("pattern", "text_format", "path", "expected"),
    [
        (r"-(\d+T\d+)", "yyyyMMdd'T'HHmm", PATH, "2024-01-05T09:30:00Z"),
        (r"-(\d+T\d+)", "%Y%m%dT%H%M", PATH, "2024-01-05T09:30:00Z"),
        (r"data/(\d+/\d+)/", "%Y/%m", PATH, "2024-01-01T00:00:00Z"),
        (r"(\d{4})/", "yyyy", PATH, "2024-01-01T00:00:00Z"),
        (r"(\d{4}-\d\d-\d\d)", None, "a/2024-01-05.csv", "2024-01-05T00:00:00Z"),
        (r"at-(.*)\.csv", None, "at-2024-01-05T09:30:00+02:00.csv", "2024-01-05T07:30:00Z"),
        (r"_(\w{3} \d+ \d+)", "MMM d yyyy", "x_Jan 5 2024", "2024-01-05T00:00:00Z"),
    ],
)
def test_from_path(pattern: str, text_format: str | None, path: str, expected: str) -> None:
    source = EventTimeSourceFromPath(pattern=pattern, timestamp_format=text_format)
    assert event_time(source, path, None, NOW) == Timestamp.parse(expected)


@pytest.mark.parametrize(
    ("pattern", "text_format", "message"),
    [
        (r"(\d{9})", None, "does not match the pattern"),
        (r"\d+", None, "has no group around the timestamp"),
        (r"(", None, "not a regular expression"),
        (r"(\d+T)", "yyyyMMdd", "'20240105T' in .* is not a time in the format 'yyyyMMdd'"),
        (r"(orders)", None, "is not a time in the format RFC 3339 or a date"),
        (r"(\d+)", "QQ", "the letter 'Q' is not supported"),
        ("(" + "x" * 1000 + ")", None, "longer than 1000 characters"),
    ],
)
def test_what_cannot_be_read_from_a_path_is_an_error_that_says_why(
    pattern: str, text_format: str | None, message: str
) -> None:
    with pytest.raises(InvalidInput, match=message) as caught:
        event_time(EventTimeSourceFromPath(pattern=pattern, timestamp_format=text_format), PATH, None, NOW)
    assert str(caught.value).startswith("fetch.eventTime")


def test_polled_messages_are_a_batch_of_one_partition() -> None:
    batch = as_batch("mqtt://host/topic", [b"a", b"bcd"], Timestamp.from_ms(7))
    (part,) = batch.parts
    assert (part.partition, part.offsets) == (0, range(2))
    assert part.timestamps is not None
    assert part.timestamps.tolist() == [7, 7]
    assert [part.values[at] for at in part.offsets] == [b"a", b"bcd"]
    assert (batch.topic, batch.topic_id, batch.partitions, batch.size) == ("mqtt://host/topic", "", 1, 4)
    assert (batch.start, batch.end, batch.beginning) == ({0: 0}, {0: 2}, {0: 0})
    assert batch.begun == 0.0


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (urllib3.exceptions.SSLError("certificate verify failed"), "TLS: certificate verify failed"),
        (urllib3.exceptions.SSLError(), "TLS: failed"),
        (urllib3.exceptions.ProtocolError("Connection broken"), "the connection was interrupted"),
        (urllib3.exceptions.DecodeError("https://user:secret@host"), "DecodeError"),
    ],
)
def test_a_reason_says_what_failed(error: Exception, text: str) -> None:
    assert _reason(error) == text
