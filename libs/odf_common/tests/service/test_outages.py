import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from odf_testing.clocks import ManualClock
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from odf_common.adapters.grpc.server import serve
from odf_common.adapters.local.outage_files import STALE_SECONDS, Outage, OutageFile, read_outages
from odf_common.adapters.s3.location import S3Location
from odf_common.errors import OdfError, Unavailable
from odf_common.metadata.scalars import Timestamp
from odf_common.service.outages import OutageWatch, SilentParts
from odf_common.service.part_checks import Check, checks_of
from odf_common.service.protection import peer_credentials
from odf_common.service.settings import Settings

BEGIN = Timestamp.parse("2030-06-01T10:00:00.500Z")
ANSWER_SECONDS = 4.8  # clients that wait for the part get their answers within five


class Switch:
    """A part of the node that answers, or not."""

    def __init__(self) -> None:
        self.is_on = True

    def __call__(self) -> None:
        if not self.is_on:
            raise Unavailable(what="the part", why="its cable is cut")


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as threads:
        yield threads


def watch(home: Path, clock: ManualClock, **checks: Check) -> OutageWatch:
    return OutageWatch("ingest", OutageFile(home, "ingest-1"), checks, clock)


def test_an_outage_is_recorded_after_two_missing_answers_with_since_when(
    tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    kafka, clock = Switch(), ManualClock(BEGIN.ms)
    watched = watch(tmp_path, clock, kafka=kafka, redis=lambda: None)
    kafka.is_on = False
    watched.check(pool)
    assert read_outages(tmp_path) == ()
    clock.ms += 2_000
    with capture_logs() as logs:
        watched.check(pool)
        assert REGISTRY.get_sample_value("odf_unreachable_seconds", {"part": "kafka"}) == 2
        clock.ms += 3_000
        watched.check(pool)
        expected = Outage(
            part="kafka",
            seen_by="ingest",
            since="2030-06-01T10:00:00Z",
            why="its cable is cut",
        )
        assert read_outages(tmp_path) == (expected,)
        assert REGISTRY.get_sample_value("odf_unreachable_seconds", {"part": "kafka"}) == 5
        assert REGISTRY.get_sample_value("odf_unreachable_seconds", {"part": "redis"}) == 0
        kafka.is_on = True
        watched.check(pool)
    assert read_outages(tmp_path) == ()
    assert REGISTRY.get_sample_value("odf_unreachable_seconds", {"part": "kafka"}) == 0
    assert [line["event"] for line in logs] == ["part does not answer", "part answers again"]


def test_a_part_that_a_needed_service_cannot_reach_is_silent_too(
    tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    clock, silent, cable = ManualClock(BEGIN.ms), SilentParts(), Switch()
    checks = {"kafka": lambda: None, "coordinator": lambda: None}
    ingest = OutageWatch("ingest", OutageFile(tmp_path, "ingest"), checks, clock, silent=silent)
    services = ("coordinator", "verifier")
    others = [OutageWatch(one, OutageFile(tmp_path, one), {"kafka": cable}, clock) for one in services]
    cable.is_on = False
    for _ in range(2):
        others[1].check(pool)
    ingest.check(pool)
    assert silent.find(["kafka"]) is None  # it does not use the verifier
    for _ in range(2):
        others[0].check(pool)
    ingest.check(pool)
    assert str(silent.find(["kafka", "coordinator"])) == "kafka does not answer"
    assert [one.seen_by for one in read_outages(tmp_path)] == ["coordinator", "verifier"]
    cable.is_on = True
    others[0].check(pool)
    ingest.check(pool)
    assert silent.find(["kafka"]) is None


def test_a_part_that_freezes_after_an_answer_is_silent_within_five_seconds(tmp_path: Path) -> None:
    silent, stop, thaw = SilentParts(), threading.Event(), threading.Event()
    answered: list[float] = []

    def freezing() -> None:
        if answered:
            thaw.wait()
        answered.append(time.monotonic())

    watched = OutageWatch(
        "ingest", OutageFile(tmp_path, "ingest"), {"kafka": freezing}, ManualClock(BEGIN.ms), silent=silent
    )
    with ThreadPoolExecutor(1) as running:
        running.submit(watched.run, stop)
        while silent.find(["kafka"]) is None:
            time.sleep(0.01)
        seconds = time.monotonic() - answered[0]
        thaw.set()
        stop.set()
    assert seconds < ANSWER_SECONDS


def test_a_part_that_takes_too_long_is_not_asked_again_before_it_has_answered(
    tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    asked: list[float] = []

    def slow() -> None:
        asked.append(time.monotonic())
        time.sleep(0.4)

    file = OutageFile(tmp_path, "ingest")
    watched = OutageWatch("ingest", file, {"engine": slow}, ManualClock(BEGIN.ms), answer_seconds=0.05)
    watched.check(pool)
    watched.check(pool)
    assert [one.why for one in read_outages(tmp_path)] == ["no answer within 0.05 s"]
    assert len(asked) == 1
    time.sleep(0.5)
    watched.check(pool)
    assert (len(asked), read_outages(tmp_path)) == (1, ())


def test_the_file_of_a_service_that_has_ended_counts_for_nothing(tmp_path: Path) -> None:
    seen = Outage(part="kafka", seen_by="sync", since="2030-01-01T00:00:00Z", why="gone")
    OutageFile(tmp_path, "sync").write([seen])
    assert read_outages(tmp_path) == (seen,)
    old = time.time() - STALE_SECONDS - 1
    os.utime(tmp_path / "outages" / "sync.json", (old, old))
    assert read_outages(tmp_path) == ()


@pytest.mark.parametrize("content", [b"", b"{", b"3", b'[{"part": "kafka"}]', b"[3]", b"\xff"])
def test_a_file_that_is_not_one_of_outages_hides_no_other(tmp_path: Path, content: bytes) -> None:
    seen = Outage(part="kafka", seen_by="sync", since="2030-01-01T00:00:00Z", why="gone")
    OutageFile(tmp_path, "sync").write([seen])
    (tmp_path / "outages" / "odd.json").write_bytes(content)
    assert read_outages(tmp_path) == (seen,)


def wait_for(check: Check) -> None:
    """Repeat a check until it succeeds: a channel pauses between two attempts to connect."""
    until = time.monotonic() + 20
    while True:
        try:
            return check()
        except OdfError:
            assert time.monotonic() < until
            time.sleep(0.1)


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[tuple[ThreadingHTTPServer, Check]]:
    """A server that refuses every request, as one of a bucket does without credentials, and its check."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    location = S3Location.parse(f"s3+http://127.0.0.1:{server.server_port}/bucket")
    with server:
        yield server, checks_of(Settings(home=tmp_path, store=location), ())["store"]


def test_a_server_of_a_bucket_answers_if_it_refuses(bucket: tuple[ThreadingHTTPServer, Check]) -> None:
    server, check = bucket
    with ThreadPoolExecutor(1) as pool:
        serving = pool.submit(server.serve_forever, 0.01)
        for _ in range(2):
            check()
        server.shutdown()
        serving.result()


def test_a_server_of_a_bucket_that_is_frozen_does_not_answer(
    bucket: tuple[ThreadingHTTPServer, Check],
) -> None:
    _, check = bucket  # the kernel accepts connections, and nobody reads them
    begun = time.monotonic()
    with pytest.raises(Unavailable, match="the bucket"):
        check()
    assert time.monotonic() - begun < ANSWER_SECONDS


def test_a_service_is_reached_again_when_another_process_serves_at_its_address(tmp_path: Path) -> None:
    server = serve("127.0.0.1:0", lambda _: (), is_ready=False)
    address = f"127.0.0.1:{server.port}"
    settings = Settings(home=tmp_path, verifier_grpc=address)
    checks = checks_of(settings, ("verifier", "sync"))
    assert checks.keys() == {"verifier"}  # sync has no address
    server.stop(0)
    with pytest.raises(OdfError):
        checks["verifier"]()
    credentials = peer_credentials(settings, address)
    server = serve(address, lambda _: (), credentials=credentials, is_ready=False)
    wait_for(checks["verifier"])
    server.stop(0)
    with pytest.raises(OdfError):
        checks["verifier"]()
