import threading
import time
from pathlib import Path
from typing import Any

import pytest
from odf_testing.webserver import Page, PageServer

from odf_common.metadata.events import DisablePollingSource, SetInfo, SetPollingSource
from odf_common.metadata.fetching import FetchStepEthereumLogs, FetchStepFilesGlob, FetchStepUrl
from odf_common.metadata.steps import MergeStrategyLedger
from odf_ingest.poll import poller as poller_module
from odf_ingest.poll.poll_errors import FetchUnsupported, NotPolled, PollCancelled, SourceRedefined
from odf_ingest.poll.poller import PollSummary
from odf_ingest.poll.unpack import prepare_fetched

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
