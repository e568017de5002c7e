import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from odf_testing.builders import a_dataset
from odf_testing.guarded import GuardedSet
from odf_testing.webserver import Page, PageServer
from structlog.testing import capture_logs

from odf_common.errors import InvalidInput, OdfError, Unavailable
from odf_common.identity.dataset_refs import DatasetId
from odf_common.metadata.fetching import FetchStepUrl
from odf_common.metadata.scalars import Timestamp
from odf_common.ports.clock import Backoff
from odf_common.ports.store import CatalogEntry
from odf_ingest.api.bus_handlers import Notices
from odf_ingest.control.source_control import SourceControl
from odf_ingest.poll import schedule as module
from odf_ingest.poll.fetch import fetch_step
from odf_ingest.poll.poller import Attempt
from odf_ingest.poll.schedule import PollSchedule, PollState, _pause, seconds_of
from odf_ingest.source_settings import Milliseconds, SourceSettings

LINE = b'{"id":1,"v":"a"}\n'


@dataclass
class Catalog:
    entry: CatalogEntry

    def entries(self) -> Iterator[CatalogEntry]:
        yield self.entry


Start = Callable[..., PollSchedule]


@pytest.fixture
def start(make_poller: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Return a function that runs a schedule over a bench's dataset until the test ends."""
    monkeypatch.setattr(module, "TICK_SECONDS", 0.01)
    monkeypatch.setattr(fetch_step, "FETCH_BACKOFF", Backoff(first=0, most=0))
    stop = threading.Event()
    threads = []
    pool = ThreadPoolExecutor(2)

    def run(
        bench: Any, interval: str, *, is_ours: Callable[[DatasetId], bool] = lambda _: True
    ) -> PollSchedule:
        bench.set(poll_interval=Milliseconds.parse(interval))
        schedule = PollSchedule(
            poller=make_poller(bench),
            catalog=Catalog(CatalogEntry(alias="a", dataset_id=bench.dataset)),  # type: ignore[arg-type]
            blobs=bench.blobs,
            current=bench.queues.current,
            is_ours=is_ours,
            pool=pool,
        )
        thread = threading.Thread(target=schedule.run, args=(stop,), daemon=True)
        thread.start()
        threads.append(thread)
        return schedule

    yield run
    stop.set()
    for one in threads:
        one.join()
    pool.shutdown()


def eventually(is_so: Callable[[], bool]) -> None:
    until = time.monotonic() + 10
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.fixture
def bench(make_polled: Any, web: PageServer) -> Any:
    """Return a dataset that polls the page `/a`."""
    return make_polled(FetchStepUrl(url=f"{web.url}/a"))


def test_a_dataset_with_an_interval_is_polled_repeatedly(bench: Any, web: PageServer, start: Start) -> None:
    web.pages["/a"] = Page(body=LINE, etag='"1"')
    schedule = start(bench, "1s")
    eventually(lambda: len(web.requests) == 3)
    (view,) = schedule.views()
    assert view.interval == 1
    assert view.last is not None
    assert view.next is not None
    assert (view.next.ms - view.last.ms, view.error) == (1000, None)
    assert bench.values("id") == [(1,)]


def test_only_own_datasets_with_an_interval_are_polled(bench: Any, web: PageServer, start: Start) -> None:
    elsewhere, off = start(bench, "1s", is_ours=lambda _: False), start(bench, "none")
    time.sleep(0.2)
    assert [*elsewhere.views(), *off.views()] == []
    assert web.requests == []


def test_a_changed_interval_takes_effect_at_once(bench: Any, web: PageServer, start: Start) -> None:
    web.pages["/a"] = Page(body=LINE)
    schedule = start(bench, "none")
    time.sleep(0.1)
    parts: Any = dict.fromkeys(("topics", "owned", "request"))  # which only push sources need
    control = SourceControl(queues=bench.queues, blobs=bench.blobs, schedule=schedule, **parts)
    control.change(CatalogEntry(alias="a", dataset_id=bench.dataset), "", {"pollInterval": "1d"})
    eventually(lambda: len(bench.rows()) == 1)


def test_datasets_of_newly_assigned_partitions_are_polled_at_once(
    bench: Any, web: PageServer, start: Start
) -> None:
    web.pages["/a"] = Page(body=LINE)
    owned: set[int] = set()
    schedule = start(bench, "1d", is_ours=lambda _: bool(owned))
    time.sleep(0.1)
    reader = SimpleNamespace(request=lambda action: action())
    sources = SimpleNamespace(own=owned.update)
    notices = Notices(reader, sources, bench.queues, schedule.rescan)  # type: ignore[arg-type]
    notices.on_assigned(frozenset({7}))
    eventually(lambda: len(bench.rows()) == 1)


def test_a_failed_poll_is_shown_and_retried_soon_until_it_succeeds(
    bench: Any, web: PageServer, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FAILED_POLL_BACKOFF", Backoff(first=0.3, most=0.3))
    web.pages["/a"] = Page(body=LINE, fails=[503] * 6)
    schedule = start(bench, "1d")
    eventually(lambda: any(one.state is PollState.FAILED for one in schedule.views()))
    (view,) = schedule.views()
    assert "status 503" in str(view.error)
    assert view.since is not None
    assert [one.dataset for one in schedule.failing()] == [bench.dataset]
    eventually(lambda: len(bench.rows()) == 1)
    eventually(lambda: all(one.state is PollState.IDLE for one in schedule.views()))
    assert schedule.view(bench.dataset).error is None
    assert list(schedule.failing()) == []


def test_a_permanent_error_waits_for_the_interval(
    make_polled: Any, web: PageServer, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FAILED_POLL_BACKOFF", Backoff(first=0, most=0))
    bench = make_polled(FetchStepUrl(url=f"{web.url}/absent"))
    schedule = start(bench, "1d")
    eventually(lambda: schedule.view(bench.dataset).error is not None)
    time.sleep(0.2)
    assert len(web.requests) == 1


def attempt(error: OdfError | None = None, failures: int = 0) -> Attempt:
    return Attempt(ended=Timestamp.from_ms(0), ended_monotonic=0.0, error=error, failures=failures)


def test_only_a_transient_failure_is_polled_again_sooner_and_never_later() -> None:
    lost, wrong = Unavailable(what="the server"), InvalidInput(text="no")
    hour = 3600
    assert _pause(attempt(), hour) == hour
    assert _pause(attempt(wrong, 3), hour) == hour
    assert [_pause(attempt(lost, failures), hour) for failures in (1, 2, 20)] == [10.0, 20.0, hour]
    assert _pause(attempt(lost, 9), 5) == 5


def test_a_poll_that_has_started_is_not_started_again(make_polled: Any, make_poller: Any) -> None:
    bench = make_polled(FetchStepUrl(url="http://127.0.0.1:1/a"))
    submitted: list[Callable[[], None]] = []
    schedule = PollSchedule(
        poller=make_poller(bench),
        catalog=Catalog(CatalogEntry(alias="a", dataset_id=bench.dataset)),  # type: ignore[arg-type]
        blobs=bench.blobs,
        current=bench.queues.current,
        is_ours=lambda _: True,
        pool=SimpleNamespace(submit=submitted.append),  # type: ignore[arg-type]
    )
    schedule._started = GuardedSet(schedule._lock)
    assert schedule._is_due(bench.dataset, 1)
    schedule._start(bench.dataset, threading.Event())
    assert not schedule._is_due(bench.dataset, 1)
    schedule.poller = SimpleNamespace(  # type: ignore[assignment]
        poll=lambda *_: None, last_attempt=lambda _: attempt()
    )
    submitted.pop()()
    assert schedule._is_due(bench.dataset, 1)


def test_unreadable_settings_affect_only_their_dataset(make_polled: Any, make_poller: Any) -> None:
    bench = make_polled(FetchStepUrl(url="http://127.0.0.1:1/a"))
    other = a_dataset("other")
    bench.set(poll_interval=Milliseconds.parse("1d"))
    bench.blobs.set_note(other, "sources", "{")
    entries = [CatalogEntry(alias=str(one), dataset_id=one) for one in (other, bench.dataset)]
    owned = {bench.dataset}
    schedule = PollSchedule(
        poller=make_poller(bench),
        catalog=SimpleNamespace(entries=lambda: entries),
        blobs=bench.blobs,
        current=bench.queues.current,
        is_ours=owned.__contains__,
        pool=ThreadPoolExecutor(1),
    )
    with capture_logs():
        assert list(schedule._scan()) == [(bench.dataset, 86_400)]
        owned.clear()
        assert list(schedule._scan()) == []


@pytest.mark.parametrize(
    ("text", "seconds"), [("none", 0), ("30s", 30), ("15m", 900), ("1d12h", 129_600), ("366d", 31_622_400)]
)
def test_intervals(text: str, seconds: int) -> None:
    settings = SourceSettings.from_plain({"pollInterval": text})
    assert seconds_of(settings.poll_interval) == seconds
    assert str(settings.plain()["pollInterval"]) == text


@pytest.mark.parametrize("text", ["", "0", "0s", "999ms", "15", "1.5h", "-1s", "367d", "1 h", "off"])
def test_an_invalid_interval_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="pollInterval: expected"):
        SourceSettings.from_plain({"pollInterval": text})
